// What DDP and ZeRO-1 and 2 refuse, and with whose reason.
#include <gtest/gtest.h>

#include <functional>

#include "sim/spec/checks/plan_check.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

using Change = std::function<void(Plan&)>;

Plan plan_of(RuntimeKind kind) {
  Plan plan = tiny_plan();
  plan.runtime = {kind, newest_version(kind)};
  plan.mesh = kind == RuntimeKind::kDdp ? Mesh{1, 8} : Mesh{8, 1};
  return plan;
}

std::optional<PlanProblem> problem_of(RuntimeKind kind, const Change& change) {
  Plan plan = plan_of(kind);
  change(plan);
  return find_problem(plan, tiny_model(2), round_cluster(8));
}

struct RefusedPlan {
  const char* key;
  ExitCode exit;
  const char* reason;  // part of what is said
  Change change;
};

TEST(DataParallelCheck, DefaultsAreTaken) {
  for (const RuntimeKind kind : {RuntimeKind::kDdp, RuntimeKind::kZero1, RuntimeKind::kZero2}) {
    const auto problem = problem_of(kind, [](Plan&) {});
    EXPECT_FALSE(problem) << problem->what_is_wrong;
  }
}

TEST(DataParallelCheck, DdpRefusals) {
  const RefusedPlan refusals[] = {
      {"mesh.shard", ExitCode::kMissingCapability, "replicates the model",
          [](Plan& p) {
            p.mesh = {8, 1};
          }},
      {"units.layers_per_unit", ExitCode::kMissingCapability, "knows no units",
          [](Plan& p) { p.units.layers_per_unit = 2; }},
      {"offload", ExitCode::kMissingCapability, "on the device", [](Plan& p) { p.offload = Offload::kCpu; }},
      {"dtype.param", ExitCode::kMissingCapability, "narrower",
          [](Plan& p) {
            p.master_dtype = DType::kBf16;
            p.param_dtype = DType::kFp32;
          }},
      {"ddp.static_graph", ExitCode::kInvalidInput, "expect_autograd_hooks_",
          [](Plan& p) {
            p.ddp.static_graph = true;
            p.batch.accumulation = 2;
            p.accumulation = AccumulationMode::kKeepUnsharded;
          }},
  };
  for (const RefusedPlan& refusal : refusals) {
    const auto problem = problem_of(RuntimeKind::kDdp, refusal.change);
    ASSERT_TRUE(problem) << refusal.key;
    EXPECT_EQ(problem->key, refusal.key);
    EXPECT_EQ(problem->exit_code, refusal.exit) << refusal.key;
    EXPECT_NE(problem->what_is_wrong.find(refusal.reason), std::string::npos) << problem->what_is_wrong;
  }
}

// The second step of DDP fails where a parameter got no gradient, unless it looks for such.
TEST(DataParallelCheck, DdpRefusesUnusedParametersItDoesNotLookFor) {
  ModelSpec model = tiny_model(2);
  for (LayerSpec& kind : model.kinds) {
    if (kind.role == LayerRole::kHead) kind.parameters.push_back({"extra.weight", {512, 512}});
  }
  Plan plan = plan_of(RuntimeKind::kDdp);
  const auto problem = find_problem(plan, model, round_cluster(8));
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->key, "ddp.find_unused_parameters");
  EXPECT_NE(problem->what_is_wrong.find("extra.weight"), std::string::npos);
  plan.ddp.find_unused_parameters = true;
  EXPECT_FALSE(find_problem(plan, model, round_cluster(8)));
}

TEST(DataParallelCheck, ZeroRefusals) {
  const RefusedPlan refusals[] = {
      {"mesh.replicate", ExitCode::kMissingCapability, "partitions over all ranks",
          [](Plan& p) {
            p.mesh = {4, 2};
          }},
      {"zero.partition_in_groups", ExitCode::kMissingCapability, "partitions gradients",
          [](Plan& p) {
            p.mesh = {4, 2};
            p.zero.partition_in_groups = true;
          }},
      {"zero.use_multi_rank_bucket_allreduce", ExitCode::kInvalidInput, "owner in each group",
          [](Plan& p) {
            p.zero.partition_in_groups = true;
            p.zero.use_multi_rank_bucket_allreduce = false;
          }},
      {"accumulation.mode", ExitCode::kMissingCapability, "no_sync()",
          [](Plan& p) { p.accumulation = AccumulationMode::kKeepUnsharded; }},
      {"dtype.master", ExitCode::kMissingCapability, "in fp32", [](Plan& p) { p.master_dtype = DType::kBf16; }},
      {"zero.offload_param", ExitCode::kMissingCapability, "stage 3",
          [](Plan& p) { p.zero.offload_param = ZeroOffload::kCpu; }},
      {"zero.offload_optimizer", ExitCode::kMissingCapability, "NVMe",
          [](Plan& p) { p.zero.offload_optimizer = ZeroOffload::kNvme; }},
      {"zero.zero_hpz_partition_size", ExitCode::kMissingCapability, "ZeRO++",
          [](Plan& p) { p.zero.zero_hpz_partition_size = 2; }},
      {"zero.reduce_bucket_size", ExitCode::kInvalidInput, "at least one",
          [](Plan& p) { p.zero.reduce_bucket_size = 0; }},
      {"zero.allgather_bucket_size", ExitCode::kInvalidInput, "nccl_start_alignment_factor",
          [](Plan& p) { p.zero.allgather_bucket_size = 1001; }},
  };
  for (const RefusedPlan& refusal : refusals) {
    const auto problem = problem_of(RuntimeKind::kZero2, refusal.change);
    ASSERT_TRUE(problem) << refusal.key;
    EXPECT_EQ(problem->key, refusal.key);
    EXPECT_EQ(problem->exit_code, refusal.exit) << refusal.key;
    EXPECT_NE(problem->what_is_wrong.find(refusal.reason), std::string::npos) << problem->what_is_wrong;
  }
  // Stage 1 does nothing between micro-batches anyway.
  EXPECT_FALSE(problem_of(RuntimeKind::kZero1, [](Plan& p) { p.accumulation = AccumulationMode::kKeepUnsharded; }));
}

}
}
