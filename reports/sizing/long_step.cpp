// Interval ends grow as the values do: the draws behind them are of the same machines.
#include "reports/sizing/long_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sim/base/hash.h"
#include "sim/base/unit_strings.h"
#include "sim/graph/training_step.h"
#include "sim/simulate/folded.h"

namespace foreshard {
namespace {

bool asks_driver(const Report& report) { return report.steady_calls.allocs > 0 || report.steady_calls.frees > 0; }

double whole_period(const ModelSpec& model, Plan plan, const CostModel& costs) {
  const std::int64_t all = plan.batch.accumulation;
  const LayerPrograms programs(model, plan);
  EventGraph graph;
  Simulator simulator;
  const auto step = [&](std::int64_t micro_batches) -> const EventGraph& {
    plan.batch.accumulation = micro_batches;
    return graph = build_training_step(model, plan, programs, std::move(graph));
  };
  return folded_period(simulator, costs, all, step).seconds();
}

// Of a rate: what is done grows with the micro-batches.
Quantity rate_of(const Quantity& laid_out, double seconds, const Quantity& whole, double times) {
  const double done = laid_out.value * seconds * times;
  const auto over = [&](double divisor) { return divisor > 0 ? done / divisor : 0; };
  return {over(whole.value), over(whole.high), over(whole.low), laid_out.evidence};
}

}

Report long_step_report(const ShortSteps& steps, const ModelSpec& model, const Plan& whole, const CostModel& costs) {
  const Report &laid_out = steps.laid_out, &fewer = steps.fewer.value();
  const std::int64_t all = whole.batch.accumulation;
  const LaidOut few = laid_out_of(whole);
  const auto extended = [&](const Quantity& a, const Quantity& b) {
    const auto at_least_0 = [&](double x, double y) { return std::max(0.0, of_whole_step(few, x, y, all)); };
    const double value = at_least_0(a.value, b.value);
    return Quantity{
        value, std::min(value, at_least_0(a.low, b.low)), std::max(value, at_least_0(a.high, b.high)), a.evidence};
  };
  Report report = laid_out;
  report.plan = whole;
  report.fingerprint = Fingerprint().add(laid_out.fingerprint).add(all).hex();
  report.communication = extended(laid_out.communication, fewer.communication);
  report.exposed_communication = extended(laid_out.exposed_communication, fewer.exposed_communication);
  std::vector<StackOutcome>& outcomes = report.open_stack.outcomes;
  for (std::size_t i = 0; i < outcomes.size(); ++i)
    outcomes[i].seconds = of_whole_step(few, outcomes[i].seconds, fewer.open_stack.outcomes[i].seconds, all);
  report.seconds = extended(laid_out.seconds, fewer.seconds);
  if (whole.mesh.pp == 1 && !asks_driver(laid_out) && !asks_driver(fewer)) {
    report.seconds.value = whole_period(model, whole, costs);
    if (!outcomes.empty()) outcomes.front().seconds = report.seconds.value;
  }
  report.seconds.low = std::min(report.seconds.low, report.seconds.value);
  report.seconds.high = std::max(report.seconds.high, report.seconds.value);
  report.seconds = covering(report.seconds, outcomes);
  report.first_step_seconds = laid_out.first_step_seconds + report.seconds.value - laid_out.seconds.value;
  for (std::size_t r = 0; r < report.pipeline.size() && r < fewer.pipeline.size(); ++r) {
    const auto idle = [&](const Report& of) { return of.pipeline[r].idle * of.seconds.value; };
    report.pipeline[r].idle = of_whole_step(few, idle(laid_out), idle(fewer), all) / report.seconds.value;
  }
  const double times = as_double(all) / as_double(few.count);
  for (Quantity Report::*rate : {&Report::tokens_per_s_per_gpu, &Report::mfu, &Report::hfu})
    report.*rate = rate_of(laid_out.*rate, laid_out.seconds.value, report.seconds, times);
  report.assumed.insert(
      report.assumed.begin(), {"micro-batches", fmt::format("{} of {} laid out (the others are alike: bars, memory and "
                                                            "driver calls are of these)",
                                                    few.count, format_count(all))});
  return report;
}

}
