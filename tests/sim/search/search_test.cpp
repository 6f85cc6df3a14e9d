// Search against brute force: every plan of the space forecast one by one with the full walk.
#include "sim/search/search.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "sim/base/error.h"
#include "sim/search/knobs.h"
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
  Problem p = {.model = tiny_model(*rc::gen::inRange(1, 5)),
      .cluster = round_cluster(*rc::gen::element<std::int64_t>(2, 4, 8, 16, 24))};
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

// No two plans count as equally fast, as brute force sees it.
SearchOptions on_threads(int threads) { return SearchOptions{.threads = threads, .tie = 0}; }

// What predict says of a plan.
struct Known {
  Plan plan;
  Time step;
  Fit fit;
};

// Of every plan of the space, with the first setting of the allocator with which it holds, or the surest.
std::vector<Known> forecast_all(const Problem& p, const CostModel& costs, const MemoryTerms& terms) {
  std::vector<Known> known;
  std::vector<AllocatorSettings> allocators = p.space.allocators;
  if (allocators.empty()) allocators = {p.space.base.allocator};
  for (Plan plan : enumerate(p.space, p.model, p.cluster)) {
    std::optional<Known> chosen;
    for (const AllocatorSettings& allocator : allocators) {
      plan.allocator = allocator;
      const Forecast f = forecast(p.model, plan, costs);
      const Fit fit = fit_in(p.cluster, f.memory.peak, f.reserved.peak, *p.cluster.memory_outside_allocator);
      if (chosen && holds(chosen->fit, terms)) continue;
      if (!chosen || fit_probability(fit) > fit_probability(chosen->fit)) chosen = {plan, f.timeline.period, fit};
    }
    known.push_back(*chosen);
  }
  return known;
}

RC_GTEST_PROP(SearchProperty, FindsWhatBruteForceFinds, ()) {
  Problem p = random_problem();
  if (*rc::gen::arbitrary<bool>()) {
    AllocatorSettings expandable = {.expandable_segments = true};
    p.space.allocators = {AllocatorSettings(), expandable};
  }
  const CostModel costs(p.cluster, round_calibration());
  SearchOptions options = on_threads(1);
  options.fit.terms.confidence = *rc::gen::element(0.5, 0.8, 0.95);
  const MemoryTerms& terms = options.fit.terms;
  const SearchResult result = search(p.space, p.model, costs, options);
  std::optional<Known> best;
  std::optional<Time> fastest;  // of those that fit by the forecast
  for (const Known& known : forecast_all(p, costs, terms)) {
    if (fits(known.fit, terms)) fastest = std::min(fastest.value_or(known.step), known.step);
    if (!holds(known.fit, terms)) continue;
    const auto key = [](const Known& k) { return std::tuple(k.step, k.fit.allocated); };
    if (!best || key(known) < key(*best)) best = known;
  }
  RC_ASSERT(result.simulated + result.rejected_memory + result.pruned == result.enumerated);
  RC_ASSERT(result.best.has_value() == best.has_value());
  if (result.riskier) {
    const Fit fit = fit_in(
        p.cluster, result.riskier->peak_allocated, result.riskier->peak_reserved, result.riskier->outside_allocator);
    RC_ASSERT(fits(fit, terms) && !holds(fit, terms));
    RC_ASSERT(result.riskier->fit_probability == fit_probability(fit));
    RC_ASSERT(!best || result.riskier->seconds <= best->step.seconds());
  }
  if (fastest && (!best || *fastest < best->step)) {
    RC_ASSERT(result.riskier.has_value());
    RC_ASSERT(result.riskier->seconds == fastest->seconds());
  }
  if (!best) return;
  RC_ASSERT(result.best->plan == best->plan);
  RC_ASSERT(result.best->seconds == best->step.seconds());
  RC_ASSERT(result.best->peak_allocated == best->fit.allocated);
  RC_ASSERT(result.best->peak_reserved == best->fit.reserved);
  RC_ASSERT(result.best->fit_probability == fit_probability(best->fit));
}

// Knobs, in the order that equals prefer; fsdp2 alone has the last.
std::vector<KnobAxis> some_knobs() {
  return {{"optimizer.implementation",
              {[](Plan& plan) { plan.optimizer.implementation = Optimizer::Implementation::kForeach; },
                  [](Plan& plan) { plan.optimizer.implementation = Optimizer::Implementation::kFused; }}},
      {"units.layers_per_unit",
          {[](Plan& plan) { plan.units.layers_per_unit = 1; }, [](Plan& plan) { plan.units.layers_per_unit = 2; }}},
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

// A plan with the base's values wins where it is as fast, and no value of the answer can be taken
// back to the base's without the plan getting slower or unsure.
RC_GTEST_PROP(SearchProperty, TiesGoToTheUsualValues, ()) {
  Problem p = random_problem();
  p.space.knobs = some_knobs();
  const CostModel costs(p.cluster, round_calibration());
  SearchOptions options = on_threads(1);
  const SearchResult strict = search(p.space, p.model, costs, options);
  options.tie = 0.01;
  const SearchResult usual = search(p.space, p.model, costs, options);
  RC_ASSERT(strict.best.has_value() == usual.best.has_value());
  if (!strict.best) return;
  const double limit = strict.best->seconds * (1 + options.tie) + 1e-9;
  RC_ASSERT(usual.best->seconds <= limit);
  RC_ASSERT(usual.best->fit_probability >= options.fit.terms.confidence);
  for (const Candidate& n : usual.neighbours) {
    const bool is_back = n.plan.prefetch == p.space.base.prefetch && usual.best->plan.prefetch != p.space.base.prefetch;
    if (!is_back || n.verdict != Verdict::kSimulated || n.peak_reserved == Bytes()) continue;
    RC_ASSERT(n.seconds > limit || n.fit_probability < options.fit.terms.confidence);
  }
}

// Where others than the plan's own code may run it, as FitRule::probability says: no cell of the heatmap is faster than
// the best, or does not hold. Of a knob that the best is finished with neighbours have its value.
RC_GTEST_PROP(SearchProperty, TablesAreOfPlansThatHold, ()) {
  Problem p = random_problem();
  KnobAxis layers = *knob_axis("units.layers_per_unit", p.space.base);
  if (*rc::gen::arbitrary<bool>()) p.space.finish = {layers};
  const CostModel costs(p.cluster, round_calibration());
  SearchOptions options = on_threads(*rc::gen::inRange(1, 3));
  const auto odds = [](const Plan& plan, const Fit& fit, double) {
    return fit_probability(fit) * (plan.prefetch.backward == 2 ? 0.9 : 1);
  };
  options.fit.probability = odds;
  const SearchResult result = search(p.space, p.model, costs, options);
  if (!result.best) return;
  for (const HeatmapCell& cell : result.heatmap) {
    if (!cell.plan) continue;
    RC_ASSERT(cell.seconds >= result.best->seconds);
    RC_ASSERT(cell.plan->prefetch.backward != 2);
  }
  for (const Candidate& n : result.neighbours) {
    RC_ASSERT(n.plan.units.layers_per_unit == result.best->plan.units.layers_per_unit);
  }
}

RC_GTEST_PROP(SearchProperty, ObjectivesAndLimitsHold, ()) {
  const Problem p = random_problem();
  const CostModel costs(p.cluster, round_calibration());
  SearchOptions options = on_threads(1);
  options.fit.terms.max_memory = 0.6;
  const SearchResult fast = search(p.space, p.model, costs, options);
  options.objective = Objective::kMemory;
  const SearchResult small = search(p.space, p.model, costs, options);
  RC_ASSERT(fast.best.has_value() == small.best.has_value());
  if (!fast.best) return;
  RC_ASSERT(small.best->peak_allocated <= fast.best->peak_allocated);
  RC_ASSERT(small.best->seconds >= fast.best->seconds);
  const Bytes limit(static_cast<std::int64_t>(0.6 * static_cast<double>(p.cluster.gpu.memory.count())));
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
  SearchSpace space = {.base = tiny_plan()};
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
  SearchSpace space = {.base = tiny_plan(), .global_batch = 20};
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
  SearchSpace space = {.base = tiny_plan(), .global_batch = 8};
  const CostModel costs(round_cluster(8), round_calibration());
  SearchOptions options = on_threads(1);
  options.progress = [](auto, auto) { return false; };
  EXPECT_THROW(search(space, tiny_model(1), costs, options), Error);
}

}
}
