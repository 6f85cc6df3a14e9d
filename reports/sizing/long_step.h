// The report of a step of many micro-batches, without laying them all out.
#pragma once

#include "reports/report.h"
#include "sim/cost/cost_model.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Reports of the same job with kLaidOut and with kFewer micro-batches (sim/simulate/folded.h).
struct ShortSteps {
  Report laid_out, fewer;
};

// From the second micro-batch on all are alike: figures of time grow evenly, those of memory not at
// all, nor what the first step does besides. The step itself is folded_period's; where every step
// asks the driver for memory, which no graph of few shows, it grows evenly, too. `whole`: the plan
// with all of them, more than kMostLaidOut. The fingerprint is that of what is laid out and of how
// many micro-batches there are.
Report long_step_report(const ShortSteps& steps, const ModelSpec& model, const Plan& whole,
                        const CostModel& costs);

}  // namespace foreshard
