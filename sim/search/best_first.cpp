// Places are taken by a lower bound of their step, in chunks of a fixed size, so that what is
// pruned does not depend on the number of threads. Once no bound is below the fastest that was
// simulated, that one is assessed in full; where it holds, it is the best.
//
// There are two bounds. Families of places whose layers compute the same (one graph for each) are opened in the order
// of what their layers take, when no place with a lower bound is left; where that is above the best, they stay closed.
// In an open family, every class of places whose graphs do the same work (they differ in prefetch alone) is weighed and
// bounded; of classes that hold the same memory, one is weighed first for all.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "sim/search/search_parts.h"

namespace foreshard {
namespace {

constexpr std::size_t kChunk = 8;
// A class whose member that gathers latest exceeds the GPU by more than a twentieth does not fit.
constexpr std::int64_t kNear = 20;

class BestFirst {
 public:
  explicit BestFirst(Places& places) : places_(places), is_known_(is_fully_known(places.space().base.runtime.kind)) {}

  std::optional<std::size_t> run() {
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
      const std::optional<std::size_t> best = places_.first_that_holds(ranked, bound);
      if (best || !bound || places_.is_too_slow(*bound)) return best;
      if (opens) {
        open(families[next++], classes, waiting);
        std::ranges::sort(waiting);
      } else {
        judge_first(waiting, ranked);
      }
    }
  }

 private:
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
      if (places_.has_no_room(places_.plan(i))) {
        places_.outcome(i).verdict = Verdict::kDoesNotFit;
        continue;
      }
      Place key = places_[i];
      if (is_known_) key[at(Axis::kPrefetch)] = 0;
      const auto [found, is_new] = known.emplace(key, classes.members.size());
      if (is_new) {
        classes.members.push_back(i);
        classes.places.emplace_back();
      }
      std::size_t& member = classes.members[found->second];
      if (places_.depth(i) < places_.depth(member)) member = i;
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
    std::map<std::pair<const LazyPrograms*, std::int16_t>, std::size_t> known;
    std::vector<Family> families;
    for (std::size_t c = 0; c < classes.members.size(); ++c) {
      const std::size_t i = classes.members[c];
      const LazyPrograms& programs = places_.lazy_programs(i, places_.plan(i));
      const auto [found, is_new] =
          known.emplace(std::pair(&programs, at(places_[i], Axis::kMicroBatch)), families.size());
      if (is_new) families.emplace_back();
      families[found->second].classes.push_back(c);
    }
    // The engine's layers write gradients where the plan lets them, which costs them time.
    if (places_.space().base.runtime.kind != RuntimeKind::kFsdp2) return families;
    places_.each(
        families.size(),
        [&](std::size_t f) {
          const std::size_t i = classes.members[families[f].classes.front()];
          const Plan plan = places_.plan(i);
          families[f].floor = places_.judge().floor(plan, places_.lazy_programs(i, plan));
        });
    std::ranges::stable_sort(families, [](const Family& a, const Family& b) { return a.floor.step < b.floor.step; });
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
    key[at(Axis::kPrefetch)] = 0;
    const std::vector<KnobAxis>& knobs = places_.space().knobs;
    for (std::size_t k = 0; k < knobs.size(); ++k) {
      const std::string& name = knobs[k].key;
      const bool is_same = name == "mesh.inner" || name == "communicators" || name == "optimizer.implementation";
      if (is_same) key[at(Axis::kKnobs) + k] = 0;
    }
    return key;
  }

  bool is_fused(std::size_t i) const {
    return places_.plan(i).optimizer.implementation == Optimizer::Implementation::kFused;
  }

  // Of each such set the one whose optimizer holds least beside its state comes first.
  std::vector<std::vector<std::size_t>> alike_in_memory(const Family& family, const Classes& classes) const {
    std::map<Place, std::vector<std::size_t>> sets;
    for (std::size_t k = 0; k < family.classes.size(); ++k) {
      const std::size_t i = classes.members[family.classes[k]];
      std::vector<std::size_t>& set = sets[is_known_ ? memory_key(places_[i]) : places_[i]];
      set.push_back(k);
      const std::size_t first = classes.members[family.classes[set.front()]];
      if (is_fused(i) && !is_fused(first)) std::swap(set.front(), set.back());
    }
    return list_of<std::vector<std::size_t>>(sets, [&](auto& each) { return std::move(each.second); });
  }

  // Adds the places of a family to those that wait; what cannot fit is rejected at once.
  void open(const Family& family, const Classes& classes, std::vector<Bounded>& waiting) {
    std::vector<Weighed> weighed(family.classes.size());
    const std::vector<std::vector<std::size_t>> alike = alike_in_memory(family, classes);
    places_.each(alike.size(), [&](std::size_t s) {
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
      for (const std::size_t i : classes.places[c])
        if (!weighed[k].bound && (weighed[k].is_floor_too_much || places_.gathers_earlier(i, classes.members[c])))
          places_.outcome(i).verdict = Verdict::kDoesNotFit;
        else waiting.push_back({weighed[k].bound.value_or(Time()), i});
    }
  }

  // Of the member of a class.
  struct Weighed {
    std::optional<Time> bound;       // of its step, where something of the class may fit
    bool is_floor_too_much = false;  // nothing that computes and keeps the same fits
    bool is_too_much = false;        // nothing that is alike in memory fits
  };

  Weighed weigh_member(const Family& family, std::size_t i) {
    const Plan plan = places_.plan(i);
    const Bytes memory = places_.gpu_memory();
    if (places_.floor_of_memory(plan, family.floor) > memory) return {std::nullopt, true, true};
    const LayerPrograms& programs = places_.programs(i, plan);
    Judge& judge = places_.judge();
    PlanOutcome& outcome = places_.outcome(i);
    judge.weigh(plan, programs, outcome);
    const Bytes far = memory + memory / kNear;
    if (outcome.peak + outcome.outside > far) return {std::nullopt, false, outcome.peak > far};
    if (places_.is_unlikely(i)) return {};
    return {judge.bound_weighed(plan, programs), false, false};
  }

  // A chunk of those with the lowest bounds; only what could be as fast as the first of `ranked`,
  // or an answer at all, which the first of them may be.
  void judge_first(std::vector<Bounded>& waiting, std::set<Rank>& ranked) {
    std::size_t size = std::min(kChunk, waiting.size());
    while (places_.is_too_slow(waiting[size - 1].bound)) --size;
    if (!ranked.empty()) {
      const Time fastest = std::get<Time>(*ranked.begin());
      while (waiting[size - 1].bound > fastest) --size;
    }
    places_.each(size, [&](std::size_t k) { places_.judge(waiting[k].place); });
    for (std::size_t k = 0; k < size; ++k) {
      const std::size_t i = waiting[k].place;
      if (places_.outcome(i).verdict == Verdict::kSimulated) ranked.insert(places_.rank(i));
    }
    waiting.erase(waiting.begin(), waiting.begin() + size);
  }

  Places& places_;
  const bool is_known_;  // what bounds lean on
};

// Ties go to the base's values: axis by axis, where the plan is as fast with the base's and holds.
std::size_t with_usual_values(Places& places, std::size_t best) {
  const Time fastest = places.outcome(best).step;
  const auto as_fast = fastest + Time::seconds(fastest.seconds() * places.options().tie);
  for (std::size_t axis = kAxes; axis-- > 0;) {
    const std::optional<std::int16_t> usual = usual_value(places.space(), axis);
    if (!usual || places[best][axis] == *usual) continue;
    Place place = places[best];
    place[axis] = *usual;
    const std::optional<std::size_t> other = places.find(place);
    if (!other) continue;
    PlanOutcome& outcome = places.outcome(*other);
    if (outcome.verdict == Verdict::kPruned) places.judge(*other);
    const bool may = outcome.verdict == Verdict::kSimulated && outcome.step <= as_fast;
    std::set<Rank> alone = {places.rank(*other)};
    if (may && places.first_that_holds(alone, std::nullopt) && outcome.step <= as_fast) best = *other;
  }
  return best;
}

}

std::optional<std::size_t> find_best(Places& places) {
  const std::optional<std::size_t> best = BestFirst(places).run();
  if (!best) return std::nullopt;
  return with_usual_values(places, *best);
}

}
