// The memory of a recorded step (sim/graph/host_log.h), counted as the recorder of the real library
// counts: by pool and by category after every event, the peaks between, and each single allocation.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "reports/conform/recording.h"
#include "sim/graph/host_log.h"

namespace foreshard {

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

// `constant` bytes lie in the compute stream's pool from before the step to after it and belong to
// no category of ours (a rotary table). Throws an internal error where a buffer is allocated twice
// or freed without being alive.
LoggedMemory log_memory(const RecordedStep& step, std::int64_t constant);

}  // namespace foreshard
