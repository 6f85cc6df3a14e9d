// A job: one model, one cluster, one plan, and what prices it. Named by flags, a plan file, or both
// (DESIGN section 11).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "interop/hf/hf_config.h"
#include "planner/options.h"
#include "reports/report.h"
#include "reports/sanity.h"
#include "reports/sizing/long_step.h"
#include "sim/cost/cost_model.h"
#include "sim/simulate/forecast.h"
#include "sim/spec/cluster.h"
#include "sim/spec/model_spec.h"
#include "sim/spec/open_stack.h"
#include "sim/spec/plan_config.h"
#include "sim/spec/plan_translate.h"

namespace foreshard {

struct Job {
  JobOptions options;  // what it was loaded of
  ModelSpec model;
  Cluster cluster;
  PlanDocument document;  // what was written
  ResolvedPlan resolved;  // and what that makes of every key; checked
  // Where the stack is not said: who may run the job, as `resolved` is first. The model as it is
  // without the plan's variants is theirs, too.
  OpenStacks open;
  ModelSpec plain_model;
  std::filesystem::path model_file;      // "": a name of the zoo or of the hub's cache
  std::optional<HfConfig> model_config;  // where the model was read from one
  std::filesystem::path cluster_file;    // "": a spec such as 64xh100, or local
  // What prices it, where that is not the shipped profile of its GPU: of --profile, or of `local`.
  std::optional<Calibration> calibration;
  std::filesystem::path profile_file;  // "": a shipped profile, or round figures
  std::vector<std::string> warnings;   // of how it was named; report_of has them
};

// `cluster: local` is this machine: its ranks are mesh.shard x mesh.replicate of the plan (a missing side is 1, or
// follows from JobOptions::ranks), its costs those of --profile or of the newest profile in the user's data folder;
// without one, and where none is needed, round figures that are all assumed.
//
// Throws ConfigError or Error(kInvalidInput) for wrong input (a profile of another GPU is such),
// Error(kUsage) where model or cluster
// are not named, Error(kMissingCapability) for `local` without the profile that it needs and for what is not modelled.
Job load_job(const JobOptions& options);

// The same for a model that has neither name nor file: what `options` name as model is its name.
Job load_job_of(const JobOptions& options, ModelSpec model);

// The same for options that name the cluster (and profile) of a job that is loaded already.
Job load_job_beside(const Job& loaded, const JobOptions& options);

// The nearest job for another runtime ("zero3", "fsdp2@2.11"), which is checked. The same runtime: the job itself.
// Throws Error(kMissingCapability) where there is none, Error(kUsage) for a text that is no runtime.
struct TranslatedJob {
  Job job;
  std::vector<LedgerEntry> ledger;
};
TranslatedJob translate_job(const Job& job, const std::string& runtime);

// The training code's preset, "" where several may run the job or it has none.
std::string_view told_stack(const Job& job);

CostModel cost_model(const Job& job);

// The codes that may run the job's plans, priced by `costs` as they are; none where it says its stack.
StackSet stack_set(const Job& job, const CostModel& costs);

// summarize() with the job's assumed values and warnings. Throws Error(kInternal) where the report
// says what cannot be (reports/sanity.h), Error(kInvalidInput) where a user's profile does.
Report report_of(const Job& job, const Forecast& forecast, const CostModel& costs);

// A user's profile may make steps faster than the hardware: Error(kInvalidInput) that names it.
// Everything else that cannot be is ours: the error itself.
Error blamed_on_profile(const NonsenseError& error, const JobOptions& options);
auto blame_profile(const JobOptions& options, const auto& answer) {
  try {
    return answer();
  } catch (const NonsenseError& error) {
    throw blamed_on_profile(error, options);
  }
}

// The plan as a file in `folder`: paths in it are relative to that folder. Keys that the training
// code decides, which nobody said, are left out.
std::string plan_file_text(const Job& job, const Plan& plan, const std::filesystem::path& folder);

// summarize_short(), as report_of().
ShortSteps short_steps(const Job& job, const Forecast& laid_out, const CostModel& costs);

// What a training code does that its description leaves open (calibration/first_looks.h), of a job.

// Half of the 90 % interval of a step that it makes, as a logarithm; 0 where what runs is what is
// described: the engine's own runtime, ranks of a CPU, a code whose own steps inform the costs.
// `stack`: of the training code, "" where it is not told. `below`: below_half_peak() of the step.
double code_half_width(const Plan& plan, const Cluster& cluster, std::string_view stack, double below);

// The calibration with that in what no factor explains (FactorKnowledge::code_log_sd), and with what such codes take
// longer than they are described in every factor of time, where it has these parts.
Calibration with_code_term(Calibration calibration, const Plan& plan, const Cluster& cluster, std::string_view stack);

}
