// Verbs that forecast one job: predict, schedule, explain.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "cli/answer.h"
#include "cli/output.h"
#include "cli/page.h"
#include "cli/verbs/verbs.h"
#include "reports/sizing/machine_changes.h"
#include "reports/validate/memory_snapshot.h"
#include "reports/view/views.h"
#include "sim/memory/outside_allocator.h"

namespace foreshard {
namespace {

ExitCode write_json(const Answer& answer, std::string_view schema, Json body) {
  if (!answer.shortfall.empty()) {
    body["infeasible"] = answer.infeasible;
    note(answer.shortfall);
  }
  write_answer(document(schema, body));
  return answer.exit_code();
}

}

ExitCode run_predict(const PredictOptions& options) {
  if (options.asks) return run_ask({options.job, options.output});
  if (!options.job.capture.empty()) return predict_capture(options);
  const bool shows_rows =
      !options.trace.empty() || !options.csv.empty() || !options.memory_snapshot.empty() || !options.html.empty();
  const Answer a = answer(options.job, shows_rows ? AnswerRows::kAll : AnswerRows::kFew);
  if (!options.trace.empty()) write_file(options.trace, chrome_trace(a.forecast));
  if (!options.csv.empty()) write_file(options.csv, schedule_csv(a.forecast.graph, a.forecast.timeline));
  if (!options.memory_snapshot.empty()) {
    // Without a limit: a step that does not fit is shown whole, too.
    const Plan& plan = a.forecast.plan;
    write_file(options.memory_snapshot, memory_snapshot(a.forecast, plan.allocator, DeviceMemory::unlimited(),
                                            library_buffers(a.forecast.graph, a.job.cluster, plan.runtime)));
  }
  if (!options.html.empty()) {
    PageDocument page(page_title(a.job), options.output.command);
    add_forecast(page, a.job, a.forecast, a.report, "");
    write_page(options.html, page);
  }
  if (options.output.form == Form::kJson) return write_json(a, "foreshard.report/1", to_json(a.report));
  write_text(to_text(a.report, a.forecast, color_of(options.output.color)));
  return a.exit_code();
}

ExitCode run_schedule(const ScheduleOptions& options) {
  if (!options.job.capture.empty()) return schedule_capture(options);
  const Job job = load_job(options.job);
  const Forecast made = forecast(job.model, job.resolved.plan, cost_model(job));
  const Fit fit = fit_in(job.cluster, made.memory.peak, made.reserved.peak,
      total(memory_outside(made.graph, job.cluster, job.resolved.plan.runtime)));
  // The order is right all the same.
  if (!fit.fits()) note("warning: the plan does not fit; foreshard predict says what would help");
  const std::string csv = schedule_csv(made.graph, made.timeline);
  options.out.empty() ? write_answer(csv) : write_file(options.out, csv);
  return ExitCode::kOk;
}

ExitCode run_explain(const ExplainOptions& options) {
  if (!options.job.capture.empty()) return explain_capture(options);
  if (!options.run.empty()) return explain_run(options);
  const Answer a = answer(options.job);
  const std::vector<Communicator>& communicators = a.forecast.graph.communicators;
  const std::vector<NetworkChange> changes = network_changes(a.forecast, cost_model(a.job));
  if (options.output.form == Form::kJson) {
    Json body = explain_json(a.forecast, a.report);
    if (a.job.cluster.routes) {
      body["network"] = network_json(a.job.cluster, communicators);
      body["network"]["changes"] = to_json(changes);
    }
    return write_json(a, "foreshard.explain/1", std::move(body));
  }
  std::string text = explain_text(a.forecast, a.report, color_of(options.output.color));
  if (a.job.cluster.routes) {
    text += "\nthe network: what binds each communicator, and what would help\n";
    for (const std::string& line : network_lines(a.job.cluster, communicators)) text += "  " + line + "\n";
    for (const std::string& line : network_change_lines(changes)) text += "  " + line + "\n";
  }
  write_text(text + (a.shortfall.empty() ? "" : "\n" + a.shortfall + "\n"));
  return a.exit_code();
}

namespace {

// One runtime that refuses the model must not hide the others.
ExitCode compare_runtimes(const CompareOptions& options) {
  const Job base = load_job(options.job);
  std::vector<RuntimeForecast> forecasts;
  bool any = false;
  for (const std::string& name : options.runtimes) {
    RuntimeForecast& one = forecasts.emplace_back();
    one.name = name;
    try {
      const TranslatedJob translated = translate_job(base, name);
      const Plan& plan = translated.job.resolved.plan;
      one.name = fmt::format("{}@{}", to_string(plan.runtime.kind), plan.runtime.version);
      const CostModel costs = cost_model(translated.job);
      one.forecast = forecast(translated.job.model, plan, costs);
      one.report = report_of(translated.job, one.forecast, costs);
      one.ledger = translated.ledger;
      any |= one.report.fit.fits();
    } catch (const Error& error) {
      if (error.exit_code() != ExitCode::kMissingCapability) throw;
      one.refused = error.what();
    }
  }
  if (options.output.form == Form::kText) write_text(runtimes_text(forecasts, color_of(options.output.color)));
  else write_answer(document("foreshard.runtimes/1", runtimes_json(forecasts)));
  return any ? ExitCode::kOk : ExitCode::kInfeasible;
}

}

ExitCode run_compare(const CompareOptions& options) {
  if (!options.runtimes.empty()) return compare_runtimes(options);
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
  for (const auto& [name, side] : {std::pair("first", &a), std::pair("second", &b)})
    if (!side->shortfall.empty()) note(fmt::format("the {} plan {}", name, side->shortfall));
  if (options.output.form == Form::kText)
    write_answer(compare_text(a.forecast, a.report, b.forecast, b.report, color_of(options.output.color)));
  else write_answer(document("foreshard.compare/1", compare_json(a.forecast, a.report, b.forecast, b.report)));
  return a.exit_code() == ExitCode::kOk ? b.exit_code() : a.exit_code();
}

}
