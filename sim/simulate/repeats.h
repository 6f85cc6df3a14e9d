// Runs of rows that come again and again in a step: micro-batches in the middle are alike.
//
// A graph is laid out with few micro-batches and stands for a step of many. How long that takes is
// told exactly where the simulation shows that it repeats: once every stream stands in one run of
// rows where it stood in the run before, relative to the run and to its time, each further run adds
// the time between the two, by the rules of simulate() alone.
#pragma once

#include <cstdint>

#include "sim/graph/event_graph.h"

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

}  // namespace foreshard
