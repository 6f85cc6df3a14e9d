// What search says beyond the grid: where the time of slower plans goes, the choice that is robust
// over the interval, and what knobs and layers bring.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/sizing/sizing.h"
#include "reports/view/views.h"
#include "sim/search/deep.h"

namespace foreshard {

// A plan that differs from the best in one key, and the bars of the waterfall in which the two timelines differ most.
struct WhySlower {
  Candidate candidate;
  std::vector<std::pair<std::string, double>> because;  // bar, s more than the best; largest first
};
// Of the neighbours that were simulated, the fastest of each key; the slowest first.
std::vector<WhySlower> why_slower(const Forecast& best, const SearchResult& result, const CostModel& costs);

// The plan whose step is shortest at the high end of its 90 % interval, among those within the
// interval of the fastest (SearchResult::close).
struct RobustChoice {
  SizedPlan sized;
  Quantity fastest;  // step of the plan that is fastest in the central forecast
  std::int64_t considered = 0;
};
// `stacks`: the codes that may run the job.
std::optional<RobustChoice> choose_robust(
    const SearchResult& result, const ModelSpec& model, const CostModel& costs, const StackSet& stacks, int draws);

std::string why_text(const std::vector<WhySlower>& list, const Plan& best, Color color);
Json to_json(const std::vector<WhySlower>& list);
std::string robust_text(const RobustChoice& choice, const Candidate& fastest, Color color);
Json to_json(const RobustChoice& choice);
std::string deep_text(const DeepResult& deep, const Candidate* grid_best, double seconds, Color color);
Json to_json(const DeepResult& deep);

}
