// A graph's allocations as a list of tensors, for replays: a buffer is one tensor, or one for each
// parameter that it holds.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/graph/event_graph.h"
#include "sim/memory/outside_allocator.h"

namespace foreshard {

// Taken in step 1 before that action and kept.
struct LibraryBlock {
  std::int64_t bytes = 0;
  std::uint8_t stream = 0;
  std::uint32_t action = 0;
};

struct AllocationLog {
  std::vector<std::int32_t> first;       // by buffer: its first tensor; one more than buffers
  std::vector<std::int32_t> buffer;      // by tensor
  std::vector<std::int32_t> actions;     // tensor: allocate, ~tensor: free
  std::vector<StreamSet> recorded;       // by action: streams recorded on what it frees
  std::vector<std::uint32_t> row_begin;  // into actions; one more than there are rows
  std::vector<std::int64_t> bytes;       // by tensor
  std::vector<std::uint8_t> stream;      // by tensor
  std::vector<std::int32_t> before;      // persistent tensors there are from the start
  std::vector<std::int32_t> states;      // and those that the optimizer makes in step 1
  // Persistent tensors that step 2 makes of one of their bytes in all, which step 1 has.
  std::vector<std::int32_t> rebuilt;
  std::vector<std::uint32_t> empties;  // actions before which torch.cuda.empty_cache() is called
  std::vector<LibraryBlock> library;
  EventId optimizer = kNoEvent;

  // Actions [begin, begin + count * size) are `count` runs of `size` actions alike, each of which
  // frees what the same action, one run before, freed of the run before; runs begin with a row.
  struct Runs {
    std::uint32_t begin = 0, size = 0, count = 0;
    std::uint32_t end() const { return begin + count * size; }
    std::uint32_t at(std::uint32_t run) const { return begin + run * size; }
  };
  // Of the micro-batches in the middle; count 0: there are none.
  Runs repeated(const EventGraph& graph) const;
};

// How gradient buckets come to be (DDP): as they are from the start, or of the one bucket of the
// first iteration, in the order of which they are assigned anew when the second begins. kInArena:
// what stays is not the allocator's at all (the engine's).
enum class Buckets : std::uint8_t { kFromTheStart, kRebuilt, kInArena };
AllocationLog allocation_log(
    const EventGraph& graph, const LibraryBuffers& library, Buckets buckets = Buckets::kFromTheStart);

}
