// A mixture of experts as transformers executes it; internal to models/.
#pragma once

#include "sim/spec/model_spec.h"

namespace foreshard {

// Rewrites what models/layers/moe.cpp wrote, where the layer has experts
// (ExpertKernels::kTransformers).
void use_transformers_experts(LayerSpec& layer);

}  // namespace foreshard
