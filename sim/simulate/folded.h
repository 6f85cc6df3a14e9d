// Steps of many micro-batches by graphs of few of them.
#pragma once

#include <cstdint>
#include <functional>

#include "sim/cost/cost_model.h"
#include "sim/graph/event_graph.h"
#include "sim/simulate/simulate.h"

namespace foreshard {

// A step by the number of micro-batches that its graph has; valid until the next call.
using StepOf = std::function<const EventGraph&(std::int64_t micro_batches)>;

// Simulator::period of the step with `micro_batches`. Exact where a graph of few shows that they
// repeat, and up to kMostInFull of them; of more that do not (a host that waits in the middle of
// every micro-batch) to what rounding the last half of kMostInFull of them leaves. Of a pipeline in
// full: those who know that theirs is one, which may refuse graphs of few, ask Simulator::period.
inline constexpr std::int64_t kMostInFull = 192;
Time folded_period(Simulator& simulator, const CostModel& costs, std::int64_t micro_batches,
                   const StepOf& step);

// Micro-batches of a graph that tells a step's memory, first step and rows: all of up to
// kMostLaidOut, kLaidOut of more. What one more adds is told against a graph of kFewer of them.
inline constexpr std::int64_t kMostLaidOut = 64, kLaidOut = 16, kFewer = 8;
inline std::int64_t laid_out_of(std::int64_t micro_batches) {
  return micro_batches > kMostLaidOut ? kLaidOut : micro_batches;
}
// Of the whole step, by those of kLaidOut and kFewer micro-batches: of a figure that grows evenly.
inline double of_whole_step(double laid_out, double fewer, std::int64_t micro_batches) {
  const double one_more = (laid_out - fewer) / as_double(kLaidOut - kFewer);
  return laid_out + as_double(micro_batches - kLaidOut) * one_more;
}

}  // namespace foreshard
