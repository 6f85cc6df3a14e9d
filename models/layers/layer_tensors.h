// Tensors of a layer by their number, for what rewrites a layer.
#pragma once

#include <cstdint>
#include <utility>

#include "sim/spec/model_spec.h"

namespace foreshard {

// The number of the tensor that is now the layer's last.
inline std::int16_t add_tensor(LayerSpec& layer, TensorSpec spec) {
  layer.tensors.push_back(std::move(spec));
  return static_cast<std::int16_t>(layer.tensors.size() - 1);
}

// Precondition: the layer has it.
inline const TensorSpec& tensor(const LayerSpec& layer, std::int16_t index) {
  return layer.tensors[static_cast<std::size_t>(index)];
}

}  // namespace foreshard
