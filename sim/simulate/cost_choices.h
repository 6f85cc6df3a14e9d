// What a plan says about prices that its graph does not.
#pragma once

#include "sim/cost/cost_model.h"
#include "sim/spec/plan.h"

namespace foreshard {

// The attention kernel is the one that the plan names. `flash` is what PyTorch takes: from 2.11 on
// cuDNN's where the calibration says that it prefers that (Calibration::sdpa_preferred), before its
// own flash attention. NCCL is the one that comes with the runtime's PyTorch.
CostChoices cost_choices(const Plan& plan);

}
