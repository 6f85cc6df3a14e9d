// Which kernels compute a layer's attention under a plan, and what they keep.
#pragma once

#include <string_view>

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Replaces every fused attention of the layer by what runs: the same operation with the workspace of its kernel, or the
// operations that PyTorch or the family's model (ModelSpec::family) computes it by.
void apply_attention(LayerSpec& layer, const Plan& plan, std::string_view family);

// FlexAttention returns its result and the sums of exponentials alone (torch/_higher_order_ops/
// flex_attention.py, 2.11); fused kernels the state of the random generator besides.
void drop_random_state(Operation& attention);

}
