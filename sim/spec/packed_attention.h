#pragma once

#include "sim/spec/model_spec.h"

namespace foreshard {

// Queries, keys and values are views of one tensor, whose gradient is put together from theirs.
inline bool reads_packed_projection(const Operation& op) {
  return op.kind == OperationKind::kAttention && op.inputs.size() == 1 && op.outputs.size() >= 2 &&
         op.backward_temporaries.size() == 3;
}

}  // namespace foreshard
