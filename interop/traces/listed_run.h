// What a job over tensor, context or expert axes wrote down of one step: its collectives, in the
// order it issued them, and the allocator's peak. Collectives inside layers are no ranges of
// fully_shard, so a trace does not say which is which; the exported script's --record lists them
// beside it (rank-N.timed.json, schema "foreshard.timed/1"). Times are not judged.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "interop/traces/trace_bytes.h"
#include "sim/simulate/forecast.h"

namespace foreshard {

struct ListedRun {
  std::int64_t rank = 0, world = 0;
  std::vector<TracedCollectiveCall> collectives;
  Bytes peak_allocated;  // 0: not recorded, as on CPU ranks
};

// Of `rank`, from a folder or the file itself. Throws Error(kInvalidInput), naming what is missing.
ListedRun read_listed_run(const std::filesystem::path& path, std::int64_t rank);

struct ListedJoin {
  ListedRun run;
  std::vector<std::string> differences;  // in sentences; none where all are equal
  Bytes forecast_peak;
  double memory_error = 0;  // forecast / measured - 1; 0 where it was not recorded
  bool passed = false;
};

// Throws Error(kInvalidInput) where the run has other ranks than the plan.
ListedJoin join_listed(const Forecast& forecast, ListedRun run, double memory_tolerance);

}  // namespace foreshard
