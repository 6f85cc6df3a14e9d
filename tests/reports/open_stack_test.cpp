// Forecasts of a plan that does not say its stack: mixtures over the codes that may run it.
#include "reports/open_stack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "reports/report.h"
#include "reports/report_parts.h"
#include "reports/sizing/sizing.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

// Two codes, of which the second keeps parameters after forward: other gathers and other memory.
struct TwoCodes {
  explicit TwoCodes(double log_sd) {
    Calibration calibration = round_calibration();
    for (FactorSpread& spread : calibration.spread) spread.log_sd = log_sd;
    const CostModel costs(round_cluster(8), calibration);
    Plan other = tiny_plan();
    other.reshard_after_forward.value.kind = Reshard::Kind::kNever;
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
  ASSERT_NE(other.seconds.value, usual.seconds.value);
  ASSERT_NE(other.peak_reserved.value, usual.peak_reserved.value);
  EXPECT_EQ(both.seconds.value, usual.seconds.value);
  EXPECT_EQ(both.seconds.low, std::min(usual.seconds.value, other.seconds.value));
  EXPECT_EQ(both.seconds.high, std::max(usual.seconds.value, other.seconds.value));
  EXPECT_EQ(both.mfu.low, std::min(usual.mfu.value, other.mfu.value));
  EXPECT_EQ(both.peak_reserved.value, usual.peak_reserved.value);
  EXPECT_EQ(both.peak_reserved.low, std::min(usual.peak_reserved.low, other.peak_reserved.low));
  EXPECT_EQ(both.peak_reserved.high, std::max(usual.peak_reserved.high, other.peak_reserved.high));
  EXPECT_EQ(both.fingerprint, usual.fingerprint);
  // On a machine that is known, the stack is all that is open.
  EXPECT_DOUBLE_EQ(both.open_stack.interval_share, 1);
}

TEST(OpenStackReport, ARareCodeIsInsideTheInterval) {
  TwoCodes codes(0);
  codes.cases[0].weight = 0.99;
  codes.cases[1].weight = 0.01;
  const Quantity seconds = codes.report(64).seconds;
  const double rare = codes.alone(1, 0).seconds.value;
  EXPECT_TRUE(seconds.low == rare || seconds.high == rare);
}

TEST(OpenStackReport, OddsAreTheMeanOfTheCodesOdds) {
  const auto gib = [](double count) { return Bytes(static_cast<std::int64_t>(count * (1 << 30))); };
  const Fit tight{gib(80), gib(2), gib(70), gib(78)}, roomy{gib(80), gib(2), gib(60), gib(70)};
  const double sure = fit_probability(roomy);
  EXPECT_GT(sure, 0.9);
  EXPECT_NEAR(fit_probability({{"usual", 0.75, 1, tight}, {"other", 0.25, 1, roomy}}), 0.75 * 0.5 + 0.25 * sure, 1e-9);
  const TwoCodes codes(0);
  const StackSet set{codes.cases, [&](const Plan&) {
                       std::vector<StackAlternative> plans;
                       for (const StackCase& c : codes.cases) plans.push_back({c.name, c.weight, c.plan});
                       return plans;
                     }};
  StackOdds odds(set);
  const Fit first = codes.alone(0, 0).fit;
  EXPECT_DOUBLE_EQ(odds(tiny_plan(), first, 0), codes.report(0).fit_probability);
  const Fit least{first.capacity, first.outside, first.allocated, first.allocated};
  EXPECT_TRUE(odds.may_be(tiny_plan(), least, odds(tiny_plan(), first, 0)));
  EXPECT_FALSE(odds.may_be(tiny_plan(), least, 1.01));
}

// A loop of one's own may keep what no key says: search and forecast count it alike, and say it.
TEST(OpenStackReport, ALoopOfOnesOwnMayKeepMore) {
  TwoCodes codes(0);
  const Report read = codes.report(0);
  codes.cases[1].name = "none";
  const Report unread = codes.report(0);
  EXPECT_EQ(unread.peak_reserved.value, read.peak_reserved.value);
  EXPECT_GT(unread.peak_reserved.high, read.peak_reserved.high);
  EXPECT_GT(total_memory(unread).high, total_memory(read).high);
  EXPECT_NE(open_stack_text(unread.open_stack).find(" % keep "), std::string::npos);
  EXPECT_EQ(open_stack_text(read.open_stack).find(" % keep "), std::string::npos);
  const Json open = to_json(unread)["open"][0]["alternatives"];
  EXPECT_TRUE(open[0]["besides"].empty());
  EXPECT_FALSE(open[1]["besides"].empty());
  // As large as what it may keep is, the plan fits with less.
  const Fit& fit = unread.open_stack.outcomes[1].fit;
  Fit tight = fit;
  tight.capacity = fit.reserved + fit.outside + kept_besides(fit, 0.95) / 2;
  Fit alone = tight;
  alone.besides = {};
  EXPECT_LT(fit_probability(tight), fit_probability(alone));
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
  const SizedPlan sized = size_up(first.model, first.plan, first.costs, {64, codes.cases});
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

}
}
