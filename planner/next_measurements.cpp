// Each factor goes to the ends of its own interval while the others stay (factor_moves); the
// step's movement is what a measurement would take away. Saying the training code takes away what
// lies between those that it may be.
#include "planner/next_measurements.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "planner/job.h"
#include "reports/page/page.h"
#include "reports/view/layout.h"

namespace foreshard {
namespace {

std::string command_for(Factor factor) {
  std::string device = "foreshard-exec measure --device cuda";
  switch (factor) {
    case Factor::kGemm:
      return device + ", or a table gpu,m,n,k,dtype,latency_us of six large products";
    case Factor::kIntraNode:
      return "all_gather_perf -b 64K -e 4G -f 2 -g 8 (nccl-tests), and reduce_scatter_perf";
    case Factor::kInterNode:
      return "mpirun -np RANKS -N 8 all_gather_perf -b 64K -e 4G -f 2 -g 1 (nccl-tests), and "
             "reduce_scatter_perf";
    default:
      return device;
  }
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
  const Forecast usual = forecast(job.model, job.resolved.plan, costs);
  const double step = usual.timeline.period.seconds();
  std::vector<NextMeasurement> next;
  for (const FactorMove& move : factor_moves(usual, costs)) {
    next.push_back({factor_words(move.factor), std::abs(move.high - move.low) / 2 / step,
                    command_for(move.factor)});
  }
  const OpenStack open =
      summarize(usual, costs, 0, stack_set(job, costs).of(job.resolved.plan)).open_stack;
  if (!open.outcomes.empty()) {
    const auto [least, most] = std::minmax_element(
        open.outcomes.begin(), open.outcomes.end(),
        [](const StackOutcome& a, const StackOutcome& b) { return a.seconds < b.seconds; });
    next.push_back({"training code", (most->seconds - least->seconds) / 2 / step,
                    "say it: foreshard predict --set stack=NAME"});
  }
  std::ranges::stable_sort(next, [](const auto& a, const auto& b) { return a.share > b.share; });
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
