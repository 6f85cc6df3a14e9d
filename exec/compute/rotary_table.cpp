#include "exec/compute/rotary_table.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "sim/base/error.h"

namespace foreshard {
namespace {

// Of Llama 3.1: wavelengths beyond original / low are stretched by factor, those below original /
// high stay, between them the inverse of the wavelength goes linearly from one to the other.
double rescaled(double frequency, const RopeScaling& s) {
  if (s.kind == RopeScaling::Kind::kNone) return frequency;
  if (s.kind == RopeScaling::Kind::kLinear) return frequency / s.factor;
  FORESHARD_CHECK(s.kind == RopeScaling::Kind::kLlama3, "a rope scaling that is not computed");
  const double turns = as_double(s.original_positions) * frequency / (2 * std::numbers::pi);
  const double kept =
      std::clamp((turns - s.low_frequency_factor) / (s.high_frequency_factor - s.low_frequency_factor), 0.0, 1.0);
  return frequency * (kept + (1 - kept) / s.factor);
}

}

RotaryTable rotary_table(std::int64_t positions, std::int64_t head_dim, double theta, const RopeScaling& scaling) {
  const std::int64_t half = head_dim / 2;
  RotaryTable table{at::empty({positions, half}, at::kFloat), at::empty({positions, half}, at::kFloat)};
  auto* cos = table.cos.mutable_data_ptr<float>();
  auto* sin = table.sin.mutable_data_ptr<float>();
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < half; ++i) {
    const double exponent = -2.0 * as_double(i) / as_double(head_dim);
    frequencies.push_back(rescaled(std::pow(theta, exponent), scaling));
  }
  for (std::int64_t p = 0; p < positions; ++p) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = as_double(p) * frequencies[at(i)];
      cos[p * half + i] = static_cast<float>(std::cos(angle));
      sin[p * half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

}
