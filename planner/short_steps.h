#pragma once

#include "planner/job.h"
#include "reports/sizing/long_step.h"

namespace foreshard {

// summarize_short(), as report_of().
ShortSteps short_steps(const Job& job, const Forecast& laid_out, const CostModel& costs);

}  // namespace foreshard
