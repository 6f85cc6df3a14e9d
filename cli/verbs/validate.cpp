// The verb that holds a forecast against a run: validate.
#include "reports/validate/validate.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/output.h"
#include "cli/page.h"
#include "cli/recording.h"
#include "cli/verbs/verbs.h"
#include "planner/job.h"
#include "planner/local_profiles.h"
#include "reports/validate/history.h"
#include "reports/validate/measured.h"
#include "sim/base/config.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

// The plan of the run, as far as it can be completed: for the sentence about what differs.
Plan plan_of(const RunRecord& record, const std::string& folder, const Job& job) {
  const PlanDocument document = read_plan(parse_yaml(record.plan_yaml, folder + "/plan.yaml"));
  try {
    return resolve(document, job.model, job.cluster).plan;
  } catch (const Error&) {
    return document.plan;
  }
}

HistoryRow history_row(const Job& job, const Validation& v, const RunRecord& record) {
  return HistoryRow{.host = record.host,
      .fingerprint = record.fingerprint,
      .plan_yaml = to_yaml(job.resolved.plan),
      .model = job.model.name,
      .runtime = fmt::format("{}@{}", to_string(job.resolved.plan.runtime.kind), job.resolved.plan.runtime.version),
      .ranks = record.world,
      .predicted_s = v.step.predicted,
      .low_s = v.predicted.seconds.low,
      .high_s = v.predicted.seconds.high,
      .measured_s = v.step.measured,
      .exposed_communication_error = v.exposed_communication_error,
      .memory_error = v.memory_error,
      .passed = v.passed,
      .profile = job.profile_file.empty() ? job.cluster.gpu.key : job.profile_file.stem().string(),
      .version = FORESHARD_VERSION};
}

// The comparison stands without it.
void remember(const HistoryRow& row) {
  try {
    append_history(history_file(), row);
    note(fmt::format("added to {} (accuracy --history reads it; --no-history leaves it)", history_file().string()));
  } catch (const Error& error) {
    note(fmt::format("not added to the history: {}", error.what()));
  }
}

// Over axes a recording says what a step issued and held, not when.
ExitCode validate_listed(const ValidateOptions& options, const Forecast& made) {
  const std::string run = options.run.empty() ? options.trace : options.run;
  const ListedJoin join = join_listed(made, read_listed_run(run, made.plan.rank()), options.max_memory_error);
  if (options.output.form == Form::kJson) write_answer(document("foreshard.collectives/1", to_json(join)));
  else write_text(listed_text(join));
  return join.passed ? ExitCode::kOk : ExitCode::kOutsideTolerance;
}

}

ExitCode run_validate(const ValidateOptions& options) {
  if (options.run.empty() && options.trace.empty()) {
    throw Error(ExitCode::kUsage,
        "validate needs --run: a folder of foreshard-exec run, a trace of torch.profiler, or a folder of traces");
  }
  const Job job = load_job(options.job);
  const std::string run = options.run.empty() ? options.trace : options.run;
  const CostModel costs = cost_model(job);
  Forecast made = forecast(job.model, job.resolved.plan, costs);
  if (is_traced(run) && !job.resolved.plan.mesh.is_plain()) return validate_listed(options, made);
  const RecordedRun recording = read_recording(run, made);
  const RunRecord& record = recording.record;
  if (made.graph.fingerprint() != record.fingerprint)
    throw invalid_input("{}: {}", run, mismatch_sentence(made, plan_of(record, run, job), record, FORESHARD_VERSION));
  const CostModel prices = record.paced ? costs.of_one_gpu() : costs;
  if (record.paced) made = forecast(job.model, job.resolved.plan, prices);
  const Report predicted = report_of(job, made, prices);
  const Validation v =
      validate(made, predicted, record, {options.max_step_error, options.max_exposed_error, options.max_memory_error});
  if (!options.run.empty() && !options.trace.empty())
    write_file(options.trace, chrome_trace(made, measured_view(made.model, made.plan, made.graph, record)));
  if (!options.html.empty()) {
    PageDocument page(page_title(job), options.output.command);
    add_forecast(page, job, made, predicted, "forecast");
    add_validation(page, made, v, record);
    write_page(options.html, page);
  }
  // The history's rows need a memory error.
  if (options.history && v.memory_known) remember(history_row(job, v, record));
  if (options.output.form == Form::kJson) {
    Json json = to_json(v);
    if (recording.trace) json["trace"] = to_json(*recording.trace);
    write_answer(document("foreshard.validation/1", json));
  } else {
    const Color color = color_of(options.output.color);
    write_text(validation_text(v, record, color) + (recording.trace ? "\n" + trace_text(*recording.trace) : ""));
  }
  return v.passed ? ExitCode::kOk : ExitCode::kOutsideTolerance;
}

}
