// What a search looks at: places.h. How: search_parts.h.
#include "sim/search/search.h"

#include <algorithm>
#include <utility>

#include "sim/search/axes.h"
#include "sim/search/judge.h"
#include "sim/search/places.h"
#include "sim/search/search_parts.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {

std::vector<Plan> enumerate(const SearchSpace& space, const ModelSpec& model, const Cluster& cluster) {
  const SearchSpace whole = complete(space, cluster);
  return list_of<Plan>(
      list_places(whole, model, cluster), [&](const Place& place) { return plan_at(whole, cluster, place); });
}

namespace {

Candidate finished(Candidate best, const SearchSpace& space, const ModelSpec& model, const CostModel& costs,
    const SearchOptions& options) {
  if (options.objective != Objective::kTime) return best;
  for (const KnobAxis& knob : space.finish) {
    for (const auto& set : knob.values) {
      Plan plan = best.plan;
      set(plan);
      if (plan == best.plan || find_problem(plan, model, costs.cluster())) continue;
      const double limit = best.seconds * (1 - options.tie);
      const auto other = judge_plan(plan, model, costs, options.fit, limit);
      if (other && other->seconds < limit) best = *other;
    }
  }
  return best;
}

}

SearchSpace begun_as(SearchSpace space, const Plan& best) {
  for (const KnobAxis& knob : space.finish) {
    for (const auto& set : knob.values) {
      Plan plan = best;
      set(plan);
      if (plan == best) set(space.base);
    }
  }
  return space;
}

SearchSpace settled(SearchSpace space, const Plan& best) {
  space = begun_as(std::move(space), best);
  space.finish.clear();
  return space;
}

SpaceFloor floor_of(const SearchSpace& space, const ModelSpec& model, const CostModel& costs, const MemoryTerms& terms,
    std::shared_ptr<StageSamples> samples) {
  const SearchSpace whole = complete(space, costs.cluster());
  FitRule rule = {.samples = std::move(samples)};
  Judge judge(model, costs, rule);
  Place place{};
  place[at(Axis::kShard)] = static_cast<std::int16_t>(whole.shard_groups.size() - 1);
  // Keys that vary may take memory off.
  const bool is_told = whole.knobs.empty();
  const Bytes most = room(costs.cluster(), Bytes(), terms);
  const Bytes nearly = most + most / 32;  // (Plans that gather earlier may hold a little less.)
  std::optional<Time> bare, least;
  for (std::size_t m = 0; m < whole.micro_batches.size(); ++m) {
    place[at(Axis::kMicroBatch)] = static_cast<std::int16_t>(m);
    // What recomputes more takes longer.
    for (std::size_t r = 0; r < whole.recomputes.size(); ++r) {
      place[at(Axis::kRecompute)] = static_cast<std::int16_t>(r);
      const Plan plan = plan_at(whole, costs.cluster(), place);
      if (const auto problem = find_problem(plan, model, costs.cluster())) {
        // (A schedule that does not go with so many micro-batches does not whatever else varies.)
        const bool is_schedule = plan.mesh.pp > 1 && problem->key == "batch.accumulation";
        if (r == 0 && !is_schedule) return {};
        break;
      }
      const LayersFloor floor = judge.floor(plan, LazyPrograms(model, plan));
      if (r == 0) bare = std::min(bare.value_or(floor.step), floor.step);
      const bool has_room = memory_floor(plan, model, floor) <= most && floor.least <= nearly;
      if (is_told && plan.mesh.pp == 1 && !has_room) continue;
      least = std::min(least.value_or(floor.step), floor.step);
      break;
    }
  }
  if (!bare) return {};
  SpaceFloor floor{*bare, least.value_or(Time::seconds(kAnyStep)), {}};
  place[at(Axis::kMicroBatch)] = 0;
  place[at(Axis::kRecompute)] = static_cast<std::int16_t>(whole.recomputes.size() - 1);
  const Plan plan = plan_at(whole, costs.cluster(), place);
  if (find_problem(plan, model, costs.cluster())) return floor;
  const LazyPrograms programs(model, plan);
  PlanOutcome smallest;
  const bool fits = judge.weigh(plan, programs.get(), smallest);
  floor.smallest = fits ? judge.bound_weighed(plan, programs.get()) : Time::seconds(kAnyStep);
  return floor;
}

SearchResult search(
    const SearchSpace& space, const ModelSpec& model, const CostModel& costs, const SearchOptions& options) {
  Places places(space, model, costs, options);
  std::optional<std::size_t> best, riskier;
  if (options.objective == Objective::kTime) {
    best = find_best(places);
    riskier = places.riskier();
  } else {
    places.each(places.size(), [&](std::size_t i) { places.judge(i); });
    best = smallest_that_holds(places);
  }
  std::optional<Candidate> last;
  if (best) {
    const Candidate found = places.describe(*best);
    last = finished(found, space, model, costs, options);
    last->unfinished_seconds = found.seconds;
  }
  const bool is_all = options.detail == SearchDetail::kAll;
  const SearchSpace again = last ? settled(space, last->plan) : space;
  if (is_all && again.base != space.base) {
    SearchOptions anew = options;
    anew.memory = {};
    return search(again, model, costs, anew);
  }
  if (is_all && options.objective == Objective::kTime) judge_grid(places, best);
  SearchResult result = places.counts();
  result.best = last;
  if (best && is_all) fill_tables(places, *best, result);
  if (best && !is_all) result.pareto = {*result.best};
  const bool is_faster = riskier && (!best || places.outcome(*riskier).step.seconds() <
                                                  places.outcome(*best).step.seconds() * (1 - options.tie));
  if (is_faster) result.riskier = places.describe(*riskier);
  places.count_verdicts(result);
  return result;
}

bool leaves_room(const Candidate& best, Time bare) {
  constexpr double kClose = 1.03;  // (assumed: what waits less gains less than it costs)
  return best.recomputes() || best.seconds > bare.seconds() * kClose;
}

}
