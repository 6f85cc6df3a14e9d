// The words of a plan's enumerations; the rules that check() applies are in plan_check.cpp.
#include "sim/spec/plan.h"

#include "sim/base/lookup.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {

std::int64_t size_of(DType dtype) { return dtype == DType::kFp32 ? 4 : 2; }

bool PipelineParallel::splits_backward() const {
  if (schedule != PipelineSchedule::kCustom) return schedule >= PipelineSchedule::kInterleavedZeroBubble;
  return std::ranges::any_of(orders,
                             [](const std::string& order) { return order.find_first_of("IW") != std::string::npos; });
}

Plan shortened(Plan plan, std::int64_t most) {
  std::int64_t& all = plan.batch.accumulation;
  if (all <= most) return plan;
  if (plan.mesh.pp > 1 && plan.pipeline.microbatches == 0)
    plan.pipeline.stands_for = std::max(plan.pipeline.stands_for, all);
  plan.batch.whole = plan.batch.prefetched ? std::max(plan.batch.whole, all) : 0;
  all = most;
  return plan;
}

std::vector<std::int64_t> blocks_of_stages(std::int64_t blocks, const Plan& plan) {
  const PipelineParallel& pipeline = plan.pipeline;
  const std::int64_t stages = checked_multiply(plan.mesh.pp, pipeline.stages_per_rank);
  const std::int64_t all = blocks + pipeline.first_less + pipeline.last_less;
  std::vector<std::int64_t> list;
  for (std::int64_t s = 0; s < stages; ++s) list.push_back(all / stages + (s < all % stages));
  list.front() -= pipeline.first_less;
  list.back() -= pipeline.last_less;
  return list;
}

std::int64_t slices_of(ReductionOrder order) {
  using enum ReductionOrder;
  return value_of<ReductionOrder, std::int64_t>(order, {{kMicrobatch2, 2}, {kMicrobatch4, 4}, {kMicrobatch8, 8}}, 1);
}

void check(const Plan& plan, const ModelSpec& model, const Cluster& cluster) {
  if (const auto problem = find_problem(plan, model, cluster)) throw_problem(*problem, {});
}

}
