#include "planner/search_space.h"

#include "sim/base/lookup.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {

bool is_fixed(const Job& job, std::string_view key) {
  const auto given = job.document.given.find(key);
  return given != job.document.given.end() && given->second.layer == PlanLayer::kSet;
}

std::vector<std::string> fixed_keys(const Job& job) {
  std::vector<std::string> keys;
  for (const auto& [key, given] : job.document.given)
    if (given.layer == PlanLayer::kSet) keys.push_back(key);
  return keys;
}

std::int64_t read_global_batch(const std::string& text) {
  // Read as the plan's key is, for the same words.
  return *apply_flag({}, "--global-batch", "batch.global", text).global_batch;
}

SearchSpace space_of(const Job& job) {
  SearchSpace space = {.base = job.resolved.plan};
  const Plan& base = space.base;
  space.global_batch = global_batch(base);
  if (is_fixed(job, "mesh.shard") || is_fixed(job, "mesh.replicate")) space.shard_groups = {base.mesh.shard};
  if (is_fixed(job, "reshard_after_forward")) space.reshards = {base.reshard_after_forward.value};
  else space.base.reshard_after_forward.ranges.clear();
  if (is_fixed(job, "recompute")) space.recomputes = {base.recompute};
  if (is_fixed(job, "batch.micro_batch")) {
    space.micro_batches = {base.batch.micro_batch};
  } else if (is_fixed(job, "batch.accumulation")) {
    const std::int64_t sequences = base.mesh.data_parallel() * base.batch.accumulation;
    if (space.global_batch % sequences == 0) space.micro_batches = {space.global_batch / sequences};
  }
  const bool is_forward_fixed = is_fixed(job, "prefetch.forward");
  const bool is_backward_fixed = is_fixed(job, "prefetch.backward");
  if (is_forward_fixed || is_backward_fixed) {
    using Depths = std::vector<std::int64_t>;
    for (const std::int64_t forward :
        is_forward_fixed ? Depths{base.prefetch.forward} : Depths{Prefetch::kImplicit, 1, 2}) {
      for (const std::int64_t backward : is_backward_fixed ? Depths{base.prefetch.backward} : Depths{1, 2}) {
        space.prefetches.push_back(base.prefetch);
        space.prefetches.back().forward = forward;
        space.prefetches.back().backward = backward;
      }
    }
  }
  return space;
}

Job without_choices(Job job) {
  static constexpr std::string_view kChosen[] = {"mesh.shard", "mesh.replicate", "reshard_after_forward",
      "prefetch.forward", "prefetch.backward", "recompute", "batch.micro_batch", "batch.accumulation"};
  std::erase_if(job.resolved.assumed, [](const AssumedValue& value) { return contains(kChosen, value.key); });
  return job;
}

}
