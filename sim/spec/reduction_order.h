// Reduction orders that name slices, too: products, and sums over tokens, are made in 2, 4 or 8
// slices of features (of tokens), whose sums are added in pairs, ((0 + 1) + (2 + 3)), whatever
// mesh.tp: plans of one such order have equal bits for every mesh.tp that divides it. Gradients are
// summed as with kMicrobatch, which has as many slices as mesh.tp.
#pragma once

#include <cstdint>

#include "sim/spec/plan.h"

namespace foreshard {

inline constexpr auto kMicrobatch2 = static_cast<ReductionOrder>(2);
inline constexpr auto kMicrobatch4 = static_cast<ReductionOrder>(3);
inline constexpr auto kMicrobatch8 = static_cast<ReductionOrder>(4);

constexpr std::int64_t slices_of(ReductionOrder order) {
  return order < kMicrobatch2 ? 1 : std::int64_t{1} << (static_cast<int>(order) - 1);
}
constexpr bool is_microbatch_order(ReductionOrder order) {
  return order != ReductionOrder::kLibrary;
}

}  // namespace foreshard
