// Lower bounds of a step's time that no simulation can undercut.
//
// The compute stream runs one row at a time, and so does every communicator; rows that overlap only
// slow each other down. So a step takes at least what the rows of the compute stream take by
// themselves, and what the collectives of any one communicator take that the compute stream waits
// for in the end.
#pragma once

#include <cstdint>

#include "sim/cost/cost_table.h"
#include "sim/graph/event_graph.h"

namespace foreshard {

Time lower_bound(const EventGraph& graph, const CostTable& costs);

// What forward, loss, recomputation and backward take by themselves. The layers say it, so it is
// the same for every mesh, prefetch, reshard and reduction.
Time layers_bound(const EventGraph& graph, const CostTable& costs);

// Of a step of `micro_batches` >= 3, from its bounds at 2 and 3: from the second micro-batch on all
// are alike, so each further one adds the difference.
Time extended_bound(Time at_two, Time at_three, std::int64_t micro_batches);

}  // namespace foreshard
