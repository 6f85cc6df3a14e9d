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

// Costs by kind and bytes of a work, which graphs of any length share; collectives and kernels on streams of their own
// take their part of what runs beside them. No host: its clock is what ends a repetition.
CostTable random_costs(const EventGraph& graph, std::uint64_t seed) {
  CostTable table;
  for (const Work& work : graph.works) {
    std::uint64_t hash = seed ^ static_cast<std::uint64_t>(work.kind) * 0x9E3779B97F4A7C15U ^
                         static_cast<std::uint64_t>(work.bytes.count()) * 0xD1B54A32D192ED03U;
    hash ^= hash >> 29;
    Cost cost = {.duration = Time::ns(static_cast<std::int64_t>(100 + hash % 9000))};
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

CostTable with_host(CostTable costs, std::int64_t host) {
  for (Cost& cost : costs.works) {
    cost.before = Time::ns(host);
    cost.during = Time::ns(host / 2);
    cost.last_kernel = Time::ns(host / 3);
  }
  return costs;
}

// Also where collectives queue behind those of other streams, and copies run beside them.
RC_GTEST_PROP(Repeats, SkippedMicroBatchesPassAsIfTheyWerePlayed, ()) {
  const EventGraph graph = with_accumulation(random_step(), *rc::gen::inRange<std::int64_t>(2, 24));
  const CostTable costs =
      with_host(random_costs(graph, *rc::gen::arbitrary<std::uint64_t>()), *rc::gen::element(0, 50, 400, 5000));
  const Timeline played = Simulator().simulate(graph, costs);
  Simulator simulator;
  const Timeline& told = simulator.steady_step(graph, costs, find_repeats(graph));
  RC_ASSERT(told.period == played.period);
  RC_ASSERT(told.spans == played.spans);
}

// What is left when micro-batches are cut out of a step is the step without them.
RC_GTEST_PROP(Repeats, AStepTellsThatOfFewerMicroBatches, ()) {
  const RandomStep step = random_step();
  const auto more = *rc::gen::inRange<std::int32_t>(1, 9);
  const auto fewer = *rc::gen::inRange<std::int64_t>(5, 16);
  const EventGraph whole = with_accumulation(step, fewer + more);
  const EventGraph graph = with_accumulation(step, fewer);
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  const auto host = *rc::gen::element(0, 50, 400, 1500);
  const CostTable costs = with_host(random_costs(whole, seed), host);
  const Timeline played = Simulator().simulate(whole, costs);
  const auto cut = cut_runs(whole, costs, played, find_repeats(whole), more);
  RC_TAG(cut.has_value());
  if (!cut) RC_DISCARD("not shown");
  const Timeline without = Simulator().simulate(graph, with_host(random_costs(graph, seed), host));
  RC_ASSERT(played.period - cut->time == without.period);
  RC_ASSERT(graph.rows.size() + at(cut->end - cut->begin) == whole.rows.size());
  for (EventId row = 0; row < static_cast<EventId>(graph.rows.size()); ++row) {
    const bool is_behind = row >= cut->begin;
    const Span& is = without.spans[at(row)];
    const Span& was = played.spans[at(is_behind ? row + cut->end - cut->begin : row)];
    const Time earlier = is_behind ? cut->time : Time();
    RC_ASSERT(is.start == was.start - earlier && is.arrive == was.arrive - earlier);
    RC_ASSERT(is.end == was.end - earlier);
  }
}

// The first micro-batch's gradients are cast, those of later ones are added, too: a run that begins
// while that is still to come is not as the next one.
TEST(Repeats, ARunThatBeginsBehindOtherRowsIsNotTheNextOne) {
  RandomStep step = {.model = tiny_model(2)};
  step.plan.model = step.model.name;
  step.plan.mesh = {2, 1};
  step.plan.batch = {16, 1, 1};
  step.plan.reduce_dtype = DType::kBf16;  // so that there is something to cast
  const auto costs = [](const EventGraph& graph) {
    return table_costs(graph, [&](const Work& work, int) {
      const bool computes = work.kind == EventKind::kForward || work.kind == EventKind::kBackward;
      Cost cost = {.duration = Time::ns(computes ? 20'000'000 : 1000)};
      if (work.kind == EventKind::kAccumulate) {
        cost.duration = Time::ns(graph.kernels[work.kernels_end - 1].bytes.count() / 16);
      }
      return cost;
    });
  };
  const EventGraph few = with_accumulation(step, 8), whole = with_accumulation(step, 30);
  Simulator simulator;
  const auto told = simulator.period(few, costs(few), find_repeats(few), 22);
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(*told, simulator.period(whole, costs(whole)));
}

// Nothing is told where the step has not settled, or the host ends it.
TEST(Repeats, ASingleMicroBatchDoesNotRepeat) {
  const ModelSpec model = tiny_model(4);
  Plan plan = {.model = model.name, .batch = {16, 1, 1}, .mesh = {2, 1}};
  EXPECT_EQ(find_repeats(build_training_step(model, plan)).count, 0);
  plan.batch.accumulation = 8;
  const RepeatedRows rows = find_repeats(build_training_step(model, plan));
  EXPECT_GE(rows.count, 5);
  EXPECT_GT(rows.rows, 4 * 3);
}

}
}
