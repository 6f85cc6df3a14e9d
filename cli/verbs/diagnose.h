// Options of the verb that says why a measured job is not as forecast.
#pragma once

#include <string>
#include <vector>

#include "planner/options.h"
#include "sim/base/error.h"

namespace foreshard {

struct DiagnoseOptions {
  JobOptions job;
  OutputOptions output;
  std::vector<std::string> measured;   // "tokens/s=3120"
  std::string log, run;                // FILE; TRACE or run folder; "": none
  std::vector<std::string> snapshots;  // of memory, FILEs in the order of time
  std::string threads;                 // FILE of published threads: score the verb itself
};

ExitCode run_diagnose(const DiagnoseOptions& options);

}  // namespace foreshard
