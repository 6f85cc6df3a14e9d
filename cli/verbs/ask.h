// Options of the verb that names the fact to find out next.
#pragma once

#include "planner/options.h"
#include "sim/base/error.h"

namespace foreshard {

struct AskOptions {
  JobOptions job;
  OutputOptions output;
};

ExitCode run_ask(const AskOptions& options);

}  // namespace foreshard
