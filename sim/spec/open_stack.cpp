// Who may run a chosen plan is asked of the document that its file is read as: so a search and
// whoever reads what it wrote cannot answer it differently.
#include "sim/spec/open_stack.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "sim/base/embedded.h"
#include "sim/base/lookup.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/fsdp2_version.h"
#include "sim/spec/plan_keys.h"
#include "sim/spec/plan_values.h"

namespace foreshard {
namespace {

struct StackUsage {
  std::string trainer;
  std::vector<RuntimeKind> runtimes;
  std::optional<std::int32_t> before;  // minor version of PyTorch 2
  std::vector<std::pair<std::string, double>> of_100;
};

std::vector<StackUsage> read_usage() {
  static constexpr std::string_view kKeys[] = {"trainer", "runtimes", "before", "of_100", "source"};
  static constexpr std::array kRuntimes = {RuntimeKind::kFsdp2, RuntimeKind::kFsdp1, RuntimeKind::kDdp,
      RuntimeKind::kZero1, RuntimeKind::kZero2, RuntimeKind::kZero3, RuntimeKind::kMegatron};
  const EmbeddedFile& file = stack_usage_files().front();
  const ConfigNode root = parse_yaml(file.content, file.path);
  std::vector<StackUsage> list;
  for (const ConfigNode& node : root.elements()) {
    node.allow_only(kKeys);
    node.at("source").as_string();
    StackUsage& usage = list.emplace_back();
    usage.trainer = node.at("trainer").as_string();
    for (const ConfigNode& runtime : node.at("runtimes").elements())
      usage.runtimes.push_back(read_word(runtime, kRuntimes));
    if (node.has("before")) usage.before = fsdp2_minor(node.at("before").as_string());
    for (const ConfigItem& item : node.at("of_100").items())
      usage.of_100.emplace_back(item.key, item.value.as_double(1, 100));
  }
  return list;
}

const StackUsage* usage_of(const PlanDocument& document) {
  static const std::vector<StackUsage> all = read_usage();
  const Runtime& runtime = document.plan.runtime;
  const std::int32_t minor = fsdp2_minor(runtime.version).value_or(kNewestFsdp2);
  for (const StackUsage& usage : all) {
    const auto& kinds = usage.runtimes;
    if (usage.trainer == (document.trainer.empty() ? "none" : document.trainer) && contains(kinds, runtime.kind) &&
        (!usage.before || minor < *usage.before))
      return &usage;
  }
  return nullptr;
}

PlanDocument with_name(PlanDocument document, const std::string& name) {
  document.stack = name == "none" ? "" : name;
  return document;
}

void share_out(std::vector<StackAlternative>& list) {
  const double sum =
      std::accumulate(list.begin(), list.end(), 0.0, [](double s, const auto& a) { return s + a.weight; });
  for (StackAlternative& each : list) each.weight /= sum;
}

// Also where a file would leave it out.
Json value_of(const PlanKey& key, const Plan& plan) {
  return key.value != nullptr && key.belongs_to(plan.runtime.kind) ? key.value(plan) : Json();
}

bool fills_otherwise(const PlanKey& key, const OpenStacks& of, const Json& usual) {
  const auto differs = [&](const Plan& plan) { return value_of(key, plan) != usual; };
  return std::ranges::any_of(of.codes, differs, &StackAlternative::plan) || std::ranges::any_of(of.refused, differs);
}

using Keys = std::vector<const PlanKey*>;

// The plan as its file is read.
PlanDocument read_back(const Plan& chosen, const OpenStacks& of, const Keys& unsaid) {
  static const Plan kUsual;
  PlanDocument document = {.plan = chosen, .stack = chosen.stack};
  for (const PlanKey& key : plan_key_table())
    if (contains(unsaid, &key))
      key.read(key, parse_yaml(yaml_value(key.value(kUsual)), std::string(key.path)), document);
    else if (contains(of.keys, &key) || (key.belongs_to(chosen.runtime.kind) && !key.write(chosen).is_null()))
      document.given.emplace(key.path, GivenKey{});
  return document;
}

// Without the keys.
OpenStacks codes_of(const PlanDocument& written, const ModelSpec& model, const Cluster& cluster) {
  OpenStacks open;
  if (written.has("stack") || cluster.host_computes) return open;
  const StackUsage* usage = usage_of(written);
  if (usage == nullptr) return open;
  for (const auto& [name, of_100] : usage->of_100) {
    try {
      Plan plan = resolve(with_name(written, name), model, cluster).plan;
      if (find_problem(plan, model, cluster)) open.refused.push_back(std::move(plan));
      else open.codes.push_back({name, of_100, std::move(plan)});
    } catch (const Error&) {
      continue;  // what was written goes with none
    }
  }
  // Whatever they set was written.
  const auto sets_nothing = [&](const StackAlternative& each) {
    Plan plan = each.plan;
    plan.stack.clear();
    return plan == resolve(written, model, cluster).plan;
  };
  const bool are_alike = std::ranges::all_of(
      open.codes, [&](const StackAlternative& each) { return each.plan == open.codes.front().plan; });
  if (open.codes.size() == 1 ? sets_nothing(open.codes.front()) : are_alike) open.codes.clear();
  share_out(open.codes);
  return open;
}

struct PlanFile {
  Keys unsaid;
  std::vector<StackAlternative> codes;  // that may run what is said
};

// Unsaid is what a code would fill otherwise than the first, where the choice leaves that as it is
// and the first fills it so again, of all that was chosen.
PlanFile file_of(const OpenStacks& of, const Plan& chosen, const ModelSpec& model, const Cluster& cluster) {
  PlanFile file;
  for (const PlanKey* key : of.keys) {
    const Json usual = value_of(*key, of.codes.front().plan);
    if (value_of(*key, chosen) == usual && fills_otherwise(*key, of, usual)) file.unsaid.push_back(key);
  }
  while (true) {
    const PlanDocument document = read_back(chosen, of, file.unsaid);
    file.codes = codes_of(document, model, cluster).codes;
    const Plan first = file.codes.empty() ? resolve(document, model, cluster).plan : file.codes.front().plan;
    const auto differing =
        std::erase_if(file.unsaid, [&](const PlanKey* key) { return value_of(*key, first) != value_of(*key, chosen); });
    if (differing == 0) return file;
  }
}

}

OpenStacks open_stacks(const PlanDocument& written, const ModelSpec& model, const Cluster& cluster) {
  OpenStacks open = codes_of(written, model, cluster);
  for (const PlanKey& key : plan_key_table()) {
    if (open.codes.empty()) break;
    if (fills_otherwise(key, open, value_of(key, open.codes.front().plan))) open.keys.push_back(&key);
  }
  return open;
}

std::vector<StackAlternative> open_stacks(
    const OpenStacks& of, const Plan& chosen, const ModelSpec& model, const Cluster& cluster) {
  if (of.codes.empty() || chosen == of.codes.front().plan) return of.codes;
  return file_of(of, chosen, model, cluster).codes;
}

std::string open_yaml(const OpenStacks& of, const Plan& plan, const ModelSpec& model, const Cluster& cluster) {
  if (of.codes.empty() || !plan.stack.empty()) return to_yaml(plan);
  const Keys unsaid = file_of(of, plan, model, cluster).unsaid;
  return to_yaml(plan, [&](const PlanKey& key) -> Json {
    if (contains(unsaid, &key)) return {};
    return contains(of.keys, &key) ? value_of(key, plan) : key.write(plan);
  });
}

PlanDocument with_usual_stack(PlanDocument written, const OpenStacks& open) {
  return open.codes.empty() ? written : with_name(std::move(written), open.codes.front().name);
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

}
