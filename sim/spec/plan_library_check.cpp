// What FSDP1, DDP and DeepSpeed have no knob for, or refuse themselves, runtime by runtime.
#include <fmt/format.h>

#include "sim/spec/plan_runtime_check.h"

namespace foreshard {
namespace {

using Problem = std::optional<PlanProblem>;

std::string name_of(const Plan& plan) {
  return fmt::format("{}@{}", to_string(plan.runtime.kind), plan.runtime.version);
}

// Switches of fully_shard and of the engine that none of them has.
Problem problem_of_shared_keys(const Plan& plan) {
  const Knob knobs[] = {
      {plan.units.shard_dim > 0, "units.shard_dim", "shards flat buffers", "units.shard_dim: 0"},
      {plan.prefetch.backward_lists, "prefetch.backward_lists", "has no lists of modules",
       "prefetch.backward_lists: false"},
      {plan.prefetch.async_unshard, "prefetch.async_unshard", "has no such switch",
       "prefetch.async_unshard: false"},
      {plan.reduction_order != ReductionOrder::kLibrary, "reduction_order",
       "sums as its communication library does; micro-batch order is the engine's",
       "reduction_order: library"},
      {plan.evaluation.in_step, "evaluation.in_step", "is modelled with evaluations between steps",
       "evaluation.in_step: false"},
  };
  return first_missing(knobs, name_of(plan));
}

}  // namespace

std::optional<PlanProblem> problem_of_library(const Plan& plan) {
  if (Problem problem = problem_of_shared_keys(plan)) return problem;
  if (plan.runtime.kind == RuntimeKind::kDdp) return problem_of_ddp(plan);
  const int stage = zero_stage(plan.runtime.kind);
  if (stage == 1 || stage == 2) return problem_of_zero12(plan);
  return std::nullopt;
}

}  // namespace foreshard
