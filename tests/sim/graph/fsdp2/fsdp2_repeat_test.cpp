// Blocks that are written from the pattern of those before them are what the builder writes block
// by block, which it does where it keeps a log.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "sim/graph/host_log.h"
#include "sim/spec/checks/plan_check.h"
#include "tests/support/fixtures.h"

namespace foreshard::fsdp2_repeat_test {
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
// not occur. Switches that the plan cannot have beside the others stay as they are.
Plan random_plan(const ModelSpec& model, int blocks) {
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
  p.mesh = {*rc::gen::element<std::int64_t>(1, 2, 4, 8), *rc::gen::element<std::int64_t>(1, 2)};
  const Cluster cluster = round_cluster(p.mesh.world());
  const auto set = [&](auto change) {
    Plan changed = p;
    change(changed);
    if (!find_problem(changed, model, cluster)) p = changed;
  };
  using enum UnitPlacement;
  set([](Plan& q) { q.batch.accumulation = *rc::gen::inRange<std::int64_t>(1, 4); });
  set([](Plan& q) { q.units.layers_per_unit = *rc::gen::element<std::int64_t>(1, 1, 2, 3); });
  set([](Plan& q) { q.units.embedding = *rc::gen::element(kOwn, kRoot); });
  set([](Plan& q) { q.units.head = *rc::gen::element(kOwn, kRoot, kWithNorm); });
  set([&](Plan& q) {
    q.reshard_after_forward = range([&]() -> Reshard {
      const int kind = *rc::gen::inRange(0, q.mesh.shard >= 4 ? 3 : 2);
      if (kind == 2) return {Reshard::Kind::kGroup, 2};
      return {kind == 0 ? Reshard::Kind::kAlways : Reshard::Kind::kNever, 0};
    });
  });
  set([](Plan& q) {
    q.prefetch.forward =
        *rc::gen::elementOf(std::vector<std::int64_t>{Prefetch::kImplicit, Prefetch::kImplicit, 1, 2, 3});
  });
  set([](Plan& q) { q.prefetch.backward = *rc::gen::element<std::int64_t>(1, 1, 2, 3); });
  set([&](Plan& q) { q.prefetch.backward_lists = flag(); });
  set([&](Plan& q) { q.prefetch.async_unshard = flag(); });
  set([&](Plan& q) {
    q.recompute = range([] { return *rc::gen::element(Recompute::kNone, Recompute::kFull, Recompute::kSelective); });
  });
  set([](Plan& q) { q.param_dtype = *rc::gen::element(DType::kBf16, DType::kFp32); });
  set([](Plan& q) { q.reduce_dtype = *rc::gen::element(DType::kBf16, DType::kFp32); });
  set([&](Plan& q) {
    if (flag()) q.output_dtype = DType::kFp32;
  });
  set([](Plan& q) {
    q.accumulation = *rc::gen::element(AccumulationMode::kReduceEach, AccumulationMode::kKeepUnsharded);
  });
  for (When* const when : {&p.accumulation_details.all_reduce, &p.accumulation_details.reshard_after_backward,
           &p.accumulation_details.is_last_backward}) {
    const When before = std::exchange(*when, flag() ? When::kLast : When::kEach);
    if (find_problem(p, model, cluster)) *when = before;
  }
  set([&](Plan& q) { q.frozen.embedding = flag(); });
  set([&](Plan& q) { q.frozen.blocks = range([&] { return *rc::gen::inRange(0, 4) == 0; }); });
  set([&](Plan& q) { q.unshard_in_backward = range([&] { return *rc::gen::inRange(0, 4) > 0; }); });
  set([](Plan& q) { q.offload = *rc::gen::element(Offload::kNone, Offload::kNone, Offload::kCpu); });
  set([&](Plan& q) {
    if (flag()) q.gradient_divide_factor = 3;
  });
  set([&](Plan& q) { q.force_sum_reduction = flag(); });
  set([](Plan& q) { q.optimizer.kind = *rc::gen::element(Optimizer::Kind::kAdamW, Optimizer::Kind::kSgd); });
  set([&](Plan& q) {
    if (flag()) q.optimizer.clip_norm = 1;
  });
  set([](Plan& q) { q.reduce_scatter_buffers = *rc::gen::inRange<std::int64_t>(1, 3); });
  set([](Plan& q) { q.communicators = *rc::gen::element(Communicators::kShared, Communicators::kSeparate); });
  set([](Plan& q) { q.host_sync = *rc::gen::element(HostSync::kNone, HostSync::kStep); });
  set([](Plan& q) { q.host = *rc::gen::element(HostKind::kFeedsDevice, HostKind::kFeedsDevice, HostKind::kComputes); });
  set([&](Plan& q) { q.evaluation.in_step = flag(); });
  return p;
}

RC_GTEST_PROP(Fsdp2Repeat, IsTheStepWrittenBlockByBlock, ()) {
  const int blocks = *rc::gen::inRange(12, 60);
  const ModelSpec model = tiny_model(blocks);
  RC_ASSERT(difference(model, random_plan(model, blocks)) == "");
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
          EXPECT_EQ(difference(model, plan), "") << plan.runtime.version << " shard " << shard << " accumulation "
                                                 << accumulation << " prefetch " << forward << "/" << backward;
        }
      }
    }
  }
}

// DTensor's backward of a table whose rows tp cuts makes all of them: kept in fp32 so, and the
// rank's part of the sum cut out in the last micro-batch.
TEST(Fsdp2Repeat, AGradientThatIsMadeWholeIsKeptWhole) {
  const ModelSpec model = tiny_model(12);
  Plan plan = tiny_plan();
  plan.runtime.version = "2.11";
  plan.mesh = {2, 1};
  plan.mesh.tp = 2;
  plan.batch.accumulation = 2;
  plan.accumulation = AccumulationMode::kKeepUnsharded;
  EXPECT_EQ(difference(model, plan), "");
  const EventGraph graph = build_training_step(model, plan);
  std::int64_t kept = 0;
  for (const MemoryAction& action : graph.actions) {
    if (action.kind != MemoryAction::Kind::kAllocate) continue;
    const Buffer buffer = graph.buffer(action.target);
    const bool is_kept = buffer.category == MemoryCategory::kAccumulatedGrad;
    if (is_kept && buffer.unit == 0) kept += buffer.bytes.count();
  }
  const std::int64_t table = 4096 * 512, fp32 = 4;
  EXPECT_EQ(kept, (table + table / 2) * fp32);
}

}
}
