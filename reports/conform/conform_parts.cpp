// Peaks are told in one block, all that differ. Allocations are compared between two events as a sequence; where it
// differs, once more with each run of frees sorted: in which order the last references of one moment end means nothing.
#include "reports/conform/conform_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

namespace foreshard {
namespace {

std::string both_sides(const std::string& name, std::int64_t recorded, std::int64_t predicted) {
  if (recorded == predicted) return "";
  return fmt::format(
      "    ! {:<44} recorded {:>14} predicted {:>14} ({:+})\n", name, recorded, predicted, predicted - recorded);
}

bool same_allocation(const RecordedAllocation& recorded, const RecordedAllocation& predicted) {
  // For whom the host was at work is known of a unit's own buffers only, and only when it makes
  // them: they die wherever the last reference does.
  const bool unit_counts = !recorded.freed && !predicted.unit.empty() && !recorded.unit.empty();
  return recorded.freed == predicted.freed && recorded.bytes == predicted.bytes && recorded.pool == predicted.pool &&
         recorded.category == predicted.category && (!unit_counts || recorded.unit == predicted.unit);
}

using Rows = std::vector<RecordedAllocation>;

bool same_allocations(const Rows& a, const Rows& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_allocation);
}

Rows with_sorted_frees(Rows rows) {
  for (auto begin = rows.begin(); begin != rows.end();) {
    const bool freed = begin->freed;
    const auto end = std::find_if(begin, rows.end(), [&](const RecordedAllocation& a) { return a.freed != freed; });
    if (freed) {
      std::sort(
          begin, end,
          [](const RecordedAllocation& a, const RecordedAllocation& b) {
            return std::tie(a.bytes, a.pool, a.category) < std::tie(b.bytes, b.pool, b.category);
          });
    }
    begin = end;
  }
  return rows;
}

// By the number of events before them.
std::vector<Rows> by_event(const Rows& rows) {
  std::vector<Rows> gaps;
  for (const RecordedAllocation& row : rows) {
    const auto after = at(std::max<std::int64_t>(row.after_seq, 0));
    if (after >= gaps.size()) gaps.resize(after + 1);
    gaps[after].push_back(row);
  }
  return gaps;
}

std::string first_difference(const Rows& recorded, const Rows& predicted) {
  const std::size_t common = std::min(recorded.size(), predicted.size());
  std::size_t at = 0;
  while (at < common && same_allocation(recorded[at], predicted[at])) ++at;
  const auto row = [](const RecordedAllocation& allocation) { return describe(allocation); };
  return fmt::format("allocation {} of the {} there\n{}", at + 1, recorded.size(),
      around(recorded, predicted, at, row, [](std::size_t i) { return fmt::format("{}", i + 1); }));
}

}

std::optional<std::size_t> category_index(std::string_view name) {
  for (std::size_t i = 0; i < kMemoryCategories; ++i)
    if (to_string(static_cast<MemoryCategory>(i)) == name) return i;
  return std::nullopt;
}

std::int64_t category_bytes(const CategoryTotals& totals, std::string_view name, std::int64_t constant) {
  const auto index = category_index(name);
  return (index ? totals[*index] : 0) + (name == kOtherCategory ? constant : 0);
}

std::string unit_differences(
    const Recording& recording, const std::vector<Unit>& units, const std::vector<std::string>& names) {
  std::string text;
  for (const RecordedUnit& recorded : recording.units) {
    const auto name = std::ranges::find(names, recorded.unit);
    if (name == names.end()) {
      text += fmt::format("    ! {} is not predicted\n", recorded.unit);
      continue;
    }
    const Unit& unit = units[at(name - names.begin())];
    text += both_sides(recorded.unit + " params", recorded.params, unit.parameters);
    text += both_sides(recorded.unit + " numel", recorded.numel, unit.numel);
    text += both_sides(recorded.unit + " shard_numel_padded", recorded.shard_numel_padded, unit.shard_numel);
  }
  if (recording.units.empty()) return text;
  for (const std::string& name : names) {
    const bool known = std::ranges::any_of(recording.units, [&](const RecordedUnit& u) { return u.unit == name; });
    if (!known) text += fmt::format("    ! {} was not recorded\n", name);
  }
  return text;
}

PeakComparison compare_step_peaks(
    const Recording& recording, std::int64_t step, const LoggedMemory& memory, std::int64_t constant) {
  const RecordedStepPeaks& index = recording.steps.at(at(step - 1));
  PeakComparison result;
  const auto check = [&](const std::string& name, std::int64_t recorded, std::int64_t predicted) {
    result.difference += both_sides(name, recorded, predicted);
  };
  const auto check_peak = [&](const std::string& name, std::int64_t recorded, std::int64_t predicted) {
    check(name, recorded, predicted);
    if (index.total.value_or(0) <= 0) return;
    const double error = std::abs(as_double(predicted - recorded)) / as_double(*index.total);
    if (error <= result.worst_error) return;
    result.worst_error = error;
    result.worst = fmt::format("step {} {}", step, name);
  };
  if (index.total) check_peak("peak", *index.total, memory.peak);
  if (index.end) check("end", *index.end, memory.end);
  for (std::size_t p = 0; p < kPools.size(); ++p) {
    if (!index.pools[p]) continue;
    const std::string name = fmt::format("peak_{}", kPools[p]);
    if (p == kHostPool)  // no part of the total
      check(name, *index.pools[p], memory.pool_peaks[p]);
    else check_peak(name, *index.pools[p], memory.pool_peaks[p]);
  }
  std::map<std::string, RecordedPeak> recorded;
  for (const RecordedPeak& peak : recording.peaks)
    if (peak.step == step) recorded[peak.category] = peak;
  if (recorded.empty()) return result;
  for (std::size_t c = 0; c < kMemoryCategories; ++c)  // what has no row was nothing
    recorded.try_emplace(to_string(static_cast<MemoryCategory>(c)));
  for (const auto& [name, peak] : recorded) {
    check("bytes_at_total_peak of " + name, peak.at_total_peak, category_bytes(memory.at_peak, name, constant));
    check_peak("own_peak of " + name, peak.own_peak, category_bytes(memory.category_peaks, name, constant));
  }
  return result;
}

AllocationComparison compare_allocations(
    const std::vector<RecordedAllocation>& recorded, const std::vector<RecordedAllocation>& predicted) {
  AllocationComparison result;
  std::vector<Rows> theirs = by_event(recorded);
  std::vector<Rows> ours = by_event(predicted);
  theirs.resize(std::max(theirs.size(), ours.size()));
  ours.resize(theirs.size());
  for (std::size_t after = 0; after < theirs.size(); ++after) {
    if (same_allocations(theirs[after], ours[after])) continue;
    if (same_allocations(with_sorted_frees(theirs[after]), with_sorted_frees(ours[after]))) {
      result.free_order_identical = false;
      continue;
    }
    result.after = after;
    result.difference = first_difference(theirs[after], ours[after]);
    return result;
  }
  return result;
}

}
