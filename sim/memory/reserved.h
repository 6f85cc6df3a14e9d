// What the step reserves: its allocations replayed through PyTorch's caching allocator, step after
// step until nothing changes any more.
//
// Segments are cut once and serve until they are given back, so what is reserved depends on the order of the first
// steps. In step 1 the optimizer has no state yet: it is allocated when the optimizer runs, after the activations have
// shaped the pools; DDP's gradients have one bucket, which it gives back when it assigns its buckets in step 2. A
// buffer of the graph is one tensor of its allocation stream, or one per parameter where PyTorch keeps parameters apart
// (sharded and unsharded parameters, optimizer state and temporaries; gather and reduction buffers are flat). Blocks on
// which streams were recorded (Tensor.record_stream: FSDP1, DeepSpeed) serve again when the work that those streams had
// before the free has ended. Every allocation first looks which have (process_events), at the host's time of its row,
// so that takes the times of a simulation. Without them they serve at once, and what is reserved is a lower bound. What
// libraries take from the allocator and keep (cuBLAS workspaces: library_buffers) is taken in step 1, when the first
// kernel that asks for it is issued.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "sim/base/units.h"
#include "sim/graph/event_graph.h"
#include "sim/memory/allocation_log.h"
#include "sim/memory/caching_allocator.h"
#include "sim/memory/outside_allocator.h"

namespace foreshard {

// When the rows of the graph's steady step are issued and end: a Timeline's (row_times() of sim/simulate/forecast.h).
struct RowTimes {
  std::vector<Time> issues, ends;
  Time period;
};

// What a replay takes beside the graph.
struct ReplayInputs {
  ReplayInputs() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): most have nothing else
  ReplayInputs(
      LibraryBuffers of_libraries, const RowTimes* row_times = nullptr, Buckets of_gradients = Buckets::kFromTheStart)
      : library(std::move(of_libraries)), times(row_times), buckets(of_gradients) {}
  LibraryBuffers library;
  const RowTimes* times = nullptr;  // null: nothing is waited for
  Buckets buckets = Buckets::kFromTheStart;
  bool folds = true;  // micro-batches that repeat are replayed until they do, and then left out
  // The first step that goes on as the one before, without a call to the driver, is the last; where
  // blocks lie when it ends is not told.
  bool stops_when_settled = false;
};

// Host work of a row beyond its own: the driver was asked for memory or given some back.
struct HostStall {
  EventId row = kNoEvent;  // kNoEvent: before the step
  std::int32_t device_allocs = 0;
  std::int32_t device_frees = 0;
  std::int32_t retries = 0;  // each waits for the whole device
  Bytes allocated;
  Bytes freed;
  bool operator==(const HostStall&) const = default;
};

// How long the host is held up, the wait for the device at a retry not counted (it depends on the schedule).
Time stall_time(const HostStall& stall);

struct StepReserved {
  Bytes peak_allocated;
  Bytes peak_active;
  Bytes peak_reserved;
  Bytes peak_inactive_split;
  Bytes reserved_after;  // when the step has ended
  std::int64_t retries = 0;
  std::int64_t device_allocs = 0;
  std::int64_t device_frees = 0;
  // At its reserved peak: 1 - allocated / reserved, with the most that was allocated then.
  double fragmentation = 0;
  bool operator==(const StepReserved&) const = default;
};

struct ReservedProfile {
  StepReserved first;   // step 1
  StepReserved steady;  // of steady_step
  // The first step, from 2 on, that the next one repeats; the last one replayed if none does.
  int steady_step = 2;
  bool repeats = false;
  Bytes peak_reserved;  // of all steps
  // Where memory ran out for good; the replay ended there.
  bool out_of_memory = false;
  std::vector<HostStall> first_stalls;  // rows of step 1, ascending
  std::vector<HostStall> stalls;        // of the steady step
  AllocatorStats stats;                 // at the end
  std::vector<SegmentState> segments;   // at the end
};

// One step, entry by entry: what memory snapshots show.
struct TracedAction {
  AllocatorTraceEntry entry;
  EventId row = kNoEvent;    // kNoEvent: before the first step
  std::int32_t buffer = -1;  // -1: none, or a library's
};
struct TracedStep {
  std::vector<TracedAction> actions;
  std::vector<SegmentState> segments;         // after the step
  std::vector<std::int32_t> buffer_of_block;  // by BlockState::id; -1: none
};

// The replay step by step. Graph and times may go once it is made.
class ReservedReplay {
 public:
  ReservedReplay(const EventGraph& graph, const AllocatorSettings& settings, const DeviceMemory& memory,
      const ReplayInputs& inputs = {});
  ~ReservedReplay();
  ReservedReplay(ReservedReplay&&) noexcept;
  ReservedReplay& operator=(ReservedReplay&&) noexcept;

  // The next one; the first also has what is allocated before it. Ends early, and for good, where memory runs out.
  StepReserved run_step();
  bool out_of_memory() const;
  bool is_settled() const;  // ReplayInputs::stops_when_settled: no step comes after
  int step() const;         // the last one run, from 1
  EventId row() const;      // the last one reached
  // Rows of the last step with stalls, ascending.
  const std::vector<HostStall>& stalls() const;
  std::size_t actions_per_step() const;
  // Of what is replayed: hashes of what is allocated and freed, in which order, under which
  // settings, and of where rows begin in it. Times and the device's memory are not in it.
  struct Identity {
    std::uint64_t log = 0, rows = 0;
  };
  Identity identity() const;
  const CachingAllocator& allocator() const;

 private:
  friend TracedStep trace_step(
      const EventGraph&, const AllocatorSettings&, const DeviceMemory&, int, const ReplayInputs&);
  struct State;
  std::unique_ptr<State> state_;
};

// Steps replayed where none repeats the one before.
inline constexpr int kMostReplayedSteps = 8;

ReservedProfile replay_reserved(const EventGraph& graph, const AllocatorSettings& settings, const DeviceMemory& memory,
    const ReplayInputs& inputs = {});

// What happens in the step after `steps_before` others; with none before, including what is
// allocated before the first step.
TracedStep trace_step(const EventGraph& graph, const AllocatorSettings& settings, const DeviceMemory& memory,
    int steps_before, const ReplayInputs& inputs = {});

}
