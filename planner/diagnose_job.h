// What would be measured of a job under each cause that may make it slower or larger than its
// forecast (reports/diagnose/diagnosis.h).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/job.h"
#include "reports/diagnose/diagnosis.h"

namespace foreshard {

// A cause at one severity: what differs from the job as it was forecast.
struct CauseCase {
  std::string cause;
  std::vector<std::string> changes = {};                   // keys of the plan, as --set takes them
  std::vector<std::pair<Factor, double>> machine = {};     // that a factor's time is multiplied by
  double waits = 0;                                        // of the step, added to it
  std::optional<double> Signals::*where = &Signals::idle;  // what the wait shows as
  double unhidden = 0;                                     // share of hidden communication that is not hidden
  double retries = 0;                                      // of the allocator
  double memory = 1;                                       // times the forecast's
  double more_bytes = 0;                                   // of memory
  double others = 0;                                       // of the GPU's memory, that another process holds
};

// Those that the job may have, at severities that people meet; none where there is nothing to
// change (a link where there is one GPU).
std::vector<CauseCase> cause_cases(const Job& job);

// What would be measured with all of them at once. Throws Error where the plan cannot have it.
class SignalsOf {
 public:
  explicit SignalsOf(const Job& job);
  Signals operator()(const std::vector<CauseCase>& at_once) const;

 private:
  const Job& job_;
  CostModel costs_;
  Forecast right_;
};

// "as_forecast" first. Cases that change nothing are left out.
std::vector<CauseForecast> cause_forecasts(const Job& job);

// "tokens/s=3120", "step=2.1s", "memory=61GiB": what the job's own step or memory comes to. Throws
// Error(kUsage) for a key that is none, a unit that is missing or wrong.
// `forecast`: the step, which "slower=12%" is of.
Signals read_measured(const std::vector<std::string>& assignments, const Plan& plan, Time forecast = {});

// What there is of them, by the names that read_measured reads: seconds, bytes.
Json measured_json(const Signals& signals);

// The logarithm's standard deviation of what is as forecast, from its 90 % interval.
double log_sd(const Quantity& forecast, double least);

// A rate that was measured and that nothing explains may be of one GPU where all are meant, or the other way round.
std::vector<std::string> rate_findings(const Diagnosis& diagnosis, const Plan& plan);

// About the failed allocation, beside the plan's `fit` and the sizes of its tensors.
struct MessageFacts {
  double tried = 0, allocated = 0, unallocated = 0, free = 0;  // bytes, 0: not said
  double capacity = 0, others = 0;                             // of its GPU; what other processes hold of it
};
bool is_fragmented(const MessageFacts& facts);
std::vector<std::string> memory_findings(const Job& job, const Fit& fit, const MessageFacts& facts);

}
