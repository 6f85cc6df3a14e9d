// Each loop against the formula in double, and each gradient against finite differences of that formula.
#include "exec/compute/kernels.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "exec/compute/operations.h"

namespace foreshard::kernels_test {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

Floats random_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats values(count);
  for (float& value : values) value = normal(random);
  return values;
}

Doubles wide(const Floats& values) { return {values.begin(), values.end()}; }

// bf16 is the upper half of an fp32 (round to nearest even).
std::uint16_t to_bf16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  bits += 0x7fffU + (bits >> 16 & 1U);
  return static_cast<std::uint16_t>(bits >> 16);
}
float from_bf16(std::uint16_t half) {
  const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
  float value = 0;
  std::memcpy(&value, &bits, 4);
  return value;
}

// The derivative of sum(weights * f(x)) with respect to every x.
Doubles finite_differences(const std::function<Doubles(const Doubles&)>& f, const Doubles& x, const Floats& weights) {
  constexpr double kStep = 1e-5;
  const auto value = [&](const Doubles& at) {
    const Doubles y = f(at);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * static_cast<double>(weights[i]);
    return sum;
  };
  Doubles gradient;
  for (std::size_t i = 0; i < x.size(); ++i) {
    Doubles above = x;
    Doubles below = x;
    above[i] += kStep;
    below[i] -= kStep;
    gradient.push_back((value(above) - value(below)) / (2 * kStep));
  }
  return gradient;
}

void expect_near(const Floats& values, const Doubles& expected, double tolerance) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(values[i]), expected[i], tolerance * std::max(1.0, std::abs(expected[i]))) << i;
  }
}

constexpr double kEpsilon = 1e-5;

Doubles rms_norm_formula(const Doubles& x, const Doubles& weight) {
  const std::size_t width = weight.size();
  Doubles y(x.size());
  for (std::size_t row = 0; row < x.size(); row += width) {
    double squares = 0;
    for (std::size_t i = 0; i < width; ++i) squares += x[row + i] * x[row + i];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(width) + kEpsilon);
    for (std::size_t i = 0; i < width; ++i) y[row + i] = x[row + i] * rstd * weight[i];
  }
  return y;
}

TEST(RmsNorm, IsItsFormula) {
  for (const std::int64_t width : {1, 7, 16, 40}) {
    const RowShape rows{5, width};
    const auto count = static_cast<std::size_t>(5 * width);
    const Floats x = random_floats(count, 1);
    const Floats weight = random_floats(static_cast<std::size_t>(width), 2);
    const Floats dy = random_floats(count, 3);
    Floats y(count), rstd(5), dx(count), dw(static_cast<std::size_t>(width));
    rms_norm(DType::kFp32, rows, x.data(), weight.data(), kEpsilon, y.data(), rstd.data());
    expect_near(y, rms_norm_formula(wide(x), wide(weight)), 1e-6);
    rms_norm_backward(DType::kFp32, rows, dy.data(), x.data(), weight.data(), rstd.data(), dx.data(), dw.data());
    expect_near(dx,
        finite_differences([&](const Doubles& at) { return rms_norm_formula(at, wide(weight)); }, wide(x), dy), 1e-5);
    expect_near(dw,
        finite_differences([&](const Doubles& at) { return rms_norm_formula(wide(x), at); }, wide(weight), dy), 1e-5);
  }
}

// Inputs are exact in bf16, so only the result is rounded: by at most 2^-8.
TEST(RmsNorm, RoundsOnceInBf16) {
  const RowShape rows{3, 24};
  std::vector<std::uint16_t> x, weight, y(72);
  for (const float value : random_floats(72, 4)) x.push_back(to_bf16(value));
  for (const float value : random_floats(24, 5)) weight.push_back(to_bf16(value));
  Floats rstd(3), result;
  Doubles exact_x, exact_weight;
  for (const auto half : x) exact_x.push_back(static_cast<double>(from_bf16(half)));
  for (const auto half : weight) exact_weight.push_back(static_cast<double>(from_bf16(half)));
  rms_norm(DType::kBf16, rows, x.data(), weight.data(), kEpsilon, y.data(), rstd.data());
  for (const auto half : y) result.push_back(from_bf16(half));
  expect_near(result, rms_norm_formula(exact_x, exact_weight), std::ldexp(1.0, -8));
}

// Pairs (i, i + half) of position p turn by p * theta^(-2 i / head_dim).
TEST(Rotation, TurnsPairsByTheirPosition) {
  constexpr std::int64_t kTokens = 6, kPositions = 3, kHeads = 2, kDim = 8;
  const RotaryTable table = rotary_table(kPositions, kDim, 10000);
  const Floats before = random_floats(kTokens * kHeads * kDim, 6);
  Floats values = before;
  const Rotation rotation{kTokens, kPositions, kHeads, kDim, false};
  rotate(DType::kFp32, rotation, table.cos.const_data_ptr<float>(), table.sin.const_data_ptr<float>(), values.data());
  Doubles expected(before.size());
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t i = 0; i < kDim / 2; ++i) {
        const double angle =
            static_cast<double>(t % kPositions) * std::pow(10000.0, -2.0 * static_cast<double>(i) / kDim);
        const auto low = static_cast<std::size_t>((t * kHeads + h) * kDim + i);
        const std::size_t high = low + kDim / 2;
        const auto a = static_cast<double>(before[low]);
        const auto b = static_cast<double>(before[high]);
        expected[low] = a * std::cos(angle) - b * std::sin(angle);
        expected[high] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }
  expect_near(values, expected, 1e-6);
  // A rotation's gradient is the rotation back.
  Rotation back = rotation;
  back.inverse = true;
  rotate(DType::kFp32, back, table.cos.const_data_ptr<float>(), table.sin.const_data_ptr<float>(), values.data());
  expect_near(values, wide(before), 1e-6);
}

TEST(AddRows, AddsToTheRowsOfTheirIds) {
  const Floats rows = {1, 2, 10, 20, 100, 200};
  const std::vector<std::int64_t> ids = {2, 0, 2};
  Floats table = {1, 1, 1, 1, 1, 1};
  add_rows(DType::kFp32, {3, 2}, rows.data(), ids.data(), DType::kFp32, table.data());
  EXPECT_EQ(table, (Floats{11, 21, 1, 1, 102, 203}));
}

TEST(ColumnSums, AddRowByRow) {
  const Floats values = {1, 2, 3, 10, 20, 30};
  Floats sums(3, -1);
  column_sums(DType::kFp32, {2, 3}, values.data(), sums.data());
  EXPECT_EQ(sums, (Floats{11, 22, 33}));
}

TEST(Fp32Accumulation, CopiesThenAdds) {
  const std::vector<std::uint16_t> halves = {to_bf16(1.5F), to_bf16(-3.0F), to_bf16(0.25F)};
  Floats target(3, 7);
  copy_to_fp32(DType::kBf16, 3, halves.data(), target.data());
  EXPECT_EQ(target, (Floats{1.5F, -3.0F, 0.25F}));
  const Floats more = {1, 1, 1};
  add_to_fp32(DType::kFp32, 3, more.data(), target.data());
  EXPECT_EQ(target, (Floats{2.5F, -2.0F, 1.25F}));
}

TEST(NegativeLogLikelihood, TakesTheLabels) {
  const Floats logs = {-1, -2, -3, -4, -5, -6};
  const std::vector<std::int64_t> labels = {2, 0};
  EXPECT_EQ(negative_log_likelihood({2, 3}, logs.data(), labels.data()), 7.0);
}

// The loss and, where the logits were, its gradient: softmax minus the label, over the tokens, times the scale.
TEST(CrossEntropy, IsItsFormulaAndItsGradient) {
  constexpr std::int64_t kTokens = 6, kVocabulary = 11;
  const Floats logits = random_floats(kTokens * kVocabulary, 8);
  const std::vector<std::int64_t> labels = {0, 10, 3, 3, 7, 5};
  const auto formula = [&](const Doubles& x) {
    double loss = 0;
    for (std::size_t t = 0; t < kTokens; ++t) {
      double sum = 0;
      for (std::size_t v = 0; v < kVocabulary; ++v) sum += std::exp(x[t * kVocabulary + v]);
      loss += std::log(sum) - x[t * kVocabulary + static_cast<std::size_t>(labels[t])];
    }
    return Doubles{loss / kTokens};
  };
  MicroBatch batch = {.sequences = 2, .sequence = 3, .labels = at::empty({kTokens}, at::kLong)};
  std::copy(labels.begin(), labels.end(), batch.labels.mutable_data_ptr<std::int64_t>());
  batch.tokens = batch.labels;  // where they are is where results are made
  batch.loss_scale = 0.5;
  at::Tensor x = at::empty({kTokens, kVocabulary}, at::kFloat);
  std::copy(logits.begin(), logits.end(), x.mutable_data_ptr<float>());
  Operation operation = {.function = Function::kCrossEntropy};
  const Numerics numerics;
  const RotaryTable rotary;
  const OperationContext context{numerics, DType::kFp32, rotary, batch, {}, {}};
  const std::vector<at::Tensor> inputs = {x};
  run_forward(operation, context, {}, inputs);
  EXPECT_NEAR(batch.loss, formula(wide(logits))[0], 1e-6);
  const auto* gradient = x.const_data_ptr<float>();
  expect_near({gradient, gradient + kTokens * kVocabulary}, finite_differences(formula, wide(logits), {0.5F}), 1e-6);
}

}
}
