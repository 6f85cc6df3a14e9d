// What a GPU cannot run of a plan, whatever the runtime; for the checks of plans and the readers of
// cluster files only.
#pragma once

#include <optional>

#include "sim/spec/checks/plan_check.h"
#include "sim/spec/cluster.h"
#include "sim/spec/plan.h"

namespace foreshard {

// float8 without fp8 units or over an fp32 computation, and attention kernels that were not built
// for the GPU's architecture. A GPU whose architecture nobody said is taken to run every kernel.
std::optional<PlanProblem> problem_of_hardware(const Plan& plan, const Cluster& cluster);

}  // namespace foreshard
