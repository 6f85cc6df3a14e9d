// Every place of a search's grid and what is known of it so far. For the parts of search only.
//
// Places are judged in parallel into a vector indexed by their enumeration order and reduced from
// there in one thread, so that the answer cannot depend on who finished first.
#pragma once

#include <oneapi/tbb/enumerable_thread_specific.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "sim/base/error.h"
#include "sim/search/axes.h"
#include "sim/search/judge.h"
#include "sim/search/search.h"

namespace foreshard {

// Fastest first, of equals with the least memory, of those the first.
using Rank = std::tuple<Time, Bytes, std::size_t>;

// Plans that are assessed beside the first in line, which may turn out to be the answer.
inline constexpr std::size_t kMostAhead = 7;

class Places {
 public:
  // Throws Error(kInvalidInput) when the global batch fits no mesh. References are kept.
  Places(const SearchSpace& wanted, const ModelSpec& model, const CostModel& costs, const SearchOptions& options);

  const SearchSpace& space() const { return space_; }
  const SearchOptions& options() const { return options_; }
  // The most that a plan may reserve, with nothing outside, to fit.
  Bytes gpu_memory() const { return memory_; }
  std::size_t size() const { return places_.size(); }
  const Place& operator[](std::size_t i) const { return places_[i]; }
  PlanOutcome& outcome(std::size_t i) { return outcomes_[i]; }
  Rank rank(std::size_t i) const { return {outcomes_[i].step, outcomes_[i].peak, i}; }

  Plan plan(std::size_t i) const;
  const LazyPrograms& lazy_programs(std::size_t i, const Plan& plan) const {
    return programs_.at(plan, at(places_[i], Axis::kRecompute), at(places_[i], Axis::kMicroBatch));
  }
  const LayerPrograms& programs(std::size_t i, const Plan& plan) const { return lazy_programs(i, plan).get(); }
  Judge& judge() { return judges_.local(); }  // of this thread
  Bytes floor_of_memory(const Plan& plan, const LayersFloor& floor) const { return memory_floor(plan, model_, floor); }
  bool has_no_room(const Plan& plan) const { return floor_of_memory(plan, LayersFloor()) > memory_; }

  // Throws Error(kInterrupted) where options.progress stopped the search.
  void each(std::size_t count, const auto& work) {
    arena_.execute([&] {
      oneapi::tbb::parallel_for(std::size_t{0}, count, [&](std::size_t i) {
        if (!stopped_) work(i);
      });
    });
    if (stopped_) throw Error(ExitCode::kInterrupted, "search was stopped");
  }

  // Memory and, where that may fit, time; recalled where an earlier search knew it.
  void judge(std::size_t i);
  // Memory of what was rejected without a graph.
  void weigh(std::size_t i);
  // Whether it holds, assessed in full once: asked of a plan that the answer is going to name. Its
  // step may get longer by that.
  bool holds(std::size_t i);
  // The same as far as it is known, or cannot hold whatever is reserved.
  std::optional<bool> known_to_hold(std::size_t i) const;
  // The first of `ranked`, simulated places, that holds and whose step is below the bound. What was
  // looked at is taken out; the first that fits but does not hold is the riskier choice.
  std::optional<std::size_t> first_that_holds(std::set<Rank>& ranked, std::optional<Time> bound);
  // The number of a place; nothing where it is none of the grid.
  std::optional<std::size_t> find(const Place& place) const;

  // Of a weighed place: whether neither it nor what gathers earlier can hold. (Half the odds that
  // are asked for are far from them.)
  bool is_unlikely(std::size_t i);

  // How early it gathers. Of two plans that differ in it alone, the one with less holds hardly more
  // memory: 2 % in small models (a test tries to find more).
  std::int64_t depth(std::size_t i) const;
  bool gathers_earlier(std::size_t i, std::size_t other) const;

  Candidate describe(std::size_t i) const;
  std::set<Rank> simulated() const;
  // Whether no step of at least this is an answer.
  bool is_too_slow(Time bound) const { return limit_ && bound >= *limit_; }
  const std::optional<std::size_t>& riskier() const { return riskier_; }
  // With the smallest, which every built plan may be, where nothing holds.
  SearchResult counts();
  void count_verdicts(SearchResult& result) const;

 private:
  const Prefetch& prefetch(std::size_t i) const;
  bool recalled(std::size_t i);
  void judge_anew(std::size_t i);
  void assess(std::size_t i);
  // Where only a plan that holds will do: assesses the first of `ranked` that may, in parallel with
  // one more for each that failed to so far (where SearchResult::close shows them, however many
  // threads there are), and takes out what cannot.
  void assess_next(std::set<Rank>& ranked, std::optional<Time> bound);
  // By the rule's upper bound, of a share of the odds that are asked for; as if it held under every other code.
  bool may_hold_alone(std::size_t i, double share = 1) const;
  bool may_hold(std::size_t i, double share = 1);
  // Whether what does not hold is of no use: not for tables, which show what fits, too.
  bool asks_for_sure(const Plan& plan) const;
  Fit fit_with(std::size_t i, Bytes reserved) const;

  const ModelSpec& model_;
  const SearchOptions options_;
  const Cluster cluster_;
  const Bytes memory_;
  const std::optional<Time> limit_;  // of a step, by options.faster_than
  const SearchSpace space_;
  const std::vector<Place> places_;
  std::vector<PlanOutcome> outcomes_;
  ProgramCache programs_;
  oneapi::tbb::enumerable_thread_specific<Judge> judges_;
  oneapi::tbb::task_arena arena_;
  std::atomic<std::int64_t> done_ = 0;
  std::atomic<bool> stopped_ = false;
  std::size_t failed_ = 0;  // to hold when assessed, at most kMostAhead
  std::optional<std::size_t> riskier_;
};

}
