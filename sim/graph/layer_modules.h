// The modules inside a layer, as the names of its parameters tell: "self_attn.q_proj.weight" makes
// "self_attn" and "self_attn.q_proj". Modules without parameters below them leave no trace.
//
// Runtimes that hook every module (DeepSpeed ZeRO-3) or every gradient (DDP, ZeRO-1 and 2) act at
// the places that LayerHook marks in a phase.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/spec/model_spec.h"

namespace foreshard {

struct LayerModule {
  std::string name;          // within the layer; the whole name where the layer is no block
  std::int16_t parent = -1;  // into the list, before this one; -1: the layer itself
  std::vector<std::int16_t> parameters;  // its own, not those of modules inside
};

// In the order of registration: the first parameter's first, outer modules before inner ones. For
// layers other than blocks only the modules that own parameters: what is around them also holds
// other layers.
std::vector<LayerModule> modules_of(const LayerSpec& layer);

// "model.layers.17.self_attn.q_proj.weight".
std::string parameter_name(const ModelSpec& model, std::int32_t layer, std::int16_t parameter);
// "model.layers.17.self_attn.q_proj", "model.layers.17" (module -1 of a block).
std::string module_name(const ModelSpec& model, std::int32_t layer, const LayerModule& module);

}  // namespace foreshard
