#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "calibration/machines.h"
#include "calibration/profile.h"
#include "cli/output.h"
#include "cli/page.h"
#include "cli/verbs/verbs.h"
#include "interop/capture/capture_import.h"
#include "interop/steps/informed_calibration.h"
#include "reports/capture/captured_report.h"
#include "reports/page/page.h"
#include "reports/view/views.h"
#include "sim/base/config.h"
#include "sim/simulate/cost_choices.h"

namespace foreshard {
namespace {

struct CapturedAnswer {
  std::vector<Capture> captures;
  CapturedForecast made;

  const Capture& shown() const { return captures[made.shown]; }
  ExitCode exit_code() const { return made.report.fit.fits() ? ExitCode::kOk : ExitCode::kInfeasible; }
};

void check_options(const JobOptions& job) {
  const bool is_said = job.plan || job.model || job.runtime || job.sequence || job.micro_batch || job.accumulation;
  bool assigns = false;
  for (const auto& group : job.assignments) assigns |= !group.empty();
  if (is_said || assigns) {
    throw Error(ExitCode::kUsage,
        "--capture: the captured program says model and plan; expected --cluster and --profile alone beside it "
        "(foreshard import reads a plan off a capture)");
  }
  if (!job.cluster || *job.cluster == "local")
    throw Error(ExitCode::kUsage, "--capture: expected --cluster, such as 8xh100");
}

CapturedAnswer answer_capture(const JobOptions& job) {
  check_options(job);
  CapturedAnswer a;
  for (const std::string& folder : job.capture) a.captures.push_back(read_capture(folder));
  const Cluster cluster = load_cluster(*job.cluster);
  const Plan plan = captured_plan(a.captures.front(), cluster);
  const Calibration calibration =
      job.profile ? read_calibration(read_json_file(*job.profile)) : profile_calibration(plan, cluster);
  if (job.profile && calibration.gpu != cluster.gpu.key && !job.accept_profile) {
    throw invalid_input(
        "{}: gpu: the profile is of {}, the cluster's GPU is {}; expected a profile of {}, or --accept-profile",
        *job.profile, calibration.gpu, cluster.gpu.key, cluster.gpu.key);
  }
  a.made = forecast_captures(a.captures, plan, CostModel(cluster, calibration, cost_choices(plan)));
  return a;
}

// A page with the captured step alone.
class Page : public PageDocument {
 public:
  Page(const CapturedAnswer& a, const std::string& command)
      : PageDocument(fmt::format("{} on {}, captured", a.made.report.plan.model, a.made.report.cluster.spec), command) {
    add_view({"captured", "# captured: " + a.shown().command + "\n", &a.made.forecast, &a.made.report});
  }
};

Json body_of(const CapturedAnswer& a, Json body) {
  body["capture"] = capture_json(a.shown(), a.made);
  return body;
}

}

ExitCode predict_capture(const PredictOptions& options) {
  const CapturedAnswer a = answer_capture(options.job);
  const Forecast& forecast = a.made.forecast;
  if (!options.trace.empty()) write_file(options.trace, chrome_trace(forecast));
  if (!options.csv.empty()) write_file(options.csv, schedule_csv(forecast.graph, forecast.timeline));
  if (!options.html.empty()) write_page(options.html, Page(a, options.output.command));
  if (options.output.form == Form::kJson) {
    write_answer(document("foreshard.report/1", body_of(a, to_json(a.made.report))));
    return a.exit_code();
  }
  write_text(to_text(a.made.report, forecast, color_of(options.output.color)) + capture_text(a.shown(), a.made));
  return a.exit_code();
}

ExitCode explain_capture(const ExplainOptions& options) {
  const CapturedAnswer a = answer_capture(options.job);
  if (options.output.form == Form::kJson) {
    write_answer(document("foreshard.explain/1", body_of(a, explain_json(a.made.forecast, a.made.report))));
    return a.exit_code();
  }
  write_text(
      explain_text(a.made.forecast, a.made.report, color_of(options.output.color)) + capture_text(a.shown(), a.made));
  return a.exit_code();
}

ExitCode schedule_capture(const ScheduleOptions& options) {
  const CapturedAnswer a = answer_capture(options.job);
  const std::string csv = schedule_csv(a.made.forecast.graph, a.made.forecast.timeline);
  options.out.empty() ? write_answer(csv) : write_file(options.out, csv);
  return ExitCode::kOk;
}

ExitCode report_capture(const ReportOptions& options) {
  const CapturedAnswer a = answer_capture(options.job);
  const Page page(a, options.output.command);
  if (options.output.form == Form::kJson) {
    write_text(to_text(page_json(page)));
    return a.exit_code();
  }
  if (!options.html.empty()) {
    write_page(options.html, page);
    return a.exit_code();
  }
  if (::isatty(STDOUT_FILENO) != 0)
    throw Error(ExitCode::kUsage, "report: name a file with --html FILE, or send standard output to one");
  write_text(html_page(page_json(page)));
  return a.exit_code();
}

}
