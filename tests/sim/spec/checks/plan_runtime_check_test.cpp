// What a version of a runtime cannot run, with the nearest plan that it can.
#include <gtest/gtest.h>

#include <functional>

#include "sim/spec/checks/plan_check.h"
#include "sim/spec/fsdp2_version.h"
#include "tests/sim/spec/plan_fixtures.h"

namespace foreshard {
namespace {

using Change = std::function<void(Plan&)>;

Plan plan_on(const Runtime& runtime) {
  Plan plan = {.runtime = runtime};
  plan.batch.sequence = 4096;
  plan.mesh = {8, 8};
  return plan;
}

std::optional<PlanProblem> problem_on(const Runtime& runtime, const Change& change, const SmallModel& model = {}) {
  Plan plan = plan_on(runtime);
  change(plan);
  return find_problem(plan, small_model(model), cluster_of_gpus(64));
}

Runtime fsdp2(std::int64_t minor) { return {RuntimeKind::kFsdp2, "2." + std::to_string(minor)}; }
const Runtime kNative = {RuntimeKind::kNative, "1"};

struct Switch {
  const char* key;
  std::int64_t first_minor;  // of PyTorch 2 that has it
  const char* nearest;
  Change change;
};

std::vector<Switch> switches() {
  using enum UnitPlacement;
  return {
      {"mesh.inner", 4, "mesh.inner: shard", [](Plan& p) { p.mesh.inner = MeshInner::kReplicate; }},
      {"units.layers_per_unit", 5, "units.layers_per_unit: 1", [](Plan& p) { p.units.layers_per_unit = 2; }},
      {"units.embedding", 5, "units.embedding: root and units.head: root",
          [](Plan& p) {
            p.units.embedding = kWithHead;
            p.units.head = kWithNorm;
          }},
      {"units.head", 5, "units.head: own", [](Plan& p) { p.units.head = kWithNorm; }},
      {"units.blocks", 4, "units.blocks: own", [](Plan& p) { p.units.blocks = kRoot; }},
      {"units.experts", 4, "units.experts: block", [](Plan& p) { p.units.experts = kOwn; }},
      {"units.shard_dim", 6, "units.shard_dim: 0", [](Plan& p) { p.units.shard_dim = 1; }},
      {"unshard_in_backward", 6, "unshard_in_backward: true",
          [](Plan& p) {
            p.unshard_in_backward.ranges = {{1, 1, false}};
          }},
      {"prefetch.forward", 5, "prefetch.forward: implicit", [](Plan& p) { p.prefetch.forward = 2; }},
      {"prefetch.backward", 5, "prefetch.backward: 1", [](Plan& p) { p.prefetch.backward = 2; }},
      {"prefetch.backward_lists", 5, "prefetch.backward_lists: false",
          [](Plan& p) { p.prefetch.backward_lists = true; }},
      {"prefetch.async_unshard", 6, "prefetch.async_unshard: false", [](Plan& p) { p.prefetch.async_unshard = true; }},
      {"recompute_wraps", 4, "recompute_wraps: module", [](Plan& p) { p.recompute_wraps = CheckpointWraps::kUnit; }},
      {"dtype.output", 4, "dtype.output: none", [](Plan& p) { p.output_dtype = DType::kFp32; }},
      {"accumulation.all_reduce", 4, "accumulation.all_reduce: each",
          [](Plan& p) { p.accumulation_details.all_reduce = When::kLast; }},
      {"accumulation.reshard_after_backward", 4, "accumulation.reshard_after_backward: each",
          [](Plan& p) { p.accumulation_details.reshard_after_backward = When::kLast; }},
      {"accumulation.is_last_backward", 4, "accumulation.is_last_backward: each",
          [](Plan& p) { p.accumulation_details.is_last_backward = When::kLast; }},
      {"frozen", 4, "frozen: none", [](Plan& p) { p.frozen.embedding = true; }},
      {"ignored", 7, "ignored: none",
          [](Plan& p) {
            p.ignored = Ignored::kNorms;
            p.optimizer.clip_norm.reset();
          }},
      {"offload", 4, "offload: none", [](Plan& p) { p.offload = Offload::kCpu; }},
      {"buffers.reduce_scatter", 13, "buffers.reduce_scatter: 1", [](Plan& p) { p.reduce_scatter_buffers = 2; }},
      {"communicators", 13, "communicators: shared", [](Plan& p) { p.communicators = Communicators::kSeparate; }},
      {"reduction.divide_factor", 8, "reduction.divide_factor: none", [](Plan& p) { p.gradient_divide_factor = 2.5; }},
      {"reduction.force_sum", 8, "reduction.force_sum: false", [](Plan& p) { p.force_sum_reduction = true; }},
      {"evaluation.in_step", 4, "evaluation.in_step: false", [](Plan& p) { p.evaluation.in_step = true; }},
      {"rank", 4, "rank: 0", [](Plan& p) { p.named_rank = 63; }},
  };
}

TEST(PlanRuntimeCheck, RefusesWhatTheVersionHasNoKnobFor) {
  for (const Switch& one : switches()) {
    for (std::int64_t minor = kOldestFsdp2; minor <= kNewestFsdp2; ++minor) {
      const auto problem = problem_on(fsdp2(minor), one.change);
      ASSERT_EQ(problem.has_value(), minor < one.first_minor) << one.key << " 2." << minor;
      if (!problem) continue;
      EXPECT_EQ(problem->exit_code, ExitCode::kMissingCapability);
      EXPECT_EQ(problem->key, one.key);
      EXPECT_EQ(problem->did_you_mean, one.nearest);
      const std::string since = "came with PyTorch 2." + std::to_string(one.first_minor);
      EXPECT_NE(problem->what_is_wrong.find(since), std::string::npos) << problem->what_is_wrong;
    }
  }
}

TEST(PlanRuntimeCheck, NativeHasNoneOfFullyShardsSwitches) {
  for (const Switch& one : switches()) {
    const std::string_view key = one.key;
    const bool is_shared = key == "units.layers_per_unit" || key == "units.head" || key == "prefetch.forward" ||
                           key == "prefetch.backward" || key == "buffers.reduce_scatter" || key == "communicators" ||
                           key == "offload";
    const auto problem = problem_on(kNative, one.change);
    ASSERT_EQ(problem.has_value(), !is_shared) << key;
    if (!problem) continue;
    EXPECT_EQ(problem->exit_code, ExitCode::kMissingCapability);
    EXPECT_EQ(problem->key, key);
    EXPECT_EQ(problem->did_you_mean, one.nearest);
  }
}

TEST(PlanRuntimeCheck, NativeHasTheAttentionKernelsOfItsDevice) {
  using enum AttentionKernel;
  for (const HostKind host : {HostKind::kFeedsDevice, HostKind::kComputes}) {
    for (const AttentionKernel kernel : {kFlash, kCudnn, kEfficient, kMath, kFa3}) {
      const auto problem = problem_on(kNative, [&](Plan& p) {
        p.host = host;
        p.attention = kernel;
      });
      const bool has =
          kernel == kFlash || (host == HostKind::kFeedsDevice && (kernel == kCudnn || kernel == kEfficient));
      ASSERT_EQ(problem.has_value(), !has) << to_string(kernel);
      if (!problem) continue;
      EXPECT_EQ(problem->key, "attention");
    }
  }
}

void expect_contradiction(const std::optional<PlanProblem>& problem, std::string_view key, std::string_view says) {
  ASSERT_TRUE(problem.has_value()) << key;
  EXPECT_EQ(problem->exit_code, ExitCode::kInvalidInput);
  EXPECT_EQ(problem->key, key);
  EXPECT_NE(problem->what_is_wrong.find(says), std::string::npos) << problem->what_is_wrong;
}

TEST(PlanRuntimeCheck, RefusesWhatPyTorchFailsOn) {
  // Matrices of the small model are 1000 x 64.
  const auto shard_dim = [](std::int64_t shard, Reshard reshard) {
    return problem_on(fsdp2(11), [=](Plan& p) {
      p.mesh = {shard, 64 / shard};
      p.units.shard_dim = 1;
      p.reshard_after_forward.ranges = {{1, 1, reshard}};
    });
  };
  EXPECT_FALSE(shard_dim(64, {}).has_value());
  expect_contradiction(shard_dim(8, {Reshard::Kind::kGroup, 4}), "reshard_after_forward", "IndexError");
  Plan uneven = plan_on(fsdp2(11));
  uneven.mesh = {128, 1};
  uneven.units.shard_dim = 1;
  expect_contradiction(find_problem(uneven, small_model(), cluster_of_gpus(128)), "units.shard_dim",
      "weight of embedding is [1000, 64], and mesh.shard is 128");
  expect_contradiction(problem_on(fsdp2(11), [](Plan& p) { p.ignored = Ignored::kNorms; }), "optimizer.clip_norm",
      "mixed torch.Tensor and DTensor");
}

TEST(PlanRuntimeCheck, RefusesValuesThatContradictEachOther) {
  using enum UnitPlacement;
  const auto problem = [](const Change& change) { return problem_on(fsdp2(15), change); };
  expect_contradiction(problem([](Plan& p) { p.named_rank = 64; }), "rank", "none of the 64 ranks");
  expect_contradiction(problem([](Plan& p) {
    p.units.embedding = kWithHead;
    p.units.head = kRoot;
  }),
      "units.head", "contradicts units.embedding with_head");
  // root (the norm), embedding, 32 blocks, head
  expect_contradiction(problem([](Plan& p) {
    p.unshard_in_backward.ranges = {{35, 35, false}};
  }),
      "unshard_in_backward", "units 35-35 exceed the 35 there are");
  expect_contradiction(problem([](Plan& p) {
    p.frozen.blocks.ranges = {{30, 32, true}};
  }),
      "frozen", "layers 30-32 exceed the 32 there are");
  expect_contradiction(problem([](Plan& p) {
    p.frozen = {true, true, true, {true, {}}};
  }),
      "frozen", "no parameter is left to train");
  expect_contradiction(
      problem([](Plan& p) { p.gradient_divide_factor = -1; }), "reduction.divide_factor", "out of range");
  const Change tied = [](Plan& p) {
    p.units.embedding = kWithHead;
    p.units.head = kWithNorm;
    p.frozen.head = true;
  };
  EXPECT_FALSE(problem_on(fsdp2(15), tied).has_value());
  expect_contradiction(problem_on(fsdp2(15), tied, {.is_tied = true}), "frozen", "share one parameter");
}

}
}
