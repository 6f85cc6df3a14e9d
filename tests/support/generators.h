// Random small models, plans and cost tables for property tests. Every value is valid by construction.
#pragma once

#include <rapidcheck.h>

#include <vector>

#include "models/model_dims.h"
#include "sim/graph/training_step.h"
#include "tests/support/fixtures.h"

namespace foreshard {

struct RandomStep {
  ModelSpec model;
  Plan plan;
  EventGraph graph;
  CostTable costs;
};

inline RandomStep random_step() {
  RandomStep r;
  ModelDims d = {.name = "random",
      .family = "llama",
      .source = "tests/support",
      .layers = *rc::gen::inRange(1, 7),
      .heads = *rc::gen::element(1, 2, 4)};
  d.kv_heads = *rc::gen::elementOf(std::vector<std::int64_t>{1, d.heads});
  d.head_dim = *rc::gen::element(8, 16);
  d.hidden = d.heads * d.head_dim;
  d.ffn = *rc::gen::inRange(8, 200);
  d.vocabulary = *rc::gen::inRange(10, 300);
  d.max_positions = 64;
  d.tied = *rc::gen::arbitrary<bool>();
  if (*rc::gen::arbitrary<bool>()) {
    d.norm = NormKind::kLayer;
    d.activation = Activation::kGelu;
    d.mlp_bias = d.qkv_bias = true;
  }
  r.model = build_model(d);

  Plan& p = r.plan;
  p.model = d.name;
  p.runtime.kind = *rc::gen::element(RuntimeKind::kFsdp2, RuntimeKind::kNative);
  p.batch = {*rc::gen::element<std::int64_t>(8, 16, 33), *rc::gen::inRange<std::int64_t>(1, 4),
      *rc::gen::inRange<std::int64_t>(1, 4)};
  p.mesh = {*rc::gen::element<std::int64_t>(1, 2, 4, 6, 8), *rc::gen::element<std::int64_t>(1, 2, 3)};
  if (p.runtime.kind == RuntimeKind::kFsdp2) p.mesh.inner = *rc::gen::element(MeshInner::kShard, MeshInner::kReplicate);
  p.units.layers_per_unit = *rc::gen::inRange<std::int64_t>(1, d.layers + 1);
  if (d.tied) {
    p.units.embedding = p.units.head = UnitPlacement::kRoot;
  } else {
    p.units.embedding = *rc::gen::element(UnitPlacement::kOwn, UnitPlacement::kRoot);
    p.units.head = *rc::gen::element(UnitPlacement::kOwn, UnitPlacement::kRoot, UnitPlacement::kWithNorm);
  }
  auto reshard = [&]() -> Reshard {
    const int kind = *rc::gen::inRange(0, p.mesh.shard == 4 || p.mesh.shard == 8 ? 3 : 2);
    if (kind == 0) return {Reshard::Kind::kAlways, 0};
    if (kind == 1) return {Reshard::Kind::kNever, 0};
    return {Reshard::Kind::kGroup, 2};
  };
  p.reshard_after_forward.value = reshard();
  if (*rc::gen::arbitrary<bool>()) p.reshard_after_forward.ranges = {{1, 2, reshard()}};
  const bool native = p.runtime.kind == RuntimeKind::kNative;
  p.prefetch.forward = *rc::gen::elementOf(std::vector<std::int64_t>{Prefetch::kImplicit, native ? 0 : 1, 1, 2, 5});
  p.prefetch.backward = *rc::gen::elementOf(std::vector<std::int64_t>{native ? 0 : 1, 1, 2, 4});
  auto recompute = [] { return *rc::gen::element(Recompute::kNone, Recompute::kFull, Recompute::kSelective); };
  p.recompute.value = recompute();
  if (*rc::gen::arbitrary<bool>()) p.recompute.ranges = {{0, 1, recompute()}};
  p.param_dtype = *rc::gen::element(DType::kBf16, DType::kFp32);
  p.reduce_dtype = *rc::gen::element(DType::kBf16, DType::kFp32);
  p.accumulation = *rc::gen::element(AccumulationMode::kReduceEach, AccumulationMode::kKeepUnsharded);
  p.optimizer.kind = *rc::gen::element(Optimizer::Kind::kAdamW, Optimizer::Kind::kSgd);
  if (*rc::gen::arbitrary<bool>()) p.optimizer.clip_norm.reset();
  if (native) {
    p.reduce_scatter_buffers = *rc::gen::inRange<std::int64_t>(1, 4);
    p.communicators = *rc::gen::element(Communicators::kShared, Communicators::kSeparate);
  }
  p.host_sync = *rc::gen::element(HostSync::kNone, HostSync::kStep);

  r.graph = build_training_step(r.model, p);
  // Durations up to 1 ms, host work up to 100 us: host-bound, compute-bound and communication-bound steps all occur.
  r.costs = table_costs(r.graph, [](const Work&, int) {
    Cost cost = {.before = Time::ns(*rc::gen::inRange(0, 100'000)),
        .during = Time::ns(*rc::gen::inRange(0, 100'000)),
        .duration = Time::ns(*rc::gen::inRange(0, 1'000'000))};
    cost.last_kernel = Time::ns(*rc::gen::inRange<std::int64_t>(0, cost.duration.nanoseconds() + 1));
    return cost;
  });
  // No two communicators share a link, so that contention is compute against communication only.
  for (Cost& cost : r.costs.works) cost.uses = {0, 0};
  return r;
}

inline Contention random_contention() {
  return Contention{.compute = *rc::gen::inRange<std::int64_t>(Contention::kOne, 3 * Contention::kOne),
      .communication = *rc::gen::inRange<std::int64_t>(Contention::kOne, 3 * Contention::kOne)};
}

}
