// The verb that says how far forecasts are from measurements: of tables, or of this machine's runs.
#include "reports/accuracy/accuracy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/output.h"
#include "cli/page.h"
#include "cli/verbs/verbs.h"
#include "interop/steps/measured_tables.h"
#include "planner/local_profiles.h"
#include "reports/validate/history.h"
#include "sim/base/json_document.h"

namespace foreshard {
namespace {

struct Scored {
  std::vector<AccuracyRow> rows;
  std::vector<std::string> problems;
};

// "details" stands for the columns of a training code's kernels.
std::vector<std::string> blanked_columns(const std::vector<std::string>& said) {
  std::vector<std::string> columns;
  for (const std::string& each : said) {
    if (each != "details") {
      columns.push_back(each);
      continue;
    }
    for (const char* detail : {"stack", "attention_kernel", "norm_impl", "rope_impl", "residual_dtype", "loss_impl",
             "train_metrics", "optimizer_impl"})
      columns.emplace_back(detail);
  }
  return columns;
}

Scored score(const std::vector<std::string>& files, const std::vector<std::string>& blanked) {
  Scored scored;
  for (const std::string& file : files) {
    MeasuredTable table = score_table(file, blanked);
    std::move(table.rows.begin(), table.rows.end(), std::back_inserter(scored.rows));
    std::move(table.problems.begin(), table.problems.end(), std::back_inserter(scored.problems));
  }
  return scored;
}

void write_accuracy_page(const AccuracyOptions& options, const std::vector<AccuracyRow>& rows) {
  PageDocument page("Forecasts against measurements", options.output.command);
  page.set("accuracy", accuracy_page_json(rows));
  write_page(options.html, page);
}

void write(
    const std::vector<AccuracyRow>& rows, const std::string& title, ShownRows shown, const OutputOptions& output) {
  if (output.form == Form::kJson) write_answer(document("foreshard.accuracy/1", accuracy_json(rows)));
  else write_text(accuracy_text(rows, title, shown, color_of(output.color)));
}

}

ExitCode run_accuracy(const AccuracyOptions& options) {
  if (options.history) {
    const std::filesystem::path file = history_file();
    const std::vector<AccuracyRow> rows = accuracy_rows(read_history(file));
    if (!options.html.empty()) write_accuracy_page(options, rows);
    write(rows, "forecasts of step time against runs, from " + file.string(), ShownRows::kNewest, options.output);
    return ExitCode::kOk;
  }
  if (options.files.empty())
    throw Error(ExitCode::kUsage, "accuracy of what: name tables of measurements, or --history");
  if (!options.evidence.empty()) {
    const TrainingEvidence evidence = gather_evidence(read_table(options.files.front()));
    write_file(options.evidence, to_json(evidence).dump() + "\n");
    note(fmt::format("what {} families of steps say is in {}", evidence.families.size(), options.evidence));
    return ExitCode::kOk;
  }
  Scored scored = score(options.files, blanked_columns(options.blank));
  if (!options.freeze.empty()) {
    const Json frozen = frozen_forecasts(scored.rows);
    write_file(options.freeze, document("foreshard.forecasts/1", frozen));
    note(fmt::format(
        "{} forecasts in {}, hash {}", scored.rows.size(), options.freeze, frozen["hash"].get<std::string>()));
  }
  if (!options.frozen.empty()) {
    try {
      scored.rows = with_frozen(std::move(scored.rows), read_json_document(options.frozen));
    } catch (const Json::exception& error) {
      throw ConfigError(
          {options.frozen, 0, 0, ""}, fmt::format("is not whole: {}", error.what()), "the file of accuracy --freeze");
    }
  }
  if (options.anchor > 0) scored.rows = anchored(std::move(scored.rows), options.anchor);
  if (!options.html.empty()) write_accuracy_page(options, scored.rows);
  write(scored.rows, fmt::format("forecasts against {}", fmt::join(options.files, ", ")), ShownRows::kWorst,
      options.output);
  for (const std::string& problem : scored.problems) note("error: " + problem);
  if (!scored.problems.empty()) return ExitCode::kInvalidInput;
  const AccuracySummary all = summarize_accuracy(pointers(scored.rows));
  const bool outside =
      all.scored > 0 && (all.median_abs_error > options.max_median_error || all.p90_abs_error > options.max_p90_error);
  return outside ? ExitCode::kOutsideTolerance : ExitCode::kOk;
}

}
