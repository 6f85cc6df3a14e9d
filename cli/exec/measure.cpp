#include "cli/exec/exec_options.h"

namespace foreshard {
ExitCode run_measure(const MeasureOptions&) { return ExitCode::kMissingCapability; }
}  // namespace foreshard
