// What FSDP1 refuses, and its trainers' defaults.
#include <gtest/gtest.h>

#include <string>

#include "sim/spec/checks/plan_check.h"
#include "tests/sim/spec/plan_fixtures.h"

namespace foreshard {
namespace {

std::optional<PlanProblem> problem(const std::string& yaml, const std::string& runtime = "fsdp1") {
  const ModelSpec model = small_model();
  const Cluster cluster = cluster_of_gpus(64);
  const Plan plan =
      resolve(document_of("runtime: " + runtime + "\nunits: {embedding: root, head: root}\n" + yaml), model, cluster)
          .plan;
  return find_problem(plan, model, cluster);
}

TEST(Fsdp1Check, TakesWhatPyTorchTakes) {
  for (const char* yaml : {"", "prefetch: {forward: 1}", "prefetch: {backward: 0}", "mesh: {shard: 8}",
           "mesh: {shard: 1}", "reshard_after_forward: never", "offload: cpu",
           "accumulation: {mode: keep_unsharded}\nbatch: {accumulation: 4}",
           "compile: blocks\nfsdp1: {use_orig_params: true}", "frozen: [embedding]\nfsdp1: {use_orig_params: true}"}) {
    const auto found = problem(yaml);
    EXPECT_FALSE(found) << yaml << ": " << (found ? found->what_is_wrong : "");
  }
}

TEST(Fsdp1Check, NamesTheKeyThatItHasNoKnobFor) {
  const std::pair<const char*, const char*> cases[] = {
      {"prefetch: {forward: 2}", "prefetch.forward"},
      {"prefetch: {forward: 0}", "prefetch.forward"},
      {"prefetch: {backward: 2}", "prefetch.backward"},
      {"reshard_after_forward: 8", "reshard_after_forward"},
      {"unshard_in_backward: false", "unshard_in_backward"},
      {"ignored: norms", "ignored"},
      {"offload: cpu_unpinned", "offload"},
      {"reduction: {divide_factor: 1}", "reduction.divide_factor"},
      {"buffers: {reduce_scatter: 2}", "buffers.reduce_scatter"},
      {"communicators: separate", "communicators"},
  };
  for (const auto& [yaml, key] : cases) {
    const auto found = problem(yaml);
    ASSERT_TRUE(found) << yaml;
    EXPECT_EQ(found->key, key);
    EXPECT_EQ(found->exit_code, ExitCode::kMissingCapability);
  }
}

TEST(Fsdp1Check, RefusesWhatPyTorchRefuses) {
  const auto compiled = problem("compile: blocks");
  ASSERT_TRUE(compiled);
  EXPECT_EQ(compiled->exit_code, ExitCode::kInvalidInput);
  EXPECT_NE(compiled->what_is_wrong.find("use_orig_params=True"), std::string::npos);
  const auto mixed = problem("frozen: [embedding]");
  ASSERT_TRUE(mixed);
  EXPECT_NE(mixed->what_is_wrong.find("uniform `requires_grad`"), std::string::npos);
}

// Adapters lie beside a frozen base in one flat parameter.
TEST(Fsdp1Check, TakesAdaptersWithOriginalParametersOfOneDtype) {
  EXPECT_FALSE(problem("lora: {rank: 8, base: master}\nfsdp1: {use_orig_params: true}"));
  const auto flat = problem("lora: {rank: 8, base: master}\nfsdp1: {use_orig_params: false}");
  ASSERT_TRUE(flat);
  EXPECT_EQ(flat->key, "fsdp1.use_orig_params");
  for (const char* base : {"param", "nf4"}) {
    const auto mixed = problem("lora: {rank: 8, base: " + std::string(base) + "}\nfsdp1: {use_orig_params: true}");
    ASSERT_TRUE(mixed) << base;
    EXPECT_EQ(mixed->key, "lora.base");
    EXPECT_NE(mixed->what_is_wrong.find("uniform dtype"), std::string::npos);
  }
}

TEST(Fsdp1Check, KnowsTheVersionsThatWereRecorded) {
  EXPECT_FALSE(problem("", "fsdp1@2.4"));
  EXPECT_FALSE(problem("", "fsdp1@2.15"));
  EXPECT_TRUE(problem("", "fsdp1@2.3"));
}

Plan trained_by(const std::string& trainer) {
  const ModelSpec model = small_model();
  return resolve(document_of("runtime: fsdp1\ntrainer: " + trainer), model, cluster_of_gpus(64)).plan;
}

TEST(Fsdp1Trainers, HaveDefaultsOfTheirOwn) {
  const Plan fairscale = trained_by("fairscale");
  EXPECT_FALSE(fairscale.fsdp1.limit_all_gathers);
  EXPECT_EQ(fairscale.prefetch.backward, 0);
  EXPECT_EQ(fairscale.reduce_dtype, fairscale.param_dtype);
  EXPECT_EQ(fairscale.units.embedding, UnitPlacement::kRoot);
  const Plan composer = trained_by("llm-foundry");
  EXPECT_TRUE(composer.fsdp1.use_orig_params);
  EXPECT_TRUE(composer.fsdp1.limit_all_gathers);
  EXPECT_EQ(composer.fsdp1.backward_prefetch, Fsdp1Options::BackwardPrefetch::kPost);
  EXPECT_EQ(composer.prefetch.backward, 1);
  const Plan accelerate = trained_by("accelerate");
  EXPECT_EQ(accelerate.prefetch.backward, 0);
  EXPECT_TRUE(accelerate.fsdp1.limit_all_gathers);
  EXPECT_THROW(trained_by("torchtitan"), Error);
}

}
}
