// The parts of a step that must not depend on how parameters are spread: exact sums, the norm's
// grid, initial values; and the learning rate's schedule.
#include "exec/engine/update.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "sim/base/lookup.h"
#include "tests/exec/engine/engine_runs.h"

namespace foreshard {
namespace {

double exact(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum.value();
}

TEST(ExactSum, LosesNothing) {
  EXPECT_EQ(exact({}), 0);
  EXPECT_EQ(exact({1.5}), 1.5);
  EXPECT_EQ(exact({1e-300, 1e300}), 1e300);
  // 2^53 + 1 + 1: doubles added one by one stay at 2^53.
  EXPECT_EQ(exact({9007199254740992.0, 1, 1}), 9007199254740994.0);
  // 2^60 + 4096 ones is 2^60 + 2^12 exactly.
  std::vector<double> ones(4096, 1.0);
  ones.insert(ones.begin(), std::ldexp(1.0, 60));
  EXPECT_EQ(exact(ones), std::ldexp(1.0, 60) + 4096);
  const double least = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(exact({least, least, least}), 3 * least);
  EXPECT_TRUE(std::isnan(exact({1, std::numeric_limits<double>::quiet_NaN()})));
  EXPECT_TRUE(std::isnan(exact({1, std::numeric_limits<double>::infinity()})));
}

// A square and its neighbours: long double has 64 bits, enough for 1000 terms within 2^10.
RC_GTEST_PROP(ExactSumProperty, OrderAndSplitDoNotShow, ()) {
  const auto seed = *rc::gen::inRange(0, 1 << 30);
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<double> values(at(1 + random() % 1000));
  for (double& value : values) {
    value = std::ldexp(1 + static_cast<double>(random()) / 8e9, static_cast<int>(random() % 10));
  }
  const double whole = exact(values);
  long double reference = 0;
  for (const double value : values) reference += static_cast<long double>(value);
  RC_ASSERT(std::abs(whole - static_cast<double>(reference)) <= 1e-15 * whole);
  std::shuffle(values.begin(), values.end(), random);
  RC_ASSERT(exact(values) == whole);
  ExactSum first;
  ExactSum second;
  const std::size_t cut = random() % values.size();
  for (std::size_t i = 0; i < values.size(); ++i) (i < cut ? first : second).add(values[i]);
  for (std::size_t d = 0; d < ExactSum::kDigits; ++d) first.digits()[d] += second.digits()[d];
  RC_ASSERT(first.value() == whole);
}

TEST(AddSquares, IsTheSumOfSquaresOnAGridOf32) {
  std::vector<float> values(96);
  double expected = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i) - 40.5F;
    expected += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  ExactSum whole;
  add_squares(values.data(), 96, whole);
  EXPECT_DOUBLE_EQ(whole.value(), expected);
  ExactSum cut;
  add_squares(values.data() + 32, 64, cut);
  add_squares(values.data(), 32, cut);
  EXPECT_EQ(cut.value(), whole.value());
}

TEST(LearningRate, IsConstantUnlessThePlanSaysOtherwise) {
  Optimizer optimizer = {.learning_rate = 0.5};
  for (const std::int64_t step : {1, 2, 1000, 1000000}) EXPECT_EQ(learning_rate(optimizer, step), 0.5);
}

// 4 steps up: 1/4, 2/4, 3/4, 4/4 of the rate. Then cos over 8 steps from 1.0 to 0.2: half way at 0.6, a third of half
// (cos 60 degrees = 1/2 is at 8/3) not on a step; quarter: 0.2 + 0.4 (1 + sqrt(1/2)).
TEST(LearningRate, WarmsUpAndDecays) {
  Optimizer optimizer = {.learning_rate = 1, .warmup_steps = 4, .min_learning_rate = 0.2};
  EXPECT_EQ(learning_rate(optimizer, 1), 0.25);
  EXPECT_EQ(learning_rate(optimizer, 4), 1);
  EXPECT_EQ(learning_rate(optimizer, 400), 1);
  optimizer.decay_steps = 8;
  EXPECT_EQ(learning_rate(optimizer, 3), 0.75);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, 6), 0.2 + 0.4 * (1 + std::sqrt(0.5)));
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, 8), 0.6);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, 12), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, 5000), 0.2);
}

// Values of the parameters, not of the layout.
TEST(InitialValues, AreTheSameForEveryMeshAndUnits) {
  const ModelSpec model = small_model("llama");
  const EngineRun one = run_in_threads(model, small_plan(1), 0);
  Plan other = small_plan(4);
  other.units = {2, UnitPlacement::kRoot, UnitPlacement::kWithNorm};
  const EngineRun four = run_in_threads(model, other, 0);
  EXPECT_EQ(four.initial, one.initial);
  EXPECT_EQ(four.hash, one.hash);
  EXPECT_EQ(run_in_threads(model, small_plan(2, 2), 0).hash, one.hash);
}

// Mean 0 within 4 standard errors, deviation 0.02 within 5 %; down_proj writes to the residual
// stream of 3 blocks: 0.02 / sqrt(6).
TEST(InitialValues, HaveTheirDistribution) {
  const EngineRun run = run_in_threads(small_model("gpt2", false), small_plan(1), 0);
  const auto deviation = [&](const std::string& name) {
    const std::vector<float>& values = run.initial.at(name);
    double sum = 0;
    double squares = 0;
    for (const float value : values) {
      sum += static_cast<double>(value);
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
    const auto count = static_cast<double>(values.size());
    EXPECT_LT(std::abs(sum / count), 4 * 0.02 / std::sqrt(count)) << name;
    return std::sqrt(squares / count);
  };
  std::size_t matrices = 0;
  for (const auto& [name, values] : run.initial) {
    if (name.ends_with(".bias")) {
      EXPECT_TRUE(std::ranges::all_of(values, [](float v) { return v == 0; })) << name;
    } else if (contains(name, ".ln_")) {
      EXPECT_TRUE(std::ranges::all_of(values, [](float v) { return v == 1; })) << name;
    } else {
      const double expected = name.ends_with("c_proj.weight") ? 0.02 / std::sqrt(6.0) : 0.02;
      EXPECT_NEAR(deviation(name), expected, 0.05 * expected) << name;
      ++matrices;
    }
  }
  EXPECT_EQ(matrices, 3U * 4U + 3U);  // four per block; two embeddings and the head
}

}
}
