// Stacks: what a training code of one era launches and how it shards, as presets of a plan's keys
// (sim/spec/stacks/*.yaml, built into the program), each key with its source. `stack: NAME` fills
// the keys that nobody wrote.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/config.h"
#include "sim/spec/plan_config.h"

namespace foreshard {

struct StackKey {
  std::string path;  // "kernels.norm"
  ConfigNode value;
  std::string source;
  // Keys and the words of which they must have one, whoever set them: {"attention", {"fa1",
  // "fa2"}}.
  std::vector<std::pair<std::string, std::vector<std::string>>> when;
};

struct TrainingStack {
  std::string name;
  std::string description;
  std::vector<RuntimeKind> runtimes;  // that the code trains with
  std::vector<StackKey> keys;         // in the file's order
};

// By name. Files are read when they are asked for, once, and stay; ConfigError if one is wrong.
std::vector<const TrainingStack*> training_stacks();
// Those whose code trains with the runtime, by name.
std::vector<const TrainingStack*> stacks_of(RuntimeKind runtime);
// nullptr: no such stack.
const TrainingStack* find_stack(std::string_view name);

// The name at `node`, "" for none. Throws ConfigError where no stack has it.
std::string read_stack(const ConfigNode& node);

// Keys of document.stack that the document does not give, given in PlanLayer::kStack; of keys that
// only some runtimes have, those of document.plan's.
PlanDocument with_stack(PlanDocument document);

}  // namespace foreshard
