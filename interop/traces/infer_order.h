// The order of a step as its host issues it: which unit is gathered, computed and reduced when. A
// trace and a plan's graph are held against each other by it.
#pragma once

#include <cstdint>
#include <vector>

#include "interop/traces/fsdp2_steps.h"
#include "sim/graph/event_graph.h"

namespace foreshard {

struct OrderMark {
  EventKind kind = EventKind::kForward;
  std::int32_t unit = 0;
  std::int32_t microbatch = 0;
  bool operator==(const OrderMark&) const = default;
};

// Gathers, forward, backward (with what it recomputes) and reductions of units; work in a row on
// one unit is one mark.
std::vector<OrderMark> order_of(const JobStep& step);
std::vector<OrderMark> order_of(const EventGraph& graph);

// Marks of both that stand in one order, as a share of those there are: 1 where both are equal.
double likeness(const std::vector<OrderMark>& a, const std::vector<OrderMark>& b);

// Units gathered ahead of the one that is computed, as most of a pass has it: 0 where each is
// gathered when it is reached. `pass`: kForward or kBackward.
std::int64_t units_ahead(const std::vector<OrderMark>& order, EventKind pass);

}  // namespace foreshard
