// Bounds against simulations.
#include "sim/search/bounds.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "sim/graph/training_step.h"
#include "sim/memory/memory_profile.h"
#include "sim/search/judge.h"
#include "sim/simulate/simulate.h"
#include "sim/spec/checks/plan_check.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

Plan random_plan(const ModelSpec& model, const Cluster& cluster) {
  Plan plan = tiny_plan();
  plan.runtime.kind = *rc::gen::element(RuntimeKind::kFsdp2, RuntimeKind::kNative, RuntimeKind::kFsdp1,
      RuntimeKind::kDdp, RuntimeKind::kZero2, RuntimeKind::kZero3);
  plan.runtime.version = newest_version(plan.runtime.kind);
  if (is_zero(plan.runtime.kind)) plan.reduce_dtype = plan.param_dtype;
  const std::int64_t shard = plan.runtime.kind == RuntimeKind::kDdp ? 1 : *rc::gen::element<std::int64_t>(2, 4, 8);
  plan.mesh = {shard, cluster.gpus / shard};
  plan.batch = {*rc::gen::element<std::int64_t>(64, 512), *rc::gen::inRange<std::int64_t>(1, 3),
      *rc::gen::inRange<std::int64_t>(1, 7)};
  plan.reshard_after_forward.value.kind = *rc::gen::element(Reshard::Kind::kAlways, Reshard::Kind::kNever);
  plan.recompute.value = *rc::gen::element(Recompute::kNone, Recompute::kFull, Recompute::kSelective);
  plan.accumulation = *rc::gen::element(AccumulationMode::kReduceEach, AccumulationMode::kKeepUnsharded);
  plan.prefetch = {*rc::gen::element<std::int64_t>(-1, 1, 2), *rc::gen::inRange<std::int64_t>(1, 3)};
  RC_PRE(!find_problem(plan, model, cluster));
  return plan;
}

// Collectives that take much or little of the compute rows beside them, or do not say.
struct Crowd {
  std::int64_t beside = *rc::gen::element<std::int64_t>(1024, 1100, 3000);
  std::vector<Occupancy> takes = *rc::gen::container<std::vector<Occupancy>>(
      4, rc::gen::map(
             rc::gen::pair(rc::gen::inRange(-1, 3000), rc::gen::inRange(-1, 600)), [](const std::pair<int, int>& p) {
               return Occupancy{p.first, p.second};
             }));
  std::int32_t memory_share = *rc::gen::inRange(0, 1025);

  // The same for the same kind of collective, so that plans of other orders are priced alike.
  CostTable price(const EventGraph& graph, const CostModel& costs) const {
    CostTable table = costs.price(graph);
    table.contention.communication = beside;
    for (const Row& row : graph.rows) {
      Cost& cost = table.works[row.work];
      if (is_collective(row.kind)) {
        cost.takes = takes[at(row.stream) % takes.size()];
      } else {
        cost.memory_share = memory_share;
      }
    }
    return table;
  }
};

Time contended_bound_of(const ModelSpec& model, const Plan& plan, const CostModel& costs, const Crowd& crowd) {
  const EventGraph graph = build_training_step(model, plan);
  return contended_bound(graph, crowd.price(graph, costs));
}

Time bound_of(const ModelSpec& model, Plan plan, const CostModel& costs, std::int64_t micro_batches) {
  plan.batch.accumulation = micro_batches;
  const EventGraph graph = build_training_step(model, plan);
  return lower_bound(graph, costs.price(graph));
}

RC_GTEST_PROP(Bounds, NoSimulationUndercutsThem, ()) {
  const ModelSpec model = tiny_model(*rc::gen::inRange(1, 4));
  const Cluster cluster = round_cluster(16);
  const Plan plan = random_plan(model, cluster);
  const CostModel costs(cluster, round_calibration());
  const EventGraph graph = build_training_step(model, plan);
  const CostTable table = costs.price(graph);
  Simulator simulator;
  const Time period = simulator.period(graph, table);
  const Time bound = lower_bound(graph, table);
  RC_ASSERT(bound <= period);
  RC_ASSERT(bound > Time());
  if (plan.batch.accumulation < 3) return;
  const Time extended =
      extended_bound(bound_of(model, plan, costs, 2), bound_of(model, plan, costs, 3), plan.batch.accumulation);
  RC_ASSERT(extended <= period);
}

RC_GTEST_PROP(Bounds, NothingIsHiddenForLessThanTheySay, ()) {
  const ModelSpec model = tiny_model(*rc::gen::inRange(1, 4));
  const Cluster cluster = round_cluster(16);
  Plan plan = random_plan(model, cluster);
  const CostModel costs(cluster, round_calibration());
  const Crowd crowd;
  const EventGraph graph = build_training_step(model, plan);
  const CostTable table = crowd.price(graph, costs);
  const Time period = Simulator().period(graph, table);
  RC_ASSERT(contended_bound(graph, table) <= period);
  RC_ASSERT(lower_bound(graph, table) <= contended_bound(graph, table));
  if (plan.batch.accumulation < 3) return;
  const std::int64_t micro_batches = plan.batch.accumulation;
  plan.batch.accumulation = 2;
  const Time at_two = contended_bound_of(model, plan, costs, crowd);
  plan.batch.accumulation = 3;
  const Time at_three = contended_bound_of(model, plan, costs, crowd);
  RC_ASSERT(extended_bound(at_two, at_three, micro_batches) <= period);
}

// One collective of 1000 ns beside two rows of 1000 ns each, bound by multiprocessors: it takes a
// quarter of 1 (e = 256 / 1024) and runs as long beside compute as alone. While it runs compute
// does 1 / 1.25 of its work: 2000 + 1000 x 0.25 / 1.25 = 2200 ns.
TEST(Bounds, AHiddenCollectiveCostsWhatItTakes) {
  EventGraph graph;
  graph.works.resize(2);
  graph.works[1].communicator = 0;
  graph.communicators.resize(1);
  const auto add = [&](EventKind kind, Stream stream, std::uint32_t work) {
    Row row = {.kind = kind, .stream = stream};
    row.work = static_cast<decltype(row.work)>(work);
    row.wakes = static_cast<StreamSet>((1U << kStreams) - 1);
    row.waits_begin = static_cast<std::uint32_t>(graph.waits.size());
    if (is_collective(kind)) row.communicator = 0;
    graph.rows.push_back(row);
  };
  add(EventKind::kAllGather, Stream::kAllGather, 1);
  add(EventKind::kForward, Stream::kCompute, 0);
  add(EventKind::kForward, Stream::kCompute, 0);
  // The last row waits for the collective, so that it is needed.
  graph.rows.back().waits_begin = 0;
  graph.rows.back().wait_count = 1;
  graph.waits.push_back(0);
  CostTable table;
  table.works.resize(2);
  table.works[0].duration = table.works[1].duration = Time::ns(1000);
  table.works[1].takes = {256, 256};
  EXPECT_EQ(lower_bound(graph, table), Time::ns(2000));
  EXPECT_EQ(contended_bound(graph, table), Time::ns(2200));
  // Rates are whole 1 / 1024: 819 instead of 819.2 for 1000 ns.
  EXPECT_EQ(Simulator().period(graph, table), Time::ns(2201));
}

// What search rejects without a graph.
RC_GTEST_PROP(Bounds, FloorsOfMemoryAreBelowThePeak, ()) {
  const ModelSpec model = tiny_model(*rc::gen::inRange(1, 4));
  Plan plan = random_plan(model, round_cluster(16));
  if (plan.runtime.kind == RuntimeKind::kFsdp2 && plan.mesh.shard > 2) {
    const bool is_group = *rc::gen::arbitrary<bool>();
    if (is_group) plan.reshard_after_forward.value = {Reshard::Kind::kGroup, 2};
  }
  const Bytes peak = peak_allocated(build_training_step(model, plan));
  RC_ASSERT(memory_floor(plan, model, LayersFloor()) <= peak);
  RC_ASSERT(state_floor(plan, model) <= memory_floor(plan, model, LayersFloor()));
  if (plan.runtime.kind == RuntimeKind::kFsdp2) {
    // fp32 parameters and two moments; a gradient on top.
    RC_ASSERT(state_floor(plan, model).count() == model.parameters() / plan.mesh.shard * 12);
    RC_ASSERT(memory_floor(plan, model, LayersFloor()).count() >= model.parameters() / plan.mesh.shard * 16);
  }
}

// What search relies on: plans that differ in prefetch alone share a bound.
RC_GTEST_PROP(Bounds, HoldForEveryPrefetch, ()) {
  const ModelSpec model = tiny_model(*rc::gen::inRange(1, 4));
  const Cluster cluster = round_cluster(16);
  Plan plan = random_plan(model, cluster);
  RC_PRE(plan.runtime.kind == RuntimeKind::kFsdp2 || plan.runtime.kind == RuntimeKind::kNative);
  const CostModel costs(cluster, round_calibration());
  const EventGraph first = build_training_step(model, plan);
  const Crowd crowd;
  const Time bound = contended_bound(first, crowd.price(first, costs));
  plan.prefetch = {*rc::gen::element<std::int64_t>(-1, 0, 1, 2, 3), *rc::gen::inRange<std::int64_t>(0, 4)};
  RC_PRE(!find_problem(plan, model, cluster));
  const EventGraph other = build_training_step(model, plan);
  RC_ASSERT(bound <= Simulator().period(other, crowd.price(other, costs)));
}

// What search relies on before it builds anything else: the floor that one plan shows holds for all
// of FSDP2 that differ in mesh, prefetch, reshard, reductions and how the optimizer is launched.
RC_GTEST_PROP(Bounds, FloorsOfLayersHoldForEveryMesh, ()) {
  const ModelSpec model = tiny_model(*rc::gen::inRange(1, 4));
  const Cluster cluster = round_cluster(16);
  Plan plan = random_plan(model, cluster);
  plan.runtime = Runtime();
  RC_PRE(!find_problem(plan, model, cluster));
  const CostModel costs(cluster, round_calibration());
  const LayersFloor floor = Judge(model, costs, FitRule()).floor(plan, LazyPrograms(model, plan));
  RC_ASSERT(floor.step > Time());
  RC_ASSERT(floor.ranks.at(0).activations > Bytes());

  const std::int64_t shard = *rc::gen::element<std::int64_t>(1, 2, 4, 8, 16);
  plan.mesh = {shard, 16 / shard, *rc::gen::element(MeshInner::kShard, MeshInner::kReplicate)};
  plan.reshard_after_forward.value.kind = *rc::gen::element(Reshard::Kind::kAlways, Reshard::Kind::kNever);
  plan.prefetch = {*rc::gen::element<std::int64_t>(-1, 1, 2, 3), *rc::gen::inRange<std::int64_t>(1, 4)};
  plan.accumulation = *rc::gen::element(AccumulationMode::kReduceEach, AccumulationMode::kKeepUnsharded);
  plan.communicators = *rc::gen::element(Communicators::kShared, Communicators::kSeparate);
  plan.reduce_dtype = *rc::gen::element(DType::kFp32, DType::kBf16);
  plan.optimizer.implementation =
      *rc::gen::element(Optimizer::Implementation::kForeach, Optimizer::Implementation::kFused);
  plan.offload = *rc::gen::element(Offload::kNone, Offload::kCpu);
  RC_PRE(!find_problem(plan, model, cluster));
  const EventGraph graph = build_training_step(model, plan);
  RC_ASSERT(floor.step <= Simulator().period(graph, costs.price(graph)));
  RC_ASSERT(memory_floor(plan, model, floor) <= peak_allocated(graph));
}

// What is passed over without a replay of the allocator would not have held.
RC_GTEST_PROP(Bounds, TheAllocatorReservesWhatThePoolsHold, ()) {
  const ModelSpec model = tiny_model(*rc::gen::inRange(1, 6));
  Cluster cluster = round_cluster(16);
  const Plan plan = random_plan(model, cluster);
  RC_PRE(!find_problem(plan, model, cluster));
  const CostModel costs(cluster, round_calibration());
  const FitRule rule;
  Judge judge(model, costs, rule);
  const LayerPrograms programs(model, plan);
  const Fit least = judge.least_fit(plan, programs);
  RC_ASSERT(least.reserved >= least.allocated);
  RC_ASSERT(least.reserved <= judge.fit(plan, programs).reserved);
}

// Search weighs one of the plans that differ in this alone.
RC_GTEST_PROP(Bounds, PlacementAndCommunicatorsHoldTheSameMemory, ()) {
  const ModelSpec model = tiny_model(*rc::gen::inRange(1, 6));
  const Cluster cluster = round_cluster(16);
  Plan plan = random_plan(model, cluster);
  RC_PRE(plan.runtime.kind == RuntimeKind::kFsdp2 || plan.runtime.kind == RuntimeKind::kNative);
  plan.optimizer.implementation = Optimizer::Implementation::kFused;
  RC_PRE(!find_problem(plan, model, cluster));
  const Bytes peak = peak_allocated(build_training_step(model, plan));
  plan.mesh.inner = *rc::gen::element(MeshInner::kShard, MeshInner::kReplicate);
  plan.communicators = *rc::gen::element(Communicators::kShared, Communicators::kSeparate);
  RC_PRE(!find_problem(plan, model, cluster));
  RC_ASSERT(peak_allocated(build_training_step(model, plan)) == peak);
  plan.optimizer.implementation =
      *rc::gen::element(Optimizer::Implementation::kForeach, Optimizer::Implementation::kLoop);
  RC_PRE(!find_problem(plan, model, cluster));
  // A fused optimizer keeps its step counters on the device, 512 bytes each, and needs nothing else.
  RC_ASSERT(peak <= peak_allocated(build_training_step(model, plan)) * 21 / 20);
}

// Search rejects all prefetches of a plan where the one that gathers latest exceeds the GPU by a twentieth.
RC_GTEST_PROP(Bounds, GatheringEarlierHoldsHardlyLess, ()) {
  const ModelSpec model = tiny_model(*rc::gen::inRange(1, 6));
  const Cluster cluster = round_cluster(16);
  Plan plan = random_plan(model, cluster);
  RC_PRE(plan.runtime.kind == RuntimeKind::kFsdp2 || plan.runtime.kind == RuntimeKind::kNative);
  const bool native = plan.runtime.kind == RuntimeKind::kNative;
  plan.prefetch = native ? Prefetch{0, 0} : Prefetch{};
  RC_PRE(!find_problem(plan, model, cluster));
  const Bytes latest = peak_allocated(build_training_step(model, plan));
  plan.prefetch = {*rc::gen::element<std::int64_t>(-1, 1, 2, 3), *rc::gen::inRange<std::int64_t>(1, 4)};
  RC_PRE(!find_problem(plan, model, cluster));
  RC_ASSERT(latest <= peak_allocated(build_training_step(model, plan)) * 21 / 20);
}

}
}
