// A traced FSDP2 job against the plan's events: every run of work goes to the event that it is, by
// kind, unit, micro-batch and order of occurrence. The result is a record like that of
// foreshard-exec run, so the same functions compare it with the forecast.
//
// Modules become units by order: the root's unit to `root`, the others in the order of their first
// forward, and where both names hold a layer number it must be the same. Rows that one range of the
// trace covers together (norm and head of one unit, several layers of one) share its time in
// proportion to their forecast, so that a difference between them is never put down to one.
//
// An event that the trace lacks takes no time, where its stream was; it is named in `missing`.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "interop/traces/fsdp2_steps.h"
#include "reports/validate/run_record.h"
#include "sim/simulate/forecast.h"

namespace foreshard {

struct TraceJoin {
  RunRecord record;
  std::vector<std::pair<std::string, std::string>> units;  // module, unit
  // In sentences, of the first rank's first step: what the plan has and the trace lacks, what the
  // trace has beyond the plan, and what the job issues in another order.
  std::vector<std::string> missing, beyond, order;
  // Of the collectives that the job wrote down beside its trace, against the plan's; `compared` is
  // how many there were, 0 where the job wrote none.
  std::vector<std::string> collectives;
  std::int64_t compared = 0;
};

// Precondition: at least one trace, each of another rank. Throws Error(kInvalidInput) where the traces are of another
// job than the plan: other ranks, units or micro-batches, or less than half of the plan's events.
TraceJoin join_traces(const Forecast& forecast, const std::vector<FsdpTrace>& traces);

}
