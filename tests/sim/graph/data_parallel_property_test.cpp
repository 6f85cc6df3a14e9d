// DDP, ZeRO-1 and ZeRO-2 over random models, plans and options: graphs that order themselves, free
// what they allocate once, and repeat from their steady step on.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "sim/graph/host_log.h"
#include "sim/memory/memory_profile.h"
#include "tests/support/generators.h"

namespace foreshard {
namespace {

struct Drawn {
  ModelSpec model;
  Plan plan;
};

Drawn draw() {
  const RandomStep r = random_step();
  Drawn drawn{r.model, Plan()};
  Plan& p = drawn.plan;
  p.model = r.plan.model;
  p.batch = r.plan.batch;
  p.recompute = r.plan.recompute;
  p.optimizer = r.plan.optimizer;
  p.units.embedding = p.units.head = UnitPlacement::kRoot;
  p.accumulation = r.plan.accumulation;
  p.param_dtype = r.plan.param_dtype;
  p.reduce_dtype = r.plan.reduce_dtype;
  const auto ranks = *rc::gen::element<std::int64_t>(1, 2, 3, 8);
  p.named_rank = *rc::gen::inRange<std::int64_t>(0, ranks);
  p.runtime.kind = *rc::gen::element(RuntimeKind::kDdp, RuntimeKind::kZero1, RuntimeKind::kZero2);
  const auto flag = [] { return *rc::gen::arbitrary<bool>(); };
  if (p.runtime.kind == RuntimeKind::kDdp) {
    p.mesh = {1, ranks};
    if (flag()) p.ddp.bucket_cap_mb = *rc::gen::element(0.001, 0.01, 1.0);
    p.ddp.find_unused_parameters = flag();
    p.ddp.gradient_as_bucket_view = flag();
    p.ddp.zero_redundancy_optimizer = flag();
    if (!p.ddp.gradient_as_bucket_view && flag()) p.ddp.mixed_precision = DdpOptions::MixedPrecision::kParameters;
    p.ddp.static_graph = p.batch.accumulation == 1 && flag();
    return drawn;
  }
  p.mesh = {ranks, 1};
  p.zero.reduce_bucket_size = *rc::gen::element<std::int64_t>(1, 1000, 20'000, 500'000'000);
  if (flag()) p.zero.overlap_comm = flag();
  p.zero.contiguous_gradients = flag();
  p.zero.reduce_scatter = flag();
  p.zero.round_robin_gradients = flag();
  p.zero.use_multi_rank_bucket_allreduce = flag();
  p.zero.fp32_gradient_accumulation = flag();
  if (flag()) p.zero.offload_optimizer = ZeroOffload::kCpu;
  return drawn;
}

RC_GTEST_PROP(DataParallel, RowsPointBackAndBuffersAreFreedOnce, ()) {
  const Drawn drawn = draw();
  const EventGraph graph = build_training_step(drawn.model, drawn.plan);
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const auto id = static_cast<EventId>(i);
    for (const EventId waited : graph.waits_of(id)) RC_ASSERT(waited >= 0 && waited < id);
    RC_ASSERT(graph.rows[i].host_wait < id);
  }
  RC_ASSERT(replay_allocations(graph).peak == peak_allocated(graph));
}

// Every gradient is reduced once a step (stage 2: a micro-batch), whatever the buckets are.
RC_GTEST_PROP(DataParallel, EveryGradientIsReduced, ()) {
  const Drawn drawn = draw();
  const Plan& plan = drawn.plan;
  const LibraryRun run = record_library_run(drawn.model, plan, LayerPrograms(drawn.model, plan), {.steps = 4});
  RC_ASSERT(run.steps[3].graph.fingerprint() == build_training_step(drawn.model, plan).fingerprint());
  std::int64_t sent = 0;
  for (const LibraryEvent& e : run.steps[3].log) {
    const bool reduces = e.kind == "all_reduce" || e.kind == "reduce" || e.kind == "reduce_scatter";
    const bool is_result = e.dtype == "uint8" || e.dtype == "int32" || e.note.starts_with("scaled_global_norm") ||
                           e.note.starts_with("grad_norm");
    if (reduces && !is_result) sent += e.bytes_in / (e.dtype == "float32" ? 4 : 2);
  }
  std::int64_t expected = drawn.model.parameters();
  const bool is_ddp = plan.runtime.kind == RuntimeKind::kDdp;
  const bool each =
      is_ddp ? plan.accumulation == AccumulationMode::kReduceEach : plan.runtime.kind == RuntimeKind::kZero2;
  if (each) expected *= plan.batch.accumulation;
  const bool is_flat = plan.runtime.kind == RuntimeKind::kZero1 && plan.zero.fp32_gradient_accumulation &&
                       plan.param_dtype == DType::kBf16 && plan.zero.offload_optimizer == ZeroOffload::kNone;
  const std::int64_t padding = is_flat ? 2 * plan.mesh.shard - 1 : 0;
  RC_ASSERT(sent >= expected);
  RC_ASSERT(sent <= expected + padding);
}

}
}
