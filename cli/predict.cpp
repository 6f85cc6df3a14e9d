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

struct Answer {
  Job job;
  Forecast forecast;
  Report report;
};

Answer answer(const JobOptions& options) {
  Job job = load_job(options);
  const CostModel costs = cost_model(job);
  Forecast made = forecast(job.model, job.resolved.plan, costs);
  Report report = report_of(job, made, costs);
  return {std::move(job), std::move(made), std::move(report)};
}

// What follows the answer where the plan does not fit, and the exit code.
struct Ending {
  ExitCode exit_code = ExitCode::kOk;
  std::string shortfall;  // "" where it fits
  std::string remedy;
  Json json;
};

Ending ending(const Answer& answer) {
  const Fit& fit = answer.report.fit;
  if (fit.fits()) return {};
  const Cluster& cluster = answer.job.cluster;
  const auto remedy = find_remedy(answer.job.model, answer.job.resolved.plan, cluster);
  return {ExitCode::kInfeasible, shortfall_text(fit), remedy_text(remedy, cluster),
          remedy_json(fit, remedy)};
}

// `text` and `json` make the answer in either form.
template <typename Text, typename ToJson>
ExitCode write(const Answer& answer, const OutputOptions& output, const Text& text,
               const ToJson& json) {
  const Ending end = ending(answer);
  if (output.form == Form::kText) {
    const std::string remedy = end.remedy.empty() ? "" : "\n" + end.remedy + "\n";
    write_answer(text(color_of(output.color)) + remedy);
    if (!end.shortfall.empty()) note(end.shortfall);
    return end.exit_code;
  }
  auto [schema, body] = json();
  if (!end.shortfall.empty()) {
    body["infeasible"] = end.json;
    note(end.shortfall + "; " + end.remedy);
  }
  write_answer(document(schema, body));
  return end.exit_code;
}

}  // namespace

ExitCode run_predict(const PredictOptions& options) {
  const Answer a = answer(options.job);
  if (!options.trace.empty()) write_file(options.trace, chrome_trace(a.forecast));
  if (!options.csv.empty()) {
    write_file(options.csv, schedule_csv(a.forecast.graph, a.forecast.timeline));
  }
  return write(
      a, options.output, [&](Color color) { return to_text(a.report, a.forecast, color); },
      [&] { return std::pair("foreshard.report/1", to_json(a.report)); });
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
  return write(
      a, options.output, [&](Color color) { return explain_text(a.forecast, a.report, color); },
      [&] { return std::pair("foreshard.explain/1", explain_json(a.forecast, a.report)); });
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
    const Ending end = ending(*side);
    if (end.shortfall.empty()) continue;
    note(fmt::format("the {} plan {}; {}", name, end.shortfall, end.remedy));
  }
  if (options.output.form == Form::kText) {
    write_answer(
        compare_text(a.forecast, a.report, b.forecast, b.report, color_of(options.output.color)));
  } else {
    write_answer(document("foreshard.compare/1",
                          compare_json(a.forecast, a.report, b.forecast, b.report)));
  }
  return a.report.fit.fits() && b.report.fit.fits() ? ExitCode::kOk : ExitCode::kInfeasible;
}

}  // namespace foreshard
