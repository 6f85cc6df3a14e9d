// Summaries of a few rows by hand.
#include "reports/accuracy/accuracy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/base/error.h"

namespace foreshard {
namespace {

AccuracyRow row(const std::string& id, const std::string& group, double measured, double predicted) {
  return AccuracyRow{.id = id,
      .quantity = "step_time_s",
      .measured = measured,
      .predicted = predicted,
      .low = predicted * 0.9,
      .high = predicted * 1.1,
      .groups = {{"family x gpu", group}}};
}

// Four rows of A are 1 % off, one of B 20 %: by rows the median is 1 %, balanced half of the weight
// is B's, so the 90 % quantile is 20 % and the median still A's.
TEST(Accuracy, BalancedSummaryGivesEveryGroupTheSameWeight) {
  std::vector<AccuracyRow> rows;
  for (const char* id : {"A-1", "A-2", "A-3", "A-4"}) rows.push_back(row(id, "A", 1, 1.01));
  rows.push_back(row("B-1", "B", 1, 0.8));
  const BalancedSummary balanced = summarize_balanced(rows);
  EXPECT_EQ(balanced.by, "family x gpu");
  EXPECT_EQ(balanced.groups, 2);
  EXPECT_NEAR(balanced.median_abs_error, 0.01, 1e-12);
  EXPECT_NEAR(balanced.p90_abs_error, 0.2, 1e-12);
  rows.push_back(row("C-1", "C", 1, 0.8));  // now two of three groups are 20 % off
  EXPECT_NEAR(summarize_balanced(rows).median_abs_error, 0.2, 1e-12);
  rows.back().scored = false;  // and what is not scored does not count
  EXPECT_EQ(summarize_balanced(rows).groups, 2);
}

// Three steps ran, two of which were said to fit; of two peaks one is more than what was sure.
TEST(Accuracy, FitsAreHeldAgainstWhatRan) {
  std::vector<AccuracyRow> rows(5, row("A-1", "A", 1, 1));
  rows[0].fit_probability = 0.5;
  rows[1].fit_probability = 0.49;
  rows[2].fit_probability = 1;
  rows[2].scored = false;  // too slow to be scored, but it ran
  rows[3].ran_where_sure = false;
  rows[4].ran_where_sure = true;
  const FitChecks checks = fit_checks(rows);
  EXPECT_EQ(checks.ran, 3);
  EXPECT_NEAR(checks.said_to_fit, 2.0 / 3, 1e-12);
  EXPECT_EQ(checks.sure, 2);
  EXPECT_EQ(checks.would_not_have_fitted, 0.5);
  EXPECT_EQ(fit_checks({row("A-1", "A", 1, 1)}).said_to_fit, 0);
  EXPECT_EQ(accuracy_json(rows).at("fits").at("ran"), 3);
}

// Pairs of A: (1, 1.04) differ by less than 5 %; (1, 2) and (1.04, 2) are in order. B has one pair,
// in the wrong order. Pairs across groups do not count: tau = (2 - 1) / 3.
TEST(Accuracy, RankCorrelationCountsPairsThatDiffer) {
  const std::vector<AccuracyRow> rows = {
      row("1", "A", 1, 5), row("2", "A", 1.04, 4), row("3", "A", 2, 6), row("4", "B", 1, 2), row("5", "B", 3, 1)};
  const RankCorrelation ranking = rank_correlation(rows, 0.05);
  EXPECT_EQ(ranking.pairs, 3);
  EXPECT_NEAR(ranking.tau, 1.0 / 3, 1e-12);
}

// The anchor says 1.0816 times: of a run with the same forecast that is taken to the power of 0.8,
// of one e times as long to less; other groups have their own.
TEST(Accuracy, AnchorsScaleTheirGroupByWhatTheySay) {
  const std::vector<AccuracyRow> rows = {row("A-1", "A", 1.0816, 1), row("A-2", "A", 1.0816, 1),
      row("A-3", "A", std::exp(1), std::exp(1)), row("B-1", "B", 1, 1), row("B-2", "B", 1, 1)};
  const std::vector<AccuracyRow> result = anchored(rows, 1);
  EXPECT_NE(result[0].scored, result[1].scored);
  const AccuracyRow& other = result[0].scored ? result[0] : result[1];
  EXPECT_NEAR(other.predicted, std::pow(1.0816, 0.8), 1e-12);
  EXPECT_NEAR(other.high, std::sqrt(1.1) * other.predicted, 1e-12);
  EXPECT_GT(result[2].predicted, std::exp(1));
  EXPECT_LT(result[2].predicted, std::exp(1) * other.predicted);
  EXPECT_NE(result[3].scored, result[4].scored);
  EXPECT_NEAR(result[3].predicted, 1, 1e-12);
  // The same rows whatever their order.
  const std::vector<AccuracyRow> reversed(rows.rbegin(), rows.rend());
  EXPECT_EQ(anchored(reversed, 1)[4].scored, result[0].scored);
}

// The run in the middle of the forecasts, or those in the middle of each half; of one whose
// interval is narrower rather that.
TEST(Accuracy, AnchorsAreTheSurestForecasts) {
  std::vector<AccuracyRow> six;
  for (const double predicted : {3.0, 1.0, 5.0, 2.0, 4.0, 6.0}) {
    six.push_back(row(std::to_string(predicted), "A", predicted, predicted));
  }
  const std::vector<AccuracyRow> one = anchored(six, 1), two = anchored(six, 2);
  for (std::size_t i = 0; i < six.size(); ++i) {
    const double predicted = six[i].predicted;
    EXPECT_EQ(one[i].scored, predicted != 4) << predicted;
    EXPECT_EQ(two[i].scored, predicted != 2 && predicted != 5) << predicted;
  }
  six[1].high = 1.01;
  EXPECT_FALSE(anchored(six, 1)[1].scored);
  EXPECT_TRUE(anchored(six, 1)[4].scored);
  // Of two anchors the nearer one speaks.
  six[1].measured = 1.005;
  const std::vector<AccuracyRow> moved = anchored(six, 2);
  EXPECT_FALSE(moved[1].scored);
  EXPECT_GT(moved[3].predicted, 2);
  EXPECT_EQ(moved[4].predicted, 4);
}

// The interval ends at 1.1 times the forecast: an anchor of twice the forecast says no more.
TEST(Accuracy, AnAnchorCountsAsAtMostTheEndOfItsInterval) {
  const std::vector<AccuracyRow> result = anchored({row("A-1", "A", 2, 1), row("A-2", "A", 2, 1)}, 1);
  const AccuracyRow& other = result[0].scored ? result[0] : result[1];
  EXPECT_NEAR(other.predicted, std::pow(1.1, 0.8), 1e-12);
}

TEST(Accuracy, FrozenForecastsStandInForNewOnesAndCannotBeChanged) {
  std::vector<AccuracyRow> rows = {row("A-1", "A", 1, 2), row("A-2", "A", 1, 3)};
  const Json frozen = frozen_forecasts({rows[0]});
  rows[0].predicted = 7;
  const std::vector<AccuracyRow> compared = with_frozen(rows, frozen);
  EXPECT_EQ(compared[0].predicted, 2);
  EXPECT_TRUE(compared[0].scored);
  EXPECT_FALSE(compared[1].scored);
  EXPECT_EQ(compared[1].reason, "was not frozen");
  Json forged = frozen;
  forged["forecasts"][0]["predicted"] = 1.0;
  // A row that was refused then is no error of 100 %.
  std::vector<AccuracyRow> refused = rows;
  refused.front().predicted = 0;
  EXPECT_FALSE(with_frozen(rows, frozen_forecasts(refused)).front().scored);
  EXPECT_THROW(with_frozen(rows, forged), Error);
  EXPECT_THROW(with_frozen({row("C", "C", 1, 1)}, frozen), Error);
  EXPECT_THROW(with_frozen(rows, Json::array()), Error);
}

}
}
