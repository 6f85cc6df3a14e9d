// The last look at an answer: what no forecast may say of any job, because arithmetic, the GPU or
// the plan itself forbids it.
#pragma once

#include <string>

#include "reports/report.h"
#include "reports/sizing/sizing.h"
#include "sim/base/error.h"

namespace foreshard {

// What of the report cannot be, "" where all can: times and memory that are not finite and positive, intervals that do
// not hold their value, an MFU above 1, a step shorter than its products at the peaks of their units, less memory than
// the states between steps. CPU ranks have a measured rate for a peak, which bounds nothing.
std::string find_nonsense(const Report& report, const Forecast& forecast);

// The same of a plan of recommend and scale. `shown` is its step, or the first micro-batches of it.
std::string find_nonsense(const SizedPlan& sized, const Forecast& shown);

// What an answer that cannot be is refused with: an internal error that asks for a report, unless
// its costs are a user's (planner/job.h).
class NonsenseError : public Error {
 public:
  explicit NonsenseError(std::string nonsense);
  const std::string& nonsense() const { return nonsense_; }

 private:
  std::string nonsense_;
};

}
