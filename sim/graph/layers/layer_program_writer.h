// A layer's program while it is written, one phase after the other: slots and actions, segments,
// hooks and steps, and who refers to which storage. A storage is freed with its last reference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/graph/layers/layer_autograd.h"
#include "sim/graph/layers/layer_program.h"

namespace foreshard {

class LayerProgramWriter {
 public:
  using Slots = std::vector<std::int32_t>;

  static constexpr std::int32_t kNoSlot = -1;
  static constexpr std::int32_t kInputSlot = 0;
  static constexpr std::int32_t kInputGradSlot = 1;
  static constexpr std::int32_t kWaitingSlot = LayerPhaseProgram::kWaiting;
  static constexpr std::int32_t kWaitingGradSlot = kWaitingSlot + 1;
  // Places for the next layer's slots until the number of own slots is known.
  static constexpr std::int32_t kOutputSlot = 1 << 28;
  static constexpr std::int32_t kOutputGradSlot = kOutputSlot + 1;

  explicit LayerProgramWriter(const LayerAutograd& graph);
  const LayerAutograd& graph() const { return graph_; }
  LayerProgram& program() { return program_; }

  // What follows is written to `phase`, a part of program(), until end() closes it.
  void begin(LayerPhaseProgram& phase) { phase_ = &phase; }
  void end() { close_segment(); }
  LayerPhaseProgram& phase() { return *phase_; }

  // --- slots and actions ---

  std::int32_t add_slot(MemoryCategory category, std::int64_t bytes, std::string name);
  void allocate(std::int32_t slot) { phase_->actions.push_back(slot + 1); }
  void free(std::int32_t slot) { phase_->actions.push_back(-(slot + 1)); }
  // A new slot of backward, allocated.
  std::int32_t make_temporary(std::int64_t bytes, std::string name);
  // What kernels need for themselves, and what their library takes: allocated together and freed together.
  void use_workspace(const Indices& tensors, std::int32_t library = kNoSlot);
  // That of cuBLAS or cublasLt where the operation is a product of theirs (ProgramOptions::workspaces), else kNoSlot.
  std::int32_t library_slot(const Operation& op, Pass pass);

  // --- segments, hooks, steps ---

  void enter(std::int8_t part);
  void begin_segment(std::int8_t part);
  void add_hook(LayerHook::Kind kind, std::int16_t what);
  // Given inner ones first, as ModuleSpans lists them.
  void enter_modules(const Indices& modules);
  void exit_modules(const Indices& modules);
  static LayerStep begin_step(LayerStep::Kind kind, std::size_t operation);
  void end_step(LayerStep step);

  // --- collectives ---

  // Closes the segment that is open and returns the call's number.
  std::int16_t launch(
      const LayerCollective& collective, std::int64_t bytes_in, std::int64_t bytes_out, TensorElement element);
  void await(std::int16_t launch);
  void recompute_here();
  // The tensor is on its way: whoever reads its storage next waits, and then `sent` is let go of.
  void set_flight(Index t, std::int16_t launch, Index sent);
  // ... then the slot is freed.
  void set_flight_of_copy(Index t, std::int16_t launch, std::int32_t copy);
  void settle(Index t);
  // What is still on its way when the phase ends is the next layer's to wait for.
  void leave_open(Index t);

  // --- storages ---

  // The tensor gets a storage of its own, in the slot; nobody refers to it yet.
  void add_storage(Index t, std::int32_t slot);
  void share_storage(Index t, Index with);
  bool has_storage(Index t) const { return storage_of_[at(t)] != kNoStorage; }
  std::int32_t slot_of(Index t) const;
  // For release(), when the tensor has another one; kNoStorage: none.
  std::int32_t storage_of(Index t) const { return storage_of_[at(t)]; }
  void release(std::int32_t storage);
  Slots slots_of(const Indices& tensors) const;
  std::int32_t references(Index t) const { return storage(t).references; }
  void refer(Index t);
  void unrefer(Index t);
  // A Python name is one reference.
  void name(Index t);
  void unname(Index t);
  bool is_named(Index t) const { return named_[at(t)]; }
  // An in-place operation's output takes the buffer of `t`, which is gone then.
  void take_over(Index t);
  // Slots that references keep, but for the layer's input and output.
  Slots referred_slots() const;

  // --- selective recompute's cache ---

  void keep(Index t);
  bool is_kept(Index t) const { return kept_[at(t)]; }
  void pop(Index t);  // the cache's reference is a name's again
  // In the cache, and nobody asked for it.
  bool is_unpopped(Index t) const { return kept_[at(t)] && !popped_[at(t)]; }
  void drop_kept();

 private:
  static constexpr std::int32_t kNoStorage = -1;
  struct Storage {
    std::int32_t slot = kNoSlot;
    std::int32_t references = 0;
    std::int16_t flight = kLanded;   // the launch that fills it
    std::int32_t sent = kNoStorage;  // what that holds until it is waited for
  };
  static constexpr std::int16_t kLanded = -2;

  Storage& storage(Index t) { return storages_[at(storage_of_[at(t)])]; }
  const Storage& storage(Index t) const { return storages_[at(storage_of_[at(t)])]; }
  void close_segment();
  std::uint16_t empty_segment();  // the last one, or another of its part behind it
  std::int16_t add_call(LayerCall call);

  const LayerAutograd& graph_;
  LayerProgram program_;
  LayerPhaseProgram* phase_ = nullptr;
  std::int32_t cublas_ = kNoSlot, lt_ = kNoSlot;  // ProgramOptions::workspaces
  std::vector<Storage> storages_;
  std::vector<std::int32_t> storage_of_;     // tensors
  std::vector<bool> named_, kept_, popped_;  // tensors
};

}
