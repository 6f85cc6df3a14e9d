// The report of a step of many micro-batches, without laying them all out.
#pragma once

#include <optional>

#include "reports/report.h"
#include "sim/cost/cost_model.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Reports of the same job with both of laid_out_of()'s micro-batches (sim/simulate/folded.h), of
// which the durations and the codes' outcomes are read.
struct ShortSteps {
  Report laid_out;
  std::optional<Report> fewer;
};

// summarize() of a step of LaidOut::count micro-batches, and what its timelines tell of the step
// with LaidOut::fewer, if they do, to the nanosecond (sim/simulate/repeats.h).
ShortSteps summarize_short(
    const Forecast& laid_out, const CostModel& costs, int draws, const std::vector<StackCase>& cases);

// From the second micro-batch on all are alike: figures of time grow evenly, those of memory not at
// all, nor what the first step does besides. The step itself is folded_period's; where every step
// asks the driver for memory, which no graph of few shows, it grows evenly, too. `whole`: the plan
// with all of them. The fingerprint is that of what is laid out and of how
// many micro-batches there are.
Report long_step_report(const ShortSteps& steps, const ModelSpec& model, const Plan& whole, const CostModel& costs);

}
