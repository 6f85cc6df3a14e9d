// What was measured, whoever recorded it: a run folder of foreshard-exec, or traces of an FSDP2 job.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "interop/traces/fsdp2_steps.h"
#include "interop/traces/trace_bytes.h"
#include "interop/traces/trace_join.h"
#include "sim/base/json.h"

namespace foreshard {

struct RecordedRun {
  RunRecord record;
  std::optional<TraceJoin> trace;  // its record moved out
};

// Whether `path` holds traces rather than a run of foreshard-exec.
bool is_traced(const std::string& path);

RecordedRun joined(const Forecast& forecast, const std::vector<FsdpTrace>& traces);

// Throws Error(kInvalidInput) as read_run_folder, read_job_traces and join_traces.
RecordedRun read_recording(const std::string& path, const Forecast& forecast);

// What a job over tensor, context or expert axes wrote down of one step: its collectives, in the
// order it issued them, and the allocator's peak. Collectives inside layers are no ranges of
// fully_shard, so a trace does not say which is which; the exported script's --record lists them
// beside it (rank-N.timed.json, schema "foreshard.timed/1"). Times are not judged.
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

// What differs, and the peak. The JSON is of schema foreshard.collectives/1.
std::string listed_text(const ListedJoin& join);
Json to_json(const ListedJoin& join);

// What could not be joined, and which module is which unit.
std::string trace_text(const TraceJoin& join);
Json to_json(const TraceJoin& join);

}
