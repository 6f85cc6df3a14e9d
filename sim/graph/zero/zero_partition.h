// A flat group of ZeRO-1 and 2: the trained parameters of a group one after the other, cut into a
// partition for each rank without regard to where parameters begin.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/graph/ddp/gradient_hooks.h"

namespace foreshard {

struct ZeroPartition {
  std::int64_t ranks = 1;
  std::int64_t numel = 0;            // of the parameters
  std::int64_t flat_numel = 0;       // padded to a multiple of 2 x ranks
  std::int64_t partition_numel = 0;  // of one rank
  std::vector<std::int64_t> offset;  // of each parameter in the flat group; -1: not in it

  bool has(std::int32_t parameter) const { return offset[at(parameter)] >= 0; }
  std::int64_t padding(std::int64_t rank) const;
};

// Of the parameters of `order`. `round_robin`: _round_robin_reorder, parameters dealt out to ranks like cards.
ZeroPartition lay_out(std::span<const GradientHooks::Parameter> parameters, std::vector<std::int32_t> order,
    std::int64_t ranks, bool round_robin);

// A run of a bucket's elements that one rank owns.
struct ZeroSlice {
  std::int64_t rank = 0;
  std::int64_t numel = 0;
};

// Calls `take(slice)` for the slices of `bucket` in its order; neighbours of one owner are one, whatever their groups,
// but those of `apart`, which are copied parameter by parameter (-1: nobody's).
void for_each_slice(std::span<const ZeroPartition> groups, std::span<const GradientHooks::Parameter> parameters,
    std::span<const std::int32_t> bucket, std::int64_t apart, auto take) {
  ZeroSlice slice{-1, 0};
  for (const std::int32_t p : bucket) {
    const ZeroPartition& partition = *std::ranges::find_if(groups, [&](const auto& group) { return group.has(p); });
    std::int64_t begin = partition.offset[at(p)];
    const std::int64_t end = begin + parameters[at(p)].numel;
    while (begin < end) {
      const std::int64_t rank = begin / partition.partition_numel;
      const std::int64_t border = std::min(end, (rank + 1) * partition.partition_numel);
      if (slice.rank != rank || rank == apart) {
        if (slice.numel > 0) take(slice);
        slice = {rank, 0};
      }
      slice.numel += border - begin;
      begin = border;
    }
  }
  if (slice.numel > 0) take(slice);
}

}
