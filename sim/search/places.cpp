#include "sim/search/places.h"

#include <algorithm>

#include "sim/spec/checks/plan_check.h"

namespace foreshard {

Places::Places(const SearchSpace& wanted, const ModelSpec& model, const CostModel& costs, const SearchOptions& options)
    : model_(model),
      options_(options),
      cluster_(costs.cluster()),
      memory_(room(cluster_, Bytes(),
          {options.fit.keeps_riskier ? 0 : options.fit.terms.confidence, options.fit.terms.max_memory})),
      limit_(options.faster_than ? std::optional(Time::seconds(*options.faster_than)) : std::nullopt),
      space_(complete(wanted, cluster_)),
      places_(list_places(space_, model, cluster_)),
      outcomes_(places_.size()),
      programs_(model),
      judges_([&model, &costs, this] { return Judge(model, costs, options_.fit); }),
      arena_(options.threads > 0 ? options.threads : oneapi::tbb::task_arena::automatic) {
  for (std::size_t i = 0; i < places_.size(); ++i)
    programs_.add(plan(i), at(places_[i], Axis::kRecompute), at(places_[i], Axis::kMicroBatch));
}

Plan Places::plan(std::size_t i) const {
  Plan plan = plan_at(space_, cluster_, places_[i]);
  plan.allocator = space_.allocators[outcomes_[i].allocator];
  return plan;
}

bool Places::recalled(std::size_t i) {
  if (!options_.memory.recall) return false;
  const std::optional<JudgedPlan> known = options_.memory.recall(i);
  if (!known) return false;
  PlanOutcome& outcome = outcomes_[i];
  outcome.verdict = known->verdict;
  outcome.step = known->step;
  outcome.peak = known->peak_allocated;
  outcome.outside = known->outside_allocator;
  outcome.least_reserved = known->peak_allocated;
  outcome.is_built = known->peak_allocated > Bytes();
  return true;
}

void Places::judge(std::size_t i) {
  if (!recalled(i)) judge_anew(i);
  const std::int64_t now = ++done_;
  if (options_.progress && !options_.progress(now, std::ssize(places_))) stopped_ = true;
}

void Places::judge_anew(std::size_t i) {
  const Plan plan = this->plan(i);
  if (has_no_room(plan)) {
    outcomes_[i].verdict = Verdict::kDoesNotFit;
  } else {
    const LayerPrograms& programs = this->programs(i, plan);
    Judge& judge = judges_.local();
    const bool fits = judge.weigh(plan, programs, outcomes_[i]);
    // Every code's memory is sooner told than a step's time.
    if (fits && asks_for_sure(plan) && !may_hold(i)) return;
    if (fits) judge.time(plan, programs, outcomes_[i]);
  }
  const PlanOutcome& outcome = outcomes_[i];
  if (options_.memory.remember)
    options_.memory.remember(i, {outcome.verdict, outcome.step, outcome.peak, outcome.outside});
}

void Places::weigh(std::size_t i) {
  if (outcomes_[i].is_built) return;
  const Plan plan = this->plan(i);
  judges_.local().weigh(plan, programs(i, plan), outcomes_[i]);
}

Fit Places::fit_with(std::size_t i, Bytes reserved) const {
  return fit_in(cluster_, outcomes_[i].peak, reserved, outcomes_[i].outside);
}

std::optional<bool> Places::known_to_hold(std::size_t i) const {
  const PlanOutcome& outcome = outcomes_[i];
  if (outcome.is_assessed)
    return outcome.verdict == Verdict::kSimulated && outcome.fit_probability >= options_.fit.terms.confidence;
  if (outcome.verdict != Verdict::kSimulated) return false;
  if (!foreshard::holds(fit_with(i, outcome.least_reserved), options_.fit.terms)) return false;
  return std::nullopt;
}

bool Places::asks_for_sure(const Plan& plan) const {
  const bool needs_sure = riskier_ || !options_.fit.keeps_riskier;
  return needs_sure && (plan.mesh.pp > 1 || options_.detail == SearchDetail::kBest);
}

bool Places::may_hold_alone(std::size_t i, double share) const {
  const double own = fit_probability(fit_with(i, outcomes_[i].least_reserved));
  return 1 - options_.fit.share * (1 - own) >= share * options_.fit.terms.confidence;
}

bool Places::may_hold(std::size_t i, double share) {
  PlanOutcome& outcome = outcomes_[i];
  if (outcome.is_assessed || !options_.fit.may_be) return true;
  if (!may_hold_alone(i, share)) return false;
  const double enough = share * options_.fit.terms.confidence;
  if (enough <= outcome.may_be || enough >= outcome.cannot_be) return enough <= outcome.may_be;
  const Fit least = fit_with(i, outcome.least_reserved);
  const bool may = options_.fit.may_be(plan(i), least, enough);
  (may ? outcome.may_be : outcome.cannot_be) = enough;
  return may;
}

bool Places::is_unlikely(std::size_t i) {
  const Plan plan = this->plan(i);
  return plan.mesh.pp == 1 && asks_for_sure(plan) && !may_hold(i, 0.5);
}

// With the first setting of the allocator with which it holds; of several that do not, the surest.
void Places::assess(std::size_t i) {
  PlanOutcome& outcome = outcomes_[i];
  const PlanOutcome before = outcome;
  const MemoryTerms& terms = options_.fit.terms;
  const bool may_hold = foreshard::holds(fit_with(i, outcome.peak), terms);
  // Of the first that does not hold the odds are told.
  const double enough = riskier_ || !options_.fit.keeps_riskier ? terms.confidence : 0;
  for (std::size_t a = 0; a < space_.allocators.size(); ++a) {
    PlanOutcome tried = before;
    tried.allocator = a;
    Plan plan = plan_at(space_, cluster_, places_[i]);
    plan.allocator = space_.allocators[a];
    if (a > 0 && find_problem(plan, model_, cluster_)) continue;
    const bool holds = judges_.local().assess(plan, programs(i, plan), tried, enough);
    if (a == 0 || holds || tried.fit_probability > outcome.fit_probability) outcome = tried;
    if (holds || (!may_hold && outcome.verdict == Verdict::kSimulated)) return;
  }
}

bool Places::holds(std::size_t i) {
  if (!outcomes_[i].is_assessed && outcomes_[i].verdict == Verdict::kSimulated) assess(i);
  return *known_to_hold(i);
}

void Places::assess_next(std::set<Rank>& ranked, std::optional<Time> bound) {
  std::vector<std::size_t> asked;
  const bool is_open = options_.keep_within > 0;
  const std::size_t most = is_open ? failed_ : std::min(failed_, at(arena_.max_concurrency() - 1));
  for (auto next = ranked.begin(); next != ranked.end() && asked.size() <= most;) {
    const auto [step, peak, i] = *next;
    if ((bound && step >= *bound) || is_too_slow(step)) break;
    if (known_to_hold(i) == false || !may_hold(i)) {
      next = ranked.erase(next);
      continue;
    }
    if (outcomes_[i].is_assessed) break;
    asked.push_back(i);
    ++next;
  }
  each(asked.size(), [&](std::size_t k) { assess(asked[k]); });
}

std::optional<std::size_t> Places::first_that_holds(std::set<Rank>& ranked, std::optional<Time> bound) {
  while (true) {
    const bool needs_sure = riskier_ || !options_.fit.keeps_riskier;
    if (needs_sure) assess_next(ranked, bound);
    if (ranked.empty()) return std::nullopt;
    const auto [step, peak, i] = *ranked.begin();
    if ((bound && step >= *bound) || is_too_slow(step)) return std::nullopt;
    ranked.erase(ranked.begin());
    const bool is_sure = holds(i);
    if (needs_sure && !is_sure) failed_ = std::min(failed_ + 1, kMostAhead);
    if (outcomes_[i].verdict != Verdict::kSimulated) continue;
    if (!is_sure && needs_sure) continue;
    judges_.local().add_stalls(plan(i), outcomes_[i]);
    if (outcomes_[i].step > step) {  // by what the driver is asked for: others may be faster
      ranked.insert(rank(i));
      continue;
    }
    if (is_sure) return i;
    if (!riskier_) riskier_ = i;
  }
}

std::optional<std::size_t> Places::find(const Place& place) const {
  const auto found = std::ranges::lower_bound(places_, place);
  if (found == places_.end() || *found != place) return std::nullopt;
  return at(found - places_.begin());
}

const Prefetch& Places::prefetch(std::size_t i) const { return space_.prefetches[at(at(places_[i], Axis::kPrefetch))]; }

std::int64_t Places::depth(std::size_t i) const {
  return std::max<std::int64_t>(prefetch(i).forward, 0) + prefetch(i).backward;
}

bool Places::gathers_earlier(std::size_t i, std::size_t other) const {
  const std::int64_t none = 0;
  return std::max(prefetch(i).forward, none) >= std::max(prefetch(other).forward, none) &&
         prefetch(i).backward >= prefetch(other).backward;
}

Candidate Places::describe(std::size_t i) const {
  const PlanOutcome& outcome = outcomes_[i];
  Candidate c;
  c.plan = plan(i);
  c.verdict = outcome.verdict;
  c.peak_allocated = outcome.peak;
  c.outside_allocator = outcome.outside;
  c.peak_reserved = outcome.reserved;
  c.fit_probability = outcome.fit_probability;
  if (outcome.verdict == Verdict::kSimulated) {
    c.seconds = outcome.step.seconds();
    c.tokens_per_s_per_gpu =
        as_double(space_.global_batch * c.plan.batch.sequence) / (c.seconds * as_double(cluster_.gpus));
  }
  return c;
}

std::set<Rank> Places::simulated() const {
  std::set<Rank> ranked;
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (outcomes_[i].verdict == Verdict::kSimulated) ranked.insert(rank(i));
  return ranked;
}

SearchResult Places::counts() {
  SearchResult result = {.enumerated = std::ssize(places_)};
  // Where nothing holds, the smallest may be among what was rejected without a graph.
  const bool any_holds = std::ranges::any_of(outcomes_, [&](const PlanOutcome& o) {
    return o.verdict == Verdict::kSimulated && o.is_assessed && o.fit_probability >= options_.fit.terms.confidence;
  });
  if (any_holds || limit_) return result;
  if (!places_.empty()) {
    std::int64_t least = depth(0);
    for (std::size_t i = 0; i < places_.size(); ++i) least = std::min(least, depth(i));
    each(places_.size(), [&](std::size_t i) {
      const bool is_alone = space_.shard_groups[at(at(places_[i], Axis::kShard))] == 1;
      if (is_alone || depth(i) == least) weigh(i);
    });
  }
  std::optional<std::size_t> smallest;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (!outcomes_[i].is_built) continue;
    if (!smallest || outcomes_[i].peak < outcomes_[*smallest].peak) smallest = i;
  }
  if (smallest) {
    if (!outcomes_[*smallest].is_assessed) assess(*smallest);
    result.smallest = describe(*smallest);
  }
  return result;
}

void Places::count_verdicts(SearchResult& result) const {
  for (const PlanOutcome& outcome : outcomes_) {
    ++(outcome.step > Time()                      ? result.simulated
        : outcome.verdict == Verdict::kDoesNotFit ? result.rejected_memory
                                                  : result.pruned);
  }
}

}
