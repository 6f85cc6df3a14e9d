// An alternative of a chosen plan is a three-way merge: what the alternative changes of the job's
// own plan is changed in the chosen plan, too, but for keys that the choice has changed.
#include "sim/spec/open_stack.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <sstream>

#include "sim/base/embedded.h"
#include "sim/base/lookup.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/fsdp2_version.h"
#include "sim/spec/plan_keys.h"
#include "sim/spec/plan_values.h"

namespace foreshard {

std::span<const EmbeddedFile> stack_usage_files();

namespace {

struct StackUsage {
  std::string trainer;
  std::vector<RuntimeKind> runtimes;
  std::optional<std::int32_t> before;  // minor version of PyTorch 2
  std::vector<std::pair<std::string, double>> of_100;
};

std::vector<StackUsage> read_usage() {
  static constexpr std::string_view kKeys[] = {"trainer", "runtimes", "before", "of_100", "source"};
  static constexpr std::array kRuntimes = {
      RuntimeKind::kFsdp2, RuntimeKind::kFsdp1, RuntimeKind::kDdp,     RuntimeKind::kZero1,
      RuntimeKind::kZero2, RuntimeKind::kZero3, RuntimeKind::kMegatron};
  const EmbeddedFile& file = stack_usage_files().front();
  const ConfigNode root = parse_yaml(file.content, file.path);
  std::vector<StackUsage> list;
  for (const ConfigNode& node : root.elements()) {
    node.allow_only(kKeys);
    node.at("source").as_string();
    StackUsage& usage = list.emplace_back();
    usage.trainer = node.at("trainer").as_string();
    for (const ConfigNode& runtime : node.at("runtimes").elements()) {
      usage.runtimes.push_back(read_word(runtime, kRuntimes));
    }
    if (node.has("before")) usage.before = fsdp2_minor(node.at("before").as_string());
    for (const ConfigItem& item : node.at("of_100").items()) {
      usage.of_100.emplace_back(item.key, item.value.as_double(1, 100));
    }
  }
  return list;
}

const StackUsage* usage_of(const PlanDocument& document) {
  static const std::vector<StackUsage> all = read_usage();
  const Runtime& runtime = document.plan.runtime;
  const std::int32_t minor = fsdp2_minor(runtime.version).value_or(kNewestFsdp2);
  for (const StackUsage& usage : all) {
    const auto& kinds = usage.runtimes;
    if (usage.trainer == (document.trainer.empty() ? "none" : document.trainer) &&
        contains(kinds, runtime.kind) && (!usage.before || minor < *usage.before)) {
      return &usage;
    }
  }
  return nullptr;
}

PlanDocument with_name(PlanDocument document, const std::string& name) {
  document.stack = name == "none" ? "" : name;
  return document;
}

void share_out(std::vector<StackAlternative>& list) {
  const double sum = std::accumulate(list.begin(), list.end(), 0.0,
                                     [](double s, const auto& a) { return s + a.weight; });
  for (StackAlternative& each : list) each.weight /= sum;
}

Json value_of(const PlanKey& key, const Plan& plan) {
  return key.belongs_to(plan.runtime.kind) ? key.write(plan) : Json();
}

// Keys that an alternative changes of the job's own plan and the choice leaves, with its values.
std::vector<std::pair<std::string, Json>> still_open(const Plan& base, const Plan& alternative,
                                                     const Plan& chosen) {
  std::vector<std::pair<std::string, Json>> list;
  for (const PlanKey& key : plan_key_table()) {
    const Json is = value_of(key, base), becomes = value_of(key, alternative);
    if (is == becomes || becomes.is_null() || value_of(key, chosen) != is) continue;
    list.emplace_back(key.path, becomes);
  }
  return list;
}

Plan merged(const Plan& base, const Plan& alternative, const Plan& chosen) {
  PlanDocument document = {.plan = chosen};
  for (const auto& [path, value] : still_open(base, alternative, chosen)) {
    document = apply_set(std::move(document), fmt::format("{}={}", path, yaml_value(value)));
  }
  return std::move(document.plan);
}

}  // namespace

std::vector<StackAlternative> open_stacks(const PlanDocument& written, const ModelSpec& model,
                                          const Cluster& cluster) {
  std::vector<StackAlternative> list;
  if (written.has("stack") || cluster.host_computes) return list;
  const StackUsage* usage = usage_of(written);
  if (usage == nullptr) return list;
  for (const auto& [name, of_100] : usage->of_100) {
    try {
      const ResolvedPlan resolved = resolve(with_name(written, name), model, cluster);
      check(resolved, model, cluster);
      list.push_back({name, of_100, resolved.plan});
    } catch (const Error&) {
      continue;  // what was written does not go with this code, or with any
    }
  }
  // Whatever they set was written.
  const bool are_alike = std::ranges::all_of(
      list, [&](const StackAlternative& each) { return each.plan == list.front().plan; });
  if (are_alike && list.size() > 1) list.clear();
  share_out(list);
  return list;
}

std::vector<StackAlternative> open_stacks(const std::vector<StackAlternative>& of,
                                          const Plan& chosen, const ModelSpec& model,
                                          const Cluster& cluster) {
  if (of.empty() || chosen == of.front().plan) return of;
  std::vector<StackAlternative> list = {{of.front().name, of.front().weight, chosen}};
  for (std::size_t i = 1; i < of.size(); ++i) {
    Plan plan = merged(of.front().plan, of[i].plan, chosen);
    if (find_problem(plan, model, cluster)) continue;
    list.push_back({of[i].name, of[i].weight, std::move(plan)});
  }
  share_out(list);
  return list;
}

std::string open_yaml(const std::vector<StackAlternative>& of, const Plan& plan) {
  std::set<std::string, std::less<>> open;
  for (const StackAlternative& each : of) {
    for (const auto& [path, value] : still_open(of.front().plan, each.plan, plan)) {
      open.insert(path);
    }
  }
  std::string text;
  const Json keys = to_json(plan);
  std::istringstream lines(to_yaml(plan));
  for (std::string line; std::getline(lines, line);) {  // a line for a key of the top level
    const std::string key = line.substr(0, line.find(':'));
    if (open.contains(key)) continue;
    Json value = keys.at(key);
    const std::size_t all = value.size();
    for (const std::string& path : open) {
      if (path.starts_with(key + ".")) value.erase(path.substr(key.size() + 1));
    }
    if (value.size() < all) line = fmt::format("{}: {}", key, yaml_value(value));
    if (!value.empty() || all == 0) text += line + "\n";
  }
  return text;
}

PlanDocument with_usual_stack(PlanDocument written, const std::vector<StackAlternative>& open) {
  return open.empty() ? written : with_name(std::move(written), open.front().name);
}

std::size_t alternative_of_draw(const std::vector<double>& weights, int k) {
  // Multiples of the golden ratio, of which every prefix is spread evenly over 0..1.
  constexpr double kGolden = 0.6180339887498949;
  const double product = (k + 0.5) * kGolden;
  double left = product - std::floor(product);
  for (std::size_t i = 0; i + 1 < weights.size(); ++i) {
    if (left < weights[i]) return i;
    left -= weights[i];
  }
  return weights.empty() ? 0 : weights.size() - 1;
}

}  // namespace foreshard
