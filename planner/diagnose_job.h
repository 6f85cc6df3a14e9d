// What would be measured of a job under each cause that may make it slower or larger than its
// forecast (reports/diagnose/diagnosis.h).
#pragma once

#include <string>
#include <vector>

#include "planner/job.h"
#include "reports/diagnose/diagnosis.h"

namespace foreshard {

// "as_forecast" first. Causes that the plan cannot have (another dtype where it is the widest, a
// link where there is one GPU) are not there. `load` makes a job of options; it is asked for the
// job with other keys.
std::vector<CauseForecast> cause_forecasts(const Job& job);

// "tokens/s=3120", "step=2.1s", "memory=61GiB": what the job's own step or memory comes to. Throws
// Error(kUsage) for a key that is none, a unit that is missing or wrong.
Signals read_measured(const std::vector<std::string>& assignments, const Plan& plan);

// The logarithm's standard deviation of a step that is as forecast, from its 90 % interval.
double step_log_sd(const Quantity& seconds);

// Findings about the failed allocation beside what the plan's tensors are the size of.
struct MessageFacts {
  double tried = 0, allocated = 0, unallocated = 0;  // bytes, 0: not said
};
std::vector<std::string> memory_findings(const Job& job, const CauseForecast& right,
                                         const MessageFacts& facts);

}  // namespace foreshard
