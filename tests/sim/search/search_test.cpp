// Search against brute force: every plan of the space forecast one by one with the full walk.
#include "sim/search/search.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "sim/base/error.h"
#include "sim/simulate/forecast.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

struct Problem {
  ModelSpec model;
  Cluster cluster;
  SearchSpace space;
};

Problem random_problem() {
  Problem p;
  p.model = tiny_model(*rc::gen::inRange(1, 5));
  p.cluster = round_cluster(*rc::gen::element<std::int64_t>(2, 4, 8, 16, 24));
  // From nothing fits to everything fits.
  p.cluster.memory_outside_allocator = Bytes(0);
  p.cluster.gpu.memory = Bytes(*rc::gen::inRange<std::int64_t>(20, 400) << 20);
  p.space.base = tiny_plan();
  p.space.base.mesh = {p.cluster.gpus, 1};
  p.space.base.runtime.kind = *rc::gen::element(RuntimeKind::kFsdp2, RuntimeKind::kNative);
  p.space.base.batch.sequence = *rc::gen::element<std::int64_t>(64, 128, 512);
  p.space.global_batch = p.cluster.gpus * *rc::gen::element<std::int64_t>(1, 2, 4);
  return p;
}

RC_GTEST_PROP(SearchProperty, FindsWhatBruteForceFinds, ()) {
  const Problem p = random_problem();
  const CostModel costs(p.cluster, round_calibration());
  const SearchResult result = search(p.space, p.model, costs, {1, {}});
  const std::vector<Plan> plans = enumerate(p.space, p.model, p.cluster);
  RC_ASSERT(result.enumerated == static_cast<std::int64_t>(plans.size()));
  const Plan* best = nullptr;
  Time best_time;
  Bytes best_peak;
  std::int64_t fitting = 0;
  for (const Plan& plan : plans) {
    const Forecast f = forecast(p.model, plan, costs);
    // Search names no plan whose every step retries.
    if (f.reserved.retries_for_good) continue;
    if (!fit_in(p.cluster, f.memory.peak, f.reserved.peak, *p.cluster.memory_outside_allocator)
             .fits()) {
      continue;
    }
    ++fitting;
    const bool better = best == nullptr || f.timeline.period < best_time ||
                        (f.timeline.period == best_time && f.memory.peak < best_peak);
    if (!better) continue;
    best = &plan;
    best_time = f.timeline.period;
    best_peak = f.memory.peak;
  }
  // Plans that the answer does not name are not asked what they reserve.
  RC_ASSERT(result.simulated >= fitting);
  RC_ASSERT(result.simulated + result.rejected_memory == result.enumerated);
  RC_ASSERT(result.best.has_value() == (best != nullptr));
  if (best == nullptr) return;
  RC_ASSERT(result.best->plan == *best);
  RC_ASSERT(result.best->seconds == best_time.seconds());
  RC_ASSERT(result.best->peak_allocated == best_peak);
}

RC_GTEST_PROP(SearchProperty, ParetoIsSortedAndUndominated, ()) {
  const Problem p = random_problem();
  const CostModel costs(p.cluster, round_calibration());
  const SearchResult result = search(p.space, p.model, costs, {2, {}});
  for (std::size_t i = 1; i < result.pareto.size(); ++i) {
    RC_ASSERT(result.pareto[i - 1].seconds <= result.pareto[i].seconds);
    RC_ASSERT(result.pareto[i - 1].peak_allocated > result.pareto[i].peak_allocated);
  }
}

TEST(Search, IsTheSameForOneAndTwoThreads) {
  SearchSpace space;
  space.base = tiny_plan();
  space.base.mesh = {16, 1};
  space.global_batch = 64;
  const ModelSpec model = tiny_model(3);
  const CostModel costs(round_cluster(16), round_calibration());
  const SearchResult one = search(space, model, costs, {1, {}});
  const SearchResult two = search(space, model, costs, {2, {}});
  ASSERT_TRUE(one.best && two.best);
  EXPECT_EQ(one.best->plan, two.best->plan);
  ASSERT_EQ(one.pareto.size(), two.pareto.size());
  for (std::size_t i = 0; i < one.pareto.size(); ++i) {
    EXPECT_EQ(one.pareto[i].plan, two.pareto[i].plan);
    EXPECT_EQ(one.pareto[i].seconds, two.pareto[i].seconds);
  }
}

TEST(Search, RefusesAGlobalBatchThatNoRankCountDivides) {
  SearchSpace space;
  space.base = tiny_plan();
  space.global_batch = 20;
  const CostModel costs(round_cluster(8), round_calibration());
  try {
    search(space, tiny_model(1), costs, {1, {}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
    EXPECT_NE(std::string(error.what()).find("16 and 24"), std::string::npos) << error.what();
  }
}

TEST(Search, StopsWhenProgressSaysSo) {
  SearchSpace space;
  space.base = tiny_plan();
  space.global_batch = 8;
  const CostModel costs(round_cluster(8), round_calibration());
  EXPECT_THROW(search(space, tiny_model(1), costs, {1, [](auto, auto) { return false; }}), Error);
}

}  // namespace
}  // namespace foreshard
