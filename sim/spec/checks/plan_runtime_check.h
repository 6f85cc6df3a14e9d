// What a runtime cannot run of a plan whose values are right otherwise; for the checks and
// warnings of plans only.
#pragma once

#include <optional>
#include <string>

#include "sim/spec/checks/plan_check.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

PlanProblem contradiction(
    std::string key, std::string what_is_wrong, std::string expected = "", std::string did_you_mean = "");
PlanProblem missing_capability(std::string key, std::string what_is_wrong, std::string nearest = "");

// Whether the version is modelled, and then what it lacks (capabilities.h).
std::optional<PlanProblem> problem_of_runtime(const Plan& plan);

// Whether some parameter is cut along another dimension than the first (shard_dim_of).
bool cuts_another_dimension(const ModelSpec& model, std::int64_t wanted, const Mesh& mesh);

// What DeepSpeed's sizes must divide.
std::optional<PlanProblem> problem_of_divisions(const Plan& plan);
// What FSDP1 and DDP raise while they run.
std::optional<PlanProblem> problem_of_running_library(const Plan& plan, const ModelSpec& model);

// Axes beside replicate and shard that the runtime has not: before what their defaults ask of it.
std::optional<PlanProblem> problem_of_runtime_axes(const Plan& plan);
// Keys that axes do not go with yet, and sizes that do not divide what they cut.
std::optional<PlanProblem> problem_of_axes(const Plan& plan, const ModelSpec& model);

// What fully_shard raises while it runs, though every knob is there.
std::optional<PlanProblem> problem_of_running(const Plan& plan, const ModelSpec& model);

}
