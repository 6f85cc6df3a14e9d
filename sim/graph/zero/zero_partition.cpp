#include "sim/graph/zero/zero_partition.h"

namespace foreshard {

std::int64_t ZeroPartition::padding(std::int64_t rank) const {
  const std::int64_t end = (rank + 1) * partition_numel;
  return std::clamp<std::int64_t>(end - numel, 0, partition_numel);
}

ZeroPartition lay_out(std::span<const GradientHooks::Parameter> parameters, std::vector<std::int32_t> order,
    std::int64_t ranks, bool round_robin) {
  if (round_robin) {
    std::vector<std::int32_t> dealt;
    const auto step = at(ranks);
    for (std::size_t first = 0; first < std::min(step, order.size()); ++first)
      for (std::size_t i = first; i < order.size(); i += step) dealt.push_back(order[i]);
    order = std::move(dealt);
  }
  ZeroPartition result = {.ranks = ranks};
  result.offset.assign(parameters.size(), -1);
  for (const std::int32_t p : order) {
    result.offset[at(p)] = result.numel;
    result.numel = checked_add(result.numel, parameters[at(p)].numel);
  }
  // nccl_start_alignment_factor: partitions begin at multiples of 4 bytes.
  const std::int64_t alignment = 2 * ranks;
  result.flat_numel = (result.numel + alignment - 1) / alignment * alignment;
  result.partition_numel = result.flat_numel / ranks;
  return result;
}

}
