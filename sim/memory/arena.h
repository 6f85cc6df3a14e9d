// A static arena: an offset for every buffer that lives through the whole step (runtime native:
// shards, states, parameter and gradient slots). Offsets are multiples of the allocator's 512
// bytes, in the order of EventGraph::persistent, so the arena is as large as those buffers
// together.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/base/units.h"
#include "sim/graph/event_graph.h"

namespace foreshard {

struct ArenaLayout {
  std::vector<Bytes> offsets;  // by position in EventGraph::persistent
  Bytes size;
};

inline ArenaLayout lay_out_arena(const EventGraph& graph) {
  ArenaLayout layout;
  layout.offsets.reserve(graph.persistent.size());
  for (const std::int32_t buffer : graph.persistent) {
    layout.offsets.push_back(layout.size);
    layout.size += graph.buffer(buffer).bytes;
  }
  return layout;
}

}  // namespace foreshard
