// Runs of rows that come again and again in a step: micro-batches in the middle are alike.
//
// A graph is laid out with few micro-batches and stands for a step of many. How long that takes is
// told exactly where the simulation shows that it repeats: once every stream stands in one run of
// rows where it stood in the run before, relative to the run and to its time, each further run adds
// the time between the two, by the rules of simulate() alone.
#pragma once

#include <cstdint>
#include <optional>

#include "sim/cost/cost_table.h"
#include "sim/graph/event_graph.h"
#include "sim/simulate/timeline.h"

namespace foreshard {

// Rows [begin, begin + count * rows) are `count` runs of `rows` rows alike: the same work on the
// same streams and communicators, waiting for rows equally far back.
struct RepeatedRows {
  EventId begin = 0;
  std::int32_t rows = 0;
  std::int32_t count = 0;  // 0: there are none
  EventId end() const { return begin + rows * count; }
};

// Of the micro-batches in the middle; none of a pipeline's rank, whose runs are not its own alone.
RepeatedRows find_repeats(const EventGraph& graph);

// What a step of fewer micro-batches takes, told from the timeline of one with more.

// Rows [begin, end) of a step, without which everything behind them is `time` earlier.
struct CutRuns {
  EventId begin = 0, end = 0;
  Time time;
};

// `runs` of the repeats, cut out of a steady timeline: the simulation of the step without them is
// the rest of it, to the nanosecond. Nothing where the timeline does not show that: the host has
// its say, or there are not so many runs that pass as the one before them.
std::optional<CutRuns> cut_runs(const EventGraph& graph, const CostTable& costs, const Timeline& timeline,
    const RepeatedRows& repeats, std::int32_t runs);

}
