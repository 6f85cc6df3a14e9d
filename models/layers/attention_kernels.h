// Which kernels compute a layer's attention under a plan, and what they keep; internal to models/.
#pragma once

#include <string_view>

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Replaces every fused attention of the layer by what runs: the same operation with the workspace
// of its kernel, or the operations that PyTorch or the family's model (ModelSpec::family) computes
// it by.
void apply_attention(LayerSpec& layer, const Plan& plan, std::string_view family);

}  // namespace foreshard
