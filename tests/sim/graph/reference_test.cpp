// Plan::reference: what a second model's forward adds to a step.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "models/layers/lora.h"
#include "sim/graph/training_step.h"
#include "sim/simulate/forecast.h"
#include "tests/support/fixtures.h"

namespace foreshard::reference_test {
namespace {

Plan plan_beside(Reference reference, RuntimeKind runtime = RuntimeKind::kFsdp2) {
  Plan plan = tiny_plan();
  if (runtime != RuntimeKind::kFsdp2) {
    plan.runtime.kind = runtime;
    plan.mesh.replicate = plan.mesh.shard;
    plan.mesh.shard = 1;
  }
  plan.reference = reference;
  return plan;
}

std::int64_t held_bytes(const EventGraph& graph) {
  std::int64_t bytes = 0;
  for (const std::int32_t id : graph.persistent) bytes += graph.buffer(id).bytes.count();
  return bytes;
}

TEST(Reference, RunsAForwardBehindEachForward) {
  const ModelSpec model = tiny_model(3);
  const auto layers = static_cast<std::int64_t>(model.order.size());
  for (const std::int64_t microbatches : {1, 3}) {
    for (const RuntimeKind runtime : {RuntimeKind::kFsdp2, RuntimeKind::kDdp}) {
      Plan plain = plan_beside(Reference::kNone, runtime), beside = plan_beside(Reference::kWhole, runtime);
      plain.batch.accumulation = beside.batch.accumulation = microbatches;
      const EventGraph a = build_training_step(model, plain), b = build_training_step(model, beside);
      // Its loss is a forward's row, too, where the trained one's is a row of both phases.
      EXPECT_EQ(count(b, EventKind::kForward) - count(a, EventKind::kForward), microbatches * layers);
      EXPECT_EQ(count(b, EventKind::kBackward), count(a, EventKind::kBackward));
    }
  }
}

// prepare_fsdp shards nothing but the root: one gather of what the units gather one by one.
TEST(Reference, OfOneUnitGathersAllAtOnce) {
  const ModelSpec model = tiny_model(3);
  const EventGraph plain = build_training_step(model, plan_beside(Reference::kNone));
  std::map<std::int32_t, std::int64_t> once;
  for (std::size_t r = 0; r < plain.rows.size(); ++r) {
    if (plain.rows[r].kind != EventKind::kAllGather) continue;
    once[plain.details[r].unit] = plain.works[plain.rows[r].work].bytes.count();
  }
  std::int64_t whole = 0;
  for (const auto& [unit, bytes] : once) whole += bytes;
  const EventGraph unit = build_training_step(model, plan_beside(Reference::kUnit));
  const auto gather = std::ranges::find_if(unit.rows,
      [&](const Row& row) { return row.kind == EventKind::kAllGather && unit.works[row.work].bytes.count() == whole; });
  EXPECT_NE(gather, unit.rows.end());
  EXPECT_EQ(count(unit, EventKind::kAllGather), count(plain, EventKind::kAllGather) + 1);
  const EventGraph units = build_training_step(model, plan_beside(Reference::kUnits));
  EXPECT_EQ(count(units, EventKind::kAllGather), count(plain, EventKind::kAllGather) + std::ssize(once));
  // Both hold another model's shards.
  EXPECT_EQ(held_bytes(unit), held_bytes(units));
  EXPECT_GT(held_bytes(unit), held_bytes(plain));
  EXPECT_EQ(held_bytes(build_training_step(model, plan_beside(Reference::kBase))), held_bytes(plain));
}

// Two micro-batches, whose gathers run so many elements ahead.
Plan zero3_plan(Reference reference, std::int64_t ahead) {
  Plan plan = tiny_plan();
  plan.runtime = {RuntimeKind::kZero3, "0.19"};
  plan.reference = reference;
  plan.batch.accumulation = 2;
  plan.zero.stage3_prefetch_bucket_size = ahead;
  return plan;
}

// An engine of its own: nothing is gathered for the trained one's backward, small parameters stay,
// and what is left to DeepSpeed's defaults runs ahead further than what transformers fills in.
TEST(Reference, OfZero3GathersByItsOwnTrace) {
  const ModelSpec model = tiny_model(4);
  const auto gathers = [&](Reference reference, std::int64_t ahead, std::int64_t* held) {
    Plan plan = zero3_plan(reference, ahead);
    plan.zero.stage3_max_reuse_distance = 0;
    const EventGraph graph = build_training_step(model, plan);
    *held = held_bytes(graph);
    const CostModel costs(round_cluster(16), round_calibration());
    EXPECT_NO_THROW((void)forecast(model, plan, costs));
    return count(graph, EventKind::kAllGather);
  };
  std::int64_t plain = 0, beside = 0;
  const std::int64_t filled_in = model.hidden * model.hidden * 9 / 10;
  const auto alone = gathers(Reference::kNone, filled_in, &plain);
  // All that is large at once, when the model is entered.
  EXPECT_EQ(gathers(Reference::kUnits, filled_in, &beside) - alone, 2);
  EXPECT_GT(beside, plain);
  // One by one where the file says that nothing runs ahead: table, seven matrices a block, head.
  const auto unhurried = gathers(Reference::kNone, 0, &plain);
  EXPECT_EQ(gathers(Reference::kUnits, 0, &beside) - unhurried, 2 * (2 + 4 * 7));
}

// The base's forward is gathered by the order of the trained one's till that differs, and backward
// one by one: what is trained twice, what is frozen when a checkpoint is made again.
TEST(Reference, OfZero3sBaseForgetsTheOrder) {
  const ModelSpec model = tiny_model(4);
  const auto gathers = [&](Reference reference, std::int64_t ahead) {
    Plan plan = zero3_plan(reference, ahead);
    plan.lora = {.rank = 2, .targets = {"q_proj"}};
    plan.recompute.value = Recompute::kFull;
    plan.zero.stage3_param_persistence_threshold = 0;
    const ModelSpec adapted = with_adapters(model, plan);
    const CostModel costs(round_cluster(16), round_calibration());
    EXPECT_NO_THROW((void)forecast(adapted, plan, costs));
    return count(build_training_step(adapted, plan), EventKind::kAllGather);
  };
  const std::int64_t one_by_one = gathers(Reference::kBase, 0);
  EXPECT_GT(one_by_one, gathers(Reference::kNone, 0) + 2 * (2 + 4 * 9));
  EXPECT_NE(one_by_one, gathers(Reference::kBase, 1 << 20));
}

// Nothing is left of one forward when the next step begins: the allocator refuses what is
// allocated twice.
TEST(Reference, LeavesNothingBehind) {
  const ModelSpec model = tiny_model(2);
  const CostModel costs(round_cluster(16), round_calibration());
  for (const Loss::Kind loss : {Loss::Kind::kEager, Loss::Kind::kTiledLinear}) {
    for (const Reference reference : {Reference::kBase, Reference::kWhole, Reference::kUnit, Reference::kUnits}) {
      for (const bool inside : {false, true}) {
        Plan plan = plan_beside(reference);
        plan.loss.kind = loss;
        plan.loss_in_forward = inside;
        if (loss == Loss::Kind::kTiledLinear) plan.units.head = UnitPlacement::kRoot;
        plan.batch.accumulation = 2;
        EXPECT_NO_THROW((void)forecast(model, plan, costs)) << to_string(reference);
      }
    }
  }
}

}
}
