// Buffers of the reductions that make gradients of biases, of eager norms' weights and of fused losses.
#pragma once

#include <cstdint>
#include <string_view>

namespace foreshard {

// A workspace of this name is such a buffer: the rows that its sizes are, but for `fixed`, are
// summed over `fixed` columns. (Not linear in the rows, which a TensorSpec's sizes are.)
inline constexpr std::string_view kColumnSums = "column sums";
// ... in fp32 of what a fused loss' tiles add to its weight's gradient.
inline constexpr std::string_view kSumOfTiles = "weight's gradient, summed";

// Bytes that PyTorch's sum over `rows` of `columns` elements takes beside its result: 0 where a
// block of threads sums a column by itself.
std::int64_t column_sum_bytes(std::int64_t rows, std::int64_t columns);

}
