// Forecasts of a plan that does not say its stack: mixtures over the codes that may run it.
#include "reports/open_stack.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "reports/report.h"
#include "reports/sizing.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

// Two codes, of which the second recomputes: slower, and with less memory.
struct TwoCodes {
  explicit TwoCodes(double log_sd, double gpu_memory_gib = 80) {
    Calibration calibration = round_calibration();
    for (FactorSpread& spread : calibration.spread) spread.log_sd = log_sd;
    Cluster cluster = round_cluster(8);
    cluster.gpu.memory = Bytes(static_cast<std::int64_t>(gpu_memory_gib * (1 << 30)));
    const CostModel costs(cluster, calibration);
    Plan other = tiny_plan();
    other.recompute.value = Recompute::kFull;
    cases.push_back({"usual", 0.75, tiny_model(2), tiny_plan(), costs});
    cases.push_back({"other", 0.25, tiny_model(2), other, costs});
  }
  Report report(int draws) const {
    const StackCase& first = cases.front();
    return summarize(forecast(first.model, first.plan, first.costs), first.costs, draws, cases);
  }
  Report alone(std::size_t i, int draws) const {
    const StackCase& one = cases[i];
    return summarize(forecast(one.model, one.plan, one.costs), one.costs, draws);
  }
  std::vector<StackCase> cases;
};

TEST(OpenStackReport, FiguresAreOfTheFirstAndIntervalsOfAll) {
  const TwoCodes codes(0);
  const Report usual = codes.alone(0, 64), other = codes.alone(1, 64), both = codes.report(64);
  ASSERT_GT(other.seconds.value, usual.seconds.value);
  ASSERT_LT(other.peak_reserved.value, usual.peak_reserved.value);
  EXPECT_EQ(both.seconds.value, usual.seconds.value);
  EXPECT_EQ(both.seconds.low, usual.seconds.value);
  EXPECT_EQ(both.seconds.high, other.seconds.value);
  EXPECT_EQ(both.mfu.low, other.mfu.value);
  EXPECT_EQ(both.peak_reserved.value, usual.peak_reserved.value);
  EXPECT_EQ(both.peak_reserved.low, other.peak_reserved.low);
  EXPECT_EQ(both.peak_reserved.high, usual.peak_reserved.high);
  EXPECT_EQ(both.fingerprint, usual.fingerprint);
  // On a machine that is known, the stack is all that is open.
  EXPECT_DOUBLE_EQ(both.open_stack.interval_share, 1);
}

TEST(OpenStackReport, ARareCodeIsInsideTheInterval) {
  TwoCodes codes(0);
  codes.cases[0].weight = 0.99;
  codes.cases[1].weight = 0.01;
  EXPECT_EQ(codes.report(64).seconds.high, codes.alone(1, 0).seconds.value);
}

TEST(OpenStackReport, OddsAreTheMeanOfTheCodesOdds) {
  const Report roomy = TwoCodes(0).alone(0, 0);
  const auto used = static_cast<double>((roomy.fit.reserved + roomy.fit.outside).count());
  const TwoCodes codes(0, used / (1 << 30));  // nothing to spare for the first
  const double usual = codes.alone(0, 0).fit_probability;
  const double other = codes.alone(1, 0).fit_probability;
  EXPECT_NEAR(usual, 0.5, 1e-6);
  EXPECT_GT(other, usual);
  EXPECT_DOUBLE_EQ(codes.report(0).fit_probability, 0.75 * usual + 0.25 * other);
}

TEST(OpenStackReport, WhatAllCodesShareIsNoShareOfTheirs) {
  TwoCodes codes(0.1);
  codes.cases[1].plan = codes.cases[0].plan;
  const Report both = codes.report(64);
  EXPECT_EQ(both.seconds.low, codes.alone(0, 64).seconds.low);
  EXPECT_EQ(both.seconds.high, codes.alone(0, 64).seconds.high);
  EXPECT_NEAR(both.open_stack.interval_share, 0, 1e-9);
}

TEST(OpenStackReport, SizingDrawsTheSameMixture) {
  const TwoCodes codes(0.1);
  const StackCase& first = codes.cases.front();
  const SizedPlan sized = size_up(first.model, first.plan, first.costs, 64, codes.cases);
  const Report report = codes.report(64);
  EXPECT_DOUBLE_EQ(sized.step.value, report.seconds.value);
  EXPECT_NEAR(sized.step.low / report.seconds.low, 1, 0.02);
  EXPECT_NEAR(sized.step.high / report.seconds.high, 1, 0.02);
  EXPECT_DOUBLE_EQ(sized.fit_probability, report.fit_probability);
  ASSERT_EQ(sized.fit_draws.size(), sized.draws.size());
  const double mean = std::accumulate(sized.fit_draws.begin(), sized.fit_draws.end(), 0.0) / 64;
  EXPECT_NEAR(mean, sized.fit_probability, 0.02);
}

TEST(OpenStackReport, SaysSoInTextAndJson) {
  const Report both = TwoCodes(0).report(8);
  const std::string text = open_stack_text(both.open_stack);
  EXPECT_NE(text.find("(--set stack=NAME narrows it)"), std::string::npos) << text;
  const Json open = to_json(both)["open"];
  ASSERT_EQ(open.size(), 1U);
  EXPECT_EQ(open[0]["key"], "stack");
  ASSERT_EQ(open[0]["alternatives"].size(), 2U);
  EXPECT_EQ(open[0]["alternatives"][1]["name"], "other");
  EXPECT_EQ(open[0]["alternatives"][1]["weight"], 0.25);
  EXPECT_EQ(open[0]["alternatives"][0]["step_s"], both.seconds.value);
  EXPECT_TRUE(to_json(TwoCodes(0).alone(0, 8))["open"].empty());
  EXPECT_EQ(open_stack_text({}), "");
}

}  // namespace
}  // namespace foreshard
