// Whole runs of the program: the same numbers however the ranks are started and talk, what --steps
// and the plan's schedule mean, evaluation, and going on from checkpoints.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/base/lookup.h"
#include "tests/exec/cli/run_fixture.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

void expect_same(const RunRecord& run, const RunRecord& reference) {
  EXPECT_FALSE(run.parameter_hash.empty());
  EXPECT_EQ(run.parameter_hash, reference.parameter_hash);
  EXPECT_EQ(run.losses, reference.losses);
}

const Words kFourPerStep = {"--set", "batch.global=4"};

TEST_F(ExecRunTest, ProcessesTransportsAndLaunchersGiveTheSameBits) {
  const Words words = kFourPerStep + Words{"--steps", "4"};
  const RunRecord one = record("one", words);
  ASSERT_EQ(one.losses.size(), 4U);
  EXPECT_NE(one.losses[0], one.losses[3]);
  for (const char* transport : {"shm", "gloo"}) {
    SCOPED_TRACE(transport);
    const RunRecord two = record(transport, words + mesh(2), {{"FORESHARD_TRANSPORT", transport}});
    expect_same(two, one);
    EXPECT_EQ(two.world, 2);
    EXPECT_EQ(two.ranks.size(), 2U);
  }
  expect_same(record("four", words + mesh(4)), one);

  const int port = free_port();
  const Words by_torchrun = words + Words{"--set", "mesh.shard=2"};
  Variables second = by_hand(1, 2, port);
  second["LOCAL_RANK"] = "1";
  second["LOCAL_WORLD_SIZE"] = "2";
  Variables first = by_hand(0, 2, port);
  first["LOCAL_RANK"] = "0";
  first["LOCAL_WORLD_SIZE"] = "2";
  ChildProcess other = start(by_torchrun + Words{"--out", path("torchrun")}, second);
  expect_same(record("torchrun", by_torchrun, first), one);
  EXPECT_EQ(other.finish().code, 0);

  if (std::system("command -v mpirun > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "no mpirun here";
  }
  const ChildOutcome outcome = ChildProcess(Words{"mpirun", "-np", "2", "--allow-run-as-root", "--oversubscribe"} +
                                            command(by_torchrun + Words{"--out", path("mpirun")}))
                                   .finish();
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  expect_same(read_run_folder(folder_ / "mpirun"), one);
}

TEST_F(ExecRunTest, TheAnswerIsOneJsonDocument) {
  const ChildOutcome outcome = shell("$E --data text.txt --steps 3 --spawn 2 --out run --json 2> errors");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const auto answer = nlohmann::json::parse(outcome.output);
  const RunRecord record = read_run_folder(folder_ / "run");
  EXPECT_EQ(answer["schema"], "foreshard.report/1");
  EXPECT_EQ(answer["origin"], "measured");
  EXPECT_EQ(answer["run"]["parameter_hash"], record.parameter_hash);
  EXPECT_EQ(answer["run"]["losses"].get<std::vector<double>>(), record.losses);
  EXPECT_EQ(record.losses.size(), 3U);
}

// Step k of a run of 3 and of a run of 6 is the same step.
TEST_F(ExecRunTest, LengthOfTheRunChangesNoStep) {
  for (const Words& schedule :
      {Words{}, Words{"--set", "optimizer.warmup_steps=2", "--set", "optimizer.decay_steps=3"}}) {
    const RunRecord three = record("three", schedule + Words{"--steps", "3"});
    const RunRecord six = record("six", schedule + Words{"--steps", "6"});
    ASSERT_EQ(six.losses.size(), 6U);
    EXPECT_EQ(three.losses, std::vector<double>(six.losses.begin(), six.losses.begin() + 3));
    EXPECT_NE(three.parameter_hash, six.parameter_hash);
  }
}

// The first step's rate is half of the next: a run of one step without warm-up at half the rate
// ends with the same bits.
TEST_F(ExecRunTest, WarmUpAndDecayAreThePlans) {
  const auto one = [&](const std::string& name, const Words& words) {
    return record(name, words + Words{"--steps", "1"}).parameter_hash;
  };
  const Words rate = {"--set", "optimizer.learning_rate=0.002"};
  EXPECT_EQ(one("a", rate + Words{"--set", "optimizer.warmup_steps=2"}),
      one("b", {"--set", "optimizer.learning_rate=0.001"}));
  EXPECT_NE(one("c", rate), one("b", {"--set", "optimizer.learning_rate=0.001"}));
  // One step of decay: the rate is the least one at once.
  EXPECT_EQ(one("d", rate + Words{"--set", "optimizer.decay_steps=1", "--set", "optimizer.min_learning_rate=0.001"}),
      one("b", {"--set", "optimizer.learning_rate=0.001"}));
}

TEST_F(ExecRunTest, EvaluationIsTheSameForAnyNumberOfRanks) {
  const Words words = kFourPerStep + Words{"--steps", "4", "--set", "evaluation.every=2"};
  const RunRecord one = record("one", words);
  ASSERT_EQ(one.evaluations.size(), 2U);
  EXPECT_EQ(one.evaluations[0].first, 2);
  EXPECT_EQ(one.evaluations[1].first, 4);
  EXPECT_NEAR(one.evaluations[0].second, one.losses[1], 0.5);
  for (const Words& more : {mesh(4), mesh(2) + Words{"--set", "reshard_after_forward=never"}}) {
    const RunRecord run = record("other", words + more);
    expect_same(run, one);
    EXPECT_EQ(run.evaluations, one.evaluations);
  }
  // It leaves the training as it is, apart from the data that is held back.
  const RunRecord rarely = record("rarely", kFourPerStep + Words{"--steps", "4", "--set", "evaluation.every=3"});
  expect_same(rarely, one);
}

TEST_F(ExecRunTest, ResumesOnAnyNumberOfRanks) {
  const Words data = kFourPerStep + Words{"--checkpoint-every", "3"};
  const RunRecord whole = record("whole", kFourPerStep + Words{"--steps", "6"} + mesh(2));
  const RunRecord half = record("half", data + mesh(2) + Words{"--steps", "3", "--checkpoint", path("saved")});
  EXPECT_EQ(half.losses, std::vector<double>(whole.losses.begin(), whole.losses.begin() + 3));
  const Words resume = kFourPerStep + Words{"--resume", path("saved"), "--steps", "6"};
  const std::vector<double> second_half(whole.losses.begin() + 3, whole.losses.end());
  for (const Words& ranks : {mesh(1), mesh(4),
           mesh(2) +
               Words{"--set", "units.layers_per_unit=2", "--set", "recompute=full", "--set", "prefetch.forward=2"}}) {
    const RunRecord rest = record("rest", resume + ranks);
    EXPECT_EQ(rest.first_step, 4);
    EXPECT_EQ(rest.parameter_hash, whole.parameter_hash);
    EXPECT_EQ(rest.losses, second_half);
  }
  // Two replicas add in an order of their own; 1x2 has the same one.
  const RunRecord replicas = record("replicas", resume + mesh(2, 2));
  const RunRecord reference = record("reference", resume + mesh(1, 2));
  expect_same(replicas, reference);
  EXPECT_NE(replicas.parameter_hash, whole.parameter_hash);
  for (std::size_t i = 0; i < second_half.size(); ++i) EXPECT_NEAR(replicas.losses.at(i), second_half[i], 1e-5);
}

// In processes, with evaluations, and from checkpoints that other meshes left.
TEST_F(ExecRunTest, RanksOfTensorParallelismHaveTheSameBitsAndCheckpoints) {
  const std::string model = write("wide.json", R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 256,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": false
  })");
  const Words words =
      kFourPerStep + Words{"--model", model, "--sequence", "16", "--set", "reduction_order=microbatch_4", "--set",
                         "optimizer.clip_norm=1", "--set", "evaluation.every=2"};
  const auto cut = [](int tp, int shard) {
    return Words{"--set", "mesh.tp=" + std::to_string(tp), "--set", "mesh.shard=" + std::to_string(shard), "--spawn",
        std::to_string(tp * shard)};
  };
  const RunRecord whole = record("whole", words + Words{"--steps", "4"});
  ASSERT_EQ(whole.losses.size(), 4U);
  expect_same(record("tp2", words + Words{"--steps", "4"} + cut(2, 2)), whole);
  const std::vector<double> second_half(whole.losses.begin() + 2, whole.losses.end());
  const std::pair<Words, Words> meshes[] = {{cut(2, 2), mesh(1)}, {mesh(2), cut(4, 1)}, {cut(4, 1), cut(2, 1)}};
  int next = 0;
  for (const auto& [before, after] : meshes) {
    const std::string saved = path("saved" + std::to_string(next++));
    record("half", words + before + Words{"--steps", "2", "--checkpoint", saved});
    const RunRecord rest = record("rest", words + after + Words{"--steps", "4", "--resume", saved});
    EXPECT_EQ(rest.parameter_hash, whole.parameter_hash);
    EXPECT_EQ(rest.losses, second_half);
    ASSERT_EQ(rest.evaluations.size(), 1U);
    EXPECT_EQ(rest.evaluations.back(), whole.evaluations.back());
  }
}

TEST_F(ExecRunTest, ARunWhoseStepsAreDoneSaysSo) {
  record("first", {"--steps", "3", "--checkpoint", path("saved")});
  const ChildOutcome outcome = run({"--steps", "3", "--resume", path("saved")});
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "nothing to do: step 3 of 3 is done")) << outcome.output;
}

TEST_F(ExecRunTest, ATornNewestCheckpointIsPassedOver) {
  const Words words = kFourPerStep + Words{"--steps", "4"};
  const RunRecord whole = record("whole", words);
  record("first", words + Words{"--checkpoint", path("saved"), "--checkpoint-every", "2"});
  std::vector<fs::path> saved;
  for (const auto& entry : fs::directory_iterator(path("saved"))) {
    if (entry.is_directory()) saved.push_back(entry.path());
  }
  std::ranges::sort(saved);
  ASSERT_EQ(saved.size(), 2U);
  for (const auto& entry : fs::directory_iterator(saved[1])) {
    if (entry.path().extension() == ".safetensors") fs::resize_file(entry.path(), fs::file_size(entry.path()) / 2);
  }
  const ChildOutcome outcome = run(words + Words{"--resume", path("saved"), "--out", path("second")} + mesh(2));
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, saved[1].filename().string())) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "after step 2")) << outcome.output;
  EXPECT_EQ(read_run_folder(folder_ / "second").parameter_hash, whole.parameter_hash);
  const ChildOutcome refused = run(words + Words{"--resume", saved[1].string()});
  EXPECT_EQ(refused.code, 3);
  EXPECT_TRUE(contains(refused.output, saved[1].filename().string())) << refused.output;
}

TEST_F(ExecRunTest, AnotherSeedIsNotResumed) {
  record("first", {"--steps", "1", "--checkpoint", path("saved")});
  const ChildOutcome outcome = run({"--steps", "2", "--resume", path("saved"), "--set", "seed=7"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_TRUE(contains(outcome.output, "seed is 7, was 1")) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "--accept-changes seed")) << outcome.output;
  EXPECT_EQ(run({"--steps", "2", "--resume", path("saved"), "--set", "seed=7", "--accept-changes", "seed"}).code, 0);
}

// Each is refused with its key, goes on when it is accepted, and is told.
TEST_F(ExecRunTest, WhatChangesTheNumbersIsNotResumedUnlessItIsAccepted) {
  record("first", kFourPerStep + Words{"--steps", "1", "--checkpoint", path("saved")});
  std::string text = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
  "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 256,
  "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 20000.0,
  "tie_word_embeddings": false
})";
  const std::string other_data = write("other.txt", std::string(20'000, 'b'));
  const Words resume = {"--steps", "2", "--resume", path("saved")};
  const std::vector<std::pair<std::string, Words>> changes = {
      {"data", {"--data", other_data, "--set", "batch.global=4"}},
      {"batch.sequence", {"--set", "batch.sequence=32", "--set", "batch.global=4"}},
      {"batch.global", {"--set", "batch.global=8"}},
      {"optimizer.epsilon", {"--set", "optimizer.epsilon=1e-6", "--set", "batch.global=4"}},
      {"optimizer.learning_rate", {"--set", "optimizer.learning_rate=1e-3", "--set", "batch.global=4"}},
      {"optimizer.kind", {"--set", "optimizer.kind=sgd", "--set", "batch.global=4"}},
      {"reduction_order", {"--set", "reduction_order=library", "--set", "batch.global=4"}},
      {"model.norm_epsilon,model.rope_theta",
          {"--model", write("other.json", text), "--sequence", "16", "--set", "batch.global=4"}}};
  for (const auto& [keys, words] : changes) {
    SCOPED_TRACE(keys);
    const ChildOutcome refused = run(resume + words);
    EXPECT_EQ(refused.code, 3) << refused.output;
    EXPECT_TRUE(contains(refused.output, "--accept-changes " + keys)) << refused.output;
    const ChildOutcome accepted = run(resume + words + Words{"--accept-changes", keys});
    if (keys == "optimizer.kind") continue;  // sgd has no use for the moments: the state differs
    EXPECT_EQ(accepted.code, 0) << accepted.output;
    EXPECT_TRUE(contains(accepted.output, "changed since the checkpoint: ")) << accepted.output;
  }
  const ChildOutcome misspelt = run(resume + kFourPerStep + Words{"--accept-changes", "sed"});
  EXPECT_EQ(misspelt.code, 2);
  EXPECT_TRUE(contains(misspelt.output, "did you mean seed?")) << misspelt.output;
}

TEST_F(ExecRunTest, AnotherJobsCheckpointsAreLeftAlone) {
  record("first", {"--steps", "2", "--checkpoint", path("saved")});
  const ChildOutcome other = run({"--steps", "1", "--checkpoint", path("saved"), "--set", "optimizer.beta2=0.99"});
  EXPECT_EQ(other.code, 3);
  EXPECT_TRUE(contains(other.output, "checkpoints of another job: optimizer.beta2 is 0.99")) << other.output;
  // The same job from its start keeps what is further.
  const ChildOutcome again =
      run({"--steps", "1", "--checkpoint", path("saved"), "--checkpoint-keep", "1", "--out", path("again")});
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_TRUE(contains(again.output, "holds step 2 of this job already")) << again.output;
  EXPECT_TRUE(fs::exists(path("saved/step-00000002")));
}

}
}
