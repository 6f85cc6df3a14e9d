#include "cli/recording.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "interop/traces/trace_files.h"
#include "reports/view/layout.h"

namespace foreshard {

bool is_traced(const std::string& path) {
  std::error_code ignored;
  // A pipe, too: the reader of traces says what is wrong with it.
  return std::filesystem::exists(path, ignored) && !is_run_folder(path);
}

MeasuredJob joined(const Forecast& forecast, const std::vector<FsdpTrace>& traces) {
  TraceJoin join = join_traces(forecast, traces);
  MeasuredJob recording;
  recording.record = std::move(join.record);
  recording.trace = std::move(join);
  return recording;
}

MeasuredJob read_recording(const std::string& path, const Forecast& forecast) {
  return is_traced(path) ? joined(forecast, read_job_traces(path))
                         : MeasuredJob{read_run_folder(path), std::nullopt};
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
