#include "interop/steps/step_forecaster.h"

#include <algorithm>

#include "calibration/profile.h"
#include "interop/steps/informed_calibration.h"
#include "sim/graph/training_step.h"
#include "sim/simulate/cost_choices.h"
#include "sim/simulate/folded.h"
#include "sim/simulate/forecast.h"
#include "sim/simulate/simulate.h"

namespace foreshard {
namespace {

Quantity combined(const Quantity& a, double factor, const Quantity& b) {
  return {a.value + factor * b.value, a.low + factor * b.low, a.high + factor * b.high, weaker(a.evidence, b.evidence)};
}
Quantity difference(const Quantity& a, const Quantity& b) {
  return {a.value - b.value, a.low - b.low, a.high - b.high, weaker(a.evidence, b.evidence)};
}

CostModel cost_model_of(const TrainingJob& job, const std::optional<std::vector<std::string>>& without) {
  const Plan& plan = job.resolved.plan;
  Calibration calibration = without ? informed_calibration(job.model, plan, job.cluster, *without, job.library)
                                    : profile_calibration(plan, job.cluster);
  if (!job.host.empty()) {
    const HostCurve host = published_host_calls(job.host);
    calibration.host.processor = host.processor;
    calibration.host.per_driver_launch = host.per_driver_launch;
  }
  return {job.cluster, calibration, cost_choices(plan)};
}

}

StepForecaster::StepForecaster(const TrainingJob& job, const std::optional<std::vector<std::string>>& without)
    : job_(job), costs_(cost_model_of(job, without)) {}

FactorCauses StepForecaster::causes() const { return causes_of(job_.model, costs_, job_.library, job_.site); }

Report StepForecaster::report(std::int64_t micro_batch, std::int64_t accumulation, int draws) const {
  Plan plan = job_.resolved.plan;
  plan.batch.micro_batch = micro_batch;
  plan.batch.accumulation = accumulation;
  Forecast result = forecast(job_.model, plan, costs_);
  Report report = summarize(result, costs_, draws);
  if (!result.reserved.retries_for_good || result.costs.delays.empty()) return report;
  // Retries are a risk: of published runs at 80 to 100 % of memory about a fifth was slowed down.
  result.costs.delays.clear();
  result.timeline = Simulator().simulate(result.graph, result.costs);
  Report calm = summarize(result, costs_, draws);
  calm.seconds.high = std::max(calm.seconds.high, report.seconds.high);
  return calm;
}

Report StepForecaster::step(int draws) const {
  const Batch& batch = job_.resolved.plan.batch;
  const LaidOut few = drawn_of(job_.resolved.plan);
  Report result = report(batch.micro_batch, few.count, draws);
  if (batch.accumulation > few.count) {
    const Quantity before = report(batch.micro_batch, few.fewer, draws).seconds;
    result.seconds =
        combined(result.seconds, as_double(batch.accumulation - few.count) / as_double(few.count - few.fewer),
            difference(result.seconds, before));
  }
  if (job_.remainder > 0) {
    const Quantity one = report(job_.remainder, 1, draws).seconds;
    result.seconds = combined(result.seconds, 1, difference(report(job_.remainder, 2, draws).seconds, one));
  }
  // Differences of bounds are none of the differences: at least the value lies within.
  result.seconds.low = std::min(result.seconds.low, result.seconds.value);
  result.seconds.high = std::max(result.seconds.high, result.seconds.value);
  return result;
}

double StepForecaster::seconds(std::int64_t micro_batch, std::int64_t accumulation, const FactorDraw& draw) const {
  Plan plan = job_.resolved.plan;
  plan.batch.micro_batch = micro_batch;
  plan.batch.accumulation = accumulation;
  const EventGraph graph = build_training_step(job_.model, plan);
  Simulator simulator;
  return measure_step(graph, simulator.simulate(graph, costs_.price(graph, draw))).seconds;
}

double StepForecaster::seconds(const FactorDraw& draw) const {
  const Batch& batch = job_.resolved.plan.batch;
  const LaidOut few = drawn_of(job_.resolved.plan);
  double result = seconds(batch.micro_batch, few.count, draw);
  if (batch.accumulation > few.count)
    result = of_whole_step(few, result, seconds(batch.micro_batch, few.fewer, draw), batch.accumulation);
  if (job_.remainder > 0) result += seconds(job_.remainder, 2, draw) - seconds(job_.remainder, 1, draw);
  return result;
}

}
