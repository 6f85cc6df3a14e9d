// Distributions behind 90 % intervals.

#include <gtest/gtest.h>

#include <cmath>

#include "reports/accuracy/accuracy.h"

namespace foreshard {
namespace {

constexpr Spread kSkewed = {10, 9, 13};

TEST(Spread, HasTheIntervalItWasMadeOf) {
  EXPECT_NEAR(quantile(kSkewed, 0.05), 9, 1e-9);
  EXPECT_NEAR(quantile(kSkewed, 0.5), 10, 1e-9);
  EXPECT_NEAR(quantile(kSkewed, 0.95), 13, 1e-9);
}

// Student's t with 4 degrees of freedom: 0.7407 and 1.5332 at 75 and 90 %, 2.1318 at 95 %.
TEST(Spread, HasTheQuantilesOfStudentsT) {
  EXPECT_NEAR(std::log(quantile(kSkewed, 0.75) / 10) / std::log(1.3), 0.740697 / 2.131847, 1e-5);
  EXPECT_NEAR(std::log(quantile(kSkewed, 0.1) / 10) / std::log(0.9), 1.533206 / 2.131847, 1e-5);
}

TEST(Spread, CoversLessAtALowerLevel) {
  EXPECT_TRUE(covers(kSkewed, 0.9, 12.9));
  EXPECT_FALSE(covers(kSkewed, 0.9, 13.1));
  EXPECT_FALSE(covers(kSkewed, 0.8, 12.9));
  EXPECT_TRUE(covers(kSkewed, 0.5, 10.1));
}

// Without an interval the score is the relative error; an interval that reaches the measurement
// helps, one that is far too wide does not.
TEST(Spread, ScoreIsTheErrorWithoutAnInterval) {
  EXPECT_NEAR(relative_crps({10, 10, 10}, 8), 0.25, 1e-9);
  EXPECT_LT(relative_crps({10, 7, 12}, 8), 0.25);
  EXPECT_GT(relative_crps({10, 1, 100}, 8), relative_crps({10, 7, 12}, 8));
  EXPECT_LT(relative_crps({10, 9.9, 10.1}, 10), relative_crps({10, 8, 12}, 10));
}

TEST(Spread, SummariesSayWhatNarrowerIntervalsHold) {
  AccuracyRow row;
  row.predicted = 10, row.low = 9, row.high = 11;
  row.measured = 10.9;
  AccuracyRow close = row;
  close.measured = 10.01;
  const AccuracySummary summary = summarize_accuracy({&row, &close});
  EXPECT_EQ(summary.coverage, 1);
  EXPECT_EQ(summary.coverage_80, 0.5);
  EXPECT_EQ(summary.coverage_50, 0.5);
  EXPECT_GT(summary.crps, 0);
}

}
}
