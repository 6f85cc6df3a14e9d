#include "planner/code_term.h"

#include <cmath>

#include "calibration/first_looks.h"
#include "calibration/training_evidence.h"

namespace foreshard {
namespace {

constexpr double kNinetyPercent = 1.6449;  // standard deviations on each side

CodeFacts code_facts(const Plan& plan, const Cluster& cluster, bool is_said) {
  CodeFacts facts;
  if (!is_said) facts.emplace_back("no_preset", 1);
  if (!has_steps(cluster.gpu.key)) facts.emplace_back("chip_without_steps", 1);
  if (plan.float8 != Float8::kNone) facts.emplace_back("fp8", 1);
  if (is_zero(plan.runtime.kind)) facts.emplace_back("zero", 1);
  if (plan.attention == AttentionKernel::kMath || plan.attention == AttentionKernel::kEager) {
    facts.emplace_back("unfused_attention", 1);
  }
  return facts;
}

}  // namespace

double code_half_width(const Plan& plan, const Cluster& cluster, bool is_said) {
  if (cluster.host_computes || plan.runtime.kind == RuntimeKind::kNative) return 0;
  const CodeFacts facts = code_facts(plan, cluster, is_said);
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
