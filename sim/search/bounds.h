// Lower bounds of a step's time that no simulation can undercut.
//
// The compute stream runs one row at a time, and so does every communicator; rows that overlap only slow each other
// down. So a step takes at least what the rows of the compute stream take by themselves, and what the collectives of
// any one communicator take that the compute stream waits for in the end.
//
// Those collectives cannot be hidden for nothing. Beside a set S of running collectives, of which each takes e (an
// excess over 1, Cost::takes), a compute row loses e(S) / (1 + e(S)) of the time, e(S) the sum; without a compute row,
// all of it is lost. With E, the sum of the largest e of each stream, that is at least e / (1 + E) for each of them
// while it runs, and beside compute each runs longer by Contention::communication. So compute loses the sum of duration
// x e / (1 + E), times that slowdown (where it is below 1 + 1 / E, what losing all of the time amounts to).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sim/cost/cost_table.h"
#include "sim/graph/event_graph.h"

namespace foreshard {

// Without what hidden collectives cost: holds for every plan whose graph has these rows and more.
Time lower_bound(const EventGraph& graph, const CostTable& costs);

// With it: holds for every plan whose graph has these rows, in whatever order.
Time contended_bound(const EventGraph& graph, const CostTable& costs);

// What forward, loss, recomputation and backward take, with the collectives inside of layers (axes tp, cp, ep) that
// they wait for. The layers say it, so it is the same for every shard group, prefetch, reshard and reduction.
Time layers_bound(const EventGraph& graph, const CostTable& costs);

// Layers of a rank's part of a pipeline, [begin, end) for each of its stages, in their order; and
// what they take of layers_bound(): the least of any micro-batch, and of all that the graph has.
using StageRange = std::pair<std::int32_t, std::int32_t>;
struct StageFloor {
  Time forward, backward;  // with loss and recomputation
  Time all;
};
std::vector<StageFloor> stage_floors(
    const EventGraph& rank, const CostTable& costs, std::span<const StageRange> stages);

// Of a step of `micro_batches` >= 3, from its bounds at 2 and 3: from the second micro-batch on all
// are alike, so each further one adds the difference.
Time extended_bound(Time at_two, Time at_three, std::int64_t micro_batches);

}
