// Tables of rotary frequencies against the definition of each rescaling, written as it is
// published: Llama 3.1's apply_scaling (meta-llama/llama-models:models/llama3/model.py) and Hugging
// Face's _compute_llama3_parameters and _compute_linear_scaling_rope_parameters.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "exec/engine/engine.h"
#include "tests/exec/engine/engine_runs.h"

namespace foreshard::rotary_table_test {
namespace {

constexpr std::int64_t kHeadDim = 128;
constexpr double kTheta = 500000;

double plain(std::int64_t i) {
  return 1.0 / std::pow(kTheta, static_cast<double>(2 * i) / static_cast<double>(kHeadDim));
}

// By wavelength, as published.
double llama3(double frequency, const RopeScaling& s) {
  const double old_length = static_cast<double>(s.original_positions);
  const double low_wavelength = old_length / s.low_frequency_factor;
  const double high_wavelength = old_length / s.high_frequency_factor;
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < high_wavelength) return frequency;
  if (wavelength > low_wavelength) return frequency / s.factor;
  const double smooth =
      (old_length / wavelength - s.low_frequency_factor) / (s.high_frequency_factor - s.low_frequency_factor);
  return (1 - smooth) * frequency / s.factor + smooth * frequency;
}

TEST(RotaryTable, Llama3RescalesByWavelength) {
  RopeScaling scaling;  // of Llama 3.1
  scaling.kind = RopeScaling::Kind::kLlama3;
  scaling.factor = 8;
  scaling.low_frequency_factor = 1;
  scaling.high_frequency_factor = 4;
  scaling.original_positions = 8192;
  constexpr std::int64_t kPositions = 300;
  const RotaryTable table = rotary_table(kPositions, kHeadDim, kTheta, scaling);
  const float* cos = table.cos.const_data_ptr<float>();
  const float* sin = table.sin.const_data_ptr<float>();
  int kept = 0, divided = 0, between = 0;
  for (std::int64_t i = 0; i < kHeadDim / 2; ++i) {
    const double wanted = llama3(plain(i), scaling);
    (wanted == plain(i) ? kept : wanted == plain(i) / 8 ? divided : between) += 1;
    for (const std::int64_t p : {std::int64_t{0}, std::int64_t{1}, kPositions - 1}) {
      const double angle = static_cast<double>(p) * wanted;
      EXPECT_NEAR(cos[p * kHeadDim / 2 + i], std::cos(angle), 1e-6) << i;
      EXPECT_NEAR(sin[p * kHeadDim / 2 + i], std::sin(angle), 1e-6) << i;
    }
  }
  // Wavelengths up to 2048 stay, beyond 8192 all are eight times as long: 2 pi theta^(2i / 128) is
  // 2048 at i = 28.2 and 8192 at i = 35.0.
  EXPECT_EQ(kept, 29);
  EXPECT_EQ(between, 6);
  EXPECT_EQ(divided, 29);
}

TEST(RotaryTable, LinearDividesEveryFrequency) {
  RopeScaling scaling = {.kind = RopeScaling::Kind::kLinear, .factor = 4};
  const RotaryTable scaled = rotary_table(64, kHeadDim, kTheta, scaling);
  const RotaryTable usual = rotary_table(64, kHeadDim, kTheta);
  for (std::int64_t p = 0; p < 16; ++p) {  // position 4p is where p was
    for (std::int64_t i = 0; i < kHeadDim / 2; ++i) {
      EXPECT_NEAR(scaled.cos[4 * p][i].item<float>(), usual.cos[p][i].item<float>(), 1e-6);
    }
  }
}

TEST(RotaryTable, OtherScalingsAreRefused) {
  ModelSpec model = small_model("llama");
  model.numerics.rope_scaling.kind = RopeScaling::Kind::kLlama3;
  EXPECT_FALSE(find_engine_problem(model, small_plan(1)));
  model.numerics.rope_scaling.kind = RopeScaling::Kind::kOther;
  EXPECT_NE(find_engine_problem(model, small_plan(1))->find("linear and llama3"), std::string::npos);
}

}
}
