// What the rows of an EventGraph do on this rank: those of a step, or of an evaluation.
//
// A row names everything that it works on; nothing is decided here. When a row runs is its
// backend's business (exec/engine/backend.h).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "exec/compute/layer_runner.h"
#include "exec/engine/backend.h"
#include "exec/engine/unit_memory.h"

namespace foreshard {

// Of a rank, whatever it runs. References are kept.
struct RankParts {
  const ModelSpec& whole;
  const ModelSpec& model;  // what this rank computes of it
  const Plan& plan;
  const RotaryTable& rotary;
  UnitSet& units;
  Backend& backend;
  int rank = 0;
  int part = 0;   // on mesh.tp
  int shard = 0;  // on mesh.shard
  Accelerator* device = nullptr;
  DeviceAttention attention = DeviceAttention::kCpu;
  bool debug = false;  // gradients are filled with NaN and checked
};

class Rows {
 public:
  // `graph` is kept. kBetweenSteps: an evaluation's, whose collectives no pacing is for.
  enum class Of : std::uint8_t { kStep, kBetweenSteps };
  Rows(const RankParts& parts, const EventGraph& graph, Of of);

  // Before the first row: batches of the micro-batches, which stay where they are.
  void begin(std::int64_t number, std::span<MicroBatch> batches);

  // From a gather on the unit's parameters are where it is gathered to.
  void attach_gathered(EventId id);
  void run(EventId id);
  // Behind every row, by the thread that issues: the buffers that end and begin with it are given
  // back and made where the next compute row runs, which has waited for who used them.
  void issued(EventId id);
  // Those of the last row.
  void make_gradients();
  // A collective between the parts of a layer is prepared by the host, before the backend runs it;
  // tensors that end behind it are let go of by release().
  bool is_in_layer(EventId id) const;
  LayerCollectiveCall layer_collective(EventId id);
  void release(EventId id) { layer_row(id); }

  LayerRunner& layers() { return layers_; }

 private:
  const Row& row(EventId id) const { return graph_.rows[at(id)]; }
  const RowDetail& detail(EventId id) const { return graph_.details[at(id)]; }
  // As the backend is told of it.
  EventId told(EventId id) const { return of_ == Of::kStep ? id : kNoEvent; }
  // nullptr: neither of EventGraph::persistent, whose order is the same in all graphs of a rank,
  // nor made by make_gradients().
  std::byte* find_memory(std::int32_t buffer) const;
  std::byte* memory(std::int32_t buffer) const;
  float* floats(std::int32_t buffer) const { return reinterpret_cast<float*>(memory(buffer)); }

  void layer_row(EventId id);
  void begin_gradients(const RowDetail& detail);
  void all_gather(EventId id);
  void all_reduce(EventId id);
  void reduce_scatter(EventId id);
  void accumulate(EventId id);
  void reshard(const RowDetail& detail);
  void host_to_device(const RowDetail& detail);
  void host_optimizer(const Work& work);
  void check_gradients(const RowDetail& detail);

  const RankParts parts_;
  const EventGraph& graph_;
  const Of of_;
  LayerRunner layers_;
  std::vector<std::byte*> places_;            // of EventGraph::buffers; stay until made again
  std::map<std::int32_t, at::Tensor> made_;   // by buffer: gradients that are there
  std::vector<const MemoryAction*> awaited_;  // what the next compute row makes and frees first
  std::int64_t number_ = 0;
  std::span<MicroBatch> batches_;
};

}
