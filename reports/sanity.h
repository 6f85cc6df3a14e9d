// The last look at an answer: what no forecast may say of any job, because arithmetic, the GPU or
// the plan itself forbids it.
#pragma once

#include <string>

#include "reports/report.h"

namespace foreshard {

// What of the report cannot be, "" where all can: times and memory that are not finite and
// positive, intervals that do not hold their value, an MFU above 1, a step shorter than its
// products at the peaks of their units, less memory than the states between steps. CPU ranks have a
// measured rate for a peak, which bounds nothing.
std::string find_nonsense(const Report& report, const Forecast& forecast);

}  // namespace foreshard
