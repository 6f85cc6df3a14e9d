#include "planner/code_term.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "calibration/first_looks.h"
#include "calibration/training_evidence.h"
#include "sim/base/quantile.h"

namespace foreshard {
namespace {

// Codes whose own steps inform the costs (calibration/published/training_steps.csv, column stack).
constexpr std::array<std::string_view, 5> kInformed = {
    "composer_2022", "composer_2023_02", "composer_2023_05", "composer_2023_10", "internevo"};

// Whether what runs is what was described, or what was fitted.
bool leaves_nothing_open(const Plan& plan, const Cluster& cluster, std::string_view stack) {
  if (cluster.host_computes || plan.runtime.kind == RuntimeKind::kNative) return true;
  return has_steps(cluster.gpu.key) && std::ranges::find(kInformed, stack) != kInformed.end();
}

}  // namespace

double code_half_width(const Plan& plan, const Cluster& cluster, std::string_view stack,
                       double below) {
  if (leaves_nothing_open(plan, cluster, stack)) return 0;
  const FirstLooks& looks = first_looks();
  CodeFacts facts = code_facts(plan, cluster, stack);
  facts.emplace_back(kBelowPeakFact, below);
  const LogReach reach = code_reach(looks, looks.time, facts, "");
  return (reach.up + reach.down) / 2;
}

Calibration with_code_term(Calibration calibration, const Plan& plan, const Cluster& cluster,
                           std::string_view stack) {
  if (!calibration.knowledge || leaves_nothing_open(plan, cluster, stack)) return calibration;
  FactorKnowledge& known = *calibration.knowledge;
  const FirstLooks& looks = first_looks();
  const double slower = code_shift(looks, looks.time, code_facts(plan, cluster, stack), "");
  for (std::size_t f = 0; f < kFactors; ++f) {
    if (f != at(Factor::kOverlap)) known.center[f] += slower;
  }
  const double at_peak = code_half_width(plan, cluster, stack, 0);
  known.code_log_sd = at_peak / kNinetyPercent;
  known.code_slope = std::log(code_half_width(plan, cluster, stack, 1) / at_peak);
  return calibration;
}

}  // namespace foreshard
