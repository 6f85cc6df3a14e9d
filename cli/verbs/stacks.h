// What other training codes would make of a job's step.
#pragma once

#include <string>

#include "planner/job.h"
#include "planner/options.h"

namespace foreshard {

// "torchtitan_2025; with hf_trainer +6.1 %, lightning +5.8 %": the job's stack, and the step time
// of the same job under every other stack that trains with its runtime, against its own; all priced
// by `costs`. Where the job does not say it: what was taken and the figures of `open`.
std::string stack_sentence(const JobOptions& options, const Job& job, const CostModel& costs,
                           const OpenStack& open);

}  // namespace foreshard
