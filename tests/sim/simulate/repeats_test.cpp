// A step of many micro-batches, told by one of few: the same to the nanosecond.
#include "sim/simulate/repeats.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "sim/simulate/simulate.h"
#include "tests/support/generators.h"

namespace foreshard {
namespace {

EventGraph with_accumulation(const RandomStep& step, std::int64_t accumulation) {
  Plan plan = step.plan;
  plan.batch.accumulation = accumulation;
  return build_training_step(step.model, plan);
}

// Costs by kind and bytes of a work, which graphs of any length share; collectives and kernels on
// streams of their own take their part of what runs beside them. No host: its clock is what ends a
// repetition.
CostTable random_costs(const EventGraph& graph, std::uint64_t seed) {
  CostTable table;
  for (const Work& work : graph.works) {
    std::uint64_t hash = seed ^ static_cast<std::uint64_t>(work.kind) * 0x9E3779B97F4A7C15U ^
                         static_cast<std::uint64_t>(work.bytes.count()) * 0xD1B54A32D192ED03U;
    hash ^= hash >> 29;
    Cost cost;
    cost.duration = Time::ns(static_cast<std::int64_t>(100 + hash % 9000));
    if (is_collective(work.kind)) {
      const auto excess = static_cast<std::int32_t>(hash >> 20 & 511);
      cost.takes = {excess, excess / 2};
      cost.uses = {Contention::kOne, 0};
    } else {
      cost.memory_share = static_cast<std::int32_t>(hash >> 40 & 1023);
      const auto excess = static_cast<std::int32_t>(hash >> 30 & 511);
      cost.takes = {excess / 2, excess};  // on a stream of its own
    }
    table.works.push_back(cost);
  }
  table.contention.communication = Contention::kOne + static_cast<std::int64_t>(seed % 300);
  return table;
}

RC_GTEST_PROP(Repeats, FewMicroBatchesTellMany, ()) {
  const RandomStep step = random_step();
  const auto many = *rc::gen::inRange<std::int64_t>(9, 60);
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  constexpr std::int64_t kFew = 8;
  const EventGraph few = with_accumulation(step, kFew);
  const EventGraph whole = with_accumulation(step, many);
  Simulator simulator;
  const auto told = simulator.period(few, random_costs(few, seed), find_repeats(few), many - kFew);
  RC_TAG(told.has_value());
  if (!told) RC_DISCARD("does not repeat yet");
  RC_ASSERT(*told == simulator.period(whole, random_costs(whole, seed)));
}

// Also where collectives queue behind those of other streams, and copies run beside them.
RC_GTEST_PROP(Repeats, SkippedMicroBatchesPassAsIfTheyWerePlayed, ()) {
  const EventGraph graph = with_accumulation(random_step(), *rc::gen::inRange<std::int64_t>(2, 24));
  CostTable costs = random_costs(graph, *rc::gen::arbitrary<std::uint64_t>());
  const auto host = *rc::gen::element(0, 50, 400, 5000);
  for (Cost& cost : costs.works) {
    cost.before = Time::ns(host);
    cost.during = Time::ns(host / 2);
    cost.last_kernel = Time::ns(host / 3);
  }
  const Timeline played = Simulator().simulate(graph, costs);
  Simulator simulator;
  const Timeline& told = simulator.steady_step(graph, costs, find_repeats(graph));
  RC_ASSERT(told.period == played.period);
  RC_ASSERT(told.spans == played.spans);
}

// Nothing is told where the step has not settled, or the host ends it.
TEST(Repeats, ASingleMicroBatchDoesNotRepeat) {
  const ModelSpec model = tiny_model(4);
  Plan plan;
  plan.model = model.name;
  plan.mesh = {2, 1};
  plan.batch = {16, 1, 1};
  EXPECT_EQ(find_repeats(build_training_step(model, plan)).count, 0);
  plan.batch.accumulation = 8;
  const RepeatedRows rows = find_repeats(build_training_step(model, plan));
  EXPECT_GE(rows.count, 5);
  EXPECT_GT(rows.rows, 4 * 3);
}

}  // namespace
}  // namespace foreshard
