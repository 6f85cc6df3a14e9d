// Parts of the comparison that need one table each (reports/conform/conform.cpp puts them
// together).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reports/conform/logged_memory.h"
#include "reports/conform/recording.h"

namespace foreshard {

// The recorder's category for what the model holds all the time and that is no parameter.
inline constexpr std::string_view kOtherCategory = "other";

std::optional<std::size_t> category_index(std::string_view name);

// Bytes of a category by its name, 0 for one that we do not have; with `constant` for
// kOtherCategory.
std::int64_t category_bytes(const CategoryTotals& totals, std::string_view name,
                            std::int64_t constant);

// Lines that tell what differs; "" where nothing does or no units are stored.
std::string unit_differences(const Recording& recording, const std::vector<Unit>& units,
                             const std::vector<std::string>& names);

// Peaks of the index and of peaks.csv.
struct PeakComparison {
  std::string difference;  // lines; "": identical
  double worst_error = 0;  // of the total peak: every total, pool and category peak counts
  std::string worst;       // "step 2 peak_RS"
};
PeakComparison compare_step_peaks(const Recording& recording, std::int64_t step,
                                  const LoggedMemory& memory, std::int64_t constant);

// The allocations of one step.
struct AllocationComparison {
  std::string difference;  // the rows around the first one; "": identical
  std::size_t after = 0;   // rows of events before it
  bool free_order_identical = true;
};
AllocationComparison compare_allocations(const std::vector<RecordedAllocation>& recorded,
                                         const std::vector<RecordedAllocation>& predicted);

}  // namespace foreshard
