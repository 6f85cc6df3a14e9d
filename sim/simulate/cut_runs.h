// What a step of fewer micro-batches takes, told from the timeline of one with more.
#pragma once

#include <optional>

#include "sim/cost/cost_table.h"
#include "sim/graph/event_graph.h"
#include "sim/simulate/repeats.h"
#include "sim/simulate/timeline.h"

namespace foreshard {

// Rows [begin, end) of a step, without which everything behind them is `time` earlier.
struct CutRuns {
  EventId begin = 0, end = 0;
  Time time;
};

// `runs` of the repeats, cut out of a steady timeline: the simulation of the step without them is
// the rest of it, to the nanosecond. Nothing where the timeline does not show that: the host has
// its say, or there are not so many runs that pass as the one before them.
std::optional<CutRuns> cut_runs(const EventGraph& graph, const CostTable& costs,
                                const Timeline& timeline, const RepeatedRows& repeats,
                                std::int32_t runs);

}  // namespace foreshard
