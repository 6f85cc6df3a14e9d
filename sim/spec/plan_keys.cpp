// The rows of keys/ as one table.
#include "sim/spec/plan_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "sim/base/embedded.h"
#include "sim/base/lookup.h"
#include "sim/spec/keys/key_rows.h"

namespace foreshard {
namespace {

// The last column of the page's row.
std::string_view page_says(std::string_view name) {
  const std::string_view page = file_named("docs/plan-keys.md", key_page_files()).content;
  const std::size_t row = page.find(fmt::format("\n|`{}`|", name));
  if (row == std::string_view::npos) return "";
  const std::string_view cells = page.substr(row, page.find("|\n", row) - row);
  return cells.substr(cells.rfind("|") + 1);
}

}

Json PlanKey::write(const Plan& plan) const {
  static const Plan kUsual;
  if (value == nullptr) return {};
  Json written = value(plan);
  if (quiet && written == value(kUsual) && !(told != nullptr && told(plan))) return {};
  return written;
}

std::span<const PlanKey> plan_key_table() {
  static const std::vector<PlanKey> table = [] {
    std::vector<PlanKey> keys(shape_keys().begin(), shape_keys().end());
    append(keys, compute_keys());
    const auto place = std::ranges::find_if(keys, [](const PlanKey& k) { return k.path == "host_sync"; });
    keys.insert(place, library_keys().begin(), library_keys().end());
    return keys;
  }();
  return table;
}

std::string_view PlanKey::says() const { return page_says(path); }

const PlanKey* find_plan_key(std::string_view path) {
  for (const PlanKey& key : plan_key_table())
    if (key.path == path) return &key;
  return nullptr;
}

std::string_view plan_group_says(std::string_view group) { return page_says(group); }

}
