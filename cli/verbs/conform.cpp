// The verb that holds forecasts against recordings of the real library: conform.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/output.h"
#include "cli/verbs/verbs.h"
#include "interop/recordings/hf_cases.h"
#include "interop/recordings/pipeline_tables.h"
#include "interop/recordings/recorded_job.h"
#include "sim/base/lookup.h"
#include "sim/base/spelling.h"

namespace foreshard {
namespace {

// An id that no folder has is a misspelt one.
void check_only(const std::vector<const RecordingFolder*>& folders, std::vector<std::string> known,
    const std::vector<std::string>& only) {
  for (const RecordingFolder* folder : folders) {
    for (std::size_t row = 0; row < folder->size(); ++row) known.push_back(folder->id(row));
    for (const SkippedRecording& skipped : folder->skipped()) known.push_back(skipped.id);
  }
  for (const std::string& id : only) {
    if (contains(known, id)) continue;
    const std::string near = nearest_spelling(id, known);
    throw Error(ExitCode::kUsage, "no recording is called {}{}", quote(id),
        near.empty() ? "" : fmt::format("; did you mean {}?", near));
  }
}

// The folders with an index; there need be none where `others` are there.
std::vector<std::filesystem::path> recordings_of(
    const std::filesystem::path& path, const std::vector<std::filesystem::path>& others) {
  if (others == std::vector<std::filesystem::path>{path}) return {};
  try {
    return find_recordings(path);
  } catch (const Error&) {
    if (others.empty()) throw;
    return {};
  }
}

}

ExitCode run_conform(const ConformOptions& options) {
  RecordingLibrary library;
  std::vector<const RecordingFolder*> folders;
  std::vector<ConformanceFolder> results;
  std::vector<std::string> cases;
  for (const std::string& path : options.folders) {
    std::vector<std::filesystem::path> others;
    const auto add = [&](const auto& found, const auto& conform) {
      for (const std::filesystem::path& folder : found) {
        others.push_back(folder);
        results.push_back(conform(folder, options.only));
        for (const Conformance& row : results.back().rows) cases.push_back(row.id);
        if (results.back().rows.empty()) results.pop_back();
      }
    };
    add(find_hf_cases(path), conform_hf_cases);
    add(find_pipeline_tables(path), conform_pipeline_tables);
    for (const std::filesystem::path& folder : recordings_of(path, others)) folders.push_back(&library.open(folder));
  }
  check_only(folders, std::move(cases), options.only);
  for (const RecordingFolder* folder : folders) {
    results.push_back(conform_folder(library, *folder, options.only));
    if (results.back().rows.empty()) results.pop_back();
  }
  if (options.output.form == Form::kJson) write_answer(document("foreshard.conformance/1", conformance_json(results)));
  else write_text(conformance_text(results, options.verbose, color_of(options.output.color)));
  return summarize(results).passed ? ExitCode::kOk : ExitCode::kOutsideTolerance;
}

}
