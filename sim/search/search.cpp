// What a search looks at: places.h. How: every_place.h, best_first.h.
#include "sim/search/search.h"

#include <cmath>

#include "sim/search/axes.h"
#include "sim/search/best_first.h"
#include "sim/search/every_place.h"
#include "sim/search/places.h"

namespace foreshard {

Cluster with_memory_limit(Cluster cluster, double max_memory) {
  const auto all = static_cast<double>(cluster.gpu.memory.count());
  cluster.gpu.memory = Bytes(static_cast<std::int64_t>(std::floor(all * max_memory)));
  return cluster;
}

std::vector<Plan> enumerate(const SearchSpace& space, const ModelSpec& model,
                            const Cluster& cluster) {
  const SearchSpace whole = complete(space, cluster);
  std::vector<Plan> plans;
  for (const Place& place : list_places(whole, model, cluster)) {
    plans.push_back(plan_at(whole, cluster, place));
  }
  return plans;
}

SearchResult search(const SearchSpace& space, const ModelSpec& model, const CostModel& costs,
                    const SearchOptions& options) {
  Places places(space, model, costs, options);
  const bool has_to_see_all =
      options.detail == SearchDetail::kAll || options.objective == Objective::kMemory;
  return has_to_see_all ? judge_every_place(places) : find_best(places);
}

}  // namespace foreshard
