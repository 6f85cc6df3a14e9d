// The traces of a job, one per rank: a file, or a folder of them (PyTorch's *.trace.json and
// *.trace.json.gz; where there is none, every *.json and *.json.gz).
//
// Beside each may lie what interop/record/timed.py writes, NAME.timed.json for NAME.trace.json.gz
// (schema "foreshard.timed/1"): host, versions, the allocator's peaks and steps that no
// profiler slowed down, which the trace lacks.
#pragma once

#include <filesystem>
#include <vector>

#include "interop/traces/fsdp2_steps.h"

namespace foreshard {

// Whether a path is a folder of foreshard-exec run rather than traces.
bool is_run_folder(const std::filesystem::path& path);

// Ascending by rank. Throws Error(kInvalidInput) as read_kineto and read_fsdp_steps, where a folder
// has no traces, and where two are of one rank.
std::vector<FsdpTrace> read_job_traces(const std::filesystem::path& path);

}
