// How a job is named: files, flags, assignments, and whose paths are relative to what.
#include <gtest/gtest.h>

#include "tests/cli/program.h"

namespace foreshard {
namespace {

nlohmann::ordered_json plan_of(const std::string& arguments) {
  const Outcome outcome = run("predict --json " + arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = json_of(outcome);
  return json.contains("plan") ? json.at("plan") : json;
}

TEST(Naming, Defaults) {
  const auto plan = plan_of("--model llama-3.1-8b --cluster 64xh100");
  EXPECT_EQ(plan.at("runtime"), "fsdp2@2.15");
  EXPECT_EQ(plan.at("batch").at("sequence"), 8192);
  EXPECT_EQ(plan.at("batch").at("micro_batch"), 1);
  EXPECT_EQ(plan.at("mesh").at("shard"), 64);
  EXPECT_EQ(plan.at("dtype").at("param"), "bf16");
}

TEST(Naming, FlagsOverrideTheFileAndSetOverridesBoth) {
  write_temporary("p.yaml",
                  "model: gpt2\ncluster: 8xh100\nruntime: native\n"
                  "batch: {sequence: 256, micro_batch: 4, accumulation: 2}\n");
  const auto plan = plan_of(
      "--plan p.yaml --cluster 16xh100 --runtime fsdp2 --micro-batch 8 --set batch.micro_batch=2");
  EXPECT_EQ(plan.at("model"), "gpt2");
  EXPECT_EQ(plan.at("cluster"), "16xh100");
  EXPECT_EQ(plan.at("runtime"), "fsdp2@2.15");
  EXPECT_EQ(plan.at("batch").at("sequence"), 256);
  EXPECT_EQ(plan.at("batch").at("micro_batch"), 2);
  EXPECT_EQ(plan.at("batch").at("accumulation"), 2);
}

TEST(Naming, OneSideOfTheMeshBringsTheOtherWhateverTheFileSays) {
  write_temporary("p.yaml", "model: gpt2\ncluster: 64xh100\nmesh: {shard: 8, replicate: 8}\n");
  EXPECT_EQ(plan_of("--plan p.yaml --set mesh.shard=16").at("mesh").at("replicate"), 4);
  EXPECT_EQ(plan_of("--plan p.yaml --set mesh.replicate=2").at("mesh").at("shard"), 32);
  EXPECT_EQ(plan_of("--plan p.yaml --set recompute=full").at("mesh").at("replicate"), 8);
}

TEST(Naming, PathsInAPlanAreRelativeToIt) {
  write_temporary("job/model/config.json",
                  R"({"model_type": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 4,
                      "n_positions": 512, "vocab_size": 1000})");
  write_temporary("job/cluster.yaml", "gpus: 16\nmachine: a100-80gb\n");
  write_temporary("job/plan.yaml", "model: model/config.json\ncluster: cluster.yaml\n");
  const auto plan = plan_of("--plan job/plan.yaml");
  EXPECT_EQ(plan.at("model"), "model/config.json");
  EXPECT_EQ(plan.at("mesh").at("shard"), 16);
  EXPECT_EQ(plan.at("batch").at("sequence"), 512);
  // Those of flags are relative to where the user stands.
  EXPECT_EQ(run("predict --plan job/plan.yaml --model model/config.json").exit_code, 3);
  EXPECT_EQ(run("predict --plan job/plan.yaml --model job/model/config.json").exit_code, 0);
}

TEST(Naming, AFolderCalledLikeAModelDoesNotHideIt) {
  write_temporary("gpt2/readme", "");
  EXPECT_EQ(plan_of("--model gpt2 --cluster 8xh100").at("model"), "gpt2");
}

TEST(Naming, PlansAreYamlOrJson) {
  write_temporary("p.json",
                  R"({"model": "gpt2", "cluster": "8xh100", "batch": {"micro_batch": 2}})");
  EXPECT_EQ(plan_of("--plan p.json").at("batch").at("micro_batch"), 2);
}

}  // namespace
}  // namespace foreshard
