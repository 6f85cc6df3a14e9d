// Daly's formulas against their limits, a simulation of failures, and published figures.
#include "sim/search/goodput.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace foreshard {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

TEST(Goodput, IntervalIsYoungsWhereSavesAreShort) {
  // sqrt(2 * 1 s * 10^6 s) = 1414 s; the second term adds a third of sqrt(1 / 2e6).
  EXPECT_NEAR(checkpoint_interval({1e6, 1, 600}), 1414.2, 1.0);
  EXPECT_EQ(checkpoint_interval({10, 30, 0}), 10);  // saves longer than twice the failures' spacing
  EXPECT_EQ(checkpoint_interval({kNever, 30, 600}), kNever);
}

TEST(Goodput, WithoutFailuresOnlySavesCost) {
  EXPECT_EQ(goodput({kNever, 30, 600}, kNever), 1);
  EXPECT_DOUBLE_EQ(goodput({kNever, 10, 600}, 90), 0.9);
  EXPECT_EQ(goodput({1000, 10, 600}, kNever), 0);  // a run without checkpoints never ends
}

TEST(Goodput, NothingBeatsTheIntervalByMuch) {
  for (const double save : {5.0, 30.0, 120.0}) {
    for (const double between : {1800.0, 11000.0, 300000.0}) {
      const Interruptions x{between, save, 600};
      const double best = goodput(x, checkpoint_interval(x));
      for (double factor = 0.25; factor < 4.1; factor *= 1.25) {
        EXPECT_LE(goodput(x, checkpoint_interval(x) * factor), best * 1.002) << save << between;
      }
    }
  }
}

// Segments played until they are through, with failures at exponential times; restarts fail too.
WallTime played(double work, const Interruptions& x, double interval) {
  std::mt19937_64 random(7);
  std::exponential_distribution<double> next(1 / x.mean_between);
  double sum = 0, squares = 0;
  constexpr int kRuns = 4000;
  for (int run = 0; run < kRuns; ++run) {
    double wall = 0;
    double failure = next(random);
    for (double done = 0; done < work - 1e-6; done += interval) {
      double needed = interval + x.save;
      while (failure < needed) {
        wall += failure;
        failure = next(random);
        needed = x.restart + interval + x.save;
        // A failure within the restart begins it again.
      }
      wall += needed;
      failure -= needed;
      if (failure < 0) failure = next(random);
    }
    sum += wall;
    squares += wall * wall;
  }
  const double mean = sum / kRuns;
  return {mean, std::sqrt(squares / kRuns - mean * mean)};
}

TEST(Goodput, IsWhatPlayedFailuresGive) {
  const Interruptions x{11000, 30, 600};  // 16,384 GPUs
  const double interval = 800;
  const double work = 800 * 1000;
  const WallTime wall = wall_time(work, x, interval);
  const WallTime simulated = played(work, x, interval);
  EXPECT_NEAR(wall.mean / simulated.mean, 1, 0.005);
  EXPECT_NEAR(wall.sd / simulated.sd, 1, 0.1);
}

TEST(Goodput, OfLlama3) {
  // 16,384 GPUs, an interruption every 3.1 h; more than 90 % effective time (arXiv 2407.21783).
  const Interruptions x{3.1 * 3600, 5, 600};
  EXPECT_GT(goodput(x, checkpoint_interval(x)), 0.90);
  EXPECT_LT(goodput(x, checkpoint_interval(x)), 0.95);
}

}
}
