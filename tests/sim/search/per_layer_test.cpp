// Per-unit and per-layer choices against brute force: every combination forecast by the full walk.
#include "sim/search/per_layer.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "sim/simulate/forecast.h"
#include "sim/spec/plan_check.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

struct Problem {
  ModelSpec model;
  Cluster cluster;
  Plan frame;
  LayerChoices choices;
};

Problem random_problem(int most_blocks) {
  Problem p;
  p.model = tiny_model(*rc::gen::inRange(1, most_blocks + 1));
  p.cluster = round_cluster(*rc::gen::element<std::int64_t>(2, 8, 16));
  p.cluster.memory_outside_allocator = Bytes(0);
  p.cluster.gpu.memory = Bytes(*rc::gen::inRange<std::int64_t>(30, 500) << 20);
  p.frame = tiny_plan();
  p.frame.runtime.kind = *rc::gen::element(RuntimeKind::kFsdp2, RuntimeKind::kNative);
  p.frame.runtime.version = newest_version(p.frame.runtime.kind);
  p.frame.mesh = {p.cluster.gpus, 1};
  p.frame.batch = {*rc::gen::element<std::int64_t>(128, 512, 1024),
                   *rc::gen::inRange<std::int64_t>(1, 4), *rc::gen::inRange<std::int64_t>(1, 3)};
  if (*rc::gen::arbitrary<bool>()) p.choices.recomputes = {Recompute::kNone, Recompute::kFull};
  if (p.cluster.gpus > 8 && *rc::gen::arbitrary<bool>()) {
    p.choices.reshards.insert(p.choices.reshards.begin() + 1, {Reshard::Kind::kGroup, 8});
  }
  return p;
}

struct Optimum {
  Time step;
  Bytes peak;
};

// Every combination, written as one range for each block and unit.
std::optional<Optimum> brute_force(const Problem& p, const CostModel& costs) {
  const auto blocks = static_cast<std::size_t>(p.model.block_count());
  const auto units = static_cast<std::size_t>(unit_count(p.frame, p.model));
  std::vector<std::size_t> at(blocks + units, 0);
  std::optional<Optimum> best;
  while (true) {
    Plan plan = p.frame;
    plan.recompute = {p.choices.recomputes.front(), {}};
    plan.reshard_after_forward = {p.choices.reshards.front(), {}};
    for (std::size_t i = 0; i < at.size(); ++i) {
      const auto index = static_cast<std::int64_t>(i < blocks ? i : i - blocks);
      if (i < blocks) {
        plan.recompute.ranges.push_back({index, index, p.choices.recomputes[at[i]]});
      } else {
        plan.reshard_after_forward.ranges.push_back({index, index, p.choices.reshards[at[i]]});
      }
    }
    if (!find_problem(plan, p.model, p.cluster)) {
      const Forecast f = forecast(p.model, plan, costs);
      const bool fits = !f.reserved.retries_for_good &&
                        fit_in(p.cluster, f.memory.peak, f.reserved.peak, Bytes(0)).fits();
      const Optimum found{f.timeline.period, f.memory.peak};
      if (fits && (!best || std::tie(found.step, found.peak) < std::tie(best->step, best->peak))) {
        best = found;
      }
    }
    std::size_t i = 0;
    while (i < at.size() &&
           ++at[i] == (i < blocks ? p.choices.recomputes
                                  : std::vector<Recompute>(p.choices.reshards.size()))
                          .size()) {
      at[i++] = 0;
    }
    if (i == at.size()) return best;
  }
}

class PerLayer : public testing::Test {};

void expect_optimum() {
  const Problem p = random_problem(2);
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
  Problem p = random_problem(5);
  const CostModel costs(p.cluster, round_calibration());
  std::optional<Time> uniform;
  for (const Recompute recompute : p.choices.recomputes) {
    for (const Reshard& reshard : p.choices.reshards) {
      Plan plan = p.frame;
      plan.recompute = {recompute, {}};
      plan.reshard_after_forward = {reshard, {}};
      if (find_problem(plan, p.model, p.cluster)) continue;
      const Forecast f = forecast(p.model, plan, costs);
      if (f.reserved.retries_for_good) continue;
      if (!fit_in(p.cluster, f.memory.peak, f.reserved.peak, Bytes(0)).fits()) continue;
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

}  // namespace
}  // namespace foreshard
