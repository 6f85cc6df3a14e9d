// What differs between a rank that computes on the CPU and one that feeds a device: how a row comes
// to run, who moves memory and who sums gradients. The walk over the EventGraph (engine.cpp) is
// the same.
//
// CPU: compute rows run on the thread that issues them, all others on a thread per stream.
// Device: every row is given to a lane of the accelerator by the thread that issues it; waits are
// the lane's, and times are read from events once the step is collected.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exec/comm/world.h"
#include "exec/compute/operations.h"
#include "exec/device/accelerator.h"
#include "exec/engine/events.h"
#include "exec/engine/unit_memory.h"
#include "exec/memory/allocator.h"
#include "reports/validate/run_record.h"
#include "sim/graph/event_graph.h"

namespace foreshard {

// How long the collectives of a paced rank last, by event id (zero: no collective), and how many
// multiprocessors each holds.
struct Pacing {
  std::vector<Time> durations;
  std::vector<int> ctas;
};

struct BackendParts {
  const ModelSpec& model;
  const Plan& plan;
  const EventGraph& graph;
  World& world;
  UnitSet& units;
  MemoryAccount& account;
  const Pacing* pacing = nullptr;  // none: the world's ranks are real
  bool replays = false;            // devices: steps are replayed as one recorded whole
};

// What a reduce-scatter of a unit's gradients does with their sum, as its row says.
struct ReduceScatterCall {
  EventId event = kNoEvent;
  std::uint8_t communicator = kNoCommunicator;
  std::int64_t shard = 0;  // elements
  const std::byte* whole = nullptr;
  SumMode mode = SumMode::kBegin;
  float* target = nullptr;  // of the shard; kApart: nothing
  std::int32_t apart = -1;  // kApart: the buffer whose sum an accumulation takes
};

struct AccumulateCall {
  std::int64_t shard = 0;           // elements
  const std::byte* slot = nullptr;  // gradients of one rank; nullptr: the sum that was left in `apart`
  std::int32_t apart = -1;
  SumMode mode = SumMode::kBegin;
  float* target = nullptr;
};

// A collective of activations or their gradients over the ranks of mesh.tp: an all-gather, or a
// reduce-scatter in pairs, of rows.
struct LayerCollectiveCall {
  EventId event = kNoEvent;
  EventKind kind = EventKind::kAllGather;
  std::uint8_t communicator = kNoCommunicator;
  at::Tensor in, out;
};

struct StepResult {
  MeasuredStep times;
  std::vector<double> losses;  // of the micro-batches
  double gradient_norm = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // --- steps ---
  // Steps that may be issued before the oldest one is collected; 0: collect at once.
  virtual int ahead() const = 0;
  // Makes micro-batches ready; those it returns hold until the step is collected.
  virtual std::span<MicroBatch> begin_step(std::int64_t number, std::span<MicroBatch> batches) = 0;
  virtual void issue(EventId id, const std::function<void()>& row) = 0;
  // Issues every row: calls `rows`, or does again what they did before.
  virtual void run_rows(const std::function<void()>& rows) { rows(); }
  virtual void end_step() = 0;       // everything of the step was issued
  virtual StepResult collect() = 0;  // of the oldest step that was not
  virtual void forget_begin() = 0;   // the next step begins when it is called
  virtual void sync() = 0;           // until nothing runs

  // A row that failed. The first failure stays.
  virtual void fail(EventId id, std::exception_ptr cause) = 0;
  virtual bool failed() const = 0;
  virtual EventFailure failure() const = 0;
  virtual void abort() = 0;  // from any thread: nobody waits for a peer any longer
  virtual void drain() = 0;  // after a failure

  // --- what rows do; `id` is kNoEvent between steps ---
  virtual Accelerator* device() { return nullptr; }
  virtual int group_index(std::uint8_t communicator) const = 0;
  virtual int group_size(std::uint8_t communicator) const = 0;
  virtual void all_gather(EventId id, std::uint8_t communicator, void* whole, std::size_t shard_bytes) = 0;
  virtual void reduce_scatter(const ReduceScatterCall& call) = 0;
  virtual void accumulate(const AccumulateCall& call) = 0;
  virtual void all_reduce_gradient(EventId id, std::uint8_t communicator, std::span<float> gradient) = 0;
  virtual void layer_collective(const LayerCollectiveCall& call) = 0;
  // Summands of gradients, in the reduce dtype, in pairs.
  virtual void all_reduce_partial(EventId id, std::uint8_t communicator, std::byte* values, std::int64_t count) = 0;
  virtual void all_reduce_norm(EventId id, std::uint8_t communicator) = 0;
  virtual void grad_norm() = 0;
  // Units whose gradient grad_norm() found an element in that is not finite; devices do not look.
  virtual std::span<const std::int32_t> not_finite_units() const { return {}; }
  virtual void grad_scale() = 0;
  virtual void optimizer(std::int64_t number) = 0;
  // Sum over the ranks that hold one replica.
  virtual std::int64_t add_over_shards(std::int64_t value) = 0;
};

// Of the group that communicator `c` is for this rank.
struct RankGroup {
  std::string name;
  std::vector<int> ranks;
};
RankGroup rank_group(const Communicator& c, int rank);

std::unique_ptr<Backend> make_cpu_backend(const BackendParts& parts);
// Throws Error(kMissingCapability) for what the device cannot do.
std::unique_ptr<Backend> make_device_backend(const BackendParts& parts, Accelerator& accelerator);

}
