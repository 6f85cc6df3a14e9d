// A mixture of experts as transformers executes it; internal to models/.
#pragma once

#include <string_view>

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Rewrites what models/layers/moe.cpp wrote, where the layer has experts (ExpertKernels::kTransformers,
// kTransformers4).
void use_transformers_experts(LayerSpec& layer, std::string_view family, const Plan& plan);

// Parameters of a block as its modules define them, which is not as they are used: attention, what
// is behind it, then the block's norms; norms of queries and keys behind the projections.
void order_as_transformers(LayerSpec& layer, std::string_view family, int transformers);

// Whether the family's router multiplies where autocast is off.
bool routes_without_autocast(std::string_view family);

}
