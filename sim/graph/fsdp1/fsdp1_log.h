// The log of runtime fsdp1 in the vocabulary of tests/recordings/ddp_zero: FSDP's own events, and
// the module boundaries that hooks on modules and tensors see.
//
// Boundaries are those of the blocks, or of the modules inside them that own parameters. A module's backward begins
// when the gradient of its output is there and ends when that of its first input is: hooks on tensors, which run in the
// order of registration before the operation that made the tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/graph/fsdp1/fsdp1_builder.h"
#include "sim/graph/layers/layer_modules.h"
#include "sim/graph/torch_words.h"

namespace foreshard {

class Fsdp1Log {
 public:
  Fsdp1Log(const Fsdp1& builder, LibraryWatch::Modules modules);

  void add(LibraryEvent event);
  void add_unit(std::string_view kind, std::int32_t unit, LibraryEvent rest = {});
  std::string name_of(std::int32_t unit) const;
  std::vector<LibraryBucket> buckets() const;
  std::vector<LibraryEvent> take() { return std::move(events_); }
  std::string shard_group() const;      // of all-gathers and reduce-scatters
  std::string replicate_group() const;  // of all-reduces

  // Forward: a layer, and the operations of one of its parts, begin and end; FSDP's hook on the
  // output of the layer or the part is registered.
  void begin_pass();
  void begin_layer(std::int32_t layer);
  void run_operations(std::int32_t layer, std::int8_t part, bool whole);
  void end_layer(std::int32_t layer);
  void register_unit_hook(std::int32_t layer);
  // Backward: hooks on the output of the entry that begins, up to the next of FSDP's; then those on
  // what its operations made.
  void begin_entry(std::int32_t layer);
  void run_hooks();
  void run_inner_hooks();

 private:
  struct Hook {  // a module's begin or end of backward; FSDP's
    std::string name;
    std::string_view kind;  // "" FSDP's
  };
  struct Operation {
    std::int16_t module = -1;  // that owns its parameters
    bool begins = false, ends = false;
    std::int32_t input_maker = -1;  // operation that made its first input; -1: the layer's input
  };
  struct Kind {
    std::vector<LayerModule> modules;
    std::vector<Operation> operations;
  };
  struct Pass {                            // of a layer in the forward that ran last
    std::size_t next = 0;                  // operation
    std::vector<std::vector<Hook>> hooks;  // on each operation's output
    std::vector<std::size_t> ends;         // of each part of the forward, in order
  };

  const Kind& kind_of(std::int32_t layer) const;
  Pass& pass_of(std::int32_t layer) { return passes_[at(layer)]; }
  void hook_on_input(std::int32_t layer, std::int32_t maker, Hook hook);
  bool needs_gradient(std::int32_t layer, std::int32_t maker) const;

  const Fsdp1& builder_;
  const bool sees_blocks_;
  std::vector<Kind> kinds_;
  std::vector<Pass> passes_;
  std::vector<LibraryEvent> events_;
  std::vector<Hook>* open_ = nullptr;  // hooks of the entry's output
  std::size_t next_hook_ = 0;
  std::int32_t entry_layer_ = -1;
  std::size_t entry_begin_ = 0, entry_end_ = 0;  // operations of the entry
};

}
