// `explain --run`: why a run is slower than its forecast, and which settings to change.
#pragma once

#include "planner/options.h"
#include "sim/base/error.h"

namespace foreshard {

// Of a trace without --plan, the job is inferred from the trace; flags and --set are over it. What
// the trace does not tell and nobody named is asked for: the answer is then the inferred keys alone
// and the exit code kUsage.
ExitCode explain_run(const ExplainOptions& options);

}  // namespace foreshard
