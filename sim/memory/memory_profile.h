// How much memory the step needs per GPU: the graph's allocations replayed in host order.
//
// Allocated bytes as torch.cuda.memory_allocated counts them (blocks rounded up to 512 bytes), by
// category over the rows of the step. FSDP2 uses no record_stream, so its memory is a function of
// host order alone and needs no times. What the allocator reserves for it: sim/memory/reserved.h.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/base/units.h"
#include "sim/graph/event_graph.h"

namespace foreshard {

using CategoryBytes = std::array<Bytes, kMemoryCategories>;

struct MemorySample {
  Bytes now;   // after the row's last action
  Bytes peak;  // highest within the row
};

struct LiveBuffer {
  std::int32_t buffer = 0;
  Bytes bytes;
  EventId since = kNoEvent;  // kNoEvent: before the step
};

struct MemoryProfile {
  Bytes peak;
  EventId peak_event = kNoEvent;
  Bytes at_start;                           // what lives between steps
  Bytes host_peak;                          // pinned and pageable memory of the host (CPU offload)
  std::array<Bytes, kStreams> pool_peak{};  // of each allocation stream by itself
  CategoryBytes at_peak;
  CategoryBytes own_peak;                  // each category's highest, wherever it was
  std::vector<MemorySample> samples;       // per row
  std::vector<CategoryBytes> by_category;  // after each row
  std::vector<LiveBuffer> alive_at_peak;   // largest first
};

// Everything above; throws an internal error if a buffer is freed twice or never.
MemoryProfile replay_allocations(const EventGraph& graph);

// The peak alone, from the layers' summaries: what search asks of every plan. Equals replay_allocations(graph).peak.
Bytes peak_allocated(const EventGraph& graph);

}
