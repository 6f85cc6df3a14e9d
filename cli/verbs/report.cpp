// The verb that writes all that is known of a job into one HTML file. Of a job: its forecast, the
// search around it, the same plan on more and fewer GPUs, and a run where one is named. Of a run
// folder: the same of its plan. Of another verb's JSON: what that document says.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "cli/answer.h"
#include "cli/output.h"
#include "cli/page.h"
#include "cli/progress.h"
#include "cli/recording.h"
#include "cli/verbs/verbs.h"
#include "planner/job_search.h"
#include "planner/search_space.h"
#include "sim/base/json_document.h"
#include "sim/search/search.h"

namespace foreshard {
namespace {

void attach_run(PageDocument& page, const Answer& a, const std::string& run) {
  const RecordedRun recording = read_recording(run, a.forecast);
  if (a.forecast.graph.fingerprint() != recording.record.fingerprint)
    throw invalid_input("{}: is of another step; foreshard validate says what differs", run);
  add_validation(page, a.forecast, validate(a.forecast, a.report, recording.record, {}), recording.record);
}

// The forecast of `a`, a run of it ("": none), the search around it, and the same plan on fewer and more GPUs.
void add_full_report(PageDocument& page, const Answer& a, const JobOptions& options, const std::string& run,
    const SearchOptions& search_options) {
  add_forecast(page, a.job, a.forecast, a.report, "the plan asked for");
  if (!run.empty()) attach_run(page, a, run);
  add_scaling(page, options, a.job);
  SearchVariants variants = search_variants(a.job, {});
  variants.each_mesh = true;
  const JobSearch found = search_job(variants, search_options);
  add_search(page, without_choices(found.chosen.job), found);
}

}

ExitCode run_report(const ReportOptions& asked) {
  if (!asked.job.capture.empty()) return report_capture(asked);
  ReportOptions options = asked;
  std::error_code ignored;
  if (std::filesystem::is_directory(options.answer, ignored)) {  // a run, with its plan in it
    options.run = options.answer;
    if (!options.job.plan) options.job.plan = options.answer + "/plan.yaml";
    options.answer.clear();
  }
  const bool shows_page = options.html.empty() && options.output.form == Form::kText;
  if (shows_page && ::isatty(STDOUT_FILENO) != 0)
    throw Error(ExitCode::kUsage, "report: name a file with --html FILE, or send standard output to one");
  ExitCode code = ExitCode::kOk;
  Json document;
  if (!options.answer.empty()) {
    document = page_of_answer(read_json_document(options.answer), options.answer);
  } else {
    const Answer a = answer(options.job);
    PageDocument page(page_title(a.job), options.output.command);
    Progress progress("search");
    SearchOptions search_options = {.threads = options.threads, .progress = progress.until_interrupted()};
    add_full_report(page, a, options.job, options.run, search_options);
    document = page_json(page);
    code = a.exit_code();
    if (!a.shortfall.empty()) note(a.shortfall);
  }
  const std::string text = options.output.form == Form::kJson ? to_text(document) : html_page(document);
  if (options.html.empty()) {
    write_text(text);
  } else if (options.output.form == Form::kJson) {
    write_file(options.html, html_page(document));
    write_text(text);
  } else {
    write_file(options.html, text);
    write_answer(fmt::format(
        "{}: {:.2f} MB, opens in any browser without a network\n", options.html, as_double(text.size()) / 1e6));
  }
  return code;
}

}
