// The rules of sim/simulate/simulate.h where nothing slows anything: one pass over the rows in host order, an oracle
// for simulate(), which equals it bit for bit there and never falls below it.
#pragma once

#include "sim/cost/cost_table.h"
#include "sim/graph/event_graph.h"
#include "sim/simulate/timeline.h"

namespace foreshard {

//   host = max(host, end[host_wait]) + before;  issue = host;  host += during
//   start = max(issue, tail of the stream, ends of the waits)
//   arrive = collective: max(start, communicator's FIFO); else start
//   end = max(arrive + duration, host + last_kernel)
//
// An exchange of a pipeline's ranks arrives when both sides could; of those one way there may be none.
Timeline sweep(const EventGraph& graph, const CostTable& costs);
// One step from an idle machine, no steady state.
Timeline sweep_once(const EventGraph& graph, const CostTable& costs);

}
