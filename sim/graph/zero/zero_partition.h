// The flat group of ZeRO-1 and 2: every trained parameter one after the other, cut into a partition
// for each rank without regard to where parameters begin.
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
  std::vector<std::int64_t> offset;  // of each parameter in the flat group; -1: not trained

  bool holds(std::int32_t parameter, std::int64_t parameter_numel, std::int64_t rank) const {
    const std::int64_t begin = offset[static_cast<std::size_t>(parameter)];
    return begin >= 0 && begin < (rank + 1) * partition_numel &&
           begin + parameter_numel > rank * partition_numel;
  }
  std::int64_t padding(std::int64_t rank) const;
};

// `round_robin`: _round_robin_reorder, parameters dealt out to ranks like cards.
ZeroPartition lay_out(std::span<const GradientHooks::Parameter> parameters, std::int64_t ranks,
                      bool round_robin);

// A run of a bucket's elements that one rank owns.
struct ZeroSlice {
  std::int64_t rank = 0;
  std::int64_t numel = 0;
};

// Calls `take(slice)` for the slices of `bucket` in its order; neighbours of one owner are one, but
// those of `apart`, which are copied parameter by parameter (-1: nobody's).
template <typename Take>
void for_each_slice(const ZeroPartition& partition,
                    std::span<const GradientHooks::Parameter> parameters,
                    std::span<const std::int32_t> bucket, std::int64_t apart, Take take) {
  ZeroSlice slice{-1, 0};
  for (const std::int32_t p : bucket) {
    std::int64_t begin = partition.offset[static_cast<std::size_t>(p)];
    const std::int64_t end = begin + parameters[static_cast<std::size_t>(p)].numel;
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

}  // namespace foreshard
