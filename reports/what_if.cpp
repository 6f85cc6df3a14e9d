// The calibration stays that of the machine: what was fitted relative to a peak or a rate moves
// with it. Prices stay too, so that dollars change with time alone.
#include "reports/what_if.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reports/layout.h"
#include "reports/plan_words.h"
#include "sim/simulate/cost_choices.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

BytesPerSecond times(BytesPerSecond rate, double factor) {
  return BytesPerSecond(rate.value() * factor);
}

struct Change {
  const char* property;
  const char* change;
  bool is_network;  // means something only between nodes
  void (*apply)(Cluster&);
};

constexpr Change kChanges[] = {
    {"node.nic_rate", "x2", true, [](Cluster& c) { c.node.nic_rate = times(c.node.nic_rate, 2); }},
    {"node.nics", "half the rails", true,
     [](Cluster& c) { c.node.nics = std::max<std::int64_t>(1, c.node.nics / 2); }},
    {"network.oversubscription", "x2", true, [](Cluster& c) { c.network.oversubscription *= 2; }},
    {"network.oversubscription", "x4", true, [](Cluster& c) { c.network.oversubscription *= 4; }},
    {"node.gpu_link", "x2", false, [](Cluster& c) { c.node.gpu_link = times(c.node.gpu_link, 2); }},
    {"node.gpu_link", "x0.5", false,
     [](Cluster& c) { c.node.gpu_link = times(c.node.gpu_link, 0.5); }},
    {"gpu.memory", "x1.5", false, [](Cluster& c) { c.gpu.memory = c.gpu.memory * 3 / 2; }},
    {"gpu.memory", "x0.75", false, [](Cluster& c) { c.gpu.memory = c.gpu.memory * 3 / 4; }},
    {"gpu.memory_bandwidth", "x1.5", false,
     [](Cluster& c) { c.gpu.memory_bandwidth = times(c.gpu.memory_bandwidth, 1.5); }},
    {"gpu.peak_bf16", "x1.25", false,
     [](Cluster& c) { c.gpu.peak_bf16 = FlopsPerSecond(c.gpu.peak_bf16.value() * 1.25); }},
};

}  // namespace

std::vector<WhatIf> what_ifs(const Choice& choice, const SizedJob& job, const RunTerms& terms,
                             const RecommendOptions& options) {
  constexpr std::size_t kCount = std::size(kChanges);
  std::vector<WhatIf> list(kCount);
  judge_each(kCount, {options.threads, {}, "what-if"}, [&](std::size_t i) {
    const Change& change = kChanges[i];
    WhatIf& one = list[i];
    one.property = change.property;
    one.change = change.change;
    Cluster cluster = job.costs.cluster();
    if (change.is_network && cluster.nodes() == 1) return;
    change.apply(cluster);
    const CostModel costs(cluster, job.costs.calibration(), cost_choices(job.space.base));
    one.sized = best_plan(job.space, job.model, costs, options.draws);
    if (!one.sized) return;
    one.run = forecast_run(*one.sized, choice.price, terms);
    one.worth_per_gpu_hour =
        choice.price.usd_per_hour * (choice.run.days.value / one.run.days.value - 1);
  });
  std::erase_if(list, [](const WhatIf& one) { return !one.sized; });
  std::stable_sort(list.begin(), list.end(), [](const WhatIf& a, const WhatIf& b) {
    return a.worth_per_gpu_hour > b.worth_per_gpu_hour;
  });
  return list;
}

std::string what_if_text(const std::vector<WhatIf>& list, const Choice& choice, Color color) {
  const Paint paint(color);
  std::vector<std::string> lines = {
      "", paint.bold(fmt::format("what if {} were another, at {:.2f} USD per GPU and hour",
                                 choice.sized.cluster.spec, choice.price.usd_per_hour))};
  double largest = 0;
  for (const WhatIf& one : list) largest = std::max(largest, std::abs(one.worth_per_gpu_hour));
  std::vector<std::vector<std::string>> table = {
      {"  property", "", "days", "", "USD", "worth, USD/h", ""}};
  for (const WhatIf& one : list) {
    const double share = largest > 0 ? std::abs(one.worth_per_gpu_hour) / largest : 0;
    table.push_back({"  " + one.property, one.change, fmt::format("{:.3g}", one.run.days.value),
                     signed_percent(one.run.days.value / choice.run.days.value - 1),
                     fmt::format("{:.3g} k", one.run.dollars.value / 1000),
                     fmt::format("{:+.3f}", one.worth_per_gpu_hour), left(bar(share, 20), 20)});
  }
  for (std::string& line : aligned(table, 2)) lines.push_back(std::move(line));
  lines.push_back(
      "  worth: what the change may cost per GPU and hour for the run to cost the same");
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

Json to_json(const std::vector<WhatIf>& list) {
  Json json = Json::array();
  for (const WhatIf& one : list) {
    json.push_back({{"property", one.property},
                    {"change", one.change},
                    {"plan", to_json(one.sized->plan)},
                    {"step_s", to_json(one.sized->step)},
                    {"days", to_json(one.run.days)},
                    {"dollars", to_json(one.run.dollars)},
                    {"worth_usd_per_gpu_hour", one.worth_per_gpu_hour}});
  }
  return json;
}

}  // namespace foreshard
