#pragma once

#include <algorithm>

#include "sim/base/lookup.h"
#include "sim/spec/model_spec.h"

namespace foreshard {

// Of what makes or norms latents, by the names of models/parameter_names.h.
inline bool is_latent(const ParameterSpec& p) { return contains(p.name, "kv_a_"); }

inline bool has_latents(const LayerSpec& layer) { return std::ranges::any_of(layer.parameters, is_latent); }

// Queries, keys and values are views of one tensor, whose gradient is put together from theirs.
inline bool reads_packed_projection(const Operation& op) {
  return op.kind == OperationKind::kAttention && op.inputs.size() == 1 && op.outputs.size() >= 2 &&
         op.backward_temporaries.size() == 3;
}

}
