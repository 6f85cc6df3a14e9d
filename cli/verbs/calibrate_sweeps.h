// calibrate with logs of nccl-tests: the profile of a GPU with the cluster's own sweeps in it.
#pragma once

#include <string>
#include <vector>

#include "planner/options.h"
#include "sim/base/error.h"

namespace foreshard {

// Whether the files are such logs. Throws Error(kInvalidInput) where some are and others are not.
bool are_nccl_tests(const std::vector<std::string>& files);

ExitCode calibrate_sweeps(const CalibrateOptions& options);

}  // namespace foreshard
