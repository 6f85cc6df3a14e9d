#include <algorithm>
#include <numeric>

#include "sim/graph/fsdp1/fsdp1_builder.h"

namespace foreshard {
namespace {

constexpr std::int64_t kAlignmentBytes = 16;  // _get_aligned_numel

std::int64_t rounded_up(std::int64_t numel, std::int64_t step) { return checked_add(numel, step - 1) / step * step; }

// Elements of trained parameters in [begin, end) of the flat parameter.
std::vector<std::int64_t> trained_between(
    const std::vector<UnitParameter>& parameters, const Plan& plan, std::int64_t begin, std::int64_t end) {
  const std::int64_t align = kAlignmentBytes / size_of(plan.param_dtype);
  std::int64_t at = 0;
  std::vector<std::int64_t> pieces;
  for (const UnitParameter& p : parameters) {
    if (plan.fsdp1.use_orig_params) at = rounded_up(at, align);
    const std::int64_t first = std::max(at, begin);
    at += p.numel;
    if (p.trainable && std::min(at, end) > first) pieces.push_back(std::min(at, end) - first);
  }
  return pieces;
}

}

std::int64_t flat_group(const Plan& plan) {
  if (plan.mesh.shard > 1 || plan.fsdp1.hybrid_shard) return plan.mesh.shard;
  return plan.mesh.replicate;
}

FlatSize flat_size(const std::vector<UnitParameter>& parameters, const Plan& plan) {
  const std::int64_t ranks = flat_group(plan);
  const std::int64_t align = kAlignmentBytes / size_of(plan.param_dtype);
  const auto is_trained = [](const UnitParameter& p) { return p.trainable; };
  const bool all_trained = std::ranges::all_of(parameters, is_trained);
  FlatSize size;
  for (const UnitParameter& p : parameters) {
    size.numel = checked_add(size.numel, p.numel);
    if (plan.fsdp1.use_orig_params) size.flat = rounded_up(size.flat, align);
    size.flat = checked_add(size.flat, p.numel);
  }
  if (plan.fsdp1.use_orig_params) size.flat = rounded_up(size.flat, ranks);
  const auto step = [&](std::int64_t begin) {
    if (all_trained && !plan.fsdp1.use_orig_params) size.stepped = {size.shard};
    else size.stepped = trained_between(parameters, plan, begin, begin + size.shard);
    size.trained_shard =
        all_trained ? size.shard : std::accumulate(size.stepped.begin(), size.stepped.end(), std::int64_t{0});
  };
  if (plan.mesh.shard == 1) {
    size.shard = size.padded = size.flat;
    step(0);
    return size;
  }
  size.shard = (size.flat + ranks - 1) / ranks;
  size.padded = checked_multiply(size.shard, ranks);
  const std::int64_t begin = checked_multiply(plan.rank() % ranks, size.shard);
  size.shard_pad = size.shard - std::clamp<std::int64_t>(size.flat - begin, 0, size.shard);
  step(begin);
  return size;
}

}
