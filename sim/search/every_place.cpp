// What is named is asked whether it stands: Pareto plans in the order of their time, neighbours and
// cells of the heatmap where what is reserved may decide. One that does not is rejected then, and
// the next takes its place.
#include "sim/search/every_place.h"

#include <map>
#include <optional>
#include <utility>

namespace foreshard {
namespace {

using Order = std::vector<std::size_t>;

// Fills result.pareto; returns the best by the objective.
std::optional<std::size_t> pareto(Places& places, const Order& fastest, SearchResult& result) {
  std::optional<std::size_t> best;
  std::optional<Bytes> least;
  for (const std::size_t i : fastest) {
    if ((least && places.outcome(i).peak >= *least) || !places.stands(i)) continue;
    if (!best || places.options().objective == Objective::kMemory) best = i;
    least = places.outcome(i).peak;
    result.pareto.push_back(places.describe(i));
  }
  return best;
}

std::vector<Candidate> neighbours(Places& places, std::size_t best) {
  std::vector<Candidate> list;
  for (std::size_t i = 0; i < places.size(); ++i) {
    int changed = 0;
    for (std::size_t axis = 0; axis < kAxes; ++axis) {
      changed += places[i][axis] != places[best][axis];
    }
    if (changed != 1) continue;
    places.weigh(i);
    if (places.is_tight(i)) places.stands(i);
    list.push_back(places.describe(i));
  }
  return list;
}

std::vector<HeatmapCell> heatmap(Places& places, const Order& fastest) {
  std::map<std::pair<std::int16_t, std::int16_t>, std::optional<std::size_t>> cells;
  const auto cell_of = [&](std::size_t i) -> std::optional<std::size_t>& {
    return cells[{at(places[i], Axis::kShard), at(places[i], Axis::kPrefetch)}];
  };
  for (std::size_t i = 0; i < places.size(); ++i) cell_of(i);
  for (const std::size_t i : fastest) {
    auto& cell = cell_of(i);
    if (!cell && (!places.is_tight(i) || places.stands(i))) cell = i;
  }
  std::vector<HeatmapCell> map;
  for (const auto& [key, i] : cells) {
    HeatmapCell& cell = map.emplace_back();
    cell.shard = places.space().shard_groups[static_cast<std::size_t>(key.first)];
    cell.prefetch = places.space().prefetches[static_cast<std::size_t>(key.second)];
    if (!i) continue;
    cell.seconds = places.outcome(*i).step.seconds();
    cell.plan = places.plan(*i);
  }
  return map;
}

std::vector<Candidate> close_to(const Candidate& best, const Places& places, const Order& fastest) {
  std::vector<Candidate> list;
  for (const std::size_t i : fastest) {
    const Candidate close = places.describe(i);
    if (close.seconds > places.options().keep_within * best.seconds) break;
    if (places.outcome(i).verdict == Verdict::kSimulated) list.push_back(close);
  }
  return list;
}

}  // namespace

SearchResult judge_every_place(Places& places) {
  places.each(places.size(), [&](std::size_t i) { places.judge(i); });
  SearchResult result = places.counts();
  const Order fastest = places.simulated();
  if (const auto best = pareto(places, fastest, result)) {
    result.best = places.describe(*best);
    result.neighbours = neighbours(places, *best);
  }
  result.heatmap = heatmap(places, fastest);
  if (result.best && places.options().keep_within > 0) {
    result.close = close_to(*result.best, places, fastest);
  }
  places.count_verdicts(result);
  return result;
}

}  // namespace foreshard
