// Micro-batches that repeat are left out of a replay once they do: steps, calls to the driver and where every block
// lies are those of the whole replay; and those of steps, where a replay stops once they settle.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "sim/graph/training_step.h"
#include "sim/memory/allocation_log.h"
#include "sim/memory/reserved.h"
#include "sim/spec/checks/plan_check.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

constexpr std::int64_t kRanks = 8;

Plan random_plan(const ModelSpec& model) {
  using enum RuntimeKind;
  const RuntimeKind kind = *rc::gen::element(kFsdp2, kFsdp2, kFsdp1, kDdp, kZero1, kZero2, kZero3);
  Plan plan = tiny_plan();
  plan.runtime = {kind, newest_version(kind)};
  plan.mesh = kind == kDdp ? Mesh{1, kRanks} : Mesh{kRanks, 1};
  plan.batch.accumulation = *rc::gen::inRange<std::int64_t>(3, 14);
  const auto set = [&](auto change) {
    Plan changed = plan;
    change(changed);
    if (!find_problem(changed, model, round_cluster(kRanks))) plan = changed;
  };
  set([](Plan& p) { p.units.layers_per_unit = *rc::gen::element<std::int64_t>(1, 2); });
  set([](Plan& p) {
    p.reshard_after_forward.value =
        *rc::gen::element(Reshard{}, Reshard{Reshard::Kind::kNever, 0}, Reshard{Reshard::Kind::kGroup, 2});
  });
  set([](Plan& p) { p.prefetch.forward = *rc::gen::element(Prefetch::kImplicit + 0, std::int64_t{1}); });
  set([](Plan& p) {
    p.recompute.value = *rc::gen::element(Recompute::kNone, Recompute::kFull, Recompute::kSelective);
  });
  set([](Plan& p) {
    p.accumulation = *rc::gen::element(AccumulationMode::kReduceEach, AccumulationMode::kKeepUnsharded);
  });
  set([](Plan& p) { p.reduce_dtype = *rc::gen::element(DType::kBf16, DType::kFp32); });
  return plan;
}

bool same_blocks(const ReservedReplay& a, const ReservedReplay& b) {
  const std::vector<SegmentState> left = a.allocator().snapshot();
  const std::vector<SegmentState> right = b.allocator().snapshot();
  return std::equal(
      left.begin(), left.end(), right.begin(), right.end(), [](const SegmentState& s, const SegmentState& t) {
        return s.address == t.address && s.size == t.size && s.stream == t.stream &&
               std::equal(s.blocks.begin(), s.blocks.end(), t.blocks.begin(), t.blocks.end(),
                   [](const auto& x, const auto& y) {
                     return x.address == y.address && x.size == y.size && x.allocated == y.allocated &&
                            x.active == y.active && (!x.allocated || x.requested == y.requested);
                   });
      });
}

RC_GTEST_PROP(FoldedReplayProperty, IsTheWholeReplay, ()) {
  const ModelSpec model = tiny_model(*rc::gen::element(1, 2, 5));
  const Plan plan = random_plan(model);
  RC_PRE(!find_problem(plan, model, round_cluster(kRanks)));
  const EventGraph graph = build_training_step(model, plan);
  AllocatorSettings settings = {.expandable_segments = *rc::gen::arbitrary<bool>()};
  const ReservedProfile endless = replay_reserved(graph, settings, DeviceMemory::unlimited());
  // Enough, or so little that segments go back and forth.
  const Bytes there = Bytes(endless.peak_reserved.count() * *rc::gen::element<std::int64_t>(90, 96, 100, 200) / 100);
  const DeviceMemory memory{DeviceMemory::unlimited().total, there};
  ReplayInputs whole_inputs;
  whole_inputs.folds = false;
  ReservedReplay whole(graph, settings, memory, whole_inputs), folded(graph, settings, memory);
  ReplayInputs early;
  early.stops_when_settled = true;
  ReservedReplay settled(graph, settings, memory, early);
  for (int step = 0; step < 5; ++step) {
    const StepReserved told = whole.run_step();
    RC_ASSERT(folded.run_step() == told);
    if (settled.is_settled()) {
      RC_ASSERT(told.device_allocs + told.device_frees == 0);
    } else {
      RC_ASSERT(settled.run_step() == told);
      RC_ASSERT(settled.stalls() == whole.stalls());
    }
    RC_ASSERT(whole.stalls() == folded.stalls());
    RC_ASSERT(whole.out_of_memory() == folded.out_of_memory());
    RC_ASSERT(whole.row() == folded.row());
    RC_ASSERT(same_blocks(whole, folded));
  }
}

TEST(FoldedReplay, FindsTheMicroBatchesInTheMiddle) {
  Plan plan = tiny_plan();
  plan.mesh = {kRanks, 1};
  plan.batch.accumulation = 16;
  const EventGraph graph = build_training_step(tiny_model(5), plan);
  const AllocationLog log = allocation_log(graph, {});
  const AllocationLog::Runs runs = log.repeated(graph);
  EXPECT_GE(runs.count, 13U);
  EXPECT_LE(runs.end(), log.actions.size());
  // A step of three has no middle that could be left out.
  plan.batch.accumulation = 3;
  const EventGraph few = build_training_step(tiny_model(5), plan);
  EXPECT_EQ(allocation_log(few, {}).repeated(few).count, 0U);
}

}
}
