// A row's text is read once, when a plan of its runtime is first checked; a check then compares the
// plan's values as the table of keys writes them.
#include "sim/spec/checks/capabilities.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "sim/base/embedded.h"
#include "sim/base/letters.h"
#include "sim/spec/checks/condition.h"
#include "sim/spec/checks/plan_runtime_check.h"
#include "sim/spec/fsdp2_version.h"

namespace foreshard {

std::span<const EmbeddedFile> capability_files();

namespace {

constexpr std::size_t kRuntimes = at(RuntimeKind::kZero3) + 1;

RuntimeSet runtimes_named(std::string_view names) {
  RuntimeSet set = 0;
  while (!names.empty()) {
    const std::string_view name = cut(names, " ");
    const RuntimeSet before = set;
    for (std::size_t kind = 0; kind < kRuntimes; ++kind)
      if (std::string_view(to_string(static_cast<RuntimeKind>(kind))).starts_with(name)) set |= runtimes_of(kind);
    FORESHARD_CHECK(set != before, fmt::format("a capability is of runtime {}", name));
  }
  return set;
}

Capability capability_of(const std::vector<std::string_view>& cells) {
  FORESHARD_CHECK(cells.size() == 4 || cells.size() == 5, fmt::format("a capability has {} cells", cells.size()));
  Capability row = {runtimes_named(cells[0]), cells[1], cells[2], cells[3]};
  std::string_view how = cells.size() == 5 ? cells[4] : std::string_view();
  if (how == "fails") {
    row.fails = true;
  } else if (how == "axes") {
    row.of = Capability::Of::kAxes;
  } else if (how == "tensors") {
    row.of = Capability::Of::kPlainTensors;
  } else if (!how.empty()) {
    row.since = fsdp2_minor(cut(how, ": ")).value();
    row.came = how;
  }
  return row;
}

struct AskedRow {
  const Capability* capability = nullptr;
  std::string_view key;
  Condition asked;
};

const std::vector<AskedRow>& rows_of(RuntimeKind kind) {
  static std::array<std::vector<AskedRow>, kRuntimes> all;
  static std::array<std::once_flag, kRuntimes> is_read;
  const auto index = at(kind);
  std::call_once(is_read[index], [&] {
    for (const Capability& each : capability_table())
      if ((each.runtimes & runtimes_of(kind)) != 0)
        all[index].push_back({&each, each.asked.substr(0, each.asked.find(' ')), Condition(each.asked)});
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
    const PlanValue value = plan_value_named(name);
    FORESHARD_CHECK(value != nullptr, fmt::format("a capability names {}", name));
    out += yaml_value(value(plan));
  }
  return out;
}

// Of other runtimes than PyTorch's the newest version is the only one.
std::int32_t minor_of(const Runtime& runtime) { return fsdp2_minor(runtime.version).value_or(kNewestFsdp2); }

}

std::span<const Capability> capability_table() {
  static const std::vector<Capability> table = [] {
    return list_of<Capability>(
        rows_of_table(capability_files().front().content), [&](const auto& cells) { return capability_of(cells); });
  }();
  return table;
}

std::optional<PlanProblem> problem_of_capability(const Plan& plan, Capability::Of of, std::string_view who) {
  for (const AskedRow& row : rows_of(plan.runtime.kind)) {
    const Capability& each = *row.capability;
    if (each.of != of || minor_of(plan.runtime) >= each.since || !row.asked.holds(plan)) continue;
    const std::string says = filled(each.says, plan), nearest = filled(each.nearest, plan);
    if (each.fails) return contradiction(std::string(row.key), says, nearest);
    const std::string came =
        each.since == kNotYet ? "" : fmt::format("; {} came with PyTorch 2.{}", each.came, each.since);
    return missing_capability(std::string(row.key), fmt::format("{} {}{}", who, says, came), nearest);
  }
  return std::nullopt;
}

bool has_capability(const Runtime& runtime, std::string_view asked) {
  const std::span<const Capability> table = capability_table();
  FORESHARD_CHECK(std::ranges::any_of(table, [&](const Capability& each) { return each.asked == asked; }),
      fmt::format("no capability is called {}", asked));
  const std::vector<AskedRow>& rows = rows_of(runtime.kind);
  return std::ranges::none_of(rows, [&](const AskedRow& row) {
    return row.capability->of == Capability::Of::kRuntime && row.capability->asked == asked &&
           minor_of(runtime) < row.capability->since;
  });
}

}
