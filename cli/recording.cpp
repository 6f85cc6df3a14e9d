#include "cli/recording.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "interop/traces/trace_files.h"
#include "reports/view/event_names.h"
#include "reports/view/layout.h"
#include "sim/base/error.h"
#include "sim/base/unit_strings.h"

namespace foreshard {

bool is_traced(const std::string& path) {
  std::error_code ignored;
  // A pipe, too: the reader of traces says what is wrong with it.
  return std::filesystem::exists(path, ignored) && !is_run_folder(path);
}

RecordedRun joined(const Forecast& forecast, const std::vector<FsdpTrace>& traces) {
  TraceJoin join = join_traces(forecast, traces);
  return RecordedRun{.record = std::move(join.record), .trace = std::move(join)};
}

RecordedRun read_recording(const std::string& path, const Forecast& forecast) {
  return is_traced(path) ? joined(forecast, read_job_traces(path)) : RecordedRun{read_run_folder(path), std::nullopt};
}

ListedRun read_listed_run(const std::filesystem::path& path, std::int64_t rank) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  const std::filesystem::path file = is_folder ? path / fmt::format("rank-{}.timed.json", rank) : path;
  if (!std::filesystem::is_regular_file(file, ignored)) {
    throw invalid_input(
        "{}: is not there; with tensor, context or expert axes the exported script's --record writes it",
        file.string());
  }
  TimedFile timed = read_timed_file(file);
  if (timed.collectives.empty()) throw invalid_input("{}: lists no collectives", file.string());
  return {timed.rank, timed.world, std::move(timed.collectives), timed.peak_allocated};
}

ListedJoin join_listed(const Forecast& forecast, ListedRun run, double memory_tolerance) {
  const std::int64_t world = forecast.plan.mesh.world();
  if (run.world != world || run.rank != forecast.plan.rank()) {
    throw invalid_input("the recording is of rank {} of {}, the plan of rank {} of {}", run.rank, run.world,
        forecast.plan.rank(), world);
  }
  ListedJoin join;
  const EventNames names(forecast.graph, forecast.model);
  join.differences = collective_differences(forecast.graph, names, run.collectives, ComparedCollectives::kAll);
  join.forecast_peak = forecast.memory.peak;
  if (run.peak_allocated > Bytes())
    join.memory_error = as_double(join.forecast_peak.count()) / as_double(run.peak_allocated.count()) - 1;
  join.passed = join.differences.empty() && std::abs(join.memory_error) <= memory_tolerance;
  join.run = std::move(run);
  return join;
}

std::string listed_text(const ListedJoin& join) {
  std::string text;
  for (const std::string& sentence : join.differences)
    for (const std::string& line : wrapped("- " + sentence, kTextWidth, 2)) text += line + "\n";
  if (join.differences.empty()) {
    text += fmt::format(
        "the {} collectives of a step are the plan's, in order, groups and bytes\n", join.run.collectives.size());
  }
  if (join.run.peak_allocated > Bytes()) {
    text += fmt::format("peak of allocated memory: forecast {}, measured {} ({:+.2f} %)\n",
        format_bytes(join.forecast_peak), format_bytes(join.run.peak_allocated), 100 * join.memory_error);
  } else {
    text += "memory was not recorded: ranks on a host\n";
  }
  return text + "times are not compared: collectives inside layers are not read from traces\n";
}

Json to_json(const ListedJoin& join) {
  Json memory;
  if (join.run.peak_allocated > Bytes()) {
    memory = {{"predicted_bytes", join.forecast_peak.count()}, {"measured_bytes", join.run.peak_allocated.count()},
        {"error", join.memory_error}};
  }
  return {{"passed", join.passed}, {"rank", join.run.rank},
      {"collectives", {{"compared", join.run.collectives.size()}, {"differences", join.differences}}},
      {"memory", memory}};
}

std::string trace_text(const TraceJoin& join) {
  std::string text;
  const auto list = [&](const char* heading, const std::vector<std::string>& sentences) {
    if (sentences.empty()) return;
    text += fmt::format("{}\n", heading);
    for (const std::string& sentence : sentences)
      for (const std::string& line : wrapped("- " + sentence, kTextWidth - 2, 2)) text += fmt::format("  {}\n", line);
  };
  list("the job's order differs from the plan's", join.order);
  list("in the plan, not in the trace (it counts as taking no time)", join.missing);
  list("in the trace, not in the plan", join.beyond);
  list("collectives differ from the plan's", join.collectives);
  if (join.compared > 0 && join.collectives.empty())
    text += fmt::format("the {} collectives of a step are the plan's, in order and bytes\n", join.compared);
  if (text.empty()) text = "every event of the plan is in the trace, in the plan's order\n";
  return text;
}

Json to_json(const TraceJoin& join) {
  Json units = Json::array();
  for (const auto& [module, unit] : join.units) units.push_back({{"module", module}, {"unit", unit}});
  return {{"units", std::move(units)}, {"order", join.order}, {"missing", join.missing}, {"beyond", join.beyond},
      {"collectives", {{"compared", join.compared}, {"differences", join.collectives}}}};
}

}
