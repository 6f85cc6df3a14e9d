// Which axes a runtime has, and what they must divide.
#include <gtest/gtest.h>

#include <functional>

#include "models/families.h"
#include "sim/spec/checks/plan_check.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

ModelSpec engine_model(std::int64_t vocabulary) {
  return build_model(family_dims("llama", "small", {2, 256, 8, 8, 32, 768, vocabulary, 64}), Stack::kNative);
}

std::optional<PlanProblem> problem_of(const std::function<void(Plan&)>& change, std::int64_t vocabulary = 512) {
  Plan plan = tiny_plan();
  plan.runtime = {RuntimeKind::kNative, newest_version(RuntimeKind::kNative)};
  plan.mesh = {2, 1};
  plan.mesh.tp = 4;
  plan.batch.sequence = 64;
  change(plan);
  return find_problem(plan, engine_model(vocabulary), round_cluster(8));
}

TEST(AxesCheck, TheEngineHasTensorParallelism) {
  const auto problem = problem_of([](Plan&) {});
  EXPECT_FALSE(problem) << problem->key << ": " << problem->what_is_wrong;
}

// Not what the defaults of one axis ask of the runtime, nor only the first axis.
TEST(AxesCheck, ARuntimeNamesTheAxisThatItHasNot) {
  const auto missing = [](RuntimeKind kind, std::int64_t Mesh::*axis) {
    const auto problem = problem_of([&](Plan& plan) {
      plan.runtime = {kind, newest_version(kind)};
      plan.mesh = {2, 1};
      plan.mesh.tp = kind == RuntimeKind::kNative ? 2 : 1;
      plan.mesh.*axis = 2;
      plan.units.experts = UnitPlacement::kOwn;
      plan.prefetch.backward_lists = true;
    });
    return problem ? problem->key : "";
  };
  EXPECT_EQ(missing(RuntimeKind::kNative, &Mesh::cp), "mesh.cp");
  EXPECT_EQ(missing(RuntimeKind::kNative, &Mesh::ep), "mesh.ep");
  for (const RuntimeKind kind : {RuntimeKind::kZero3, RuntimeKind::kDdp, RuntimeKind::kFsdp1}) {
    EXPECT_EQ(missing(kind, &Mesh::ep), "mesh.ep");
    EXPECT_EQ(missing(kind, &Mesh::tp), "mesh.tp");
  }
  EXPECT_EQ(missing(RuntimeKind::kZero3, &Mesh::cp), "context_parallel.rotate");
}

TEST(AxesCheck, WidthsAreCutIntoWholeBlocks) {
  const auto problem = problem_of([](Plan&) {}, 512 + 64);  // 64 is 2 x 32
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->key, "mesh.tp");
  EXPECT_NE(problem->what_is_wrong.find("576 columns of lm_head"), std::string::npos) << problem->what_is_wrong;
  EXPECT_EQ(problem->expected, "2");
  EXPECT_FALSE(problem_of(
      [](Plan& plan) {
        plan.mesh.tp = 2;
        plan.mesh.shard = 4;
      },
      512 + 64));
}

TEST(AxesCheck, RanksShareAVocabularyEvenlyFromTitan3On) {
  Plan plan = tiny_plan();
  plan.mesh = {2, 1};
  plan.mesh.tp = 2;
  plan.step_frame = StepFrame::kTorchtitan;
  plan.runtime.version = "2.11";
  ModelSpec model = tiny_model(2);
  ++model.vocabulary;
  EXPECT_FALSE(find_problem(plan, model, round_cluster(4)));
  plan.runtime.version = "2.15";
  const auto problem = find_problem(plan, model, round_cluster(4));
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->key, "mesh.tp");
}

TEST(AxesCheck, LogitsStayCut) {
  const auto problem = problem_of([](Plan& plan) {
    plan.mesh = {1, 1};
    plan.mesh.tp = 8;
    plan.tensor_parallel.loss = false;
  });
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->key, "tensor_parallel.loss");
}

TEST(AxesCheck, ContextParallelNeedsAttentionThatReadsKeysAndValuesApart) {
  Plan plan = tiny_plan();
  plan.mesh.shard = 4;
  plan.mesh.cp = 2;
  ModelSpec model = tiny_model(2);
  EXPECT_FALSE(find_problem(plan, model, round_cluster(8)));
  for (LayerSpec& layer : model.kinds) {
    for (Operation& op : layer.operations) {
      if (op.kind == OperationKind::kAttention) op.inputs.resize(1);
    }
  }
  const auto fused = find_problem(plan, model, round_cluster(8));
  ASSERT_TRUE(fused);
  EXPECT_EQ(fused->key, "mesh.cp");
  EXPECT_EQ(fused->exit_code, ExitCode::kMissingCapability);
  ModelSpec biased = tiny_model(2);
  biased.numerics.alibi = true;
  EXPECT_TRUE(find_problem(plan, biased, round_cluster(8)));
}

}
}
