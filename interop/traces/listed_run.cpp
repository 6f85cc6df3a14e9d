#include "interop/traces/listed_run.h"

#include <fmt/format.h>

#include <cmath>

#include "interop/traces/timed_file.h"
#include "reports/view/event_names.h"
#include "sim/base/error.h"

namespace foreshard {

ListedRun read_listed_run(const std::filesystem::path& path, std::int64_t rank) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  const std::filesystem::path file =
      is_folder ? path / fmt::format("rank-{}.timed.json", rank) : path;
  if (!std::filesystem::is_regular_file(file, ignored)) {
    throw Error(ExitCode::kInvalidInput,
                fmt::format("{}: is not there; with tensor, context or expert axes the exported "
                            "script's --record writes it",
                            file.string()));
  }
  TimedFile timed = read_timed_file(file);
  if (timed.collectives.empty()) {
    throw Error(ExitCode::kInvalidInput, fmt::format("{}: lists no collectives", file.string()));
  }
  return {timed.rank, timed.world, std::move(timed.collectives), timed.peak_allocated};
}

ListedJoin join_listed(const Forecast& forecast, ListedRun run, double memory_tolerance) {
  const std::int64_t world = forecast.plan.mesh.world();
  if (run.world != world || run.rank != forecast.plan.rank) {
    throw Error(ExitCode::kInvalidInput,
                fmt::format("the recording is of rank {} of {}, the plan of rank {} of {}",
                            run.rank, run.world, forecast.plan.rank, world));
  }
  ListedJoin join;
  const EventNames names(forecast.graph, forecast.model);
  join.differences =
      collective_differences(forecast.graph, names, run.collectives, ComparedCollectives::kAll);
  join.forecast_peak = forecast.memory.peak;
  if (run.peak_allocated > Bytes()) {
    join.memory_error =
        as_double(join.forecast_peak.count()) / as_double(run.peak_allocated.count()) - 1;
  }
  join.passed = join.differences.empty() && std::abs(join.memory_error) <= memory_tolerance;
  join.run = std::move(run);
  return join;
}

}  // namespace foreshard
