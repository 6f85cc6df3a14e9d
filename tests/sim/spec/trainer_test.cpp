// What the files of sim/spec/trainers make of plans.
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/spec/checks/plan_check.h"
#include "tests/sim/spec/plan_fixtures.h"

namespace foreshard {
namespace {

using enum UnitPlacement;

ResolvedPlan checked_plan(const std::string& yaml, const SmallModel& model = {}) {
  ResolvedPlan plan = resolve(document_of(yaml), small_model(model), cluster_of_gpus(64));
  check(plan, small_model(model), cluster_of_gpus(64));
  return plan;
}
std::string why(const ResolvedPlan& plan, std::string_view key) {
  const auto found = std::ranges::find_if(plan.assumed, [&](const AssumedValue& value) { return value.key == key; });
  return found == plan.assumed.end() ? "given" : found->why;
}

TEST(Trainer, TorchtitanKeepsItsLastUnit) {
  const ResolvedPlan resolution = checked_plan("trainer: torchtitan");
  const Plan& plan = resolution.plan;
  EXPECT_EQ(plan.units.embedding, kOwn);
  EXPECT_EQ(plan.units.head, kWithNorm);
  // embedding, 32 blocks, norm+head
  ASSERT_EQ(unit_count(plan, small_model()), 34);
  EXPECT_EQ(plan.reshard_after_forward.at(32).kind, Reshard::Kind::kAlways);
  EXPECT_EQ(plan.reshard_after_forward.at(33).kind, Reshard::Kind::kNever);
  EXPECT_EQ(plan.recompute.value, Recompute::kSelective);
  EXPECT_EQ(plan.gradient_divide_factor, 1.0);
  EXPECT_EQ(plan.optimizer.implementation, Optimizer::Implementation::kFused);
  EXPECT_EQ(why(resolution, "recompute"), "torchtitan's default");
  EXPECT_EQ(why(resolution, "units.head"), "torchtitan's default");
  EXPECT_EQ(why(resolution, "prefetch.forward"), "default");
}

TEST(Trainer, TorchtitanMakesOneUnitOfTiedEmbeddings) {
  const Plan plan = checked_plan("trainer: torchtitan", {.is_tied = true}).plan;
  EXPECT_EQ(plan.units.embedding, kWithHead);
  EXPECT_EQ(plan.reshard_after_forward.at(0).kind, Reshard::Kind::kNever);
  EXPECT_EQ(plan.reshard_after_forward.at(1).kind, Reshard::Kind::kAlways);
  const Plan moved = checked_plan("trainer: torchtitan\nunits: {embedding: root}", {.is_tied = true}).plan;
  EXPECT_EQ(moved.units.head, kRoot);
}

TEST(Trainer, LeavesWhatTheUserSays) {
  const ResolvedPlan resolution = checked_plan(
      "trainer: torchtitan\nrecompute: every-2\nreshard_after_forward: always\n"
      "runtime: fsdp2@2.7\n");
  EXPECT_EQ(resolution.plan.reshard_after_forward, RangedPolicy<Reshard>{});
  EXPECT_EQ(resolution.plan.recompute, recompute_every(2, 32));
  EXPECT_EQ(why(resolution, "recompute"), "given");
  // set_gradient_divide_factor came with 2.8.
  EXPECT_EQ(resolution.plan.gradient_divide_factor, std::nullopt);
}

TEST(Trainer, AccelerateAndLlmFoundryWrapBlocksOnly) {
  for (const bool is_tied : {false, true}) {
    const ResolvedPlan accelerate = checked_plan("trainer: accelerate@1.13", {.is_tied = is_tied});
    EXPECT_EQ(accelerate.plan.units.embedding, kRoot);
    EXPECT_EQ(accelerate.plan.units.head, kRoot);
    EXPECT_EQ(unit_count(accelerate.plan, small_model()), 33);
    // The root is told as well: it does not keep its parameters after forward.
    ASSERT_EQ(accelerate.plan.reshard_after_forward.ranges.size(), 1U);
    EXPECT_EQ(accelerate.plan.reshard_after_forward.at(0).kind, Reshard::Kind::kAlways);
    const Plan foundry = checked_plan("trainer: llm-foundry", {.is_tied = is_tied}).plan;
    EXPECT_EQ(foundry.units, accelerate.plan.units);
    EXPECT_TRUE(foundry.reshard_after_forward.ranges.empty());
    if (is_tied) continue;
    EXPECT_EQ(why(accelerate, "units.embedding"), "accelerate's default");
  }
}

TEST(Trainer, AccelerateMakesUnitsOfTheEndsFromItsFourteenthVersionOn) {
  for (const char* version : {"", "@1.14", "@1.15.0"}) {
    const Plan plan = checked_plan(std::string("trainer: accelerate") + version).plan;
    EXPECT_EQ(plan.units.embedding, kOwn) << version;
    EXPECT_TRUE(plan.units.table_alone) << version;
    EXPECT_EQ(plan.reduce_dtype, plan.param_dtype) << version;
    EXPECT_EQ(plan.output_dtype, plan.param_dtype) << version;
    EXPECT_EQ(plan.accumulation, AccumulationMode::kKeepUnsharded) << version;
    EXPECT_TRUE(plan.loss_in_forward) << version;
    const std::int64_t last = unit_count(plan, small_model()) - 1;
    EXPECT_EQ(plan.reshard_after_forward.at(last).kind, Reshard::Kind::kNever) << version;
    EXPECT_EQ(plan.reshard_after_forward.at(last - 1).kind, Reshard::Kind::kAlways) << version;
  }
  const Plan fp32 = checked_plan("trainer: accelerate\ndtype: {param: fp32}").plan;
  EXPECT_EQ(fp32.reduce_dtype, DType::kFp32);
  EXPECT_EQ(fp32.output_dtype, std::nullopt);
  const Refusal refused = refusal_of([] { checked_plan("trainer: accelerate@banana"); });
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_NE(refused.text.find("accelerate@1.13"), std::string::npos) << refused.text;
}

// Accelerate's last unit, the head's, is none where the plan's own keys leave the table to the root.
TEST(Trainer, TransformersTrainerHasGroupsOfParameters) {
  const Plan plan = checked_plan("trainer: transformers\nruntime: zero1").plan;
  EXPECT_EQ(plan.optimizer.groups, Optimizer::Groups::kDecay);
  EXPECT_EQ(plan.built_on, BuiltOn::kHost);
  EXPECT_EQ(checked_plan("runtime: zero1").plan.optimizer.groups, Optimizer::Groups::kOne);
}

TEST(Trainer, UnitsOfFsdp1MayBeBySize) {
  const ResolvedPlan resolution =
      checked_plan("runtime: fsdp1\ntrainer: accelerate\nunits: {min_parameters: 1000000000}");
  EXPECT_EQ(resolution.plan.units.blocks, kRoot);
  EXPECT_EQ(why(resolution, "units.blocks"), "by size: 1000000000 parameters");
  EXPECT_THROW(checked_plan("runtime: fsdp2\nunits: {min_parameters: 1000}"), Error);
}

// Flat parameters that are trained in part are original ones, or adapters are units of their own.
TEST(Trainer, AdaptersOfFsdp1AreUnitsWhereFlatParametersAreWhole) {
  const std::string plan = "runtime: fsdp1\ntrainer: accelerate\nlora: {rank: 8, base: master}\n";
  EXPECT_TRUE(checked_plan(plan).plan.units.adapters_alone);
  EXPECT_FALSE(checked_plan(plan + "fsdp1: {use_orig_params: true}").plan.units.adapters_alone);
  EXPECT_THROW(checked_plan("runtime: fsdp1\nunits: {adapters_alone: true}"), Error);
}

TEST(Trainer, CountsTheUnitsThatThePlanHas) {
  const Plan plan = checked_plan("trainer: accelerate\nunits: {embedding: root}", {.is_tied = true}).plan;
  EXPECT_EQ(plan.units.head, kRoot);
  EXPECT_TRUE(plan.units.table_alone);
  EXPECT_EQ(plan.reshard_after_forward.value.kind, Reshard::Kind::kAlways);
  EXPECT_TRUE(plan.reshard_after_forward.ranges.empty());
}

TEST(Trainer, TorchtuneReshardsTheRootAndTrainsInOneDtype) {
  const Plan plan = checked_plan("trainer: torchtune").plan;
  EXPECT_EQ(plan.units.embedding, kRoot);
  EXPECT_EQ(plan.units.head, kRoot);
  EXPECT_EQ(plan.reshard_after_forward.at(0).kind, Reshard::Kind::kAlways);
  EXPECT_EQ(plan.master_dtype, DType::kBf16);
  EXPECT_EQ(plan.reduce_dtype, DType::kBf16);
  EXPECT_EQ(plan.optimizer.clip_norm, std::nullopt);
}

TEST(Trainer, WritesWhatItFilled) {
  for (const char* trainer : {"torchtitan", "torchtune", "accelerate", "llm-foundry", "none"}) {
    const Plan plan = checked_plan(std::string("model: m\ncluster: c\ntrainer: ") + trainer).plan;
    EXPECT_EQ(checked_plan(to_yaml(plan)).plan, plan) << trainer;
  }
}

TEST(Trainer, TrainsWithFsdp2) {
  const Refusal refused = refusal_of([] { checked_plan("runtime: native\ntrainer: torchtitan"); });
  EXPECT_EQ(refused.exit_code, 6);
  EXPECT_EQ(refused.text.find("plan.yaml:2:10: trainer: torchtitan trains with fsdp2"), 0U) << refused.text;
}

}
}
