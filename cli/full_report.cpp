#include "cli/full_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/recording.h"
#include "planner/job_search.h"
#include "planner/search_space.h"

namespace foreshard {
namespace {

void attach_run(PageDocument& page, const Answer& a, const std::string& run) {
  const RecordedRun recording = read_recording(run, a.forecast);
  if (a.forecast.graph.fingerprint() != recording.record.fingerprint) {
    throw Error(ExitCode::kInvalidInput,
                fmt::format("{}: is of another step; foreshard validate says what differs", run));
  }
  add_validation(page, a.forecast, validate(a.forecast, a.report, recording.record, {}),
                 recording.record);
}

}  // namespace

void add_full_report(PageDocument& page, const Answer& a, const JobOptions& options,
                     const std::string& run, const SearchOptions& search_options) {
  add_forecast(page, a.job, a.forecast, a.report, "the plan asked for");
  if (!run.empty()) attach_run(page, a, run);
  add_scaling(page, options, a.job);
  SearchVariants variants = search_variants(a.job, {});
  variants.each_mesh = true;
  const JobSearch found = search_job(variants, search_options);
  add_search(page, without_choices(found.chosen.job), found);
}

}  // namespace foreshard
