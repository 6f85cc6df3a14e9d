// The keys of a plan file, for the parts of plan_config.h only.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "sim/base/config.h"
#include "sim/base/json.h"
#include "sim/spec/plan_config.h"

namespace foreshard {

struct PlanKey {
  std::string_view path;  // dotted; its prefixes are the mappings that hold it
  void (*read)(const ConfigNode&, PlanDocument&);
  // nullptr: another key says it; null: nothing to say.
  Json (*write)(const Plan&);
  bool (*belongs)(RuntimeKind) = nullptr;  // runtimes that have the key; nullptr: all
};

// In the order of to_yaml.
std::span<const PlanKey> plan_key_table();

// Keys of RuntimeOptions (runtime_options.h): fsdp1.*, ddp.*, zero.*; part of that table.
std::span<const PlanKey> runtime_option_keys();

// A value of to_json(Plan) as YAML on one line; for words of a plan, which need no quotes.
std::string yaml_value(const Json& value);

}  // namespace foreshard
