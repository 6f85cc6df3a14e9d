#include <fmt/format.h>

#include "cli/verbs/verbs.h"
#include "sim/graph/training_step.h"
#include "sim/simulate/cost_choices.h"
#include "sim/simulate/folded.h"
#include "sim/spec/preset.h"

namespace foreshard {
namespace {

// Without what the allocator asks of the driver, which takes longer to tell than the rest.
double step_seconds(const Job& job, const Calibration& calibration) {
  Plan plan = job.resolved.plan;
  const Plan whole = plan;
  const CostModel costs(job.cluster, calibration, cost_choices(plan));
  EventGraph graph;
  const auto step = [&](std::int64_t micro_batches) -> const EventGraph& {
    plan.batch.accumulation = micro_batches;
    return graph = build_training_step(job.model, plan);
  };
  Simulator simulator;
  return period_of(simulator, costs, whole, step).seconds();
}

}

std::string stack_sentence(const JobOptions& options, const Job& job, const CostModel& costs, const OpenStack& open) {
  const std::vector<StackAlternative>& codes = job.open.codes;
  const bool is_assumed = !codes.empty();
  const std::string& own = is_assumed ? codes.front().name : job.document.stack;
  std::string effects;
  const auto add = [&](const std::string& name, double seconds, double base) {
    effects += fmt::format("{}{} {:+.1f} %", effects.empty() ? "" : ", ", name, 100 * (seconds / base - 1));
  };
  for (std::size_t i = 1; i < open.outcomes.size(); ++i)
    add(open.outcomes[i].name, open.outcomes[i].seconds, open.outcomes[0].seconds);
  const RuntimeKind runtime = job.resolved.plan.runtime.kind;
  if (!is_assumed && runtime != RuntimeKind::kNative) {
    const double seconds = step_seconds(job, costs.calibration());
    for (const Preset* stack : presets_of(PresetKind::kStack, runtime)) {
      if (stack->name == own) continue;
      try {
        JobOptions other = options;
        other.assignments.insert(other.assignments.begin(), {"stack=" + stack->name});
        add(stack->name, step_seconds(load_job_beside(job, other), costs.calibration()), seconds);
      } catch (const Error&) {
        continue;  // the job's own keys do not go with this stack
      }
    }
  }
  return fmt::format("{}{}{}{}", own.empty() ? "none" : own, is_assumed ? " (not told; what most people run)" : "",
      effects.empty() ? "" : "; with ", effects);
}

}
