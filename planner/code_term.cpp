#include "planner/code_term.h"

#include <cmath>

#include "calibration/first_looks.h"
#include "sim/base/quantile.h"

namespace foreshard {

double code_half_width(const Plan& plan, const Cluster& cluster, bool is_said) {
  if (cluster.host_computes || plan.runtime.kind == RuntimeKind::kNative) return 0;
  CodeFacts facts = code_facts(plan, cluster);
  if (!is_said) facts.emplace_back("no_preset", 1);
  const LogReach reach = code_reach(first_looks(), first_looks().time, facts, "");
  return (reach.up + reach.down) / 2;
}

Calibration with_code_term(Calibration calibration, const Plan& plan, const Cluster& cluster,
                           bool is_said) {
  if (!calibration.knowledge) return calibration;
  double& log_sd = calibration.knowledge->plan_log_sd;
  log_sd = std::hypot(log_sd, code_half_width(plan, cluster, is_said) / kNinetyPercent);
  return calibration;
}

}  // namespace foreshard
