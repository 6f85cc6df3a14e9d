// A preset's file is called as the preset is, and its line of runtimes says whom it is for: so what
// nobody asked for is not read, which takes longer than a small forecast.
#include "sim/spec/preset.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <mutex>

#include "sim/base/embedded.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"
#include "sim/base/spelling.h"
#include "sim/spec/checks/capabilities.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/plan_keys.h"
#include "sim/spec/plan_values.h"

namespace foreshard {
namespace {

std::vector<PresetRule> read_rules(const ConfigNode& list, const std::string& source) {
  std::vector<PresetRule> rules;
  for (const ConfigNode& node : list.elements()) {
    node.allow_only({"source", "when", "needs", "set", "keys"});
    PresetRule& rule = rules.emplace_back();
    const bool has_source = source.empty() || node.has("source");
    rule.source = has_source ? node.at("source").as_string() : source;
    if (node.has("when")) rule.when = Condition(node.at("when").as_string());
    if (node.has("needs")) rule.needs = node.at("needs").as_string();
    if (node.has("keys")) rule.rules = read_rules(node.at("keys"), rule.source);
    if (!node.has("set")) continue;
    for (const ConfigItem& item : node.at("set").items()) {
      if (find_plan_key(item.key) == nullptr) throw item.value.error("no key of a plan", "dotted paths");
      rule.set.emplace_back(item.key, item.value);
    }
  }
  return rules;
}

// "sim/spec/stacks/fms_fsdp.yaml" -> "fms_fsdp"
std::string_view name_of(const EmbeddedFile& file) {
  const std::size_t begin = file.path.rfind('/') + 1;
  return file.path.substr(begin, file.path.rfind('.') - begin);
}

Preset read_file(const EmbeddedFile& file) {
  static constexpr std::array kRuntimes = {RuntimeKind::kFsdp2, RuntimeKind::kNative, RuntimeKind::kFsdp1,
      RuntimeKind::kDdp, RuntimeKind::kMegatron, RuntimeKind::kZero1, RuntimeKind::kZero2, RuntimeKind::kZero3};
  const ConfigNode root = parse_yaml(file.content, file.path);
  root.allow_only({"description", "runtimes", "versions", "keys"});
  Preset preset = {.name = std::string(name_of(file)), .description = root.at("description").as_string()};
  for (const ConfigNode& runtime : root.at("runtimes").elements())
    preset.runtimes.push_back(read_word(runtime, kRuntimes));
  if (root.has("versions"))
    for (const ConfigNode& version : root.at("versions").elements()) preset.versions.push_back(version.as_string());
  preset.rules = read_rules(root.at("keys"), "");
  return preset;
}

bool trains_with(const EmbeddedFile& file, RuntimeKind runtime) {
  constexpr std::string_view kKey = "\nruntimes:";
  const std::string_view text = file.content;
  const std::size_t begin = text.find(kKey) + kKey.size();
  const std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
  return contains(line, to_string(runtime));
}

class PresetFile {
 public:
  explicit PresetFile(const EmbeddedFile& file) : file_(file) {}
  const EmbeddedFile& file() const { return file_; }
  const Preset& preset() {
    std::call_once(is_read_, [&] { preset_ = read_file(file_); });
    return preset_;
  }

 private:
  const EmbeddedFile& file_;
  std::once_flag is_read_;
  Preset preset_;
};

std::deque<PresetFile>& files_of(PresetKind kind) {
  static std::deque<PresetFile> stacks(stack_files().begin(), stack_files().end());
  static std::deque<PresetFile> trainers(trainer_files().begin(), trainer_files().end());
  return kind == PresetKind::kStack ? stacks : trainers;
}

// Of a name in `node`'s text, which may go on behind it.
std::string read_name(PresetKind kind, const ConfigNode& node, const std::string& name) {
  if (name == "none") return "";
  std::vector<std::string> names = {"none"};
  for (const PresetFile& each : files_of(kind)) names.emplace_back(name_of(each.file()));
  if (contains(names, name)) return name;
  throw node.error(
      fmt::format("{} is no {}", quote(node.as_string()), kind == PresetKind::kStack ? "stack" : "trainer"),
      fmt::format("one of {}", fmt::join(names, ", ")), nearest_spelling(name, names));
}

constexpr std::int32_t kUnsaid = std::numeric_limits<std::int32_t>::max();

// The value as a plan file would have it.
ConfigNode plain(const ConfigNode& value, const PlanDocument& document, const ModelSpec& model) {
  if (!value.is_mapping()) return value;
  const ConfigItem& item = value.items().front();
  const Plan& plan = document.plan;
  if (item.key == "as") {
    const PlanKey* key = find_plan_key(item.value.text());
    if (key == nullptr) throw item.value.error("no key of a plan", "dotted paths");
    return parse_yaml(yaml_value(key->write(plan)), value.location().file);
  }
  static constexpr std::string_view kUnits[] = {"root", "first", "last_block", "last"};
  value.allow_only(kUnits);
  const std::int64_t last = unit_count(plan, model) - 1;
  const std::int64_t places[] = {
      0, has_root_unit(plan, model) ? 1 : 0, last - (plan.units.head == UnitPlacement::kRoot ? 0 : 1), last};
  std::vector<std::string> units;
  for (const ConfigItem& each : value.items()) {
    const auto* const unit = std::ranges::find(kUnits, each.key);
    units.push_back(fmt::format("{{units: {}, value: {}}}", places[unit - std::begin(kUnits)], each.value.text()));
  }
  return parse_yaml(fmt::format("[{}]", fmt::join(units, ", ")), value.location().file);
}

void fill(const std::vector<PresetRule>& rules, const ModelSpec& model, PlanDocument& document) {
  for (const PresetRule& rule : rules) {
    if (!rule.when.holds(document, model)) continue;
    if (!rule.needs.empty() && !has_capability(document.plan.runtime, rule.needs)) continue;
    for (const auto& [path, value] : rule.set) {
      const PlanKey& key = *find_plan_key(path);
      if (document.has(path) || !key.belongs_to(document.plan.runtime.kind)) continue;
      key.read(key, plain(value, document, model), document);
      document.given.emplace(path, GivenKey{PlanLayer::kPreset, value.location()});
    }
    fill(rule.rules, model, document);
  }
}

}

std::vector<const Preset*> presets(PresetKind kind) {
  return list_of<const Preset*>(
      files_of(kind), [&](PresetFile& each) { return &each.preset(); });
}

std::vector<const Preset*> presets_of(PresetKind kind, RuntimeKind runtime) {
  std::vector<const Preset*> list;
  for (PresetFile& each : files_of(kind)) {
    if (!trains_with(each.file(), runtime)) continue;
    const std::vector<RuntimeKind>& all = each.preset().runtimes;
    if (contains(all, runtime)) list.push_back(&each.preset());
  }
  return list;
}

const Preset* find_preset(PresetKind kind, std::string_view name) {
  for (PresetFile& each : files_of(kind))
    if (name_of(each.file()) == name) return &each.preset();
  return nullptr;
}

std::string read_stack(const ConfigNode& node) { return read_name(PresetKind::kStack, node, node.as_string()); }

void read_trainer(const ConfigNode& node, PlanDocument& document) {
  const std::string text = node.as_string();
  const std::size_t at = text.find('@');
  document.trainer = read_name(PresetKind::kTrainer, node, text.substr(0, at));
  document.trainer_version = at == std::string::npos ? "" : text.substr(at + 1);
  if (at == std::string::npos) return;
  const Preset* trainer = find_preset(PresetKind::kTrainer, document.trainer);
  if (trainer != nullptr && !trainer->versions.empty() && trainer_minor(document) < kUnsaid) return;
  std::string versions;
  for (const Preset* each : presets(PresetKind::kTrainer))
    for (const std::string& v : each->versions) versions += fmt::format("{}@{}, ", each->name, v);
  throw node.error(quote(text) + " is no version of a trainer that is told apart", versions + "or the name alone");
}

// (Nobody has a hundred minor versions.)
std::int32_t trainer_minor(const PlanDocument& document) {
  const auto numbers = parse_version(document.trainer_version);
  const Preset* trainer = find_preset(PresetKind::kTrainer, document.trainer);
  if (!numbers || trainer == nullptr || trainer->versions.empty()) return kUnsaid;
  const std::int32_t earlier = parse_version(trainer->versions.back())->first - numbers->first;
  return earlier < 0 ? kUnsaid : numbers->second - 100 * earlier;
}

PlanDocument with_preset(const Preset& preset, PlanDocument document, const ModelSpec& model) {
  fill(preset.rules, model, document);
  return document;
}

}
