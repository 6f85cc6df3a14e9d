// Elements from one floating-point dtype to another.
#pragma once

#include <cstddef>
#include <span>

#include "sim/spec/plan.h"

namespace foreshard {

// `from` and `to` hold the same number of elements, in host memory, and do not overlap. Rounds to
// nearest, ties to even; overflow becomes infinity and NaN stays NaN. Equal dtypes copy the bytes.
void convert(DType from_dtype, std::span<const std::byte> from, DType to_dtype,
             std::span<std::byte> to);

}  // namespace foreshard
