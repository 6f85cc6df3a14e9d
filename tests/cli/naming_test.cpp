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
  const auto plan =
      plan_of("--plan p.yaml --cluster 16xh100 --runtime fsdp2 --micro-batch 8 --set batch.micro_batch=2");
  EXPECT_EQ(plan.at("model"), "gpt2");
  EXPECT_EQ(plan.at("cluster"), "16xh100");
  EXPECT_EQ(plan.at("runtime"), "fsdp2@2.15");
  EXPECT_EQ(plan.at("batch").at("sequence"), 256);
  EXPECT_EQ(plan.at("batch").at("micro_batch"), 2);
  EXPECT_EQ(plan.at("batch").at("accumulation"), 2);
}

// What the plan leaves to a stack, to one rank or to adapters is said where it is printed. (Random
// plans: tests/cli/random_plans.py.)
TEST(Naming, APrintedPlanIsForecastWithTheSameFigures) {
  for (const char* job : {"--model llama-3.2-1b --cluster 8xh100 --runtime fsdp2 --set stack=torchtitan_2025",
           "--model gpt2 --cluster 1xh100 --runtime ddp",
           "--model gpt2 --cluster 8xh100 --set compile=model --set kernels.given_mask=false",
           "--model bert-base --cluster 8xh100 --set lora.rank=8 --set lora.modules_to_save=none"}) {
    SCOPED_TRACE(job);
    const auto first = json_of(run(std::string("predict --json --sequence 512 ") + job));
    write_temporary("printed.yaml", first.at("plan").dump());
    const auto again = json_of(run("predict --json --plan printed.yaml"));
    EXPECT_EQ(again.at("plan"), first.at("plan"));
    EXPECT_EQ(again.at("fingerprint"), first.at("fingerprint"));
    EXPECT_EQ(again.at("step").at("seconds").at("value"), first.at("step").at("seconds").at("value"));
  }
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

constexpr const char* kSmallConfig =
    R"({"model_type": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 4, "n_positions": 512,
        "vocab_size": 1000})";

TEST(Naming, NamesOfTheCatalogueWinOverFiles) {
  write_temporary("opt-125m", kSmallConfig);
  write_temporary("llama-3.1-8b/config.json", kSmallConfig);
  write_temporary("64xh100", "gpus: 8\nmachine: a100-80gb\n");
  EXPECT_EQ(json_of(run("models opt-125m --json")).at("parameters"), 125239296);
  EXPECT_EQ(json_of(run("models llama-3.1-8b --json")).at("parameters"), 8030261248);
  EXPECT_EQ(json_of(run("models ./opt-125m --json")).at("vocabulary"), 1000);
  EXPECT_EQ(json_of(run("models ./llama-3.1-8b --json")).at("vocabulary"), 1000);
  EXPECT_EQ(plan_of("--model gpt2 --cluster 64xh100").at("mesh").at("shard"), 64);
}

TEST(Naming, ModelsByRepositoryFolderAndCache) {
  const Outcome variant = run("predict --model meta-llama/Llama-3.1-8B-Instruct --cluster 64xh100 --json");
  ASSERT_EQ(variant.exit_code, 0) << variant.err;
  EXPECT_EQ(json_of(variant).at("plan").at("model"), "meta-llama/Llama-3.1-8B-Instruct");
  EXPECT_NE(variant.out.find("has the sizes of llama-3.1-8b"), std::string::npos);
  const Outcome same = run("predict --model LLAMA_3.1_8B --cluster 64xh100 --json");
  EXPECT_EQ(json_of(same).at("fingerprint"), json_of(variant).at("fingerprint"));
  EXPECT_EQ(same.out.find("has the sizes of"), std::string::npos);

  write_temporary("some/model/config.json", kSmallConfig);
  for (const char* name : {"some/model", "some/model/", "./some/model", "some/model/config.json"}) {
    EXPECT_EQ(json_of(run(std::string("models --json ") + name)).at("vocabulary"), 1000) << name;
  }
  const std::string repository = "cache/models--Acme--Foo-7B-Chat/";
  write_temporary(repository + "refs/main", "abc123\n");
  write_temporary(repository + "snapshots/abc123/config.json", kSmallConfig);
  write_temporary(repository + "snapshots/older/config.json", "{}");
  const Outcome cached = shell("HF_HUB_CACHE=cache \"$F\" predict --model acme/foo-7b-chat --cluster 8xh100");
  EXPECT_EQ(cached.exit_code, 0) << cached.err;
  EXPECT_NE(cached.out.find("\nfoo-7b-chat"), std::string::npos) << cached.out;
  const Outcome absent = shell("HF_HUB_CACHE=cache \"$F\" predict --model acme/bar-7b --cluster 8xh100");
  EXPECT_EQ(absent.exit_code, 3);
  EXPECT_NE(absent.err.find("not in the Hugging Face cache"), std::string::npos) << absent.err;
}

TEST(Naming, PartsOfNamesListModels) {
  const auto models = json_of(run("models qwen3 --json")).at("models");
  EXPECT_EQ(models.size(), 10U);
  for (const auto& model : models) EXPECT_EQ(model.at("name").get<std::string>().find("qwen3"), 0U);
  const Outcome none = run("models nothing-of-the-kind");
  EXPECT_EQ(none.exit_code, 3);
  EXPECT_NE(run("models llama-3-9b").err.find("llama-3 comes as llama-3-8b, llama-3-70b;"), std::string::npos);
  EXPECT_EQ(run("models qwen --yaml").exit_code, 2);
}

// A head behind the name takes the place of that of words: GPT-2's is tied, so n x 768 more.
TEST(Naming, AHeadBehindTheNameIsThere) {
  const auto parameters = [](const std::string& model) {
    const Outcome outcome = run("predict --json --cluster 8xh100 --model " + model);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json_of(outcome).at("parameters").get<std::int64_t>();
  };
  EXPECT_EQ(parameters("gpt2+scores3") - parameters("gpt2"), 3 * 768);
  for (const char* model : {"vit-base-patch16-224+scores", "gpt2.yaml+values"}) {
    if (model[0] == 'g') write_temporary("gpt2.yaml", run("models gpt2 --yaml").out);
    const Outcome outcome = run(std::string("predict --cluster 8xh100 --model ") + model);
    EXPECT_EQ(outcome.exit_code, 6);
    EXPECT_NE(outcome.err.find("without +scores"), std::string::npos) << outcome.err;
  }
}

TEST(Naming, WhatIsNoFileIsRefusedAtOnce) {
  const Outcome pipe = shell("mkfifo pipe.json pipe.yaml && \"$F\" models pipe.json");
  EXPECT_EQ(pipe.exit_code, 3);
  EXPECT_NE(pipe.err.find("pipe.json: is a pipe or a device"), std::string::npos) << pipe.err;
  EXPECT_EQ(run("predict --plan pipe.yaml").exit_code, 3);
  EXPECT_EQ(run("predict --plan /dev/zero").exit_code, 3);
  write_temporary("empty/readme", "");
  const Outcome folder = run("models ./empty");
  EXPECT_EQ(folder.exit_code, 3);
  EXPECT_NE(folder.err.find("without a config.json"), std::string::npos) << folder.err;
}

TEST(Naming, PlansAreYamlOrJson) {
  write_temporary("p.json", R"({"model": "gpt2", "cluster": "8xh100", "batch": {"micro_batch": 2}})");
  EXPECT_EQ(plan_of("--plan p.json").at("batch").at("micro_batch"), 2);
}

}
}
