// Ranks that were started with different things: each difference is named, with the rank, before the first step.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "exec/comm/rank_threads.h"
#include "exec/run/facts.h"
#include "tests/exec/cli/run_fixture.h"

namespace foreshard {
namespace {

class Agreement : public ExecRunTest {
 protected:
  // Ranks 0 and 1 by hand, rank 1 with more words and variables.
  std::vector<ChildOutcome> run_two(const Words& more, const Variables& variables) const {
    const Words both = {"--set", "mesh.shard=2", "--set", "batch.global=4", "--steps", "2"};
    const int port = free_port();
    Variables second = by_hand(1, 2, port);
    second.insert(variables.begin(), variables.end());
    ChildProcess first = start(both, by_hand(0, 2, port));
    ChildProcess other = start(both + more, second);
    return {first.finish(), other.finish()};
  }
};

struct Planted {
  const char* key;
  int code;
  Words words;
  Variables variables;
};

TEST_F(Agreement, TwelvePlantedDifferencesAreNamed) {
  const std::string model = write("rope.json", R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
  "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 256,
  "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 50000.0,
  "tie_word_embeddings": false
})");
  const std::vector<Planted> planted = {
      {"optimizer.learning_rate", 3, {"--set", "optimizer.learning_rate=0.001"}, {}},
      {"optimizer.epsilon", 3, {"--set", "optimizer.epsilon=1e-6"}, {}},
      {"seed", 3, {"--set", "seed=2"}, {}},
      {"batch.global", 3, {"--set", "batch.global=8"}, {}},
      {"recompute", 3, {"--set", "recompute=full"}, {}},
      {"mesh.shard", 3, {"--set", "mesh={shard: 1, replicate: 2}"}, {}},
      {"model.rope_theta", 3, {"--model", model, "--sequence", "16"}, {}},
      {"data", 3, {"--data", write("other.txt", std::string(20'000, 'x'))}, {}},
      {"--checkpoint-every", 7, {"--checkpoint-every", "1"}, {}},
      {"--checkpoint", 7, {"--checkpoint", path("saved")}, {}},
      {"--resume", 7, {"--resume", path("saved")}, {}},
      {"FORESHARD_TRANSPORT", 7, {}, {{"FORESHARD_TRANSPORT", "gloo"}}},
  };
  for (const Planted& difference : planted) {
    SCOPED_TRACE(difference.key);
    for (const ChildOutcome& outcome : run_two(difference.words, difference.variables)) {
      EXPECT_EQ(outcome.code, difference.code) << outcome.output;
      EXPECT_TRUE(contains(outcome.output, "rank 1 of 2 differs: ")) << outcome.output;
      EXPECT_TRUE(contains(outcome.output, std::string(difference.key) + " is ")) << outcome.output;
      EXPECT_FALSE(contains(outcome.output, "internal error")) << outcome.output;
      EXPECT_FALSE(contains(outcome.output, "step 1/")) << outcome.output;
    }
  }
  EXPECT_FALSE(std::filesystem::exists(path("run")));
  EXPECT_FALSE(std::filesystem::exists(path("saved")));
}

// --steps is given twice on no command line, so it and the version are compared here; and whoever
// is alone is named, be it rank 0.
TEST(Agree, TheRankThatIsAloneIsNamed) {
  for (const std::string key : {"--steps", "version of foreshard"}) {
    for (int odd = 0; odd < 3; ++odd) {
      try {
        for_each_rank(3, [&](World& world) {
          const std::string value = world.rank() == odd ? "two\nlines: 5" : "4";
          agree(world, "start", {{"same", "1"}, {key, value}}, ExitCode::kLaunchFailure);
        });
        ADD_FAILURE() << "nobody noticed";
      } catch (const Error& error) {
        EXPECT_EQ(error.exit_code(), ExitCode::kLaunchFailure);
        const std::string what = error.what();
        EXPECT_TRUE(contains(
            what, "rank " + std::to_string(odd) + " of 3 differs: " + key + " is two\nlines: 5 there and 4 on rank "))
            << what;
        EXPECT_FALSE(contains(what, "same is")) << what;
      }
    }
  }
  for_each_rank(3, [](World& world) { agree(world, "start", {{"same", "1"}}, ExitCode::kLaunchFailure); });
}

}
}
