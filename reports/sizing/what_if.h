// The same job on a cluster of which one property is another: which of them buys most.
#pragma once

#include <string>
#include <vector>

#include "reports/sizing/recommend.h"

namespace foreshard {

struct WhatIf {
  std::string property;  // "node.nic_rate": a key of a cluster file
  std::string change;    // "x2"
  // Nothing: no plan fits, or a cluster without the property.
  std::optional<SizedPlan> sized;
  RunForecast run;
  // USD per GPU and hour that the change may cost (below 0: must save) for the run to cost the
  // same.
  double worth_per_gpu_hour = 0;
};

// Of the machine as bought: faster and slower networks, links, memory and arithmetic. The best plan
// is searched anew for each. The largest worth first.
std::vector<WhatIf> what_ifs(const Choice& choice, const JobVariants& variants,
                             const RunTerms& terms, const RecommendOptions& options);

std::string what_if_text(const std::vector<WhatIf>& list, const Choice& choice, Color color);
Json to_json(const std::vector<WhatIf>& list);

}  // namespace foreshard
