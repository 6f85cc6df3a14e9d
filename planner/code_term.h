// What a training code does that its description leaves open (calibration/first_looks.h), of a job.
#pragma once

#include "planner/job.h"

namespace foreshard {

// Half of the 90 % interval of a step that it makes, as a logarithm; 0 where what runs is what is
// described: the engine's own runtime, ranks of a CPU. `is_said`: whether the training code is.
double code_half_width(const Plan& plan, const Cluster& cluster, bool is_said);

// The calibration with that in what no factor explains (FactorKnowledge::plan_log_sd), where it has
// such a part.
Calibration with_code_term(Calibration calibration, const Plan& plan, const Cluster& cluster,
                           bool is_said);

}  // namespace foreshard
