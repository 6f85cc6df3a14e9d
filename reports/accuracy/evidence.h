// How well founded the times of a forecast are.
#pragma once

#include "sim/cost/cost_model.h"
#include "sim/simulate/forecast.h"

namespace foreshard {

struct StepEvidence {
  Evidence seconds = Evidence::kAssumed;
  Evidence communication = Evidence::kAssumed;
  Evidence exposed_communication = Evidence::kAssumed;
};

// The weakest evidence among the work that makes up 90 % of the time, so that one small assumed
// kernel does not count for everything. Time is split kernel by kernel; what a row takes beyond its
// own duration is the contention's or the host's.
StepEvidence weigh_evidence(const Forecast& forecast, const CostModel& costs);

}
