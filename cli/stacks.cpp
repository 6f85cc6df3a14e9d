#include "cli/stacks.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/spec/plan_stack.h"

namespace foreshard {

std::string stack_sentence(const JobOptions& options, const Job& job, double seconds) {
  const std::string& own = job.document.stack;
  std::string text = own.empty() ? "none" : own;
  const RuntimeKind runtime = job.resolved.plan.runtime.kind;
  std::string effects;
  for (const TrainingStack& stack : training_stacks()) {
    const bool trains =
        std::find(stack.runtimes.begin(), stack.runtimes.end(), runtime) != stack.runtimes.end();
    if (!trains || stack.name == own || runtime == RuntimeKind::kNative) continue;
    try {
      JobOptions other = options;
      other.assignments.insert(other.assignments.begin(), {"stack=" + stack.name});
      const Job with = load_job(other);
      const Forecast step = forecast(with.model, with.resolved.plan, cost_model(with));
      effects += fmt::format("{}{} {:+.1f} %", effects.empty() ? "" : ", ", stack.name,
                             100 * (measure_step(step.graph, step.timeline).seconds / seconds - 1));
    } catch (const Error&) {
      continue;  // the job's own keys do not go with this stack
    }
  }
  return effects.empty() ? text : fmt::format("{}; with {}", text, effects);
}

}  // namespace foreshard
