// The modules inside a layer, as the names of its parameters tell: "self_attn.q_proj.weight" makes
// "self_attn" and "self_attn.q_proj". Modules without parameters below them leave no trace.
//
// Runtimes that hook every module (DeepSpeed ZeRO-3) or every gradient (DDP, ZeRO-1 and 2) act at
// the places that LayerHook marks in a phase.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/spec/model_spec.h"

namespace foreshard {

struct LayerModule {
  std::string name;          // within the layer; the whole name where the layer is no block
  std::int16_t parent = -1;  // into the list, before this one; -1: the layer itself
  Indices parameters;        // its own, not those of modules inside
};

// In the order of registration: the first parameter's first, outer modules before inner ones. For layers other than
// blocks only the modules that own parameters: what is around them also holds other layers.
std::vector<LayerModule> modules_of(const LayerSpec& layer);

// From which operation of a layer to which each of its modules runs: those that read the weights in it or below it.
class ModuleSpans {
 public:
  ModuleSpans() = default;  // of a layer without modules
  explicit ModuleSpans(const LayerSpec& layer);
  // Modules, as in modules_of(layer), whose first (last) operation this is; inner ones first.
  Indices beginning(std::size_t operation) const { return around_where(operation, first_); }
  Indices ending(std::size_t operation) const { return around_where(operation, last_); }

 private:
  Indices around(std::size_t operation) const;
  Indices around_where(std::size_t operation, const std::vector<std::size_t>& place) const;

  std::vector<LayerModule> modules_;
  Indices module_of_;                      // operations: whose weights it reads; -1: no module's
  std::vector<std::size_t> first_, last_;  // modules
};

// "model.layers.17.self_attn.q_proj.weight".
std::string parameter_name(const ModelSpec& model, std::int32_t layer, std::int16_t parameter);
// "model.layers.17.self_attn.q_proj", "model.layers.17" (module -1 of a block).
std::string module_name(const ModelSpec& model, std::int32_t layer, const LayerModule& module);

}
