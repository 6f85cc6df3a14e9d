// A property for each key, in the order of the table, inside the mapping that its path names; what
// several types share are definitions.

#include <nlohmann/json.hpp>
#include <string>

#include "sim/spec/plan_keys.h"
#include "sim/spec/preset.h"

namespace foreshard {
namespace {

constexpr const char* kDefinitions = R"({
  "reshard": {"oneOf": [{"enum": ["always", "never"]},
                        {"type": "integer", "minimum": 1, "maximum": 1048576}]},
  "recompute": {"enum": ["none", "full", "selective"]},
  "numbers": {"description": "A number, a range such as 0-30, or all, which comes first and holds where no range does.",
              "oneOf": [{"type": "integer", "minimum": 0, "maximum": 9999999},
                        {"type": "string", "pattern": "^([0-9]{1,7}(-[0-9]{1,7})?|all)$"}]}
})";

Json words_of(const PlanKeyType& type) {
  Json words = Json::array();
  for (std::size_t i = 0; i < type.words; ++i) words.push_back(type.word(i));
  return words;
}

Json number_of(const PlanKeyType& type) {
  if (type.kind == PlanKeyType::Kind::kInteger) {
    Json integer = {{"type", "integer"}, {"minimum", type.least}};
    if (type.most < PlanKeyType{}.most) integer["maximum"] = type.most;
    return integer;
  }
  Json number = {{"type", "number"}, {type.above_least ? "exclusiveMinimum" : "minimum", type.least_number}};
  if (type.most_number < PlanKeyType{}.most_number)
    number[type.below_most ? "exclusiveMaximum" : "maximum"] = type.most_number;
  return number;
}

Json schema_of(const PlanKeyType& type) {
  switch (type.kind) {
    case PlanKeyType::Kind::kFlag: return {{"type", "boolean"}};
    case PlanKeyType::Kind::kWords: return {{"enum", words_of(type)}};
    case PlanKeyType::Kind::kInteger:
    case PlanKeyType::Kind::kNumber:
      if (type.words == 0) return number_of(type);
      return {{"oneOf", {{{"enum", words_of(type)}}, number_of(type)}}};
    case PlanKeyType::Kind::kOther: return Json::parse(type.schema);
  }
  return {};
}

// Names, and the versions of those that have some: accelerate(@1\.[0-9]+...)?
Json schema_of_trainer() {
  std::string pattern;
  Json examples = Json::array();
  for (const Preset* trainer : presets(PresetKind::kTrainer)) {
    pattern += trainer->name;
    examples.push_back(trainer->name);
    for (const std::string& version : trainer->versions) examples.push_back(trainer->name + "@" + version);
    if (!trainer->versions.empty()) {
      const std::string& version = trainer->versions.front();
      pattern += "(@" + version.substr(0, version.find('.')) + R"(\.[0-9]+(\.[0-9]+)?)?)";
    }
    pattern += "|";
  }
  return {{"pattern", "^(" + pattern + "none)$"}, {"examples", examples}};
}

Json schema_of(const PlanKey& key) {
  static const Plan kUsual;
  Json schema = {{"description", key.says()}};
  schema.update(schema_of(key.type));
  if (key.path == "stack") {
    Json words = json_list(presets(PresetKind::kStack), [](const Preset* preset) -> Json { return preset->name; });
    words.push_back("none");
    schema["enum"] = std::move(words);
  }
  if (key.path == "trainer") schema.update(schema_of_trainer());
  if (key.value != nullptr && !key.open) schema["default"] = key.value(kUsual);
  if (!key.default_word.empty()) schema["default"] = key.default_word;
  return schema;
}

Json mapping(std::string_view says) {
  return {{"description", says}, {"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}};
}

}

Json plan_schema() {
  Json root = {{"$schema", "http://json-schema.org/draft-07/schema#"}, {"title", "Foreshard plan"}};
  root.update(mapping("How a training step runs. Every key may be left out: what is missing is assumed and printed."));
  for (const PlanKey& key : plan_key_table()) {
    const std::size_t dot = key.path.find('.');
    const std::string group(key.path.substr(0, dot == std::string_view::npos ? 0 : dot));
    Json& all = root["properties"];
    if (!group.empty() && !all.contains(group)) all[group] = mapping(plan_group_says(group));
    Json& holder = group.empty() ? all : all[group]["properties"];
    holder[std::string(key.path.substr(group.empty() ? 0 : dot + 1))] = schema_of(key);
  }
  root["definitions"] = Json::parse(kDefinitions);
  return root;
}

}
