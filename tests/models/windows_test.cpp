// Windows of attention: kernels that take them compute the pairs of positions that they hold.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "sim/spec/model_spec.h"

namespace foreshard {
namespace {

// A query attends to its own position and the window - 1 before it (transformers'
// masking_utils.py, sliding_window_overlay), counted pair by pair; the diagonal counts half, as in
// the half of the square that causal attention counts.
double pairs(std::int64_t positions, std::int64_t window) {
  double sum = 0;
  for (std::int64_t query = 0; query < positions; ++query) {
    for (std::int64_t key = 0; key <= query; ++key) {
      if (window == 0 || key > query - window) sum += key == query ? 0.5 : 1;
    }
  }
  return sum;
}

RC_GTEST_PROP(Windows, FlopsAreThoseOfThePairs, ()) {
  const auto positions = *rc::gen::inRange<std::int64_t>(1, 120);
  Operation op;
  op.kind = OperationKind::kAttention;
  op.function = Function::kAttention;
  op.attention.heads = op.attention.kv_heads = 1;
  op.attention.head_dim = 4;
  op.attention.window = *rc::gen::inRange<std::int64_t>(0, 140);
  const double of_a_pair = 2.0 * 2 * 4;  // q k and p v
  const double counted = forward_flops(op, 1, positions).count() / of_a_pair;
  const bool is_bound = op.attention.window > 0 && op.attention.window < positions;
  // The farthest key is a whole pair where the continuous window has half of it.
  const double rounding = is_bound ? static_cast<double>(positions) / 2 : 1e-9;
  RC_ASSERT(std::abs(counted - pairs(positions, op.attention.window)) <= rounding);
}

}  // namespace
}  // namespace foreshard
