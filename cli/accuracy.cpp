// The verb that says how far forecasts are from measurements: of tables, or of this machine's runs.
#include "reports/accuracy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/local_profiles.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "interop/measured_tables.h"
#include "reports/history.h"

namespace foreshard {
namespace {

void write_accuracy(const std::vector<AccuracyRow>& rows, const std::string& title,
                    const OutputOptions& output) {
  if (output.form == Form::kJson) {
    write_answer(document("foreshard.accuracy/1", accuracy_json(rows)));
  } else {
    write_answer(accuracy_text(rows, title, color_of(output.color)));
  }
}

}  // namespace

ExitCode run_accuracy(const AccuracyOptions& options) {
  if (options.history) {
    const std::filesystem::path file = history_file();
    write_accuracy(accuracy_rows(read_history(file)),
                   "forecasts of step time against runs, from " + file.string(), options.output);
    return ExitCode::kOk;
  }
  if (options.files.empty()) {
    throw Error(ExitCode::kUsage, "accuracy of what: name tables of measurements, or --history");
  }
  std::vector<AccuracyRow> rows;
  std::vector<std::string> problems;
  for (const std::string& file : options.files) {
    MeasuredTable table = score_table(file);
    rows.insert(rows.end(), table.rows.begin(), table.rows.end());
    problems.insert(problems.end(), table.problems.begin(), table.problems.end());
  }
  write_accuracy(rows, fmt::format("forecasts against {}", fmt::join(options.files, ", ")),
                 options.output);
  for (const std::string& problem : problems) std::cerr << "error: " << problem << "\n";
  return problems.empty() ? ExitCode::kOk : ExitCode::kInvalidInput;
}

}  // namespace foreshard
