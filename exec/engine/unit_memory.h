// The memory of the units on one rank: where the arena's buffers are, and every parameter as views.
//
// Runtime native, as laid out by sim/graph: flat padded unit buffers (sim/graph/flat_layout.h), one shard of each on
// every rank. A parameter's value is a view into the unit's storage, which is attached to the shard itself, or its
// shadow (one rank), to storage of its own, or to a slot; its gradient is a view into the gradient storage likewise.
// All of it is memory of the rank's device, but shards, states and sums of gradients of a plan that offloads them.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "exec/compute/operations.h"
#include "exec/memory/arena.h"
#include "exec/memory/flat_storage.h"
#include "exec/memory/parameter_cut.h"
#include "exec/memory/rank_memory.h"
#include "sim/graph/event_graph.h"
#include "sim/graph/flat_layout.h"
#include "sim/memory/arena.h"

namespace foreshard {

struct UnitMemory {
  std::string name;
  FlatUnit layout;
  std::vector<ParameterCut> cuts;  // of the parameters of `layout`
  std::int64_t counted = 0;        // of the shard: what no other rank of mesh.tp counts, too
  std::int64_t shard = 0;          // elements of this rank's shard
  std::int64_t first = 0;          // its first element in the flat buffer
  std::byte* master = nullptr;
  std::byte* shadow = nullptr;  // the shard in the compute dtype; master where the dtypes are equal
  // Of the shard, fp32, from the first micro-batch's backward until the optimizer has read it; on
  // the host with offload, where it stays.
  float* gradient = nullptr;
  std::vector<std::byte*> moments;  // exp_avg, exp_avg_sq
  FlatStorage values, gradients;
  std::deque<bool> written;  // per parameter of `layout`: its gradient holds something

  std::int64_t padded() const { return layout.padded_numel(); }
};

class UnitSet {
 public:
  // References are kept.
  UnitSet(const ModelSpec& model, const Plan& plan, const EventGraph& graph, int shard_index,
      RankMemory& memory = host_memory());

  std::vector<UnitMemory>& all() { return units_; }
  UnitMemory& at(std::int32_t unit) { return units_[static_cast<std::size_t>(unit)]; }
  // Parameters of a layer, in the order of LayerSpec::parameters.
  const std::vector<Parameter>& of_layer(std::int32_t layer) const { return layers_[static_cast<std::size_t>(layer)]; }
  std::byte* place(std::size_t number) const;  // of a buffer, by position in EventGraph::persistent
  // Of each communicator's scratch, in their order; none where the graph has none.
  std::vector<std::span<std::byte>> scratches() const;
  RankMemory& memory() const { return memory_; }
  // Of shards and states: the same, or pinned memory of the host.
  RankMemory& states() { return offloads_ ? static_cast<RankMemory&>(pinned_) : memory_; }
  bool offloads() const { return offloads_; }
  std::int64_t arena_bytes() const { return std::ssize(arena_); }

  // The units are of part `index` of mesh.tp of a whole model.
  void set_cuts(const ModelSpec& whole, const ModelSpec& part, std::int64_t index);

  // The unit's gradients begin in `memory`: attached, padding zeroed, nothing
  // written.
  void begin_gradients(UnitMemory& unit, std::byte* memory, bool fill_with_nan);

 private:
  void place_buffers();
  void make_views(const ModelSpec& model);

  const Plan& plan_;
  RankMemory& memory_;
  PinnedMemory pinned_;
  bool offloads_;
  bool gathers_;
  ArenaLayout offsets_;
  std::vector<Buffer> persistent_;  // by position in EventGraph::persistent
  Arena arena_, host_arena_;
  std::vector<UnitMemory> units_;
  std::vector<std::vector<Parameter>> layers_;
};

// Layers of every unit in forward order; the loss has none.
std::vector<std::vector<std::int32_t>> layers_of_units(const ModelSpec& model, const EventGraph& graph);

}
