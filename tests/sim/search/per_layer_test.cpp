// Per-unit and per-layer choices against brute force: every combination forecast by the full walk.
#include "sim/search/per_layer.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "tests/sim/search/brute_force.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

LayerProblem random_problem(int most_blocks) {
  LayerProblem p = {.model = tiny_model(*rc::gen::inRange(1, most_blocks + 1)),
      .cluster = round_cluster(*rc::gen::element<std::int64_t>(2, 8, 16))};
  p.cluster.memory_outside_allocator = Bytes(0);
  p.cluster.gpu.memory = Bytes(*rc::gen::inRange<std::int64_t>(30, 500) << 20);
  p.frame = tiny_plan();
  p.frame.runtime.kind = *rc::gen::element(RuntimeKind::kFsdp2, RuntimeKind::kNative);
  p.frame.runtime.version = newest_version(p.frame.runtime.kind);
  p.frame.mesh = {p.cluster.gpus, 1};
  p.frame.batch = {*rc::gen::element<std::int64_t>(128, 512, 1024), *rc::gen::inRange<std::int64_t>(1, 4),
      *rc::gen::inRange<std::int64_t>(1, 3)};
  if (*rc::gen::arbitrary<bool>()) p.choices.recomputes = {Recompute::kNone, Recompute::kFull};
  // Groups by falling size, between always and never.
  std::vector<std::int64_t> groups;
  for (const std::int64_t group : {8, 4, 2}) {
    if (group < p.cluster.gpus && *rc::gen::inRange(0, 3) == 0) groups.push_back(group);
  }
  for (const std::int64_t group : groups) {
    p.choices.reshards.insert(p.choices.reshards.end() - 1, {Reshard::Kind::kGroup, group});
  }
  // Few enough to try everything twice.
  if (groups.size() > 1) p.model = tiny_model(1);
  if (groups.size() > 2) p.choices.recomputes = {Recompute::kNone, Recompute::kFull};
  return p;
}

class PerLayer : public testing::Test {};

void expect_optimum() {
  const LayerProblem p = random_problem(2);
  const CostModel costs(p.cluster, round_calibration());
  const std::optional<Optimum> optimum = brute_force(p, costs);
  const auto result = optimise_layers(p.frame, p.model, costs, p.choices);
  RC_ASSERT(result.has_value() == optimum.has_value());
  if (!optimum) return;
  RC_ASSERT(result->is_optimum);
  RC_ASSERT(result->candidate.seconds == optimum->step.seconds());
  RC_ASSERT(result->candidate.peak_allocated == optimum->peak);
}

// Two problems in each of the 100 runs.
RC_GTEST_FIXTURE_PROP(PerLayer, EqualsBruteForce, ()) {
  expect_optimum();
  expect_optimum();
}

// The search of large problems on problems whose optimum is known: it fits, is no faster than the
// optimum, and never slower than a uniform plan.
RC_GTEST_FIXTURE_PROP(PerLayer, SearchIsNeverWorseThanUniform, ()) {
  LayerProblem p = random_problem(5);
  const CostModel costs(p.cluster, round_calibration());
  std::optional<Time> uniform;
  for (const Recompute recompute : p.choices.recomputes) {
    for (const Reshard& reshard : p.choices.reshards) {
      Plan plan = p.frame;
      plan.recompute = {recompute, {}};
      plan.reshard_after_forward = {reshard, {}};
      if (find_problem(plan, p.model, p.cluster)) continue;
      const Forecast f = forecast(p.model, plan, costs);
      const Fit fit = fit_in(p.cluster, f.memory.peak, f.reserved.peak, Bytes(0));
      if (!holds(fit, p.choices.fit.terms)) continue;
      if (!uniform || f.timeline.period < *uniform) {
        uniform = f.timeline.period;
        p.frame = plan;
      }
    }
  }
  p.choices.try_all_up_to = 0;
  const auto searched = optimise_layers(p.frame, p.model, costs, p.choices);
  if (!uniform) return;
  RC_ASSERT(searched.has_value());
  RC_ASSERT(!searched->is_optimum);
  RC_ASSERT(searched->candidate.seconds <= uniform->seconds());
  const Forecast f = forecast(p.model, searched->candidate.plan, costs);
  RC_ASSERT(f.timeline.period.seconds() == searched->candidate.seconds);
  RC_ASSERT(f.memory.peak == searched->candidate.peak_allocated);
}

TEST_F(PerLayer, RangesAreTheExceptionsOfTheMostFrequent) {
  using enum Recompute;
  const RangedPolicy<Recompute> policy = ranged(std::vector{kFull, kNone, kNone, kFull, kFull});
  EXPECT_EQ(policy.value, kFull);
  ASSERT_EQ(policy.ranges.size(), 1U);
  EXPECT_EQ(policy.ranges[0].first, 1);
  EXPECT_EQ(policy.ranges[0].last, 2);
  EXPECT_EQ(policy.ranges[0].value, kNone);
}

}
}
