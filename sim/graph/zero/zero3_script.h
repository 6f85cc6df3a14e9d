// DeepSpeed's view of a model under ZeRO stage 3: parameters by ds_id, the tree of modules that
// carry hooks, and the places of one forward and backward where those hooks run. However many
// ranks there are.
//
// Every module of the tree runs hooks, containers without parameters too
// (deepspeed/runtime/zero/parameter_offload.py, DeepSpeed 0.19.8). The tree is what the names of
// parameters tell: the root, each dotted prefix, the modules inside layers (layer_modules.h). A
// list of blocks (ModelSpec::block_prefix) is no module that runs. Modules without parameters
// below them (activations, dropout, rotary embeddings) leave no trace in names; DeepSpeed enters
// them too, and each entry may prefetch another bucket, so a real window may be wider.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/graph/layers/layer_modules.h"
#include "sim/graph/step_builder.h"

namespace foreshard {

struct Zero3Parameter {
  std::int64_t numel = 0;
  std::int32_t size = 0;  // into Zero3Script::sizes
  std::int32_t layer = 0;
  std::int16_t index = 0;  // LayerSpec::parameters
  bool persists = false;   // stays gathered: at most param_persistence_threshold elements
  bool trained = true;
  bool is_wide = false;  // an adapter in fp32 beside a base in 16 bits
  bool in_leaf = false;  // reduced with its leaf module
};

struct Zero3Module {
  std::int32_t first_owned = 0;    // into Zero3Script::owned
  std::int32_t owned = 0;          // parameters fetched with it: its own, all below for a leaf
  std::int32_t layer = -1;         // -1: a container outside the layers
  std::int16_t local = -1;         // into modules_of(layer); -1: the block, a container
  bool is_leaf = false;            // set_z3_leaf_modules: nothing below it has hooks
  bool is_container = false;       // owns no parameter directly
  bool has_input_gradient = true;  // else its hook after backward never runs
};

// Elements of a rank's share.
constexpr std::int64_t partition_of(std::int64_t numel, std::int64_t ranks) { return (numel + ranks - 1) / ranks; }

// NVMe: smaller partitions stay in memory (AsyncPartitionedParameterSwapper.swappable_tensor:
// MIN_AIO_BYTES, and aio's default block_size).
constexpr bool goes_to_nvme(std::int64_t partition_bytes) { return partition_bytes >= std::int64_t{1} << 20; }

// What happens at one point of host order. `segment`: the first segment of the layer's phase that runs after it.
struct Zero3Place {
  enum class Kind : std::uint8_t { kEnter, kExit, kGradient, kLeafGradients, kPhaseEnd, kLoss };
  Kind kind = Kind::kEnter;
  EventKind phase = EventKind::kForward;  // kForward, kRecompute or kBackward
  std::uint16_t segment = 0;
  std::int32_t layer = -1;  // whose phase is at `segment`; -1: outside of layers
  std::int32_t id = -1;     // module; kGradient: parameter
};

class Zero3Script {
 public:
  // Reads the layers' programs of the builder's first micro-batch. The model is asked for names
  // later on; builder and plan are not needed any more.
  explicit Zero3Script(const StepBuilder& builder, const ModelSpec& model, const Plan& plan);

  std::vector<Zero3Parameter> parameters;  // by ds_id: the order of Module.parameters()
  std::vector<std::int64_t> sizes;         // the different numels of parameters
  std::vector<Zero3Module> modules;
  std::vector<std::int32_t> owned;  // of modules, ascending
  std::vector<Zero3Place> forward, backward;
  std::int32_t last_gradient = -1;  // place of `backward` behind which no gradient arrives

  std::span<const std::int32_t> owned_of(std::int32_t module) const {
    const Zero3Module& m = modules[at(module)];
    return {owned.data() + m.first_owned, at(m.owned)};
  }
  const Zero3Parameter& parameter(std::int32_t p) const { return parameters[at(p)]; }
  // Parameters as modules list them: a module's own in front of those of modules inside of it.
  std::vector<std::int32_t> as_defined() const;
  std::int32_t parameter_count() const { return static_cast<std::int32_t>(parameters.size()); }
  // The forward without adapters.
  std::vector<Zero3Place> base() const;
  // The first module that holds it; a tied head is a second one.
  std::int32_t owner(std::int32_t parameter) const { return owner_[at(parameter)]; }
  // Whether the module or one below it holds the parameter.
  bool is_above(std::int32_t module, std::int32_t parameter) const;
  // Of the module and all below it, each parameter once.
  std::int64_t numel_below(std::int32_t module) const { return numel_below_[at(module)]; }
  std::string name_of_module(std::int32_t module) const;  // "root", "layers.3.mlp.up_proj"
  std::string name_of_parameter(std::int32_t parameter) const;

 private:
  void add_parameters();
  std::int32_t size_of(std::int64_t numel);
  void add_modules();
  void add_layer_modules(std::int32_t layer);
  std::vector<LayerModule> layer_modules(std::int32_t layer) const;
  bool copy_layer_modules(std::int32_t layer);
  bool repeats_modules(std::int32_t layer, std::int32_t like) const;
  std::int32_t container(const std::string& name);
  bool is_read_aside(std::int32_t layer) const;
  bool is_fed_with_gradient(std::int32_t layer, const LayerModule& module) const;
  void own(std::int32_t module, std::int32_t layer, std::int16_t index);
  std::int32_t parameter_of(std::int32_t layer, std::int16_t index) const {
    return parameter_of_[at(first_slot_[at(layer)]) + at(index)];
  }
  std::int32_t module_of(std::int32_t layer, std::int16_t local) const { return first_module_[at(layer)] + local + 1; }
  std::int32_t parent_of(std::int32_t module) const { return parents_[at(module)]; }

  // Containers that begin and end between layers.
  void go_to(std::vector<Zero3Place>& places, EventKind phase, std::int32_t container);
  void write_forward();
  void write_backward();
  void write_phase(std::vector<Zero3Place>& places, EventKind phase, std::int32_t layer);
  void write_backward_layer(std::int32_t layer);
  void write_hook(std::vector<Zero3Place>& places, EventKind phase, std::int32_t layer, const LayerHook& hook);
  bool repeats(std::int32_t layer, std::int32_t like) const;
  void copy_places(std::vector<Zero3Place>& places, std::size_t begin, std::int32_t layer, std::int32_t like);
  void sort_gradients(std::size_t begin);
  bool is_block(std::int32_t layer) const;
  const LayerSpec& spec_of(std::int32_t layer) const { return model_.kinds[at(model_.order[at(layer)].kind)]; }

  const StepBuilder* builder_;  // while the places are written, as is the plan
  const ModelSpec& model_;
  const Plan* plan_;
  std::vector<std::int32_t> parents_;                    // of modules; -1: of the root
  std::vector<std::int32_t> owner_;                      // of parameters: the first module that holds it
  std::vector<std::string> containers_;                  // names; the first modules in the same order
  std::vector<std::int64_t> numel_below_;                // of modules
  std::vector<std::int32_t> parameter_of_, first_slot_;  // parameters of layers
  std::vector<std::int32_t> first_module_;               // of each layer's; blocks: the block itself
  std::vector<bool> input_needs_gradient_;               // of layers
  std::int32_t block_container_ = 0;
  std::int32_t current_ = -1;  // innermost open container
};

}
