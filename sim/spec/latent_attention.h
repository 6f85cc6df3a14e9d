#pragma once

#include <algorithm>
#include <string>

#include "sim/spec/model_spec.h"

namespace foreshard {

// Whether the layer attends by latents, by the names of models/parameter_names.h.
inline bool has_latents(const LayerSpec& layer) {
  return std::ranges::any_of(layer.parameters, [](const ParameterSpec& p) {
    return p.name.find("kv_a_") != std::string::npos;
  });
}

}  // namespace foreshard
