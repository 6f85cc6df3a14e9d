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
// every micro-batch) to what rounding the last half of kMostInFull of them leaves.
inline constexpr std::int64_t kMostInFull = 192;
Time folded_period(Simulator& simulator, const CostModel& costs, std::int64_t micro_batches,
                   const StepOf& step);

}  // namespace foreshard
