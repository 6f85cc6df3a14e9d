// The keys of a plan file: name, type, range, default and runtimes, with what reads and writes each. The reader
// (plan_config.h), `foreshard schema plan` (plan_schema()), docs/plan-keys.md, completion, ranges and conditions of
// capabilities (checks/capabilities.h) are made of these rows; nothing else repeats them. One line of documentation
// each is the last column of that page, which is built in.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "sim/base/config.h"
#include "sim/base/json.h"
#include "sim/spec/plan_config.h"

namespace foreshard {

// Runtimes as bits.
using RuntimeSet = std::uint32_t;
template <typename... Kinds>
constexpr RuntimeSet runtimes_of(Kinds... kinds) {
  return ((RuntimeSet{1} << static_cast<unsigned>(kinds)) | ...);
}
inline constexpr RuntimeSet kEveryRuntime = ~RuntimeSet{0};

// What a key takes: one of its words, or a number of its range, or what `schema` says.
struct PlanKeyType {
  enum class Kind : std::uint8_t { kFlag, kWords, kInteger, kNumber, kOther };
  Kind kind = Kind::kFlag;
  const char* (*word)(std::size_t) = nullptr;  // of `words`, also beside numbers
  std::size_t words = 0;
  std::int64_t least = 0;  // kInteger
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
  double least_number = 0;  // kNumber
  double most_number = std::numeric_limits<double>::max();
  bool above_least = false;  // the ends themselves are out of range
  bool below_most = false;
  const char* schema = nullptr;  // kOther: JSON Schema
};

struct PlanKey {
  std::string_view path;  // dotted; its prefixes are the mappings that hold it
  PlanKeyType type;
  void (*read)(const PlanKey&, const ConfigNode&, PlanDocument&);
  Json (*value)(const Plan&) = nullptr;  // nullptr: another key says it
  bool quiet = false;                    // not written where it is the default ...
  bool open = false;                     // its default follows from the job: its line tells it
  RuntimeSet runtimes = kEveryRuntime;   // that have the key
  std::string_view default_word = "";    // of a key without `value`
  bool (*told)(const Plan&) = nullptr;   // ... but here, where a stack would set another

  bool belongs_to(RuntimeKind kind) const { return (runtimes & runtimes_of(kind)) != 0; }
  std::string_view says() const;  // its line of documentation
  // Its value as a plan file has it; null: nothing to say.
  Json write(const Plan& plan) const;
};

// In the order of to_yaml.
std::span<const PlanKey> plan_key_table();

// Those that only some runtimes have (runtime_options.h): fsdp1.*, ddp.*, zero.*.
std::span<const PlanKey> library_keys();

const PlanKey* find_plan_key(std::string_view path);  // nullptr: no such key

// What a mapping of keys is about: "batch". "" where nothing is said.
std::string_view plan_group_says(std::string_view group);

// to_yaml() of what is said of every key of the plan's runtime (null: nothing).
std::string to_yaml(const Plan& plan, const std::function<Json(const PlanKey&)>& said);

// A value of to_json(Plan) as YAML on one line; for words of a plan, which need no quotes.
std::string yaml_value(const Json& value);

// The JSON Schema (draft 7) of a plan file, from the table of keys (plan_keys.h).

Json plan_schema();

}
