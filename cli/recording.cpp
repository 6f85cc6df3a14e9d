#include "cli/recording.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "interop/traces/trace_files.h"
#include "reports/view/layout.h"
#include "sim/base/unit_strings.h"

namespace foreshard {

bool is_traced(const std::string& path) {
  std::error_code ignored;
  // A pipe, too: the reader of traces says what is wrong with it.
  return std::filesystem::exists(path, ignored) && !is_run_folder(path);
}

RecordedRun joined(const Forecast& forecast, const std::vector<FsdpTrace>& traces) {
  TraceJoin join = join_traces(forecast, traces);
  RecordedRun recording;
  recording.record = std::move(join.record);
  recording.trace = std::move(join);
  return recording;
}

RecordedRun read_recording(const std::string& path, const Forecast& forecast) {
  return is_traced(path) ? joined(forecast, read_job_traces(path))
                         : RecordedRun{read_run_folder(path), std::nullopt};
}

std::string listed_text(const ListedJoin& join) {
  std::string text;
  for (const std::string& sentence : join.differences) {
    for (const std::string& line : wrapped("- " + sentence, kTextWidth, 2)) text += line + "\n";
  }
  if (join.differences.empty()) {
    text += fmt::format("the {} collectives of a step are the plan's, in order, groups and bytes\n",
                        join.run.collectives.size());
  }
  if (join.run.peak_allocated > Bytes()) {
    text += fmt::format("peak of allocated memory: forecast {}, measured {} ({:+.2f} %)\n",
                        format_bytes(join.forecast_peak), format_bytes(join.run.peak_allocated),
                        100 * join.memory_error);
  } else {
    text += "memory was not recorded: ranks on a host\n";
  }
  return text + "times are not compared: collectives inside layers are not read from traces\n";
}

Json to_json(const ListedJoin& join) {
  Json memory;
  if (join.run.peak_allocated > Bytes()) {
    memory = {{"predicted_bytes", join.forecast_peak.count()},
              {"measured_bytes", join.run.peak_allocated.count()},
              {"error", join.memory_error}};
  }
  return {{"passed", join.passed},
          {"rank", join.run.rank},
          {"collectives",
           {{"compared", join.run.collectives.size()}, {"differences", join.differences}}},
          {"memory", memory}};
}

std::string trace_text(const TraceJoin& join) {
  std::string text;
  const auto list = [&](const char* heading, const std::vector<std::string>& sentences) {
    if (sentences.empty()) return;
    text += fmt::format("{}\n", heading);
    for (const std::string& sentence : sentences) {
      for (const std::string& line : wrapped("- " + sentence, kTextWidth - 2, 2)) {
        text += fmt::format("  {}\n", line);
      }
    }
  };
  list("the job's order differs from the plan's", join.order);
  list("in the plan, not in the trace (it counts as taking no time)", join.missing);
  list("in the trace, not in the plan", join.beyond);
  list("collectives differ from the plan's", join.collectives);
  if (join.compared > 0 && join.collectives.empty()) {
    text += fmt::format("the {} collectives of a step are the plan's, in order and bytes\n",
                        join.compared);
  }
  if (text.empty()) text = "every event of the plan is in the trace, in the plan's order\n";
  return text;
}

Json to_json(const TraceJoin& join) {
  Json units = Json::array();
  for (const auto& [module, unit] : join.units) {
    units.push_back({{"module", module}, {"unit", unit}});
  }
  return {{"units", std::move(units)},
          {"order", join.order},
          {"missing", join.missing},
          {"beyond", join.beyond},
          {"collectives", {{"compared", join.compared}, {"differences", join.collectives}}}};
}

}  // namespace foreshard
