// Parts of the comparison that need one table each (reports/conform/conform.cpp puts them together).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reports/conform/conform.h"
#include "reports/conform/recording.h"
#include "sim/base/lookup.h"
#include "sim/graph/host_log.h"

namespace foreshard {

// The memory of a recorded step (sim/graph/host_log.h), counted as the recorder of the real library
// counts: by pool and by category after every event, the peaks between, and each single allocation.
using CategoryTotals = std::array<std::int64_t, kMemoryCategories>;

struct LoggedMemory {
  struct Level {  // after an event
    PoolBytes pools{};
    CategoryTotals categories{};  // host memory included, as the recorder has it
    std::int64_t total = 0;       // of the device's pools
    std::int64_t highest = 0;     // total, since the event before
  };
  struct Allocation {
    std::uint32_t after = 0;  // events before it; as many rows of the recording
    bool freed = false;
    std::int64_t bytes = 0;
    std::size_t pool = 0;
    MemoryCategory category = MemoryCategory::kActivation;
    std::int32_t unit = -1;  // of a unit's own buffer; -1: a layer's tensor
  };
  std::vector<Level> levels;  // per event of the log
  std::vector<Allocation> allocations;
  // Over the whole step, its beginning included.
  std::int64_t peak = 0;
  CategoryTotals at_peak{};
  PoolBytes pool_peaks{};
  CategoryTotals category_peaks{};
  std::int64_t end = 0;  // after the last event
};

// `constant` bytes lie in the compute stream's pool from before the step to after it and belong to no category of ours
// (a rotary table). Throws an internal error where a buffer is allocated twice or freed without being alive.
LoggedMemory log_memory(const RecordedStep& step, std::int64_t constant);

// The recorder's category for what the model holds all the time and that is no parameter.
inline constexpr std::string_view kOtherCategory = "other";

std::optional<std::size_t> category_index(std::string_view name);

// Bytes of a category by its name, 0 for one that we do not have; with `constant` for kOtherCategory.
std::int64_t category_bytes(const CategoryTotals& totals, std::string_view name, std::int64_t constant);

// Lines that tell what differs; "" where nothing does or no units are stored.
std::string unit_differences(
    const Recording& recording, const std::vector<Unit>& units, const std::vector<std::string>& names);

// Peaks of the index and of peaks.csv.
struct PeakComparison {
  std::string difference;  // lines; "": identical
  double worst_error = 0;  // of the total peak: every total, pool and category peak counts
  std::string worst;       // "step 2 peak_RS"
};
PeakComparison compare_step_peaks(
    const Recording& recording, std::int64_t step, const LoggedMemory& memory, std::int64_t constant);

// The allocations of one step.
struct AllocationComparison {
  std::string difference;  // the rows around the first one; "": identical
  std::size_t after = 0;   // rows of events before it
  bool free_order_identical = true;
};
AllocationComparison compare_allocations(
    const std::vector<RecordedAllocation>& recorded, const std::vector<RecordedAllocation>& predicted);

// Rows of two sequences side by side, for whoever must see where they part.

// "all_gather layers.0 AG 786688 -> 6293504 bf16 shard:8 demand forward"; `on` is put in brackets.
std::string describe(const RecordedEvent& event);
// "+ 262144 D activation"
std::string describe(const RecordedAllocation& allocation);

// An event of the log in the recorder's words. Names are the recorder's names of the units.
RecordedEvent in_recorders_words(const HostEvent& event, const std::vector<std::string>& names);

// Lines from 3 rows before `at` to 2 after it, recorded on the left, predicted on the right, those
// that differ marked with '!'. `label` is what stands before row i: "seq 64".
struct SideBySide {
  std::size_t recorded = 0;  // rows of each side
  std::size_t predicted = 0;
  std::function<std::string(std::size_t)> recorded_row, predicted_row, label;
};
std::string around(const SideBySide& sides, std::size_t at);

// The same of two lists, each row in the words of `row`.
std::string around(const auto& recorded, const auto& predicted, std::size_t at, auto row,
    std::function<std::string(std::size_t)> label) {
  return around({recorded.size(), predicted.size(), [&](std::size_t i) { return row(recorded[i]); },
                    [&](std::size_t i) { return row(predicted[i]); }, std::move(label)},
      at);
}

// The first difference of each kind.
inline void add_first(Conformance& result, Difference::What what, std::string text) {
  if (contains(result.differences, what, &Difference::what)) return;
  result.differences.push_back({what, std::move(text)});
}

}
