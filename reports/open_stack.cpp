// Without the stack's part, draws differ by the machine's factors alone, which move every code's
// step by the same share: so draws over their own code's forecast are one sample, and the width of
// its interval is what each code's own would have.
#include "reports/open_stack.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reports/layout.h"
#include "reports/report.h"
#include "sim/simulate/forecast.h"
#include "sim/spec/open_stack.h"

namespace foreshard {

OpenStack open_stack(std::vector<StackOutcome> outcomes, const std::vector<double>& draws,
                     double width) {
  OpenStack open;
  open.outcomes = std::move(outcomes);
  if (draws.empty() || width <= 0) return open;
  const std::vector<double> weights = weights_of(open.outcomes);
  std::vector<double> ratios;
  for (std::size_t k = 0; k < draws.size(); ++k) {
    const std::size_t of = alternative_of_draw(weights, static_cast<int>(k));
    ratios.push_back(draws[k] / open.outcomes[of].seconds);
  }
  const Quantity own = with_interval(1, std::move(ratios), Evidence::kAssumed);
  double within = 0;
  for (const StackOutcome& each : open.outcomes) {
    within += each.weight * each.seconds * (own.high - own.low);
  }
  open.interval_share = std::clamp(1 - within / width, 0.0, 1.0);
  return open;
}

std::vector<double> weights_of(const std::vector<StackOutcome>& outcomes) {
  std::vector<double> weights;
  for (const StackOutcome& each : outcomes) weights.push_back(each.weight);
  return weights;
}

double fit_probability(const std::vector<StackOutcome>& outcomes) {
  double sum = 0;
  for (const StackOutcome& each : outcomes) sum += each.weight * fit_probability(each.fit);
  return sum;
}

double fit_probability(const std::vector<StackCase>& cases, const Fit& first) {
  constexpr std::int64_t kTelling = 4;  // micro-batches; what is reserved is the same of more
  if (cases.empty()) return fit_probability(first);
  double sum = cases.front().weight * fit_probability(first);
  for (std::size_t i = 1; i < cases.size(); ++i) {
    const StackCase& other = cases[i];
    Plan plan = other.plan;
    plan.batch.accumulation = std::min(plan.batch.accumulation, kTelling);
    const Forecast made = forecast(other.model, plan, other.costs);
    sum += other.weight * fit_probability(outcome_of(made, other.costs.cluster(), &other).fit);
  }
  return sum;
}

std::string open_stack_text(const OpenStack& open) {
  if (open.outcomes.empty()) return "";
  const auto [least, most] = std::minmax_element(
      open.outcomes.begin(), open.outcomes.end(),
      [](const StackOutcome& a, const StackOutcome& b) { return a.seconds < b.seconds; });
  std::vector<std::string> names;
  for (const StackOutcome& each : open.outcomes) names.push_back(each.name);
  return fmt::format("training code not told (--set stack=NAME narrows it): {} .. {} over {}",
                     seconds_text(least->seconds), seconds_text(most->seconds),
                     fmt::join(names, ", "));
}

Json open_json(const OpenStack& open) {
  Json list = Json::array();
  if (open.outcomes.empty()) return list;
  Json alternatives = Json::array();
  for (const StackOutcome& each : open.outcomes) {
    alternatives.push_back({{"name", each.name},
                            {"weight", each.weight},
                            {"step_s", each.seconds},
                            {"peak_bytes", (each.fit.reserved + each.fit.outside).count()}});
  }
  list.push_back({{"key", "stack"},
                  {"alternatives", std::move(alternatives)},
                  {"interval_share", open.interval_share}});
  return list;
}

}  // namespace foreshard
