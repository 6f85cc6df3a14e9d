// Static arenas: an offset for every buffer that lives through the whole step (runtime native:
// shards, states, parameter and gradient slots). Offsets are multiples of the allocator's 512
// bytes, in the order of EventGraph::persistent, so the arena is as large as those buffers
// together. What lives on the host (offload) has an arena of its own there.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/base/units.h"
#include "sim/graph/event_graph.h"

namespace foreshard {

struct ArenaLayout {
  std::vector<Bytes> offsets;  // by position in EventGraph::persistent
  Bytes size;
  Bytes host_size;
};

inline ArenaLayout lay_out_arena(const EventGraph& graph) {
  ArenaLayout layout;
  layout.offsets.reserve(graph.persistent.size());
  for (const std::int32_t buffer : graph.persistent) {
    const Buffer b = graph.buffer(buffer);
    Bytes& size = b.on_host ? layout.host_size : layout.size;
    layout.offsets.push_back(size);
    size += b.bytes;
  }
  return layout;
}

}
