// Bounds against simulations.
#include "sim/search/bounds.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "sim/graph/training_step.h"
#include "sim/memory/memory_profile.h"
#include "sim/search/judge.h"
#include "sim/simulate/simulate.h"
#include "sim/spec/plan_check.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

Plan random_plan(const ModelSpec& model, const Cluster& cluster) {
  Plan plan = tiny_plan();
  plan.runtime.kind =
      *rc::gen::element(RuntimeKind::kFsdp2, RuntimeKind::kNative, RuntimeKind::kFsdp1,
                        RuntimeKind::kDdp, RuntimeKind::kZero2, RuntimeKind::kZero3);
  plan.runtime.version = newest_version(plan.runtime.kind);
  if (is_zero(plan.runtime.kind)) plan.reduce_dtype = plan.param_dtype;
  const std::int64_t shard =
      plan.runtime.kind == RuntimeKind::kDdp ? 1 : *rc::gen::element<std::int64_t>(2, 4, 8);
  plan.mesh = {shard, cluster.gpus / shard};
  plan.batch = {*rc::gen::element<std::int64_t>(64, 512), *rc::gen::inRange<std::int64_t>(1, 3),
                *rc::gen::inRange<std::int64_t>(1, 7)};
  plan.reshard_after_forward.value.kind =
      *rc::gen::element(Reshard::Kind::kAlways, Reshard::Kind::kNever);
  plan.recompute.value =
      *rc::gen::element(Recompute::kNone, Recompute::kFull, Recompute::kSelective);
  plan.accumulation =
      *rc::gen::element(AccumulationMode::kReduceEach, AccumulationMode::kKeepUnsharded);
  plan.prefetch = {*rc::gen::element<std::int64_t>(-1, 1, 2),
                   *rc::gen::inRange<std::int64_t>(1, 3)};
  RC_PRE(!find_problem(plan, model, cluster));
  return plan;
}

Time bound_of(const ModelSpec& model, Plan plan, const CostModel& costs,
              std::int64_t micro_batches) {
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
  const Time extended = extended_bound(bound_of(model, plan, costs, 2),
                                       bound_of(model, plan, costs, 3), plan.batch.accumulation);
  RC_ASSERT(extended <= period);
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
  RC_ASSERT(memory_floor(plan, model, Bytes()) <= peak);
  RC_ASSERT(state_floor(plan, model) <= memory_floor(plan, model, Bytes()));
  if (plan.runtime.kind == RuntimeKind::kFsdp2) {
    // fp32 parameters and two moments; a gradient on top.
    RC_ASSERT(state_floor(plan, model).count() == model.parameters() / plan.mesh.shard * 12);
    RC_ASSERT(memory_floor(plan, model, Bytes()).count() >=
              model.parameters() / plan.mesh.shard * 16);
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
  const Time bound = lower_bound(first, costs.price(first));
  plan.prefetch = {*rc::gen::element<std::int64_t>(-1, 0, 1, 2, 3),
                   *rc::gen::inRange<std::int64_t>(0, 4)};
  RC_PRE(!find_problem(plan, model, cluster));
  const EventGraph other = build_training_step(model, plan);
  RC_ASSERT(bound <= Simulator().period(other, costs.price(other)));
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
  const LayersFloor floor = Judge(model, costs, cluster).floor(plan, LayerPrograms(model, plan));
  RC_ASSERT(floor.step > Time());
  RC_ASSERT(floor.activations > Bytes());

  const std::int64_t shard = *rc::gen::element<std::int64_t>(1, 2, 4, 8, 16);
  plan.mesh = {shard, 16 / shard, *rc::gen::element(MeshInner::kShard, MeshInner::kReplicate)};
  plan.reshard_after_forward.value.kind =
      *rc::gen::element(Reshard::Kind::kAlways, Reshard::Kind::kNever);
  plan.prefetch = {*rc::gen::element<std::int64_t>(-1, 1, 2, 3),
                   *rc::gen::inRange<std::int64_t>(1, 4)};
  plan.accumulation =
      *rc::gen::element(AccumulationMode::kReduceEach, AccumulationMode::kKeepUnsharded);
  plan.communicators = *rc::gen::element(Communicators::kShared, Communicators::kSeparate);
  plan.reduce_dtype = *rc::gen::element(DType::kFp32, DType::kBf16);
  plan.optimizer.implementation =
      *rc::gen::element(Optimizer::Implementation::kForeach, Optimizer::Implementation::kFused);
  plan.offload = *rc::gen::element(Offload::kNone, Offload::kCpu);
  RC_PRE(!find_problem(plan, model, cluster));
  const EventGraph graph = build_training_step(model, plan);
  RC_ASSERT(floor.step <= Simulator().period(graph, costs.price(graph)));
  RC_ASSERT(memory_floor(plan, model, floor.activations) <= peak_allocated(graph));
}

// Search rejects all prefetches of a plan where the one that gathers latest exceeds the GPU by a
// twentieth.
RC_GTEST_PROP(Bounds, GatheringEarlierHoldsHardlyLess, ()) {
  const ModelSpec model = tiny_model(*rc::gen::inRange(1, 6));
  const Cluster cluster = round_cluster(16);
  Plan plan = random_plan(model, cluster);
  RC_PRE(plan.runtime.kind == RuntimeKind::kFsdp2 || plan.runtime.kind == RuntimeKind::kNative);
  const bool native = plan.runtime.kind == RuntimeKind::kNative;
  plan.prefetch = native ? Prefetch{0, 0} : Prefetch{};
  RC_PRE(!find_problem(plan, model, cluster));
  const Bytes latest = peak_allocated(build_training_step(model, plan));
  plan.prefetch = {*rc::gen::element<std::int64_t>(-1, 1, 2, 3),
                   *rc::gen::inRange<std::int64_t>(1, 4)};
  RC_PRE(!find_problem(plan, model, cluster));
  RC_ASSERT(latest <= peak_allocated(build_training_step(model, plan)) * 21 / 20);
}

}  // namespace
}  // namespace foreshard
