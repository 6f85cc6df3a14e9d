#include "cli/verbs/search_body.h"

#include <nlohmann/json.hpp>

#include "calibration/prices.h"
#include "sim/simulate/forecast.h"

namespace foreshard {

BestPlan best_of(const Job& job, const Plan& plan, const CostModel& costs) {
  BestPlan best{forecast(job.model, plan, costs), {}};
  best.report = report_of(job, best.forecast, costs);
  return best;
}

std::vector<WhySlower> why_of(const Job& job, const SearchResult& result, const CostModel& costs) {
  if (!result.best) return {};
  return why_slower(forecast(job.model, result.best->plan, costs), result, costs);
}

double dollars_per_million_tokens(const Job& job, const Report& report) {
  return listed_price(job.cluster).usd_per_hour / 3600 / report.tokens_per_s_per_gpu.value * 1e6;
}

Json search_body(const Job& job, const SearchStory& story, const BestPlan* best, const CostModel& costs) {
  const SearchResult& result = story.result;
  auto reports = list_of<Report>(
      result.pareto, [&](const Candidate& candidate) { return best_of(job, candidate.plan, costs).report; });
  Json body = search_json(story, reports, best == nullptr ? nullptr : &best->report);
  if (best != nullptr) {
    body["best"]["plan"] = to_json(best->forecast.plan);
    body["best"]["dollars_per_million_tokens"] = dollars_per_million_tokens(job, best->report);
  }
  body["pruned"] = result.pruned;
  body["why"] = to_json(why_of(job, result, costs));
  return body;
}

}
