#include "cli/stacks.h"

#include <fmt/format.h>

#include "sim/graph/training_step.h"
#include "sim/simulate/cost_choices.h"
#include "sim/simulate/simulate.h"
#include "sim/spec/plan_stack.h"

namespace foreshard {
namespace {

// Without what the allocator asks of the driver, which takes longer to tell than the rest.
double step_seconds(const Job& job, const Calibration& calibration) {
  const EventGraph graph = build_training_step(job.model, job.resolved.plan);
  const CostModel costs(job.cluster, calibration, cost_choices(job.resolved.plan));
  Simulator simulator;
  return simulator.period(graph, costs.price(graph)).seconds();
}

}  // namespace

std::string stack_sentence(const JobOptions& options, const Job& job,
                           const Calibration& calibration) {
  const std::string& own = job.document.stack;
  std::string text = own.empty() ? "none" : own;
  const RuntimeKind runtime = job.resolved.plan.runtime.kind;
  std::string effects;
  const double seconds = step_seconds(job, calibration);
  for (const TrainingStack* stack : stacks_of(runtime)) {
    if (stack->name == own || runtime == RuntimeKind::kNative) continue;
    try {
      JobOptions other = options;
      other.assignments.insert(other.assignments.begin(), {"stack=" + stack->name});
      const double others = step_seconds(load_job_beside(job, other), calibration);
      effects += fmt::format("{}{} {:+.1f} %", effects.empty() ? "" : ", ", stack->name,
                             100 * (others / seconds - 1));
    } catch (const Error&) {
      continue;  // the job's own keys do not go with this stack
    }
  }
  return effects.empty() ? text : fmt::format("{}; with {}", text, effects);
}

}  // namespace foreshard
