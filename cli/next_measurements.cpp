// Each factor goes to the ends of its own interval while the others stay (sensitivity_json); the
// step's movement is what a measurement would take away.
#include "cli/next_measurements.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/job.h"
#include "reports/layout.h"
#include "reports/page.h"

namespace foreshard {
namespace {

// By the words of sensitivity_json.
const std::map<std::string, std::string>& commands() {
  static const std::string kDevice = "foreshard-exec measure --device cuda";
  static const std::map<std::string, std::string> kCommands = {
      {"matrix products",
       kDevice + ", or a table gpu,m,n,k,dtype,latency_us of six large products"},
      {"attention", kDevice},
      {"memory-bound kernels", kDevice},
      {"collectives inside a node",
       "all_gather_perf -b 64K -e 4G -f 2 -g 8 (nccl-tests), and reduce_scatter_perf"},
      {"collectives between nodes",
       "mpirun -np RANKS -N 8 all_gather_perf -b 64K -e 4G -f 2 -g 1 (nccl-tests), and "
       "reduce_scatter_perf"},
      {"host", kDevice},
      {"slowdown when overlapped", kDevice},
  };
  return kCommands;
}

}  // namespace

std::vector<NextMeasurement> next_measurements(const std::string& profile, const std::string& gpu) {
  JobOptions options;
  options.model = "llama-3.1-8b";
  options.cluster = "64x" + gpu;
  options.profile = profile;
  options.assignments.push_back({"recompute=full"});  // fits every machine
  const Job job = load_job(options);
  const CostModel costs = cost_model(job);
  const Json sensitivity = sensitivity_json(forecast(job.model, job.resolved.plan, costs), costs);
  const double step = sensitivity["step_s"];
  std::vector<NextMeasurement> next;
  for (const Json& factor : sensitivity["factors"]) {
    const std::string name = factor["factor"];
    const auto command = commands().find(name);
    if (command == commands().end() || step <= 0) continue;
    const double low = factor["low_s"], high = factor["high_s"];
    next.push_back({name, std::abs(high - low) / 2 / step, command->second});
  }
  std::stable_sort(next.begin(), next.end(),
                   [](const auto& a, const auto& b) { return a.share > b.share; });
  return next;
}

std::string next_text(const std::vector<NextMeasurement>& next) {
  constexpr std::size_t kShown = 3;
  std::string text =
      "what would narrow forecasts most (Llama-3.1-8B on 64 of them), of the step:\n";
  for (std::size_t i = 0; i < std::min(kShown, next.size()); ++i) {
    text += fmt::format("  +-{}  {}: {}\n", percent_text(next[i].share), next[i].factor,
                        next[i].command);
  }
  return text;
}

Json next_json(const std::vector<NextMeasurement>& next) {
  Json list = Json::array();
  for (const NextMeasurement& each : next) {
    list.push_back({{"factor", each.factor}, {"share", each.share}, {"command", each.command}});
  }
  return list;
}

}  // namespace foreshard
