// Blocks that are written from the pattern of those before them are what the builder writes block
// by block, which it does where it keeps a log.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

#include "sim/graph/host_log.h"
#include "sim/spec/plan_check.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

// The last difference between two steps, "" where there is none.
std::string difference(const EventGraph& a, const EventGraph& b) {
  if (a.rows != b.rows) return "rows";
  if (a.waits != b.waits) return "waits";
  if (a.details != b.details) return "details";
  if (a.actions != b.actions) return "actions";
  if (a.buffers != b.buffers) return "buffers";
  if (a.persistent != b.persistent) return "persistent";
  if (a.parts != b.parts) return "parts";
  if (a.works != b.works || a.kernels != b.kernels) return "works";
  if (a.final_host_wait != b.final_host_wait) return "final_host_wait";
  return a.fingerprint() == b.fingerprint() ? "" : "fingerprint";
}

std::string difference(const ModelSpec& model, const Plan& plan) {
  const LayerPrograms programs(model, plan);
  return difference(build_training_step(model, plan, programs),
                    record_training_step(model, plan, programs, StepNumber::kSteady).graph);
}

// Every size of the tiny model is a multiple of 8: padding, which steps with a log keep apart, does
// not occur.
Plan random_plan(int blocks) {
  const auto flag = [] { return *rc::gen::arbitrary<bool>(); };
  // Often none: long runs are what this is about.
  const auto range = [&](auto make) {
    using Value = decltype(make());
    RangedPolicy<Value> policy{make(), {}};
    if (*rc::gen::inRange(0, 3) > 0) return policy;
    const auto first = *rc::gen::inRange<std::int64_t>(0, blocks);
    policy.ranges.push_back({first, *rc::gen::inRange<std::int64_t>(first, blocks), make()});
    return policy;
  };
  Plan p = tiny_plan();
  p.runtime.version = "2." + std::to_string(*rc::gen::inRange(4, 16));
  p.batch.accumulation = *rc::gen::inRange<std::int64_t>(1, 4);
  p.mesh = {*rc::gen::element<std::int64_t>(1, 2, 4, 8), *rc::gen::element<std::int64_t>(1, 2)};
  p.units.layers_per_unit = *rc::gen::element<std::int64_t>(1, 1, 2, 3);
  p.units.embedding = *rc::gen::element(UnitPlacement::kOwn, UnitPlacement::kRoot);
  p.units.head =
      *rc::gen::element(UnitPlacement::kOwn, UnitPlacement::kRoot, UnitPlacement::kWithNorm);
  p.reshard_after_forward = range([&]() -> Reshard {
    const int kind = *rc::gen::inRange(0, p.mesh.shard >= 4 ? 3 : 2);
    if (kind == 2) return {Reshard::Kind::kGroup, 2};
    return {kind == 0 ? Reshard::Kind::kAlways : Reshard::Kind::kNever, 0};
  });
  p.prefetch.forward = *rc::gen::elementOf(
      std::vector<std::int64_t>{Prefetch::kImplicit, Prefetch::kImplicit, 1, 2, 3});
  p.prefetch.backward = *rc::gen::element<std::int64_t>(1, 1, 2, 3);
  p.prefetch.backward_lists = flag();
  p.prefetch.async_unshard = flag();
  p.recompute = range(
      [] { return *rc::gen::element(Recompute::kNone, Recompute::kFull, Recompute::kSelective); });
  p.param_dtype = *rc::gen::element(DType::kBf16, DType::kFp32);
  p.reduce_dtype = *rc::gen::element(DType::kBf16, DType::kFp32);
  if (flag()) p.output_dtype = DType::kFp32;
  p.accumulation =
      *rc::gen::element(AccumulationMode::kReduceEach, AccumulationMode::kKeepUnsharded);
  if (flag()) p.accumulation_details.all_reduce = When::kLast;
  if (flag()) p.accumulation_details.reshard_after_backward = When::kLast;
  if (flag()) p.accumulation_details.is_last_backward = When::kLast;
  p.frozen.embedding = flag();
  if (flag()) p.frozen.blocks = range(flag);
  if (flag()) p.unshard_in_backward = range(flag);
  p.offload = *rc::gen::element(Offload::kNone, Offload::kNone, Offload::kCpu);
  if (flag()) p.gradient_divide_factor = 3;
  p.force_sum_reduction = flag();
  p.optimizer.kind = *rc::gen::element(Optimizer::Kind::kAdamW, Optimizer::Kind::kSgd);
  if (flag()) p.optimizer.clip_norm = 1;
  p.reduce_scatter_buffers = *rc::gen::inRange<std::int64_t>(1, 3);
  p.communicators = *rc::gen::element(Communicators::kShared, Communicators::kSeparate);
  p.host_sync = *rc::gen::element(HostSync::kNone, HostSync::kStep);
  p.host = *rc::gen::element(HostKind::kFeedsDevice, HostKind::kFeedsDevice, HostKind::kComputes);
  p.evaluation.in_step = flag();
  return p;
}

RC_GTEST_PROP(Fsdp2Repeat, IsTheStepWrittenBlockByBlock, ()) {
  const int blocks = *rc::gen::inRange(12, 60);
  const ModelSpec model = tiny_model(blocks);
  const Plan plan = random_plan(blocks);
  if (find_problem(plan, model, round_cluster(plan.mesh.world()))) RC_DISCARD("no such plan");
  RC_ASSERT(difference(model, plan) == "");
}

// The defaults, and every switch that moves what is held between two blocks.
TEST(Fsdp2Repeat, HoldsForTheDefaultsOfEveryVersion) {
  const ModelSpec model = tiny_model(32);
  for (int minor = 4; minor <= 15; ++minor) {
    for (const std::int64_t shard : {1, 2, 8}) {
      for (const std::int64_t accumulation : {1, 3}) {
        for (const auto& [forward, backward] :
             {std::pair<std::int64_t, std::int64_t>{Prefetch::kImplicit, 1}, {1, 1}, {2, 3}}) {
          Plan plan = tiny_plan();
          plan.runtime.version = "2." + std::to_string(minor);
          plan.mesh = {shard, 8 / shard};
          plan.batch.accumulation = accumulation;
          plan.prefetch.forward = forward;
          plan.prefetch.backward = backward;
          EXPECT_EQ(difference(model, plan), "")
              << plan.runtime.version << " shard " << shard << " accumulation " << accumulation
              << " prefetch " << forward << "/" << backward;
        }
      }
    }
  }
}

}  // namespace
}  // namespace foreshard
