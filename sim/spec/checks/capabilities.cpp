// A row's text is read once, when a plan of its runtime is first checked; a check then compares the
// plan's values as the table of keys writes them.
#include "sim/spec/checks/capabilities.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "sim/spec/checks/plan_runtime_check.h"
#include "sim/spec/fsdp2_version.h"

namespace foreshard {
namespace {

using Value = Json (*)(const Plan&);

// What is no key of a plan and yet decides.
constexpr std::pair<std::string_view, Value> kFacts[] = {
    {"host", [](const Plan& p) { return Json(p.host == HostKind::kComputes ? "cpu" : "device"); }},
    {"ranks", [](const Plan& p) { return Json(p.mesh.data_parallel()); }},
};

Value value_named(std::string_view name) {
  if (const PlanKey* key = find_plan_key(name)) return key->value;
  for (const auto& [fact, value] : kFacts) {
    if (fact == name) return value;
  }
  return nullptr;
}

Json constant(std::string_view text) {
  if (text == "true" || text == "false") return text == "true";
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [at, failure] = std::from_chars(text.data(), end, number);
  return failure == std::errc() && at == end ? Json(number) : Json(std::string(text));
}

struct Term {
  Value left = nullptr;
  char comparison = '=';  // '=', '!', '>'
  Json right;
  Value right_key = nullptr;

  bool compares(const Json& value, const Json& with) const {
    if (comparison == '>') return value.is_number() && with.is_number() && value > with;
    return (value == with) == (comparison == '=');
  }
  bool holds(const Plan& plan) const {
    const Json value = left(plan);
    const Json& with = right_key == nullptr ? right : right_key(plan);
    if (!value.is_array()) return compares(value, with);
    return std::any_of(value.begin(), value.end(), [&](const Json& each) {
      return compares(each.is_object() ? each.at("value") : each, with);
    });
  }
};

struct Row {
  const Capability* capability = nullptr;
  std::string_view key;
  std::vector<Term> terms;

  bool is_asked(const Plan& plan) const {
    return std::all_of(terms.begin(), terms.end(), [&](const Term& t) { return t.holds(plan); });
  }
};

std::string_view cut(std::string_view& text, std::string_view separator) {
  const std::size_t at = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(std::min(at + separator.size(), text.size()));
  return part;
}

Row read_row(const Capability& capability) {
  Row row{&capability, {}, {}};
  for (std::string_view rest = capability.asked; !rest.empty();) {
    std::string_view text = cut(rest, ", ");
    const std::string_view name = cut(text, " "), comparison = cut(text, " ");
    Term& term = row.terms.emplace_back();
    term.left = value_named(name);
    FORESHARD_CHECK(term.left != nullptr, fmt::format("a capability asks for {}", name));
    term.comparison = comparison.front();
    if (text.find('.') != std::string_view::npos) term.right_key = value_named(text);
    term.right = constant(text);
    if (row.key.empty()) row.key = name;
  }
  return row;
}

constexpr std::size_t kRuntimes = static_cast<std::size_t>(RuntimeKind::kZero3) + 1;

const std::vector<Row>& rows_of(RuntimeKind kind) {
  static std::array<std::vector<Row>, kRuntimes> all;
  static std::array<std::once_flag, kRuntimes> is_read;
  const auto index = static_cast<std::size_t>(kind);
  std::call_once(is_read[index], [&] {
    for (const Capability& each : capability_table()) {
      if ((each.runtimes & runtimes_of(kind)) != 0) all[index].push_back(read_row(each));
    }
  });
  return all[index];
}

// {key} by its value.
std::string filled(std::string_view text, const Plan& plan) {
  std::string out;
  while (!text.empty()) {
    out += cut(text, "{");
    if (text.empty()) break;
    const std::string_view name = cut(text, "}");
    const Value value = value_named(name);
    FORESHARD_CHECK(value != nullptr, fmt::format("a capability names {}", name));
    out += yaml_value(value(plan));
  }
  return out;
}

// Of other runtimes than PyTorch's the newest version is the only one.
std::int32_t minor_of(const Runtime& runtime) {
  return fsdp2_minor(runtime.version).value_or(kNewestFsdp2);
}

}  // namespace

std::optional<PlanProblem> problem_of_capability(const Plan& plan, Capability::Of of,
                                                 std::string_view who) {
  for (const Row& row : rows_of(plan.runtime.kind)) {
    const Capability& each = *row.capability;
    if (each.of != of || minor_of(plan.runtime) >= each.since || !row.is_asked(plan)) continue;
    const std::string says = filled(each.says, plan), nearest = filled(each.nearest, plan);
    if (each.fails) return contradiction(std::string(row.key), says, nearest);
    const std::string came =
        each.since == kNotYet ? ""
                              : fmt::format("; {} came with PyTorch 2.{}", each.came, each.since);
    return missing_capability(std::string(row.key), fmt::format("{} {}{}", who, says, came),
                              nearest);
  }
  return std::nullopt;
}

bool has_capability(const Runtime& runtime, std::string_view asked) {
  const std::span<const Capability> table = capability_table();
  FORESHARD_CHECK(std::any_of(table.begin(), table.end(),
                              [&](const Capability& each) { return each.asked == asked; }),
                  fmt::format("no capability is called {}", asked));
  const std::vector<Row>& rows = rows_of(runtime.kind);
  return std::none_of(rows.begin(), rows.end(), [&](const Row& row) {
    return row.capability->of == Capability::Of::kRuntime && row.capability->asked == asked &&
           minor_of(runtime) < row.capability->since;
  });
}

}  // namespace foreshard
