// A plan that does not fit: exit code 4, the answer all the same, by how much, and what would help,
// which is tried here.
#include <gtest/gtest.h>

#include "models/zoo.h"
#include "sim/graph/training_step.h"
#include "sim/memory/memory_profile.h"
#include "tests/cli/program.h"

namespace foreshard {
namespace {

// The assignments of the answer's remedy as flags.
std::string flags_of(const nlohmann::ordered_json& remedy) {
  std::string flags;
  for (const auto& [key, value] : remedy.at("set").items()) flags += " --set " + key + "=" + value.get<std::string>();
  return flags;
}

// The job does not fit, and with the remedy it does. Returns the remedy.
nlohmann::ordered_json expect_remedy(const std::string& job) {
  SCOPED_TRACE(job);
  const Outcome tight = run("predict --json " + job);
  EXPECT_EQ(tight.exit_code, 4);
  expect_says(tight.err, "does not fit: ");
  const auto answer = json_of(tight);
  EXPECT_FALSE(answer.at("memory").at("fits").get<bool>());
  EXPECT_GT(answer.at("infeasible").at("exceeds_bytes").get<std::int64_t>(), 0);
  auto remedy = answer.at("infeasible").at("remedy");
  const Outcome loose = run("predict --json " + job + flags_of(remedy));
  EXPECT_EQ(loose.exit_code, 0) << loose.err;
  EXPECT_EQ(json_of(loose).at("memory").at("peak_allocated_bytes").at("value").get<double>(),
      remedy.at("peak_allocated_bytes").get<double>());
  return remedy;
}

TEST(Infeasible, OneKnob) {
  // Less than full recompute of a plan that is otherwise as small as it gets for free.
  const auto remedy = expect_remedy(
      "--model llama-3.1-8b --cluster 8xh100 --micro-batch 4 --set loss=chunked-8 "
      "--set allocator=expandable_segments:True --set stack=torchtitan_2025");
  EXPECT_EQ(remedy.at("set").size(), 1U);
  EXPECT_EQ(remedy.at("set").at("recompute"), "full");
}

TEST(Infeasible, ShardGroupThenFollowsReplicate) {
  const auto remedy = expect_remedy("--model llama-3.1-8b --cluster 64xh100 --set mesh.shard=1 --set recompute=full");
  EXPECT_GT(std::stoi(remedy.at("set").at("mesh.shard").get<std::string>()), 1);
}

TEST(Infeasible, MicroBatchKeepsTheSequencesOfAStep) {
  const auto remedy =
      expect_remedy("--model llama-3.1-8b --cluster 64xh100 --micro-batch 12 --accumulation 2 --set recompute=full");
  const auto batch = remedy.at("plan").at("batch");
  EXPECT_EQ(batch.at("micro_batch").get<int>() * batch.at("accumulation").get<int>(), 24);
}

// torchtitan's loop fetches the batches of all micro-batches before the first.
TEST(Infeasible, ALoopThatFetchesAStepHoldsAllOfIt) {
  expect_remedy("--model llama-3.1-8b --cluster 16xh100 --micro-batch 4 --accumulation 9 --set stack=torchtitan_2026");
}

TEST(Infeasible, TwoKnobs) {
  const auto remedy = expect_remedy("--model llama-3.1-8b --cluster 64xh100 --micro-batch 16");
  EXPECT_GE(remedy.at("set").size(), 2U);
}

TEST(Infeasible, MoreGpus) {
  // ZeRO-3, which has no `offload`: states fit on more GPUs only.
  const std::string job = "predict --model llama-3.1-405b --runtime zero3 --sequence 4096 --json";
  const Outcome outcome = run(job + " --cluster 8xh100");
  EXPECT_EQ(outcome.exit_code, 4);
  const auto remedy = json_of(outcome).at("infeasible").at("remedy");
  const std::string gpus = std::to_string(remedy.at("gpus").get<int>());
  EXPECT_GT(remedy.at("gpus").get<int>(), 8);
  const Outcome bigger = run(job + " --cluster " + gpus + "xh100" + flags_of(remedy));
  EXPECT_EQ(bigger.exit_code, 0) << bigger.err;
}

// DDP holds 16 bytes a parameter on every GPU, whatever their number: 8.03 B x 16 > 80 GB.
TEST(Infeasible, AnotherRuntimeWhereParametersAreWhole) {
  const std::string job = "predict --model llama-3.1-8b --cluster 16xh100 --json";
  const Outcome outcome = run(job + " --runtime ddp");
  EXPECT_EQ(outcome.exit_code, 4);
  const auto remedy = json_of(outcome).at("infeasible").at("remedy");
  expect_says(flags_of(remedy), "runtime=fsdp2");
  const Outcome sharded = run(job + flags_of(remedy));
  EXPECT_EQ(sharded.exit_code, 0) << sharded.err;
}

TEST(Infeasible, NothingHelps) {
  const Outcome outcome = run("predict --model llama-3.1-8b --cluster 8xh100 --sequence 16777216");
  EXPECT_EQ(outcome.exit_code, 4);
  expect_says(outcome.out, "shorten batch.sequence");
}

TEST(Infeasible, TextNamesTheRemedyWithin40Lines) {
  const Outcome outcome = run("predict --model llama-2-70b --cluster 8xh100");
  EXPECT_EQ(outcome.exit_code, 4);
  expect_says(outcome.out, "does not fit: ");
  expect_says(outcome.out, "--set offload=cpu");
  EXPECT_LE(lines_of(outcome.out), 40U);
}

TEST(Infeasible, OtherVerbs) {
  const std::string job = " --model llama-2-70b --cluster 8xh100";
  EXPECT_EQ(run("explain" + job).exit_code, 4);
  EXPECT_EQ(run("compare" + job + " --with recompute=full").exit_code, 4);
  EXPECT_EQ(run("schedule" + job).exit_code, 0);
  const Outcome search = run("search --json" + job);
  EXPECT_EQ(search.exit_code, 4);
  const auto answer = json_of(search);
  EXPECT_TRUE(answer.at("best").is_null());
  EXPECT_EQ(answer.at("simulated"), 0);
  EXPECT_GT(answer.at("infeasible").at("exceeds_bytes").get<std::int64_t>(), 0);
}

// find_remedy replays at most three micro-batches.
TEST(Infeasible, ThirdMicroBatchHasThePeak) {
  const ModelSpec model = load_zoo_model("gpt2");
  Plan plan = {.batch = {1024, 2, 3}, .mesh = {8, 1}, .units = {1, UnitPlacement::kRoot, UnitPlacement::kRoot}};
  for (const AccumulationMode mode : {AccumulationMode::kReduceEach, AccumulationMode::kKeepUnsharded}) {
    plan.accumulation = mode;
    plan.batch.accumulation = 3;
    const Bytes three = peak_allocated(build_training_step(model, plan));
    plan.batch.accumulation = 9;
    EXPECT_EQ(three, peak_allocated(build_training_step(model, plan)));
  }
}

}
}
