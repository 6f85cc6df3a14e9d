#include "sim/search/places.h"

#include <algorithm>
#include <optional>

namespace foreshard {

Places::Places(const SearchSpace& wanted, const ModelSpec& model, const CostModel& costs,
               const SearchOptions& options)
    : model_(model),
      options_(options),
      limited_(with_memory_limit(costs.cluster(), options.max_memory)),
      space_(complete(wanted, limited_)),
      places_(list_places(space_, model, limited_)),
      outcomes_(places_.size()),
      programs_(model),
      judges_([&model, &costs, this] { return Judge(model, costs, limited_); }),
      arena_(options.threads > 0 ? options.threads : oneapi::tbb::task_arena::automatic) {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    programs_.add(plan(i), at(places_[i], Axis::kRecompute), at(places_[i], Axis::kMicroBatch));
  }
}

bool Places::recalled(std::size_t i) {
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

void Places::judge(std::size_t i) {
  if (!recalled(i)) judge_anew(i);
  const std::int64_t now = ++done_;
  if (options_.progress && !options_.progress(now, static_cast<std::int64_t>(places_.size()))) {
    stopped_ = true;
  }
}

void Places::judge_anew(std::size_t i) {
  const Plan plan = this->plan(i);
  if (has_no_room(plan)) {
    outcomes_[i].verdict = Verdict::kDoesNotFit;
  } else {
    const LayerPrograms& programs = this->programs(i, plan);
    Judge& judge = judges_.local();
    if (judge.weigh(plan, programs, outcomes_[i])) judge.time(plan, programs, outcomes_[i]);
  }
  const Outcome& outcome = outcomes_[i];
  if (options_.memory.remember) {
    options_.memory.remember(i, {outcome.verdict, outcome.step, outcome.peak, outcome.outside});
  }
}

void Places::weigh(std::size_t i) {
  if (outcomes_[i].is_built) return;
  const Plan plan = this->plan(i);
  judges_.local().weigh(plan, programs(i, plan), outcomes_[i]);
}

Fit Places::fit_of(std::size_t i) {
  const Plan plan = this->plan(i);
  return judges_.local().fit(plan, programs(i, plan), outcomes_[i]);
}

bool Places::stands(std::size_t i) {
  Outcome& outcome = outcomes_[i];
  if (outcome.verdict == Verdict::kSimulated && !fit_of(i).fits()) {
    outcome.verdict = Verdict::kDoesNotFit;
  }
  return outcome.verdict == Verdict::kSimulated;
}

bool Places::is_tight(std::size_t i) const {
  return outcomes_[i].peak > (limited_.gpu.memory - outcomes_[i].outside) * 9 / 10;
}

const Prefetch& Places::prefetch(std::size_t i) const {
  return space_.prefetches[static_cast<std::size_t>(at(places_[i], Axis::kPrefetch))];
}

std::int64_t Places::depth(std::size_t i) const {
  return std::max<std::int64_t>(prefetch(i).forward, 0) + prefetch(i).backward;
}

bool Places::gathers_earlier(std::size_t i, std::size_t other) const {
  const std::int64_t none = 0;
  return std::max(prefetch(i).forward, none) >= std::max(prefetch(other).forward, none) &&
         prefetch(i).backward >= prefetch(other).backward;
}

Candidate Places::describe(std::size_t i) const {
  const Outcome& outcome = outcomes_[i];
  Candidate c;
  c.plan = plan(i);
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

std::vector<std::size_t> Places::simulated() const {
  std::vector<std::size_t> fastest;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (outcomes_[i].verdict == Verdict::kSimulated) fastest.push_back(i);
  }
  std::sort(fastest.begin(), fastest.end(),
            [&](std::size_t a, std::size_t b) { return rank(a) < rank(b); });
  return fastest;
}

SearchResult Places::counts() {
  SearchResult result;
  result.enumerated = static_cast<std::int64_t>(places_.size());
  // Where nothing fits, the smallest may be among what was rejected without a graph.
  const bool any_fits = std::any_of(outcomes_.begin(), outcomes_.end(), [](const Outcome& o) {
    return o.verdict == Verdict::kSimulated;
  });
  if (!any_fits && !places_.empty()) {
    std::int64_t least = depth(0);
    for (std::size_t i = 0; i < places_.size(); ++i) least = std::min(least, depth(i));
    each(places_.size(), [&](std::size_t i) {
      const bool is_alone =
          space_.shard_groups[static_cast<std::size_t>(at(places_[i], Axis::kShard))] == 1;
      if (is_alone || depth(i) == least) weigh(i);
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

void Places::count_verdicts(SearchResult& result) const {
  for (const Outcome& outcome : outcomes_) {
    ++(outcome.verdict == Verdict::kSimulated    ? result.simulated
       : outcome.verdict == Verdict::kDoesNotFit ? result.rejected_memory
                                                 : result.pruned);
  }
}

}  // namespace foreshard
