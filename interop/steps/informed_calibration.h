// The calibration that a job is priced with: its GPU's shipped profile, with what published
// training steps say about the factors of this job.
#pragma once

#include <string>
#include <vector>

#include "calibration/training_evidence.h"
#include "sim/cost/cost_model.h"
#include "sim/spec/calibration.h"
#include "sim/spec/cluster.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

// By the attention kernel that is priced, which may stand for another, and the head size of the
// model's first attention.
FactorCauses causes_of(const ModelSpec& model, const CostModel& costs, GemmLibrary library = GemmLibrary::kCurrent,
    const std::string& site = "");

// The profile alone, no family's steps and no plan_log_sd. Throws as load_profile().
Calibration profile_calibration(const Plan& plan, const Cluster& cluster);

// With the steps of all families but those in `without`.
Calibration informed_calibration(const ModelSpec& model, const Plan& plan, const Cluster& cluster,
    const std::vector<std::string>& without, GemmLibrary library = GemmLibrary::kCurrent);

}
