#include "tests/exec/cli/run_fixture.h"

#include <unistd.h>

#include <fstream>

#include "sim/base/lookup.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
  "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 256,
  "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
  "tie_word_embeddings": false
})";

}

ExecRunTest::ExecRunTest() {
  write("model.json", kModel);
  std::string text;
  for (int i = 0; text.size() < 20'000; ++i) text += "line " + std::to_string(i * i % 997) + " of the text\n";
  write("text.txt", text);
}

std::string ExecRunTest::write(const std::string& name, const std::string& content) const {
  return folder_.write(name, content).string();
}

Words ExecRunTest::command(const Words& words) const {
  Words all = {FORESHARD_EXEC_PROGRAM, "run"};
  const auto gives = [&](const char* flag) { return contains(words, flag); };
  if (!gives("--plan") && !gives("--model")) all = all + Words{"--model", path("model.json"), "--sequence", "16"};
  if (!gives("--data")) all = all + Words{"--data", path("text.txt")};
  if (!gives("--out")) all = all + Words{"--out", path("run")};
  return all + words;
}

ChildProcess ExecRunTest::start(const Words& words, const Variables& variables) const {
  return ChildProcess(command(words), variables);
}

ChildOutcome ExecRunTest::run(const Words& words, const Variables& variables) const {
  return start(words, variables).finish();
}

RunRecord ExecRunTest::record(const std::string& name, const Words& words, const Variables& variables) const {
  const ChildOutcome outcome = run(words + Words{"--out", path(name)}, variables);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  return outcome.code == 0 ? read_run_folder(folder_ / name) : RunRecord{};
}

ChildOutcome ExecRunTest::shell(const std::string& commands) const {
  return ChildProcess(
      {"/bin/sh", "-c",
          "cd '" + folder_.path().string() +
              "' && E='" FORESHARD_EXEC_PROGRAM " run --model model.json --sequence 16' && " + commands})
      .finish();
}

Words mesh(int shard, int replicate) {
  Words words = {
      "--set", "mesh.shard=" + std::to_string(shard), "--set", "mesh.replicate=" + std::to_string(replicate)};
  if (shard * replicate > 1) words = words + Words{"--spawn", std::to_string(shard * replicate)};
  return words;
}

Words operator+(Words words, const Words& more) {
  append(words, more);
  return words;
}

std::map<int, int> ranks_of(int launcher) {
  const std::string process = std::to_string(launcher);
  std::ifstream children("/proc/" + process + "/task/" + process + "/children");
  std::map<int, int> ranks;
  for (int child = 0; children >> child;) {
    std::ifstream file("/proc/" + std::to_string(child) + "/environ", std::ios::binary);
    for (std::string variable; std::getline(file, variable, '\0');) {
      if (variable.starts_with("RANK=")) ranks[std::stoi(variable.substr(5))] = child;
    }
  }
  return ranks;
}

}
