// Presets of a plan's keys, one file each, built into the program, each key with its source.
// Stacks (sim/spec/stacks/*.yaml): what a training code of one era launches and how it shards; `stack: NAME`. Trainers
// (sim/spec/trainers/*.yaml): what trainers do with fully_shard and FullyShardedDataParallel where their users say
// nothing; `trainer: NAME`. Both fill keys that nobody wrote. A runtime's version says what PyTorch does
// (fsdp2_version.h); these are defaults of the plan's keys, no semantics.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/config.h"
#include "sim/spec/checks/condition.h"
#include "sim/spec/plan_config.h"

namespace foreshard {

enum class PresetKind : std::uint8_t { kStack, kTrainer };

// Rules of a file, in its order: the first value that a key is given stays.
struct PresetRule {
  std::string source;  // a rule inside another has that one's, too
  Condition when;
  std::string needs;  // a row of capability_table() that the runtime must have; "": none
  // Key and value; of a policy over units also {UNIT: value}, for a policy that is the default
  // elsewhere (root, first: the first that is not, last), and {as: KEY}, another key's value.
  std::vector<std::pair<std::string, ConfigNode>> set;
  std::vector<PresetRule> rules;  // that hold only where this one does
};

struct Preset {
  std::string name;
  std::string description;
  std::vector<RuntimeKind> runtimes;  // that it trains with, the usual one first
  // Versions that can be told (trainer: accelerate@1.13), one on each side of a change; all others
  // of the same major version are, too.
  std::vector<std::string> versions;
  std::vector<PresetRule> rules;
};

// By name. Files are read when they are asked for, once, and stay; ConfigError if one is wrong.
std::vector<const Preset*> presets(PresetKind kind);
// Those that train with the runtime, by name.
std::vector<const Preset*> presets_of(PresetKind kind, RuntimeKind runtime);
// nullptr: no such preset.
const Preset* find_preset(PresetKind kind, std::string_view name);
inline const Preset* find_stack(std::string_view name) { return find_preset(PresetKind::kStack, name); }

// The name at `node`, "" for none. Throws ConfigError where no preset has it.
std::string read_stack(const ConfigNode& node);
// The same of document.trainer, with its version.
void read_trainer(const ConfigNode& node, PlanDocument& document);
// Of document.trainer_version, 13 of "1.13.2", less than 0 of an earlier major version than the preset's own; larger
// than all where none is said.
std::int32_t trainer_minor(const PlanDocument& document);

// The document with what the preset says of keys that the document does not give, given in
// PlanLayer::kPreset; of keys that only some runtimes have, those of document.plan's.
PlanDocument with_preset(const Preset& preset, PlanDocument document, const ModelSpec& model);

}
