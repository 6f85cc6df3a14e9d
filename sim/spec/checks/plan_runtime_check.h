// What a runtime cannot run of a plan whose values are right otherwise; for the checks and
// warnings of plans only.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "sim/spec/checks/plan_check.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/plan.h"

namespace foreshard {

PlanProblem contradiction(std::string key, std::string what_is_wrong, std::string expected = "",
                          std::string did_you_mean = "");
PlanProblem missing_capability(std::string key, std::string what_is_wrong,
                               std::string nearest = "");

// Whether the version is modelled, and then what it has no knob for.
std::optional<PlanProblem> problem_of_runtime(const Plan& plan);

// The first of the knobs that is asked for, as the problem of a runtime ("fsdp1@2.11") that does
// not have it.
struct Knob {
  bool is_asked = false;
  const char* key = "";
  const char* what_is_wrong = "";  // after the name of the runtime
  const char* nearest = "";
};
std::optional<PlanProblem> first_missing(std::span<const Knob> knobs, const std::string& runtime);

bool unshards_everywhere(const Plan& plan);  // unshard_in_backward excepts no unit
bool reshards_to_groups(const Plan& plan);   // some unit, after forward

// Whether some parameter is cut along another dimension than the first (shard_dim_of).
bool cuts_another_dimension(const ModelSpec& model, std::int64_t wanted, std::int64_t shards);

// FSDP1, DDP and DeepSpeed: what they have no knob for or refuse, with their reason.
std::optional<PlanProblem> problem_of_library(const Plan& plan);
std::optional<PlanProblem> problem_of_zero3(const Plan& plan);

std::optional<PlanProblem> problem_of_ddp(const Plan& plan);
std::optional<PlanProblem> problem_of_zero12(const Plan& plan);
std::optional<PlanProblem> problem_of_running_ddp(const Plan& plan, const ModelSpec& model);
// What they raise while they run.
std::optional<PlanProblem> problem_of_running_library(const Plan& plan, const ModelSpec& model);

// Axes beside replicate and shard: runtimes and keys that they do not go with yet, and sizes that
// do not divide what they cut.
std::optional<PlanProblem> problem_of_axes(const Plan& plan, const ModelSpec& model);

// What fully_shard raises while it runs, though every knob is there.
std::optional<PlanProblem> problem_of_running(const Plan& plan, const ModelSpec& model);

}  // namespace foreshard
