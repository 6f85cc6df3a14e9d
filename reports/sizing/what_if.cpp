// Prices stay, so that dollars change with time alone.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reports/sizing/machine_changes.h"
#include "reports/sizing/recommend.h"
#include "reports/view/layout.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
std::vector<WhatIf> what_ifs(
    const Choice& choice, const JobVariants& variants, const RunTerms& terms, const RecommendOptions& options) {
  const std::vector<MachineChange>& changes = machine_changes();
  std::vector<WhatIf> list(changes.size());
  judge_each(
      changes.size(), {options.threads, {}, "what-if"},
      [&](std::size_t i) {
        const MachineChange& change = changes[i];
        WhatIf& one = list[i];
        one.property = change.property;
        one.change = change.change;
        if (!change.matters(variants.front().costs.cluster())) return;
        const auto changed_jobs = [&](std::vector<SizedJob> jobs) {
          for (SizedJob& job : jobs) {
            job.costs = changed_costs(change, job.costs, job.space.base);
            for (StackCase& code : job.stacks.cases) code.costs = changed_costs(change, code.costs, code.plan);
          }
          return jobs;
        };
        // Of a choice over axes, those.
        const JobVariants changed = {
            changed_jobs(choice.sized.plan.mesh.is_plain() ? variants.list : std::vector<SizedJob>{*choice.sized.job})};
        one.sized = best_plan(changed, {terms.confidence}, options.draws);
        if (!one.sized) return;
        one.run = forecast_run(*one.sized, choice.price, terms);
        one.worth_per_gpu_hour = choice.price.usd_per_hour * (choice.run.days.value / one.run.days.value - 1);
      });
  std::erase_if(list, [](const WhatIf& one) { return !one.sized; });
  std::ranges::stable_sort(list, std::greater(), &WhatIf::worth_per_gpu_hour);
  return list;
}

std::string what_if_text(const std::vector<WhatIf>& list, const Choice& choice, Color color) {
  const Paint paint(color);
  std::vector<std::string> lines = {
      "", paint.bold(fmt::format("what if {} were another, at {:.2f} USD per GPU and hour", choice.sized.cluster.spec,
              choice.price.usd_per_hour))};
  double largest = 0;
  for (const WhatIf& one : list) largest = std::max(largest, std::abs(one.worth_per_gpu_hour));
  std::vector<std::vector<std::string>> table = {{"  property", "", "days", "", "USD", "worth, USD/h", ""}};
  for (const WhatIf& one : list) {
    const double share = largest > 0 ? std::abs(one.worth_per_gpu_hour) / largest : 0;
    table.push_back({"  " + one.property, one.change, fmt::format("{:.3g}", one.run.days.value),
        signed_percent(one.run.days.value / choice.run.days.value - 1), short_number(one.run.dollars.value),
        fmt::format("{:+.3f}", one.worth_per_gpu_hour), left(bar(share, 20), 20)});
  }
  for (std::string& line : aligned(table, 2)) lines.push_back(std::move(line));
  lines.push_back("  worth: what the change may cost per GPU and hour for the run to cost the same");
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

Json to_json(const std::vector<WhatIf>& list) {
  return json_list(
      list,
      [&](const WhatIf& one) -> Json {
        return {{"property", one.property}, {"change", one.change}, {"plan", to_json(one.sized->plan)},
            {"step_s", to_json(one.sized->step)}, {"days", to_json(one.run.days)},
            {"dollars", to_json(one.run.dollars)}, {"worth_usd_per_gpu_hour", one.worth_per_gpu_hour}};
      });
}

}
