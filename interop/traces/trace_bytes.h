// The collectives that a job wrote down of one step, in the order it issued them, against those of
// the plan: kind by kind and byte by byte.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reports/view/event_names.h"
#include "sim/graph/event_graph.h"

namespace foreshard {

// As a training script notes it beside its trace (`collectives` of foreshard.timed/1).
struct TracedCollectiveCall {
  std::string kind;        // "all_gather", "reduce_scatter", "all_reduce"
  std::int64_t bytes = 0;  // of the larger tensor: the whole unsharded buffer
  std::int64_t ranks = 0;  // of the group
  bool operator==(const TracedCollectiveCall&) const = default;
};

// In sentences, the first difference and how many there are; none where all are equal. Collectives
// of the whole step (the gradient norm's) are not compared: PyTorch issues them elsewhere.
std::vector<std::string> collective_differences(const EventGraph& graph, const EventNames& names,
                                                const std::vector<TracedCollectiveCall>& calls);

}  // namespace foreshard
