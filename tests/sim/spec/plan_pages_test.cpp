// docs/plan-keys.md is the table of keys, and says what each is for (its last column);
// UPDATE_GOLDEN=1 writes the others.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "sim/spec/checks/capabilities.h"
#include "sim/spec/plan_keys.h"

namespace foreshard {
namespace {

constexpr RuntimeKind kRuntimes[] = {RuntimeKind::kFsdp2, RuntimeKind::kFsdp1, RuntimeKind::kDdp, RuntimeKind::kZero1,
    RuntimeKind::kZero2, RuntimeKind::kZero3, RuntimeKind::kMegatron, RuntimeKind::kNative};

std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string word(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

// What a key takes, in one cell.
std::string taken(const Json& node, const Json& definitions) {
  std::vector<std::string> parts;
  if (node.contains("$ref")) {
    const std::string name = node["$ref"];
    return taken(definitions.at(name.substr(name.rfind('/') + 1)), definitions);
  }
  if (node.contains("const")) return word(node["const"]);
  if (node.contains("enum")) {
    for (const Json& value : node["enum"]) parts.push_back(word(value));
    return fmt::format("{}", fmt::join(parts, ", "));
  }
  if (node.contains("oneOf")) {
    for (const Json& part : node["oneOf"]) parts.push_back(taken(part, definitions));
    return fmt::format("{}", fmt::join(parts, "; "));
  }
  const std::string type = node.value("type", "");
  if (type == "boolean") return "true, false";
  if (type == "string") return "text";
  if (type == "array") return "a list of " + taken(node["items"], definitions);
  if (type == "object") {
    for (const auto& [name, value] : node["properties"].items()) parts.push_back(name);
    return fmt::format("{{{}}}", fmt::join(parts, ", "));
  }
  for (const auto& [name, sign] : {std::pair{"minimum", "from "}, {"exclusiveMinimum", "above "}, {"maximum", "to "},
           {"exclusiveMaximum", "to below "}}) {
    if (node.contains(name)) parts.push_back(sign + word(node[name]));
  }
  return fmt::format("{} {}", type, fmt::join(parts, " "));
}

std::string runtimes_text(RuntimeSet set) {
  std::vector<std::string> names;
  for (const RuntimeKind kind : kRuntimes) {
    if ((set & runtimes_of(kind)) != 0) names.emplace_back(to_string(kind));
  }
  return names.size() == std::size(kRuntimes) ? "" : fmt::format("{}", fmt::join(names, ", "));
}

// Who has the key, and what of it came with a version: "fsdp2 from 2.5 (= with_head)".
std::string since_text(const PlanKey& key) {
  std::string text = runtimes_text(key.runtimes);
  for (const Capability& each : capability_table()) {
    const std::string_view term = each.asked.substr(0, each.asked.find(','));
    const std::size_t end = term.find(' ');
    if (each.since == kNotYet || term.substr(0, end) != key.path) continue;
    text += fmt::format("{}{} from 2.{} ({})", text.empty() ? "" : "; ", runtimes_text(each.runtimes), each.since,
        term.substr(end + 1));
  }
  return text;
}

std::string keys_page() {
  const Json schema = plan_schema();
  std::string rows;
  std::set<std::string_view> groups;
  for (const PlanKey& key : plan_key_table()) {
    const Json* node = &schema["properties"];
    const std::size_t dot = key.path.find('.');
    if (dot != std::string_view::npos) {
      const std::string_view of = key.path.substr(0, dot);
      if (groups.insert(of).second && !plan_group_says(of).empty()) {
        rows += fmt::format("|`{}`|keys|||{}|\n", of, plan_group_says(of));
      }
      node = &(*node)[std::string(key.path.substr(0, dot))]["properties"];
    }
    const Json& entry = (*node)[std::string(key.path.substr(dot == std::string_view::npos ? 0 : dot + 1))];
    const std::string usual = entry.contains("default") ? word(entry["default"]) : "";
    rows += fmt::format("|`{}`|{}|{}|{}|{}|\n", key.path, cell(taken(entry, schema["definitions"])), usual,
        since_text(key), cell(key.says()));
  }
  return "# Keys of a plan\n\nThe table of `sim/spec/keys/`, which reader and `foreshard "
         "schema plan` are made of (the test `PlanPages` writes\nall but the last column, which is "
         "written here and built in); what the keys mean together is in [plan.md](plan.md).\n\n"
         "|key|takes|default|runtimes||\n|---|---|---|---|---|\n" +
         rows;
}

void expect_page(const std::string& name, const std::string& text) {
  const auto path = std::filesystem::path(FORESHARD_SOURCE_DIR) / "docs" / name;
  if (std::getenv("UPDATE_GOLDEN") != nullptr) std::ofstream(path) << text;
  std::stringstream is;
  is << std::ifstream(path).rdbuf();
  EXPECT_TRUE(is.str() == text) << path << " is not its table; UPDATE_GOLDEN=1 writes it";
}

TEST(PlanPages, EachKeyIsDocumented) {
  for (const PlanKey& key : plan_key_table()) EXPECT_GT(key.says().size(), 10u) << key.path;
}

TEST(PlanPages, KeysAreTheirTable) { expect_page("plan-keys.md", keys_page()); }

}
}
