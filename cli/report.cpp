// The verb that writes all that is known of a job into one HTML file. Of a job: its forecast, the
// search around it, the same plan on more and fewer GPUs, and a run where one is named. Of a run
// folder: the same of its plan. Of another verb's JSON: what that document says.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "cli/full_report.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/verbs.h"
#include "sim/base/text_file.h"

namespace foreshard {
namespace {

// The search of a document, in the words of a page.
Json search_of_answer(const Json& json) {
  Json search = json;
  const auto in_short = [](const Json& entry) -> Json {
    const Json& report = entry.at("report");
    return {{"seconds", report.at("step").at("seconds").at("value")},
            {"tokens_per_s_per_gpu", report.at("step").at("tokens_per_s_per_gpu").at("value")},
            {"peak_allocated_bytes", report.at("memory").at("peak_allocated_bytes").at("value")},
            {"plan", ""}};
  };
  for (Json& entry : search.at("pareto")) entry = in_short(entry);
  if (!search.at("best").is_null()) search["best"] = in_short(search["best"]);
  search["neighbours"] = Json::array();
  return search;
}

// The page of a document that another verb wrote. Throws Json::exception where it lacks a key.
Json page_of_answer(const std::string& file) {
  Json json = Json::parse(read_text_file(file), nullptr, false);
  const bool names_itself =
      json.is_object() && json.contains("schema") && json["schema"].is_string();
  const std::string schema = names_itself ? json["schema"].get<std::string>() : "";
  if (schema == "foreshard.page/1") {
    for (const char* key : {"title", "views", "timelines"}) json.at(key);
    return json;
  }
  Json page = {{"schema", "foreshard.page/1"},
               {"title", file},
               {"selected", 0},
               {"views", Json::array()},
               {"timelines", Json::array()}};
  const auto add_report = [&](const Json& report, const std::string& label) {
    page["views"].push_back({{"label", label}, {"report", report}, {"timeline", nullptr}});
  };
  if (schema == "foreshard.report/1") {
    add_report(json, "forecast");
  } else if (schema == "foreshard.explain/1") {
    add_report(json.at("report"), "forecast");
    page["views"][0]["waterfall"] = json.at("waterfall");
  } else if (schema == "foreshard.search/1") {
    if (!json.at("best").is_null()) add_report(json["best"]["report"], "best plan");
    page["search"] = search_of_answer(json);
  } else if (schema == "foreshard.validation/1") {
    add_report(json.at("predicted"), "forecast");
    add_report(json.at("measured"), "measured");
    page["validation"] = json;
    page["validation"]["view"] = 1;
  } else if (schema == "foreshard.accuracy/1") {
    page["accuracy"] = json;
  } else {
    throw Error(ExitCode::kInvalidInput,
                fmt::format("{}: is no answer that can be shown; expected one JSON document of "
                            "predict, explain, search, validate, accuracy or report, with --json",
                            file));
  }
  for (const char* key : {"tool", "created", "host"}) {
    if (json.contains(key)) page[key] = json[key];
  }
  return page;
}

}  // namespace

ExitCode run_report(const ReportOptions& asked) {
  ReportOptions options = asked;
  std::error_code ignored;
  if (std::filesystem::is_directory(options.answer, ignored)) {  // a run, with its plan in it
    options.run = options.answer;
    if (!options.job.plan) options.job.plan = options.answer + "/plan.yaml";
    options.answer.clear();
  }
  const bool shows_page = options.html.empty() && options.output.form == Form::kText;
  if (shows_page && ::isatty(STDOUT_FILENO) != 0) {
    throw Error(ExitCode::kUsage,
                "report: name a file with --html FILE, or send standard output to one");
  }
  ExitCode code = ExitCode::kOk;
  Json document;
  if (!options.answer.empty()) {
    try {
      document = page_of_answer(options.answer);
    } catch (const Json::exception& error) {
      throw Error(ExitCode::kInvalidInput, fmt::format("{}: is no whole answer of foreshard: {}",
                                                       options.answer, error.what()));
    }
  } else {
    const Answer a = answer(options.job);
    PageDocument page(page_title(a.job), options.output.command);
    const InterruptGuard guard;
    Progress progress("search");
    SearchOptions search_options;
    search_options.threads = options.threads;
    search_options.progress = [&](std::int64_t done, std::int64_t all) {
      progress.show(done, all);
      return !InterruptGuard::interrupted();
    };
    add_full_report(page, a, options.job, options.run, search_options);
    document = page_json(page);
    code = a.exit_code();
    if (!a.shortfall.empty()) note(a.shortfall);
  }
  const std::string text =
      options.output.form == Form::kJson ? to_text(document) : html_page(document);
  if (options.html.empty()) {
    write_answer(text);
  } else if (options.output.form == Form::kJson) {
    write_file(options.html, html_page(document));
    write_answer(text);
  } else {
    write_file(options.html, text);
    write_answer(fmt::format("{}: {:.2f} MB, opens in any browser without a network\n",
                             options.html, static_cast<double>(text.size()) / 1e6));
  }
  return code;
}

}  // namespace foreshard
