// Reading walks the tree of a file along the table of keys. An assignment `a.b=value` is read as the file
//     a:
//       b:
//         value
// and its errors are moved to the text the user wrote.
#include "sim/spec/plan_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/base/spelling.h"
#include "sim/spec/plan_keys.h"
#include "sim/spec/plan_values.h"

namespace foreshard {
namespace {

// The names that may follow `prefix` ("" or "mesh."), each once, in the order of the table.
std::vector<std::string_view> names_below(std::string_view prefix) {
  std::vector<std::string_view> names;
  for (const PlanKey& key : plan_key_table()) {
    if (!key.path.starts_with(prefix)) continue;
    std::string_view name = key.path.substr(prefix.size());
    name = name.substr(0, name.find('.'));
    if (names.empty() || names.back() != name) names.push_back(name);
  }
  return names;
}

// Two ways to say the same: what a later layer says undoes the other of an earlier one.
void forget_other_spelling(std::string_view path, PlanLayer layer, PlanDocument& document) {
  const bool is_global = path == "batch.global";
  if (!is_global && path != "batch.accumulation") return;
  const auto other = document.given.find(is_global ? "batch.accumulation" : "batch.global");
  if (other == document.given.end() || other->second.layer == layer) return;
  document.given.erase(other);
  if (!is_global) document.global_batch.reset();
}

void read_below(const ConfigNode& node, const std::string& prefix, PlanLayer layer, PlanDocument& document) {
  if (!node.is_mapping()) {
    const std::vector<std::string_view> names = names_below(prefix);
    if (prefix.empty()) throw node.error("no plan stands here", "'key: value' lines, for example model: llama-3.1-8b");
    throw node.error("no mapping stands here", fmt::format("{{{}: ...}}", fmt::join(names, ": ..., ")));
  }
  const std::vector<std::string_view> names = names_below(prefix);
  node.allow_only(std::span<const std::string_view>(names));
  const std::span<const PlanKey> table = plan_key_table();
  for (const ConfigItem& item : node.items()) {
    const std::string path = prefix + item.key;
    const auto key = std::ranges::find(table, path, &PlanKey::path);
    if (key == table.end()) {
      read_below(item.value, path + ".", layer, document);
      continue;
    }
    forget_other_spelling(path, layer, document);
    key->read(*key, item.value, document);
    document.given.insert_or_assign(path, GivenKey{layer, item.value.location()});
  }
}

// `error`, at another place. Its text without the old place follows the new one.
ConfigError moved(const ConfigError& error, Location location) {
  const std::string place = ConfigError(error.location(), "").what();
  std::string text = error.what();
  if (text.starts_with(place)) text.erase(0, place.size());
  return {std::move(location), text};
}

struct Written {
  PlanLayer layer;
  std::string_view source;  // "--set", "--sequence": what errors call the file
  std::string_view key;
  std::string_view text;
  int text_column;  // of `text` in what the user wrote
};

void require_known(const Written& assignment) {
  const std::string_view key = assignment.key;
  auto known = list_of<std::string>(plan_key_table(), &PlanKey::path);
  for (const std::string_view above : names_below(""))
    if (!contains(known, above)) known.emplace_back(above);
  if (contains(known, key)) return;
  std::string near = nearest_spelling(key, known);
  const std::string last = "." + std::string(key.substr(key.rfind('.') + 1));
  for (const std::string& path : known)  // "shard" for mesh.shard, "adapters.rank" for lora.rank
    if (near.empty() && path.ends_with(last)) near = path;
  Location location{std::string(assignment.source), 1, 1, ""};
  throw ConfigError(std::move(location), "unknown key " + quote(key), "a key of a plan such as mesh.shard", near);
}

// The assignment as a file of its own: one line for each step of the key, then the value.
struct NestedYaml {
  std::string text;
  int key_lines = 0;
  int indent = 0;  // of the value
};

NestedYaml nested(const Written& assignment) {
  NestedYaml yaml;
  const std::string_view key = assignment.key;
  const auto indentation = [&] { return std::string(at(yaml.indent), ' '); };
  for (std::size_t begin = 0; begin <= key.size();) {
    const std::size_t end = std::min(key.find('.', begin), key.size());
    yaml.text += indentation() + std::string(key.substr(begin, end - begin)) + ":\n";
    begin = end + 1;
    yaml.indent += 2;
    ++yaml.key_lines;
  }
  yaml.text += indentation() + std::string(assignment.text) + "\n";
  return yaml;
}

// A place in `yaml` as a place in what the user wrote; the lines of the key stand for the value.
Location place(const Written& assignment, const NestedYaml& yaml, const Location& location) {
  const bool is_in_value = location.line > yaml.key_lines;
  const int offset = is_in_value ? std::max(0, location.column - 1 - yaml.indent) : 0;
  return {std::string(assignment.source), 1, assignment.text_column + offset, location.key_path};
}

PlanDocument assign(PlanDocument document, const Written& assignment) {
  require_known(assignment);
  const NestedYaml yaml = nested(assignment);
  if (assignment.text.find_first_of("\r\n") != std::string_view::npos) {
    throw ConfigError(place(assignment, yaml, {"", 1, 1, std::string(assignment.key)}),
        "the value has more than one line", "YAML on one line, for example [{units: 0-30, value: always}]");
  }
  try {
    read_below(parse_yaml(yaml.text, assignment.source), "", assignment.layer, document);
  } catch (const ConfigError& error) {
    throw moved(error, place(assignment, yaml, error.location()));
  }
  for (auto& [path, given] : document.given) {
    const bool is_source = given.layer == assignment.layer && given.location.file == assignment.source;
    // Places of earlier assignments are on line 1 already.
    if (is_source && given.location.line > yaml.key_lines) given.location = place(assignment, yaml, given.location);
  }
  return document;
}

const std::string& required(
    const PlanDocument& document, const char* key, const std::string& value, const char* example) {
  if (document.has(key)) return value;
  if (!document.file.empty()) {
    throw ConfigError({document.file, 0, 0, key}, "the key is missing",
        fmt::format("{}: {} in the plan or --{} {}", key, example, key, example));
  }
  throw Error(ExitCode::kUsage, "no {0}: add --{0} {1}, or --plan FILE", key, example);
}

// Words that YAML readers take for something else, and text that is no plain scalar, get quotes.
std::string yaml_string(const std::string& text) {
  static constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./@+-";
  static constexpr std::string_view kWords[] = {"true", "false", "yes", "no", "on", "off", "null", "y", "n", "none"};
  const bool starts_plain = !text.empty() && !contains(std::string_view("@+-."), text[0]);
  const bool is_number = text.find_first_not_of("0123456789.+-eExXinfaINFA_") == std::string::npos;
  const bool is_word = contains(kWords, lower(text));
  if (starts_plain && !is_number && !is_word && text.find_first_not_of(kPlain) == std::string::npos) return text;
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool is_name(std::string_view path) { return path == "model" || path == "cluster"; }

}

PlanDocument read_plan(const ConfigNode& root) {
  PlanDocument document = {.file = root.location().file};
  read_below(root, "", PlanLayer::kFile, document);
  return document;
}

PlanDocument read_plan_file(const std::filesystem::path& path) { return read_plan(read_config_file(path)); }

PlanDocument apply_set(PlanDocument document, std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw ConfigError(
        {"--set", 1, 1, ""}, quote(assignment) + " is no assignment", "key=value, for example mesh.shard=8");
  }
  return assign(
      std::move(document), {PlanLayer::kSet, "--set", assignment.substr(0, equals), assignment.substr(equals + 1),
                               static_cast<int>(std::min<std::size_t>(equals, 1000)) + 2});
}

PlanDocument apply_flag(PlanDocument document, std::string_view flag, std::string_view key, std::string_view text) {
  const Written assignment{PlanLayer::kFlag, flag, key, text, 1};
  if (!is_name(key)) return assign(std::move(document), assignment);
  Location location{std::string(flag), 1, 1, std::string(key)};
  if (text.empty()) throw ConfigError(std::move(location), "nothing stands here", "a name or a path");
  (key == "model" ? document.plan.model : document.plan.cluster) = std::string(text);
  document.given.insert_or_assign(std::string(key), GivenKey{PlanLayer::kFlag, std::move(location)});
  return document;
}

const std::string& model_of(const PlanDocument& document) {
  return required(document, "model", document.plan.model, "llama-3.1-8b");
}

const std::string& cluster_of(const PlanDocument& document) {
  return required(document, "cluster", document.plan.cluster, "64xh100");
}

// Of the plan's JSON: mappings and lists in braces, the words of a plan without quotes.
std::string yaml_value(const Json& value) {
  const auto plain = [](const Json& scalar) { return scalar.is_string() ? scalar.get<std::string>() : scalar.dump(); };
  std::vector<std::string> parts;
  if (value.is_array()) {
    for (const Json& element : value) parts.push_back(yaml_value(element));
    return fmt::format("[{}]", fmt::join(parts, ", "));
  }
  if (value.is_object()) {
    for (const auto& [key, child] : value.items()) parts.push_back(fmt::format("{}: {}", key, yaml_value(child)));
    return fmt::format("{{{}}}", fmt::join(parts, ", "));
  }
  return plain(value);
}

namespace {

Json json_of(const Plan& plan, const std::function<Json(const PlanKey&)>& said) {
  Json root = Json::object();
  for (const PlanKey& key : plan_key_table()) {
    if (!key.belongs_to(plan.runtime.kind)) continue;
    const Json value = said(key);
    if (value.is_null()) continue;
    const std::size_t dot = key.path.find('.');
    if (dot == std::string_view::npos) root[std::string(key.path)] = value;
    else root[std::string(key.path.substr(0, dot))][std::string(key.path.substr(dot + 1))] = value;
  }
  return root;
}

}

Json to_json(const Plan& plan) {
  return json_of(
      plan, [&](const PlanKey& key) { return key.write(plan); });
}

std::string to_yaml(const Plan& plan) {
  return to_yaml(
      plan, [&](const PlanKey& key) { return key.write(plan); });
}

std::string to_yaml(const Plan& plan, const std::function<Json(const PlanKey&)>& said) {
  std::string text;
  const Json root = json_of(plan, said);
  for (const auto& [key, value] : root.items())
    text += fmt::format("{}: {}\n", key, is_name(key) ? yaml_string(value.get<std::string>()) : yaml_value(value));
  return text;
}

std::vector<std::string> plan_keys() { return list_of<std::string>(plan_key_table(), &PlanKey::path); }

}
