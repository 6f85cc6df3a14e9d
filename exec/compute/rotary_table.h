#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "sim/spec/model_spec.h"

namespace foreshard {

// cos and sin, [positions, head_dim / 2], fp32.
struct RotaryTable {
  at::Tensor cos, sin;
};
// Frequency i is theta^(-2i / head_dim), rescaled as `scaling` says (not kOther).
RotaryTable rotary_table(std::int64_t positions, std::int64_t head_dim, double theta, const RopeScaling& scaling = {});

}
