// Places of the grid are judged in parallel into a vector indexed by their enumeration order and
// reduced from there in one thread, so that the answer cannot depend on who finished first.
//
// kAll judges every place. kBest takes the places that are left with the lowest bounds, in chunks
// of a fixed size, so that what is pruned does not depend on the number of threads either. Once no
// bound is below the fastest that was simulated, it is asked what it reserves: where it stands, it
// is the best. There are two bounds. Families of places whose layers
// compute the same (one graph for each) are opened in the order of what their layers take, when no
// place with a lower bound is left; where that is above the best, they stay closed. In an open
// family, every class of places whose graphs do the same work (they differ in prefetch alone) is
// weighed and bounded; of classes that hold the same memory, one is weighed first for all.
#include "sim/search/search.h"

#include <oneapi/tbb/enumerable_thread_specific.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "sim/base/error.h"
#include "sim/search/axes.h"
#include "sim/search/judge.h"

namespace foreshard {
namespace {

constexpr std::size_t kChunk = 64;
// A class whose member that gathers latest exceeds the GPU by more than a twentieth does not fit.
constexpr std::int64_t kNear = 20;

class Search {
 public:
  Search(const SearchSpace& wanted, const ModelSpec& model, const CostModel& costs,
         const SearchOptions& options)
      : model_(model),
        options_(options),
        limited_(with_memory_limit(costs.cluster(), options.max_memory)),
        space_(complete(wanted, limited_)),
        places_(list_places(space_, model, limited_)),
        outcomes_(places_.size()),
        programs_(model),
        judges_([&] { return Judge(model, costs, limited_); }),
        arena_(options.threads > 0 ? options.threads : oneapi::tbb::task_arena::automatic) {
    for (const Place& place : places_) {
      programs_.add(plan(place), at(place, Axis::kRecompute), at(place, Axis::kMicroBatch));
    }
  }

  SearchResult all() {
    each(0, places_.size(), [&](std::size_t i) { judge(i); });
    SearchResult result = counts();
    std::vector<std::size_t> fastest = simulated();
    pareto(fastest, result);
    if (!result.pareto.empty()) {
      result.best =
          options_.objective == Objective::kMemory ? result.pareto.back() : result.pareto.front();
      neighbours(*best_, result);
    }
    heatmap(fastest, result);
    for (const std::size_t i : fastest) {
      if (!result.best || options_.keep_within <= 0) break;
      const Candidate close = describe(i);
      if (close.seconds > options_.keep_within * result.best->seconds) break;
      if (outcomes_[i].verdict == Verdict::kSimulated) result.close.push_back(close);
    }
    count_verdicts(result);
    return result;
  }

  SearchResult best() {
    const Classes classes = classify();
    const std::vector<Family> families = families_of(classes);
    std::size_t next = 0;  // family to open
    std::vector<Bounded> waiting;
    std::set<Rank> ranked;
    while (true) {
      // Nothing that is not simulated yet is faster.
      std::optional<Time> bound;
      if (!waiting.empty()) bound = waiting[0].bound;
      const bool opens = next < families.size() && (!bound || families[next].floor.step <= *bound);
      if (opens) bound = families[next].floor.step;
      take_best_below(bound, ranked);
      if (best_ || !bound) break;
      if (opens) {
        open(families[next++], classes, waiting);
        std::sort(waiting.begin(), waiting.end());
      } else {
        judge_first(waiting, ranked);
      }
    }
    SearchResult result;
    if (best_) {
      result.enumerated = static_cast<std::int64_t>(places_.size());
      result.best = describe(*best_);
      result.pareto = {*result.best};
    } else {
      result = counts();
    }
    count_verdicts(result);
    return result;
  }

 private:
  Plan plan(const Place& place) const { return plan_at(space_, limited_, place); }
  const LayerPrograms& programs(const Plan& plan, const Place& place) const {
    return programs_.at(plan, at(place, Axis::kRecompute), at(place, Axis::kMicroBatch));
  }

  template <typename Work>
  void each(std::size_t begin, std::size_t end, const Work& work) {
    arena_.execute([&] {
      oneapi::tbb::parallel_for(begin, end, [&](std::size_t i) {
        if (!stopped_) work(i);
      });
    });
    if (stopped_) throw Error(ExitCode::kInterrupted, "search was stopped");
  }

  bool recalled(std::size_t i) {
    if (!options_.memory.recall) return false;
    const std::optional<JudgedPlan> known = options_.memory.recall(i);
    if (!known) return false;
    Outcome& outcome = outcomes_[i];
    outcome.verdict = known->verdict;
    outcome.step = known->step;
    outcome.peak = known->peak_allocated;
    outcome.outside = known->outside_allocator;
    outcome.is_built = known->peak_allocated > Bytes();
    return true;
  }

  void judge(std::size_t i) {
    if (!recalled(i)) judge_anew(i);
    const std::int64_t now = ++done_;
    if (options_.progress && !options_.progress(now, static_cast<std::int64_t>(places_.size()))) {
      stopped_ = true;
    }
  }

  void judge_anew(std::size_t i) {
    const Plan plan = this->plan(places_[i]);
    if (has_no_room(plan)) {
      outcomes_[i].verdict = Verdict::kDoesNotFit;
    } else {
      const LayerPrograms& programs = this->programs(plan, places_[i]);
      Judge& judge = judges_.local();
      if (judge.weigh(plan, programs, outcomes_[i])) judge.time(plan, programs, outcomes_[i]);
    }
    const Outcome& outcome = outcomes_[i];
    if (options_.memory.remember) {
      options_.memory.remember(i, {outcome.verdict, outcome.step, outcome.peak, outcome.outside});
    }
  }

  bool has_no_room(const Plan& plan) const {
    return memory_floor(plan, model_, LayersFloor()) > limited_.gpu.memory;
  }

  // Memory of what was rejected without a graph.
  void weigh(std::size_t i) {
    if (outcomes_[i].is_built) return;
    const Plan plan = this->plan(places_[i]);
    judges_.local().weigh(plan, programs(plan, places_[i]), outcomes_[i]);
  }

  // How early it gathers. Of two plans that differ in it alone, the one with less holds hardly more
  // memory: 2 % in small models (a test tries to find more).
  std::int64_t depth(const Place& place) const {
    const auto index = static_cast<std::size_t>(at(place, Axis::kPrefetch));
    const Prefetch& prefetch = space_.prefetches[index];
    return std::max<std::int64_t>(prefetch.forward, 0) + prefetch.backward;
  }

  bool gathers_earlier(std::size_t i, std::size_t other) const {
    const auto prefetch = [&](std::size_t place) -> const Prefetch& {
      return space_.prefetches[static_cast<std::size_t>(at(places_[place], Axis::kPrefetch))];
    };
    const std::int64_t none = 0;
    return std::max(prefetch(i).forward, none) >= std::max(prefetch(other).forward, none) &&
           prefetch(i).backward >= prefetch(other).backward;
  }

  // Places that differ in prefetch alone do the same work: they share a bound, and the one that
  // gathers latest rules out all where it is far from fitting.
  struct Classes {
    std::vector<std::vector<std::size_t>> places;  // of each class
    std::vector<std::size_t> members;              // the one of each class that gathers latest
  };

  Classes classify() {
    std::map<Place, std::size_t> known;
    Classes classes;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (has_no_room(plan(places_[i]))) {
        outcomes_[i].verdict = Verdict::kDoesNotFit;
        continue;
      }
      Place key = places_[i];
      if (is_fully_known(space_.base.runtime.kind))
        key[static_cast<std::size_t>(Axis::kPrefetch)] = 0;
      const auto [found, is_new] = known.emplace(key, classes.members.size());
      if (is_new) {
        classes.members.push_back(i);
        classes.places.emplace_back();
      }
      std::size_t& member = classes.members[found->second];
      if (depth(places_[i]) < depth(places_[member])) member = i;
      classes.places[found->second].push_back(i);
    }
    return classes;
  }

  // Classes whose layers compute the same.
  struct Family {
    LayersFloor floor;
    std::vector<std::size_t> classes;
  };

  // By their floors.
  std::vector<Family> families_of(const Classes& classes) {
    std::map<std::pair<const LayerPrograms*, std::int16_t>, std::size_t> known;
    std::vector<Family> families;
    for (std::size_t c = 0; c < classes.members.size(); ++c) {
      const Place& place = places_[classes.members[c]];
      const auto [found, is_new] = known.emplace(
          std::pair(&programs(plan(place), place), at(place, Axis::kMicroBatch)), families.size());
      if (is_new) families.emplace_back();
      families[found->second].classes.push_back(c);
    }
    // The engine's layers write gradients where the plan lets them, which costs them time.
    if (space_.base.runtime.kind != RuntimeKind::kFsdp2) return families;
    each(0, families.size(), [&](std::size_t f) {
      const Place& place = places_[classes.members[families[f].classes.front()]];
      const Plan plan = this->plan(place);
      families[f].floor = judges_.local().floor(plan, programs(plan, place));
    });
    std::stable_sort(families.begin(), families.end(),
                     [](const Family& a, const Family& b) { return a.floor.step < b.floor.step; });
    return families;
  }

  // A place that may still be the best.
  struct Bounded {
    Time bound;
    std::size_t place = 0;
    auto operator<=>(const Bounded&) const = default;
  };

  // The same for classes that hold the same memory: they differ in where ranks are placed, in which
  // communicators they share and in how the optimizer is launched, which counts little.
  Place memory_key(const Place& place) const {
    Place key = place;
    key[static_cast<std::size_t>(Axis::kPrefetch)] = 0;
    for (std::size_t k = 0; k < space_.knobs.size(); ++k) {
      const std::string& name = space_.knobs[k].key;
      const bool is_same =
          name == "mesh.inner" || name == "communicators" || name == "optimizer.implementation";
      if (is_same) key[static_cast<std::size_t>(Axis::kKnobs) + k] = 0;
    }
    return key;
  }

  // Of each such set the one whose optimizer holds least beside its state comes first.
  std::vector<std::vector<std::size_t>> alike_in_memory(const Family& family,
                                                        const Classes& classes) const {
    std::map<Place, std::vector<std::size_t>> sets;
    const bool known = is_fully_known(space_.base.runtime.kind);
    for (std::size_t k = 0; k < family.classes.size(); ++k) {
      const Place& place = places_[classes.members[family.classes[k]]];
      std::vector<std::size_t>& set = sets[known ? memory_key(place) : place];
      set.push_back(k);
      const bool is_fused =
          plan(place).optimizer.implementation == Optimizer::Implementation::kFused;
      const Place& first = places_[classes.members[family.classes[set.front()]]];
      const bool is_first_fused =
          plan(first).optimizer.implementation == Optimizer::Implementation::kFused;
      if (is_fused && !is_first_fused) std::swap(set.front(), set.back());
    }
    std::vector<std::vector<std::size_t>> alike;
    for (auto& [key, set] : sets) alike.push_back(std::move(set));
    return alike;
  }

  // Adds the places of a family to those that wait; what cannot fit is rejected at once.
  void open(const Family& family, const Classes& classes, std::vector<Bounded>& waiting) {
    std::vector<Weighed> weighed(family.classes.size());
    const std::vector<std::vector<std::size_t>> alike = alike_in_memory(family, classes);
    each(0, alike.size(), [&](std::size_t s) {
      Weighed first;
      for (const std::size_t k : alike[s]) {
        if (!first.is_too_much) {
          weighed[k] = weigh_member(family, classes.members[family.classes[k]]);
          if (k == alike[s].front()) first = weighed[k];
        } else {
          weighed[k] = first;
        }
      }
    });
    for (std::size_t k = 0; k < weighed.size(); ++k) {
      const std::size_t c = family.classes[k];
      for (const std::size_t i : classes.places[c]) {
        if (!weighed[k].bound &&
            (weighed[k].is_floor_too_much || gathers_earlier(i, classes.members[c]))) {
          outcomes_[i].verdict = Verdict::kDoesNotFit;
        } else {
          waiting.push_back({weighed[k].bound.value_or(Time()), i});
        }
      }
    }
  }

  // Of the member of a class.
  struct Weighed {
    std::optional<Time> bound;       // of its step, where something of the class may fit
    bool is_floor_too_much = false;  // nothing that computes and keeps the same fits
    bool is_too_much = false;        // nothing that is alike in memory fits
  };

  Weighed weigh_member(const Family& family, std::size_t i) {
    const Plan plan = this->plan(places_[i]);
    const Bytes memory = limited_.gpu.memory;
    if (memory_floor(plan, model_, family.floor) > memory) return {std::nullopt, true, true};
    const LayerPrograms& programs = this->programs(plan, places_[i]);
    Judge& judge = judges_.local();
    const Outcome& outcome = outcomes_[i];
    judge.weigh(plan, programs, outcomes_[i]);
    const Bytes far = memory + memory / kNear;
    if (outcome.peak + outcome.outside > far) return {std::nullopt, false, outcome.peak > far};
    return {judge.bound_weighed(plan, programs), false, false};
  }

  // Fastest first, of equals with the least memory, of those the first.
  using Rank = std::tuple<Time, Bytes, std::size_t>;
  Rank rank(std::size_t i) const { return {outcomes_[i].step, outcomes_[i].peak, i}; }

  // The first that stands of those below the bound. `ranked`: simulated places of which nobody
  // asked yet whether they stand.
  void take_best_below(std::optional<Time> bound, std::set<Rank>& ranked) {
    while (!best_ && !ranked.empty()) {
      const auto [step, peak, place] = *ranked.begin();
      if (bound && step >= *bound) return;
      ranked.erase(ranked.begin());
      if (stands(place)) best_ = place;
    }
  }

  // A chunk of those with the lowest bounds; only what could be as fast as the first of `ranked`.
  void judge_first(std::vector<Bounded>& waiting, std::set<Rank>& ranked) {
    std::size_t size = std::min(kChunk, waiting.size());
    if (!ranked.empty()) {
      const Time fastest = std::get<Time>(*ranked.begin());
      while (waiting[size - 1].bound > fastest) --size;
    }
    each(0, size, [&](std::size_t k) { judge(waiting[k].place); });
    for (std::size_t k = 0; k < size; ++k) {
      const std::size_t i = waiting[k].place;
      if (outcomes_[i].verdict == Verdict::kSimulated) ranked.insert(rank(i));
    }
    waiting.erase(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(size));
  }

  Fit fit_of(std::size_t i) {
    const Plan plan = this->plan(places_[i]);
    return judges_.local().fit(plan, programs(plan, places_[i]), outcomes_[i]);
  }

  // Of a plan that the answer is going to name.
  bool stands(std::size_t i) {
    Outcome& outcome = outcomes_[i];
    if (outcome.verdict == Verdict::kSimulated && !fit_of(i).fits()) {
      outcome.verdict = Verdict::kDoesNotFit;
    }
    return outcome.verdict == Verdict::kSimulated;
  }

  bool is_tight(std::size_t i) const {
    return outcomes_[i].peak > (limited_.gpu.memory - outcomes_[i].outside) * 9 / 10;
  }

  Candidate describe(std::size_t i) const {
    const Outcome& outcome = outcomes_[i];
    Candidate c;
    c.plan = plan(places_[i]);
    c.verdict = outcome.verdict;
    c.peak_allocated = outcome.peak;
    c.outside_allocator = outcome.outside;
    c.peak_reserved = outcome.reserved;
    if (outcome.verdict == Verdict::kSimulated) {
      c.seconds = outcome.step.seconds();
      c.tokens_per_s_per_gpu = static_cast<double>(space_.global_batch * c.plan.batch.sequence) /
                               (c.seconds * static_cast<double>(limited_.gpus));
    }
    return c;
  }

  std::vector<std::size_t> simulated() const {
    std::vector<std::size_t> fastest;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (outcomes_[i].verdict == Verdict::kSimulated) fastest.push_back(i);
    }
    std::sort(fastest.begin(), fastest.end(),
              [&](std::size_t a, std::size_t b) { return rank(a) < rank(b); });
    return fastest;
  }

  void pareto(const std::vector<std::size_t>& fastest, SearchResult& result) {
    std::optional<Bytes> least;
    for (const std::size_t i : fastest) {
      if ((least && outcomes_[i].peak >= *least) || !stands(i)) continue;
      if (!best_ || options_.objective == Objective::kMemory) best_ = i;
      least = outcomes_[i].peak;
      result.pareto.push_back(describe(i));
    }
  }

  void neighbours(std::size_t best, SearchResult& result) {
    for (std::size_t i = 0; i < places_.size(); ++i) {
      int changed = 0;
      for (std::size_t axis = 0; axis < kAxes; ++axis) {
        changed += places_[i][axis] != places_[best][axis];
      }
      if (changed != 1) continue;
      weigh(i);
      if (is_tight(i)) stands(i);
      result.neighbours.push_back(describe(i));
    }
  }

  void heatmap(const std::vector<std::size_t>& fastest, SearchResult& result) {
    std::map<std::pair<std::int16_t, std::int16_t>, std::optional<std::size_t>> cells;
    const auto cell_of = [&](std::size_t i) -> std::optional<std::size_t>& {
      return cells[{at(places_[i], Axis::kShard), at(places_[i], Axis::kPrefetch)}];
    };
    for (std::size_t i = 0; i < places_.size(); ++i) cell_of(i);
    for (const std::size_t i : fastest) {
      auto& cell = cell_of(i);
      if (!cell && (!is_tight(i) || stands(i))) cell = i;
    }
    for (const auto& [key, i] : cells) {
      HeatmapCell& cell = result.heatmap.emplace_back();
      cell.shard = space_.shard_groups[static_cast<std::size_t>(key.first)];
      cell.prefetch = space_.prefetches[static_cast<std::size_t>(key.second)];
      if (!i) continue;
      cell.seconds = outcomes_[*i].step.seconds();
      cell.plan = plan_at(space_, limited_, places_[*i]);
    }
  }

  // With the smallest, which every built plan may be.
  SearchResult counts() {
    SearchResult result;
    result.enumerated = static_cast<std::int64_t>(places_.size());
    // Where nothing fits, the smallest may be among what was rejected without a graph.
    const bool any_fits = std::any_of(outcomes_.begin(), outcomes_.end(), [](const Outcome& o) {
      return o.verdict == Verdict::kSimulated;
    });
    if (!any_fits) {
      std::int64_t least = depth(places_.empty() ? Place{} : places_.front());
      for (const Place& place : places_) least = std::min(least, depth(place));
      each(0, places_.size(), [&](std::size_t i) {
        const bool is_alone =
            space_.shard_groups[static_cast<std::size_t>(at(places_[i], Axis::kShard))] == 1;
        if (is_alone || depth(places_[i]) == least) weigh(i);
      });
    }
    std::optional<std::size_t> smallest;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (!outcomes_[i].is_built) continue;
      if (!smallest || outcomes_[i].peak < outcomes_[*smallest].peak) smallest = i;
    }
    if (smallest) {
      fit_of(*smallest);
      result.smallest = describe(*smallest);
    }
    return result;
  }

  void count_verdicts(SearchResult& result) const {
    for (const Outcome& outcome : outcomes_) {
      ++(outcome.verdict == Verdict::kSimulated    ? result.simulated
         : outcome.verdict == Verdict::kDoesNotFit ? result.rejected_memory
                                                   : result.pruned);
    }
  }

  const ModelSpec& model_;
  const SearchOptions& options_;
  const Cluster limited_;
  const SearchSpace space_;
  const std::vector<Place> places_;
  std::vector<Outcome> outcomes_;
  ProgramCache programs_;
  oneapi::tbb::enumerable_thread_specific<Judge> judges_;
  oneapi::tbb::task_arena arena_;
  std::atomic<std::int64_t> done_ = 0;
  std::atomic<bool> stopped_ = false;
  std::optional<std::size_t> best_;  // by the objective, of those that stand
};

}  // namespace

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
  Search searching(space, model, costs, options);
  const bool has_to_see_all =
      options.detail == SearchDetail::kAll || options.objective == Objective::kMemory;
  return has_to_see_all ? searching.all() : searching.best();
}

}  // namespace foreshard
