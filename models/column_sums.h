// Buffers of the reductions that make gradients of biases and of eager norms' weights; internal to
// models/.
#pragma once

#include <cstdint>

#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Bytes that PyTorch's sum over `rows` of `columns` elements takes beside its result: 0 where a
// block of threads sums a column by itself.
std::int64_t column_sum_bytes(std::int64_t rows, std::int64_t columns);

// Gives the layer's operations that have such gradients their workspace in backward.
void add_column_sums(LayerSpec& layer, const Plan& plan);

}  // namespace foreshard
