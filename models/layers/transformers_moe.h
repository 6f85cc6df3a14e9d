// A mixture of experts as transformers executes it; internal to models/.
#pragma once

#include <string_view>

#include "sim/spec/model_spec.h"

namespace foreshard {

// Rewrites what models/layers/moe.cpp wrote, where the layer has experts
// (ExpertKernels::kTransformers).
void use_transformers_experts(LayerSpec& layer, std::string_view family);

}  // namespace foreshard
