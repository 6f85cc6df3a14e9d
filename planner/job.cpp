// The layers of a plan in their order: file, flags, assignments. Then the model and the cluster it
// names are read, and the plan is completed and checked against them.
#include "planner/job.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <system_error>
#include <utility>

#include "calibration/first_looks.h"
#include "calibration/local_profile.h"
#include "calibration/machines.h"
#include "calibration/profile.h"
#include "calibration/training_evidence.h"
#include "interop/steps/informed_calibration.h"
#include "models/layers/variants.h"
#include "planner/amounts.h"
#include "planner/local_profiles.h"
#include "planner/model_name.h"
#include "sim/base/lookup.h"
#include "sim/base/quantile.h"
#include "sim/simulate/cost_choices.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

// Re-simulations behind the intervals of a report.
constexpr int kDraws = 64;  // 20 ms for 96 layers

// What a key of the plan names, seen from where it was written: paths in a plan file are relative to that file.
std::string as_seen_from_plan(const PlanDocument& document, const char* key, const std::string& text) {
  const auto given = document.given.find(key);
  if (given == document.given.end() || given->second.layer != PlanLayer::kFile) return text;
  const std::filesystem::path path = text;
  return path.is_absolute() ? text : (std::filesystem::path(document.file).parent_path() / path).string();
}

// One group of assignments. If it says one side of the mesh, the other side follows, whatever was written before.
PlanDocument apply(PlanDocument document, const std::vector<std::string>& assignments) {
  static constexpr const char* kSides[] = {"mesh.shard", "mesh.replicate"};
  GivenKeys before;
  for (const char* side : kSides)
    if (auto node = document.given.extract(side)) before.insert(std::move(node));
  for (const std::string& assignment : assignments) document = apply_set(std::move(document), assignment);
  if (!document.has(kSides[0]) && !document.has(kSides[1])) document.given.merge(before);
  return document;
}

// A runtime without a version over one that has one.
PlanDocument with_runtime(PlanDocument document, const std::string& text) {
  const bool is_said = document.has("runtime");
  const Runtime is = document.plan.runtime;
  document = apply_flag(std::move(document), "--runtime", "runtime", text);
  const Runtime& to = document.plan.runtime;
  if (!is_said || is.version.empty() || !to.version.empty()) return document;
  const std::string named = fmt::format("{}@{}", to_string(to.kind), version_beside(is, to.kind));
  return apply_flag(std::move(document), "--runtime", "runtime", named);
}

PlanDocument read_document(const JobOptions& options) {
  PlanDocument document;
  if (options.plan) document = read_plan_file(*options.plan);
  const auto flag = [&](const char* name, const char* key, const std::optional<std::string>& text) {
    if (text) document = apply_flag(std::move(document), name, key, *text);
  };
  flag("--model", "model", options.model);
  flag("--cluster", "cluster", options.cluster);
  if (options.runtime) document = with_runtime(std::move(document), *options.runtime);
  std::optional<std::string> sequence = options.sequence;
  if (sequence) sequence = sequence_length(*sequence);
  flag("--sequence", "batch.sequence", sequence);
  flag("--micro-batch", "batch.micro_batch", options.micro_batch);
  flag("--accumulation", "batch.accumulation", options.accumulation);
  for (const auto& group : options.assignments) document = apply(std::move(document), group);
  return document;
}

// What is wrong with a name is said where the plan file names it.
auto told_in_plan(const PlanDocument& document, const char* key, auto read) {
  try {
    return read();
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    const auto given = document.given.find(key);
    if (error.exit_code() != ExitCode::kInvalidInput || given == document.given.end() ||
        given->second.layer != PlanLayer::kFile)
      throw;
    throw ConfigError(given->second.location, error.what());
  }
}

void load_model_of(Job& job) {
  const std::string text = model_of(job.document);
  const std::string seen = as_seen_from_plan(job.document, "model", text);
  const ModelName name = told_in_plan(job.document, "model", [&] { return find_model(text, seen); });
  const Stack stack = stack_of(job.document.has("runtime") ? job.document.plan.runtime.kind : Plan().runtime.kind);
  LoadedModel loaded = load_model(name, stack);
  job.model = std::move(loaded.model);
  job.model_config = std::move(loaded.config);
  // The cache's snapshots come and go; the id names them.
  if (!name.is_cached) job.model_file = name.file;
  for (std::string& text : loaded.notes) {
    const bool is_said = contains(job.warnings, text);  // by the job that this one translates
    if (!is_said) job.warnings.push_back(std::move(text));
  }
}

std::int64_t local_ranks(const PlanDocument& document, const JobOptions& options) {
  const bool has_shard = document.has("mesh.shard");
  const bool has_replicate = document.has("mesh.replicate");
  if (options.ranks && !(has_shard && has_replicate)) return *options.ranks;
  const std::int64_t copies =
      checked_multiply(has_shard ? document.plan.mesh.shard : 1, has_replicate ? document.plan.mesh.replicate : 1);
  return checked_multiply(copies, document.has("mesh.tp") ? document.plan.mesh.tp : 1);
}

LocalProfile local_profile(const JobOptions& options, Job& job) {
  if (options.profile) {
    job.profile_file = *options.profile;
    return read_local_profile(job.profile_file);
  }
  if (const auto newest = newest_profile()) {
    job.profile_file = *newest;
    LocalProfile profile = read_local_profile(*newest);
    if (const std::string cpu = this_machine().cpu; profile.host.cpu != cpu)
      job.warnings.push_back(fmt::format("the newest profile is of {}, this machine is {}", profile.host.cpu, cpu));
    return profile;
  }
  if (options.profile_need == ProfileNeed::kOptional) return nominal_local_profile(this_machine());
  throw Error(ExitCode::kMissingCapability,
      "cluster 'local': there is no measured profile of this machine; make one with\n  foreshard-exec measure --out "
      "raw.json\n  foreshard calibrate raw.json\nor name one with --profile FILE");
}

void load_local(const JobOptions& options, Job& job) {
  constexpr std::int64_t kMostRanks = 4096;
  const std::int64_t ranks = local_ranks(job.document, options);
  if (ranks < 1 || ranks > kMostRanks)
    throw invalid_input("cluster 'local': {} ranks on one machine; expected 1 to {}", ranks, kMostRanks);
  const LocalProfile profile = local_profile(options, job);
  LocalMachine machine = local_machine(profile, ranks);
  job.cluster = std::move(machine.cluster);
  job.calibration = std::move(machine.calibration);
  if (ranks > profile.host.cores) {
    job.warnings.push_back(
        fmt::format("{} ranks on {} cores: they take turns, and times scatter", ranks, profile.host.cores));
  }
}

// A profile of another GPU prices nothing of this one.
void check_profile(const JobOptions& options, const Job& job) {
  if (options.accept_profile || job.calibration->gpu == job.cluster.gpu.key) return;
  throw invalid_input(
      "{}: gpu: the profile is of {}, the cluster's GPU is {}; expected a profile of {}, none for the shipped one, or "
      "--accept-profile",
      job.profile_file.string(), job.calibration->gpu, job.cluster.gpu.key, job.cluster.gpu.key);
}

void load_cluster_of(const JobOptions& options, Job& job) {
  const std::string text = cluster_of(job.document);
  if (text == "local") return load_local(options, job);
  const std::string seen = as_seen_from_plan(job.document, "cluster", text);
  const bool is_file = is_cluster_file(text, seen);
  if (is_file) job.cluster_file = seen;
  job.cluster = told_in_plan(job.document, "cluster", [&] { return load_cluster(is_file ? seen : text); });
  if (options.profile) {
    job.profile_file = *options.profile;
    job.calibration = read_calibration(read_json_file(job.profile_file));
    check_profile(options, job);
  }
}

// How a plan file in `folder` names `file`.
std::string from_folder(const std::filesystem::path& file, const std::filesystem::path& folder) {
  std::error_code error;
  const std::filesystem::path relative = std::filesystem::relative(file, folder.empty() ? "." : folder, error);
  return error || relative.empty() ? std::filesystem::absolute(file, error).string() : relative.string();
}

// What is left once model and cluster are read.
void complete(Job& job) {
  job.open = open_stacks(job.document, job.model, job.cluster);
  job.resolved = resolve(with_usual_stack(job.document, job.open), job.model, job.cluster);
  // The only code that runs so is printed with the plan, which is the same when it is read again.
  const std::vector<StackAlternative>& codes = job.open.codes;
  if (codes.size() == 1 && codes.front().name != "none") job.resolved.plan.stack = codes.front().name;
  check(job.resolved, job.model, job.cluster);
  job.plain_model = job.model;
  job.model = with_variants(std::move(job.model), job.resolved.plan);
  check(job.resolved, job.model, job.cluster);  // what kernels leave is known now
}

}

Job load_job(const JobOptions& options) {
  Job job = {.options = options, .document = read_document(options)};
  // Both names first: the cheap questions before the expensive answers.
  model_of(job.document);
  cluster_of(job.document);
  load_model_of(job);
  load_cluster_of(options, job);
  if (options.gpu_memory > 0) job.cluster.gpu.memory = Bytes(options.gpu_memory);
  complete(job);
  return job;
}

Job load_job_of(const JobOptions& options, ModelSpec model) {
  Job job;
  job.document = read_document(options);
  job.model = std::move(model);
  cluster_of(job.document);
  load_cluster_of(options, job);
  complete(job);
  return job;
}

Job load_job_beside(const Job& loaded, const JobOptions& options) {
  Job job = {.options = options, .document = read_document(options)};
  load_model_of(job);
  job.cluster = loaded.cluster;
  job.cluster_file = loaded.cluster_file;
  job.calibration = loaded.calibration;
  job.profile_file = loaded.profile_file;
  job.warnings = loaded.warnings;
  complete(job);
  return job;
}

TranslatedJob translate_job(const Job& job, const std::string& runtime) {
  const PlanDocument asked = apply_flag(job.document, "--runtimes", "runtime", runtime);
  const Runtime& to = asked.plan.runtime;
  const Runtime& is = job.resolved.plan.runtime;
  if (to.kind == is.kind && (to.version.empty() || to.version == is.version)) return {job, {}};
  TranslatedJob translated{job, {}};
  Job& other = translated.job;
  other.document = asked;
  load_model_of(other);  // as the runtime's own kernels execute it
  Translation found = translate(job.document, job.resolved.plan, to, other.model, other.cluster);
  other.document = std::move(found.document);
  translated.ledger = std::move(found.ledger);
  complete(other);
  return translated;
}

std::string_view told_stack(const Job& job) {
  return job.open.codes.size() > 1 ? std::string_view() : job.resolved.plan.stack;
}

CostModel cost_model(const Job& job) {
  const Plan& plan = job.resolved.plan;
  const Calibration calibration =
      job.calibration
          ? *job.calibration
          : with_code_term(informed_calibration(job.model, plan, job.cluster, {}), plan, job.cluster, told_stack(job));
  const CostModel costs(job.cluster, calibration, cost_choices(job.resolved.plan));
  return job.options.paced ? costs.of_one_gpu() : costs;
}

StackSet stack_set(const Job& job, const CostModel& costs) {
  StackSet set;
  const std::vector<StackAlternative>& codes = job.open.codes;
  if (codes.size() < 2) return set;
  // Not the job itself: who searches may give that away.
  set.case_of = [usual = codes.front().plan.attention, model = job.plain_model,
                    is_measured = job.calibration.has_value(), costs](const StackAlternative& code) {
    ModelSpec own = with_variants(model, code.plan);
    // What published steps say of a machine differs by the attention kernel.
    const Cluster& cluster = costs.cluster();
    const bool is_priced_alike = code.plan.attention == usual || is_measured;
    CostModel priced(cluster,
        is_priced_alike ? costs.calibration()
                        : with_code_term(informed_calibration(own, code.plan, cluster, {}), code.plan, cluster, ""),
        cost_choices(code.plan));
    return StackCase{code.name, code.weight, std::move(own), code.plan, std::move(priced)};
  };
  for (const StackAlternative& each : codes) set.cases.push_back(set.case_of(each));
  set.plans_of = [open = job.open, model = job.plain_model, cluster = job.cluster](
                     const Plan& plan) { return open_stacks(open, plan, model, cluster); };
  return set;
}

namespace {

Report with_words(Report report, const Job& job, const Forecast& forecast) {
  std::vector<std::pair<std::string, std::string>> assumed;
  for (const AssumedValue& value : job.resolved.assumed)
    assumed.emplace_back(value.key, fmt::format("{} ({})", value.value, value.why));
  if (job.calibration && !job.cluster.host_computes && job.calibration->gpu != job.cluster.gpu.key) {
    assumed.emplace_back("profile",
        fmt::format("{}, measured on {} (--accept-profile)", job.profile_file.string(), job.calibration->gpu));
  }
  report.assumed.insert(report.assumed.begin(), assumed.begin(), assumed.end());
  const std::vector<std::string> texts = warnings(forecast.plan, job.model, job.cluster);
  report.warnings.insert(report.warnings.begin(), texts.begin(), texts.end());
  report.warnings.insert(report.warnings.begin(), job.warnings.begin(), job.warnings.end());
  const std::string nonsense = find_nonsense(report, forecast);
  if (!nonsense.empty()) throw blamed_on_profile(NonsenseError(nonsense), job.options);
  return report;
}

}

Report report_of(const Job& job, const Forecast& forecast, const CostModel& costs) {
  return with_words(summarize(forecast, costs, kDraws, stack_set(job, costs).of(forecast.plan)), job, forecast);
}

ShortSteps short_steps(const Job& job, const Forecast& laid_out, const CostModel& costs) {
  ShortSteps steps = summarize_short(laid_out, costs, kDraws, stack_set(job, costs).of(laid_out.plan));
  steps.laid_out = with_words(std::move(steps.laid_out), job, laid_out);
  return steps;
}

Error blamed_on_profile(const NonsenseError& error, const JobOptions& options) {
  if (!options.profile) return error;
  return invalid_input("{}: the profile makes {}; expected one that was measured on the cluster's GPU",
      *options.profile, error.nonsense());
}

std::string plan_file_text(const Job& job, const Plan& plan, const std::filesystem::path& folder) {
  Plan written = plan;
  if (!job.model_file.empty()) written.model = from_folder(job.model_file, folder);
  if (!job.cluster_file.empty()) written.cluster = from_folder(job.cluster_file, folder);
  return open_yaml(job.open, written, job.plain_model, job.cluster);
}

namespace {

// Codes whose own steps inform the costs (calibration/published/training_steps.csv, column stack).
constexpr std::array<std::string_view, 5> kInformed = {
    "composer_2022", "composer_2023_02", "composer_2023_05", "composer_2023_10", "internevo"};

// Whether what runs is what was described, or what was fitted.
bool leaves_nothing_open(const Plan& plan, const Cluster& cluster, std::string_view stack) {
  if (cluster.host_computes || plan.runtime.kind == RuntimeKind::kNative) return true;
  return has_steps(cluster.gpu.key) && contains(kInformed, stack);
}

}

double code_half_width(const Plan& plan, const Cluster& cluster, std::string_view stack, double below) {
  if (leaves_nothing_open(plan, cluster, stack)) return 0;
  const FirstLooks& looks = first_looks();
  CodeFacts facts = code_facts(plan, cluster, stack);
  facts.emplace_back(kBelowPeakFact, below);
  const LogReach reach = code_reach(looks, looks.time, facts, "");
  return (reach.up + reach.down) / 2;
}

Calibration with_code_term(Calibration calibration, const Plan& plan, const Cluster& cluster, std::string_view stack) {
  if (!calibration.knowledge || leaves_nothing_open(plan, cluster, stack)) return calibration;
  FactorKnowledge& known = *calibration.knowledge;
  const FirstLooks& looks = first_looks();
  const double slower = code_shift(looks, looks.time, code_facts(plan, cluster, stack), "");
  for (std::size_t f = 0; f < kFactors; ++f)
    if (f != at(Factor::kOverlap)) known.center[f] += slower;
  const double at_peak = code_half_width(plan, cluster, stack, 0);
  known.code_log_sd = at_peak / kNinetyPercent;
  known.code_slope = std::log(code_half_width(plan, cluster, stack, 1) / at_peak);
  return calibration;
}

}
