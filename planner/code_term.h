// What a training code does that its description leaves open (calibration/first_looks.h), of a job.
#pragma once

#include <string_view>

#include "planner/job.h"

namespace foreshard {

// Half of the 90 % interval of a step that it makes, as a logarithm; 0 where what runs is what is
// described: the engine's own runtime, ranks of a CPU, a code whose own steps inform the costs.
// `stack`: of the training code, "" where it is not told. `below`: below_half_peak() of the step.
double code_half_width(const Plan& plan, const Cluster& cluster, std::string_view stack,
                       double below);

// The calibration with that in what no factor explains (FactorKnowledge::code_log_sd), and with
// what such codes take longer than they are described in every factor of time, where it has these
// parts.
Calibration with_code_term(Calibration calibration, const Plan& plan, const Cluster& cluster,
                           std::string_view stack);

}  // namespace foreshard
