// What every verb of foreshard-exec does before it works: start ranks, or find out which one this is.
#pragma once

#include <optional>

#include "cli/exec/exec_options.h"
#include "exec/comm/world.h"
#include "exec/launch/launch.h"

namespace foreshard {

// Under --spawn: starts the ranks, waits for them, and returns their exit code. nullopt: this
// process is a rank. Throws Error(kUsage) for --spawn inside a launcher.
std::optional<ExitCode> spawn_if_asked(const SpawnRequest& request);

// Compute threads of this rank: --threads, else OMP_NUM_THREADS, else 1; sets them.
int set_threads(std::optional<int> threads);

// "AMD EPYC"; "" where the system does not tell.
std::string cpu_name();

// This host, kernel and library versions, for records.
std::vector<std::pair<std::string, std::string>> engine_versions();

// UTC, SOURCE_DATE_EPOCH honoured: 2026-01-31T12:00:00Z.
std::string utc_now();

}
