// Search against brute force: every plan of the space forecast one by one with the full walk.
#include "sim/search/search.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "sim/base/error.h"
#include "sim/search/deep.h"
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

SearchOptions on_threads(int threads) {
  SearchOptions options;
  options.threads = threads;
  return options;
}

RC_GTEST_PROP(SearchProperty, FindsWhatBruteForceFinds, ()) {
  const Problem p = random_problem();
  const CostModel costs(p.cluster, round_calibration());
  const SearchResult result = search(p.space, p.model, costs, on_threads(1));
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

// Knobs, in the order that equals prefer; fsdp2 alone has the last.
std::vector<KnobAxis> some_knobs() {
  return {{"optimizer.implementation",
           {[](Plan& plan) { plan.optimizer.implementation = Optimizer::Implementation::kForeach; },
            [](Plan& plan) { plan.optimizer.implementation = Optimizer::Implementation::kFused; }}},
          {"units.layers_per_unit",
           {[](Plan& plan) { plan.units.layers_per_unit = 1; },
            [](Plan& plan) { plan.units.layers_per_unit = 2; }}},
          *knob_axis("mesh.inner", Plan())};
}

RC_GTEST_PROP(SearchProperty, PruningLosesNothing, ()) {
  Problem p = random_problem();
  if (*rc::gen::arbitrary<bool>()) p.space.knobs = some_knobs();
  const CostModel costs(p.cluster, round_calibration());
  const SearchResult all = search(p.space, p.model, costs, on_threads(1));
  SearchOptions options = on_threads(*rc::gen::inRange(1, 3));
  options.detail = SearchDetail::kBest;
  const SearchResult best = search(p.space, p.model, costs, options);
  RC_ASSERT(best.enumerated == all.enumerated);
  RC_ASSERT(best.simulated + best.rejected_memory + best.pruned == best.enumerated);
  RC_ASSERT(best.best.has_value() == all.best.has_value());
  if (!all.best) {
    RC_ASSERT(best.smallest.has_value() == all.smallest.has_value());
    if (all.smallest) RC_ASSERT(best.smallest->plan == all.smallest->plan);
    return;
  }
  RC_ASSERT(best.best->plan == all.best->plan);
  RC_ASSERT(best.best->seconds == all.best->seconds);
}

RC_GTEST_PROP(SearchProperty, ObjectivesAndLimitsHold, ()) {
  const Problem p = random_problem();
  const CostModel costs(p.cluster, round_calibration());
  SearchOptions options = on_threads(1);
  options.max_memory = 0.6;
  const SearchResult fast = search(p.space, p.model, costs, options);
  options.objective = Objective::kMemory;
  const SearchResult small = search(p.space, p.model, costs, options);
  RC_ASSERT(fast.best.has_value() == small.best.has_value());
  if (!fast.best) return;
  RC_ASSERT(small.best->peak_allocated <= fast.best->peak_allocated);
  RC_ASSERT(small.best->seconds >= fast.best->seconds);
  const Bytes limit(
      static_cast<std::int64_t>(0.6 * static_cast<double>(p.cluster.gpu.memory.count())));
  RC_ASSERT(fast.best->peak_reserved + fast.best->outside_allocator <= limit);
}

RC_GTEST_PROP(SearchProperty, ParetoIsSortedAndUndominated, ()) {
  const Problem p = random_problem();
  const CostModel costs(p.cluster, round_calibration());
  const SearchResult result = search(p.space, p.model, costs, on_threads(2));
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
  const SearchResult one = search(space, model, costs, on_threads(1));
  const SearchResult two = search(space, model, costs, on_threads(2));
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
    search(space, tiny_model(1), costs, on_threads(1));
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
  SearchOptions options = on_threads(1);
  options.progress = [](auto, auto) { return false; };
  EXPECT_THROW(search(space, tiny_model(1), costs, options), Error);
}

}  // namespace
}  // namespace foreshard
