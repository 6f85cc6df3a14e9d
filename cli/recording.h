// What was measured, whoever recorded it: a run folder of foreshard-exec, or traces of an FSDP2
// job.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "interop/traces/fsdp2_steps.h"
#include "interop/traces/listed_run.h"
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

// Over axes: what differs, and the peak. The JSON is of schema foreshard.collectives/1.
std::string listed_text(const ListedJoin& join);
Json to_json(const ListedJoin& join);

// What could not be joined, and which module is which unit.
std::string trace_text(const TraceJoin& join);
Json to_json(const TraceJoin& join);

}  // namespace foreshard
