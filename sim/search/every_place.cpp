// What is named is asked whether it holds, in the order of time. One that does not is passed over,
// and the next takes its place; a neighbour says how likely it is to.
#include <map>
#include <utility>

#include "sim/search/search_parts.h"

namespace foreshard {
namespace {

constexpr auto kFirstKnob = at(Axis::kKnobs);

// Fastest first, each with less memory than the one before.
std::vector<std::size_t> pareto(Places& places) {
  std::vector<std::size_t> list;
  std::set<Rank> ranked = places.simulated();
  while (const auto next = places.first_that_holds(ranked, std::nullopt)) {
    list.push_back(*next);
    const Bytes least = places.outcome(*next).peak;
    std::erase_if(ranked, [&](const Rank& rank) { return std::get<Bytes>(rank) >= least; });
  }
  return list;
}

// The best plan with one key changed, knobs too.
std::vector<Candidate> neighbours(Places& places, std::size_t best) {
  std::vector<Candidate> list;
  for (std::size_t i = 0; i < places.size(); ++i) {
    int changed = 0;
    for (std::size_t axis = 0; axis < kAxes; ++axis) changed += places[i][axis] != places[best][axis];
    if (changed != 1) continue;
    if (places.outcome(i).verdict == Verdict::kPruned) places.judge(i);
    places.weigh(i);
    places.holds(i);
    places.judge().add_stalls(places.plan(i), places.outcome(i));
    list.push_back(places.describe(i));
  }
  return list;
}

std::vector<HeatmapCell> heatmap(Places& places) {
  std::map<std::pair<std::int16_t, std::int16_t>, std::set<Rank>> cells;
  for (std::size_t i = 0; i < places.size(); ++i) {
    std::set<Rank>& ranked = cells[{at(places[i], Axis::kShard), at(places[i], Axis::kPrefetch)}];
    if (places.outcome(i).verdict == Verdict::kSimulated) ranked.insert(places.rank(i));
  }
  std::vector<HeatmapCell> map;
  for (auto& [key, ranked] : cells) {
    HeatmapCell& cell = map.emplace_back();
    cell.shard = places.space().shard_groups[at(key.first)];
    cell.prefetch = places.space().prefetches[at(key.second)];
    const std::optional<std::size_t> i = places.first_that_holds(ranked, std::nullopt);
    if (!i) continue;
    cell.seconds = places.outcome(*i).step.seconds();
    cell.plan = places.plan(*i);
  }
  return map;
}

std::vector<Candidate> close_to(const Candidate& best, const Places& places) {
  std::vector<Candidate> list;
  for (const auto& [step, peak, i] : places.simulated()) {
    const Candidate close = places.describe(i);
    if (close.seconds > places.options().keep_within * best.seconds) break;
    if (places.known_to_hold(i) != false) list.push_back(close);
  }
  return list;
}

}

void judge_grid(Places& places, std::optional<std::size_t> best) {
  const Place knobs = best ? places[*best] : Place{};
  places.each(places.size(), [&](std::size_t i) {
    const bool is_of_grid = std::equal(places[i].begin() + kFirstKnob, places[i].end(), knobs.begin() + kFirstKnob);
    if (is_of_grid && places.outcome(i).verdict == Verdict::kPruned) places.judge(i);
  });
}

std::optional<std::size_t> smallest_that_holds(Places& places) {
  const std::vector<std::size_t> list = pareto(places);
  if (list.empty()) return std::nullopt;
  return list.back();
}

void fill_tables(Places& places, std::size_t best, SearchResult& result) {
  for (const std::size_t i : pareto(places)) result.pareto.push_back(places.describe(i));
  result.neighbours = neighbours(places, best);
  result.heatmap = heatmap(places);
  if (places.options().keep_within > 0) result.close = close_to(*result.best, places);
}

}
