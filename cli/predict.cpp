// Verbs that forecast one job: predict, schedule, explain.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "cli/job.h"
#include "cli/output.h"
#include "cli/remedy.h"
#include "cli/verbs.h"
#include "reports/views.h"

namespace foreshard {
namespace {

// A forecast with what is said about it. Where it does not fit: by how much and what would help,
// among the report's warnings, as one sentence and as JSON.
struct Answer {
  Job job;
  Forecast forecast;
  Report report;
  std::string shortfall;  // "" where it fits
  Json infeasible;

  ExitCode exit_code() const { return shortfall.empty() ? ExitCode::kOk : ExitCode::kInfeasible; }
};

Answer answer(const JobOptions& options) {
  Answer a;
  a.job = load_job(options);
  const CostModel costs = cost_model(a.job);
  a.forecast = forecast(a.job.model, a.job.resolved.plan, costs);
  a.report = report_of(a.job, a.forecast, costs);
  const Fit& fit = a.report.fit;
  if (fit.fits()) return a;
  const auto remedy = find_remedy(a.job.model, a.job.resolved.plan, a.job.cluster);
  a.shortfall = fmt::format("{}; {}", shortfall_text(fit), remedy_text(remedy, a.job.cluster));
  a.infeasible = remedy_json(fit, remedy);
  a.report.warnings.insert(a.report.warnings.begin(), a.shortfall);
  return a;
}

ExitCode write_json(const Answer& answer, std::string_view schema, Json body) {
  if (!answer.shortfall.empty()) {
    body["infeasible"] = answer.infeasible;
    note(answer.shortfall);
  }
  write_answer(document(schema, body));
  return answer.exit_code();
}

}  // namespace

ExitCode run_predict(const PredictOptions& options) {
  const Answer a = answer(options.job);
  if (!options.trace.empty()) write_file(options.trace, chrome_trace(a.forecast));
  if (!options.csv.empty()) {
    write_file(options.csv, schedule_csv(a.forecast.graph, a.forecast.timeline));
  }
  if (options.output.form == Form::kJson) {
    return write_json(a, "foreshard.report/1", to_json(a.report));
  }
  write_answer(to_text(a.report, a.forecast, color_of(options.output.color)));
  return a.exit_code();
}

ExitCode run_schedule(const ScheduleOptions& options) {
  const Job job = load_job(options.job);
  const Forecast made = forecast(job.model, job.resolved.plan, cost_model(job));
  const Fit fit = fit_in(job.cluster, made.memory.peak);
  // The order is right all the same.
  if (!fit.fits()) note("warning: the plan does not fit; foreshard predict says what would help");
  const std::string csv = schedule_csv(made.graph, made.timeline);
  options.out.empty() ? write_answer(csv) : write_file(options.out, csv);
  return ExitCode::kOk;
}

ExitCode run_explain(const ExplainOptions& options) {
  const Answer a = answer(options.job);
  if (options.output.form == Form::kJson) {
    return write_json(a, "foreshard.explain/1", explain_json(a.forecast, a.report));
  }
  const std::string text = explain_text(a.forecast, a.report, color_of(options.output.color));
  write_answer(text + (a.shortfall.empty() ? "" : "\n" + a.shortfall + "\n"));
  return a.exit_code();
}

ExitCode run_compare(const CompareOptions& options) {
  JobOptions first = options.job;
  JobOptions second = options.job;
  if (options.plans.empty()) {
    second.assignments.push_back(options.with);
  } else {
    first.plan = options.plans[0];
    second.plan = options.plans[1];
  }
  const Answer a = answer(first);
  const Answer b = answer(second);
  for (const auto& [name, side] : {std::pair("first", &a), std::pair("second", &b)}) {
    if (!side->shortfall.empty()) note(fmt::format("the {} plan {}", name, side->shortfall));
  }
  if (options.output.form == Form::kText) {
    write_answer(
        compare_text(a.forecast, a.report, b.forecast, b.report, color_of(options.output.color)));
  } else {
    write_answer(
        document("foreshard.compare/1", compare_json(a.forecast, a.report, b.forecast, b.report)));
  }
  return a.exit_code() == ExitCode::kOk ? b.exit_code() : a.exit_code();
}

}  // namespace foreshard
