// The check sorts a unit's parameters by offset and walks them; every product and sum is checked,
// since a checkpoint's index goes through it too.

#include "exec/state/training_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "sim/base/error.h"
#include "sim/base/hash.h"
#include "sim/base/spelling.h"
#include "sim/base/units.h"

namespace foreshard {
namespace {

std::string find_unit_fault(std::int64_t shards, const StateUnit& unit) {
  if (unit.shard_numel < 0) return fmt::format("unit {} has a negative size", quote(unit.name));
  const std::int64_t whole = checked_multiply(shards, unit.shard_numel);
  std::vector<const StateParameter*> ordered;
  for (const StateParameter& parameter : unit.parameters) {
    const bool is_cut_evenly =
        parameter.parts == 1 ||
        (parameter.parts > 1 && parameter.cut >= 0 && parameter.cut <= 1 &&
            at(parameter.cut) < parameter.shape.size() && parameter.shape[at(parameter.cut)] % parameter.parts == 0);
    if (parameter.offset < 0 || !is_cut_evenly ||
        checked_multiply(parameter.numel, parameter.parts) != numel_of(parameter.shape)) {
      return fmt::format("parameter {} has offset {} and {} elements, which its shape denies", quote(parameter.name),
          parameter.offset, parameter.numel);
    }
    if (checked_add(parameter.offset, parameter.numel) > whole) {
      return fmt::format(
          "parameter {} ends beyond the {} elements of unit {}", quote(parameter.name), whole, quote(unit.name));
    }
    if (parameter.numel > 0) ordered.push_back(&parameter);
  }
  std::ranges::sort(ordered, [](const auto* a, const auto* b) { return a->offset < b->offset; });
  for (std::size_t i = 1; i < ordered.size(); ++i)
    if (ordered[i - 1]->offset + ordered[i - 1]->numel > ordered[i]->offset)
      return fmt::format("the parameters {} and {} overlap", quote(ordered[i - 1]->name), quote(ordered[i]->name));
  std::set<std::string> arrays;
  for (const StateArray& array : unit.arrays) {
    if (!arrays.insert(array.name).second)
      return fmt::format("unit {} has two arrays {}", quote(unit.name), quote(array.name));
    // So that no later product of elements and bytes overflows.
    checked_multiply(whole, size_of(array.dtype));
  }
  return "";
}

}

std::int64_t numel_of(const std::vector<std::int64_t>& shape) {
  std::int64_t numel = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0) return -1;
    numel = checked_multiply(numel, extent);
  }
  return numel;
}

std::int64_t padding_of(const StateUnit& unit, std::int64_t shards) {
  std::int64_t padding = checked_multiply(shards, unit.shard_numel);
  for (const StateParameter& parameter : unit.parameters) padding -= parameter.numel;
  return padding;
}

std::string find_layout_fault(std::int64_t shards, const std::vector<StateUnit>& units) {
  std::set<std::string> unit_names;
  std::set<std::string> parameter_names;
  for (const StateUnit& unit : units) {
    if (!unit_names.insert(unit.name).second) return fmt::format("there are two units {}", quote(unit.name));
    for (const StateParameter& parameter : unit.parameters)
      if (!parameter_names.insert(parameter.name).second)
        return fmt::format("there are two parameters {}", quote(parameter.name));
    std::string fault = find_unit_fault(shards, unit);
    if (!fault.empty()) return fault;
  }
  return "";
}

void check_layout(const TrainingState& state) {
  const std::string fault = find_layout_fault(state.shards, state.units);
  FORESHARD_CHECK(fault.empty(), fault);
  for (const StateUnit& unit : state.units) {
    for (const StateArray& array : unit.arrays) {
      FORESHARD_CHECK(
          std::ssize(array.data) == unit.shard_numel * size_of(array.dtype), "an array has other bytes than its shard");
    }
  }
}

std::uint64_t layout_fingerprint(const TrainingState& state) {
  Fingerprint hash;
  hash.add(state.shards).add(state.replicas).add(state.parts);
  for (const StateUnit& unit : state.units) {
    hash.add(unit.name).add(unit.shard_numel);
    for (const StateParameter& parameter : unit.parameters) {
      hash.add(parameter.name).add(parameter.offset).add(parameter.numel).add(parameter.cut);
      for (const std::int64_t extent : parameter.shape) hash.add(extent);
    }
    for (const StateArray& array : unit.arrays) hash.add(array.name).add(to_string(array.dtype));
  }
  return hash.value();
}

}
