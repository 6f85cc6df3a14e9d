// Sums of several ranks' contributions, element by element, in the order given: the one place that
// decides the bits of a reduction.
#pragma once

#include <cstddef>
#include <span>

#include "sim/spec/plan.h"

namespace foreshard {

enum class FirstPiece { kCopied, kAdded };

// sum[i] = pieces[0][i] + pieces[1][i] + ... from left to right in fp32, where kAdded puts the old
// sum[i] before the first. `pieces` are arrays of `elements` elements of `wire` (fp32 or bf16,
// which is widened exactly), at any alignment; none overlaps `sum` but pieces[0], which may be it.
void add_in_order(std::span<const void* const> pieces, DType wire, std::size_t elements, float* sum,
                  FirstPiece first);

// sum = ((pieces[0] + pieces[1]) + (pieces[2] + pieces[3])) ...: a power of two of them, in halves,
// every sum rounded to `wire`, in which `sum` is, too. None overlaps it.
void add_in_pairs(std::span<const void* const> pieces, DType wire, std::size_t elements, void* sum);

}  // namespace foreshard
