// A combination is one number for each block and each unit: an index into the choices, which are
// taken in the order of the memory they save. Trying everything counts through all of them.
//
// The search of large problems works with what is allocated, under a limit:
//   patterns   Blocks are alike, so what counts first is how many recompute, and how many units
//              stay unsharded. For every pair of recompute values (less, more) and every number of
//              unsharded units at the end (their gather in backward comes first; of units resharded
//              to a group: one, half and all): the fewest blocks with `more` that fit, by
//              bisection, at the front, at the back or evenly spread.
//   descent    From the fastest pattern: every single change, and every exchange at the borders of
//              runs, that fits and is faster is taken, until none is or the judge has had enough.
// What is reserved is asked of the result alone. Where that does not fit, the limit is lowered by
// what is too much and the search is done again. A lower limit may leave out the plan that was
// started from, so that one has the last word where it is faster.
//
// A step of more micro-batches than tell (judge.h) is judged by what two short ones extend to; the
// result is simulated in full.
#include "sim/search/per_layer.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "sim/search/judge.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

constexpr int kMostLimits = 8;
constexpr std::int64_t kLeastStep = 100;  // by which a limit is lowered, of it

using Combination = std::vector<std::int8_t>;  // blocks, then units

struct Judged {
  bool is_possible = false;
  Time step;
  Bytes peak;
  Bytes outside;
};

class LayerSearch {
 public:
  LayerSearch(const Plan& frame, const ModelSpec& model, const CostModel& costs, const LayerChoices& choices)
      : frame_(frame),
        model_(model),
        costs_(costs),
        choices_(choices),
        blocks_(at(model.block_count())),
        units_(at(unit_count(frame, model))),
        programs_(model, with_every_mode(frame)),
        judge_(model, costs_, choices.fit),
        limit_(costs.cluster().gpu.memory) {}

  std::optional<LayerResult> run() {
    return combinations() <= choices_.try_all_up_to ? try_all() : search_under_limits();
  }

 private:
  std::size_t size() const { return blocks_ + units_; }
  std::size_t values_at(std::size_t i) const {
    return i < blocks_ ? choices_.recomputes.size() : choices_.reshards.size();
  }

  std::int64_t combinations() const {
    std::int64_t count = 1;
    for (std::size_t i = 0; i < size() && count <= choices_.try_all_up_to; ++i)
      count *= static_cast<std::int64_t>(values_at(i));
    return count;
  }

  Plan with_every_mode(Plan plan) const {
    plan.recompute.ranges.clear();
    for (const Recompute mode : choices_.recomputes) plan.recompute.ranges.push_back({0, 0, mode});
    return plan;
  }

  Plan plan_of(const Combination& c) const {
    Plan plan = frame_;
    std::vector<Recompute> recomputes;
    std::vector<Reshard> reshards;
    for (std::size_t i = 0; i < size(); ++i) {
      const std::size_t value = static_cast<unsigned char>(c[i]);
      if (i < blocks_) recomputes.push_back(choices_.recomputes[value]);
      else reshards.push_back(choices_.reshards[value]);
    }
    plan.recompute = ranged(recomputes);
    plan.reshard_after_forward = ranged(reshards);
    return plan;
  }

  Judged judge(const Combination& c) {
    if (const auto known = known_.find(c); known != known_.end()) return known->second;
    Judged judged;
    const Plan plan = plan_of(c);
    if (!find_problem(plan, model_, costs_.cluster())) {
      ++judged_;
      PlanOutcome outcome;
      judge_.weigh(plan, programs_, outcome);
      judged = {true, Time(), outcome.peak, outcome.outside};
      // The limit only falls: what does not fit now never will.
      if (fits(judged)) judged.step = step_of(plan, outcome);
    }
    return known_[c] = judged;
  }

  Time step_of(const Plan& plan, PlanOutcome& outcome) {
    if (plan.batch.accumulation <= kTelling || is_exact_) {
      judge_.time(plan, programs_, outcome);
      return outcome.step;
    }
    const auto of = [&](std::int64_t micro_batches) {
      Plan shorter = plan;
      shorter.batch.accumulation = micro_batches;
      PlanOutcome short_outcome;
      judge_.weigh(shorter, programs_, short_outcome);
      judge_.time(shorter, programs_, short_outcome);
      return short_outcome.step;
    };
    const Time at_telling = of(kTelling);
    return at_telling + (at_telling - of(kTelling - 1)) * (plan.batch.accumulation - kTelling);
  }

  bool fits(const Judged& judged) const { return judged.is_possible && judged.peak + judged.outside <= limit_; }

  std::optional<LayerResult> try_all() {
    is_exact_ = true;
    std::vector<std::tuple<Time, Bytes, Combination>> ranked;
    Combination c(size(), 0);
    while (true) {
      const Judged judged = judge(c);
      if (fits(judged)) ranked.emplace_back(judged.step, judged.peak, c);
      std::size_t i = size();
      while (i > 0 && at(++c[i - 1]) == values_at(i - 1)) c[--i] = 0;
      if (i == 0) break;
    }
    std::ranges::sort(ranked);
    // What the driver is asked for makes some slower than they were ranked; of equally fast ones
    // the smaller comes first.
    std::optional<LayerResult> best;
    const auto rank = [](const Candidate& is) { return std::tie(is.seconds, is.peak_allocated); };
    for (const auto& [step, peak, combination] : ranked) {
      if (best && rank(best->candidate) <= std::make_tuple(step.seconds(), peak)) break;
      auto result = finish(combination);
      if (!result) continue;
      result->is_optimum = true;
      if (!best || rank(result->candidate) < rank(best->candidate)) best = std::move(result);
    }
    return best;
  }

  // Simulated in full and asked what it reserves; nothing where that does not fit.
  std::optional<LayerResult> finish(const Combination& c) {
    const Plan plan = plan_of(c);
    PlanOutcome outcome;
    if (!judge_.weigh(plan, programs_, outcome)) return std::nullopt;
    judge_.time(plan, programs_, outcome);
    if (!judge_.assess(plan, programs_, outcome)) {
      const Bytes room = foreshard::room(costs_.cluster(), outcome.outside, choices_.fit.terms);
      too_much_ = std::max(outcome.reserved - room, limit_ / kLeastStep);
      return std::nullopt;
    }
    judge_.add_stalls(plan, outcome);
    LayerResult result;
    result.candidate.plan = plan;
    result.candidate.seconds = outcome.step.seconds();
    const auto sequences = as_double(plan.batch.micro_batch * plan.batch.accumulation * plan.batch.sequence);
    result.candidate.tokens_per_s_per_gpu = sequences / result.candidate.seconds;
    result.candidate.peak_allocated = outcome.peak;
    result.candidate.outside_allocator = outcome.outside;
    result.candidate.peak_reserved = outcome.reserved;
    result.candidate.fit_probability = outcome.fit_probability;
    result.judged = judged_;
    return result;
  }

  // --- large problems ---

  std::optional<LayerResult> search_under_limits() {
    std::optional<LayerResult> own;
    if (const auto combination = combination_of_frame()) own = finish(*combination);
    auto found = search_lowering_limits();
    if (!found || (own && own->candidate.seconds < found->candidate.seconds)) {
      if (own) own->judged = judged_;
      return own;
    }
    return found;
  }

  std::optional<LayerResult> search_lowering_limits() {
    for (int round = 0; round < kMostLimits; ++round) {
      budget_ = judged_ + choices_.most_judged;
      best_.reset();
      patterns();
      if (!best_) return std::nullopt;
      descend();
      if (auto result = finish(*best_)) return result;
      limit_ = limit_ - too_much_;
    }
    return std::nullopt;
  }

  void offer(const Combination& c) {
    const Judged judged = judge(c);
    if (!fits(judged)) return;
    if (best_ && judge(*best_).step <= judged.step) return;
    best_ = c;
  }

  enum class Where { kFront, kBack, kSpread };

  // How the last `count` units are resharded; the others have the first value.
  struct Tail {
    std::int8_t value = 0;
    std::size_t count = 0;
  };

  // `count` blocks have `more`, the others `less`.
  Combination pattern(std::array<std::int8_t, 2> values, Where where, std::size_t count, const Tail& tail) const {
    Combination c(size(), 0);
    for (std::size_t b = 0; b < blocks_; ++b) {
      const bool is_more = where == Where::kFront  ? b < count
                           : where == Where::kBack ? b >= blocks_ - count
                                                   : (b + 1) * count / blocks_ > b * count / blocks_;
      c[b] = values[is_more];
    }
    for (std::size_t u = units_ - tail.count; u < units_; ++u) c[blocks_ + u] = tail.value;
    return c;
  }

  // The frame's own, where the choices have its values.
  std::optional<Combination> combination_of_frame() const {
    Combination c;
    for (std::size_t i = 0; i < size(); ++i) {
      std::ptrdiff_t value = 0;
      if (i < blocks_) {
        const auto& list = choices_.recomputes;
        value = std::ranges::find(list, frame_.recompute.at(static_cast<std::int64_t>(i))) - list.begin();
      } else {
        const auto& list = choices_.reshards;
        value = std::ranges::find(list, frame_.reshard_after_forward.at(static_cast<std::int64_t>(i - blocks_))) -
                list.begin();
      }
      if (at(value) == values_at(i)) return std::nullopt;
      c.push_back(static_cast<std::int8_t>(value));
    }
    return c;
  }

  void patterns() {
    if (const auto own = combination_of_frame()) offer(*own);
    const auto last = static_cast<std::int8_t>(choices_.reshards.size() - 1);
    std::vector<Tail> tails;
    for (std::size_t u = 0; u < units_; u = u < 4 ? u + 1 : u * 3 / 2) tails.push_back({last, u});
    tails.push_back({last, units_});
    for (std::int8_t value = 1; value < last; ++value)
      for (const std::size_t u : {std::size_t{1}, units_ / 2, units_}) tails.push_back({value, u});
    const auto kinds = static_cast<std::int8_t>(choices_.recomputes.size());
    for (std::int8_t more = 0; more < kinds; ++more) {
      for (std::int8_t less = 0; less <= more; ++less) {
        if (less == more && more > 0) continue;
        for (const Where where : {Where::kFront, Where::kBack, Where::kSpread})
          for (const Tail& tail : tails) fewest({less, more}, where, tail);
      }
    }
  }

  // The fewest blocks with the second value that fit.
  void fewest(std::array<std::int8_t, 2> values, Where where, const Tail& tail) {
    const auto fit_with = [&](std::size_t count) { return fits(judge(pattern(values, where, count, tail))); };
    if (!fit_with(blocks_)) return;
    std::size_t low = 0, high = blocks_;
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      if (fit_with(middle)) high = middle;
      else low = middle + 1;
    }
    offer(pattern(values, where, high, tail));
  }

  void descend() {
    bool is_better = true;
    while (is_better && judged_ < budget_) {
      is_better = false;
      for (std::size_t i = 0; i < size() && judged_ < budget_; ++i) is_better |= change(i);
      if (!is_better) is_better = exchange_at_borders();
    }
  }

  bool take(const Combination& c) {
    const Judged judged = judge(c);
    if (!fits(judged) || judged.step >= judge(*best_).step) return false;
    best_ = c;
    return true;
  }

  bool change(std::size_t i) {
    bool is_better = false;
    for (std::size_t value = 0; value < values_at(i); ++value) {
      Combination c = *best_;
      if (at(c[i]) == value) continue;
      c[i] = static_cast<std::int8_t>(value);
      is_better |= take(c);
    }
    return is_better;
  }

  // One block or unit gets the value of its neighbour, another the other way round.
  bool exchange_at_borders() {
    std::vector<std::size_t> borders;
    for (std::size_t i = 0; i + 1 < size(); ++i) {
      if (i + 1 == blocks_ || (*best_)[i] == (*best_)[i + 1]) continue;
      borders.push_back(i);
      borders.push_back(i + 1);
    }
    for (const std::size_t i : {std::size_t{0}, blocks_ - 1, blocks_, size() - 1})
      if (i < size()) borders.push_back(i);
    for (const std::size_t i : borders) {
      for (const std::size_t j : borders) {
        if (i == j || judged_ >= budget_) continue;
        for (std::size_t a = 0; a < values_at(i); ++a) {
          for (std::size_t b = 0; b < values_at(j); ++b) {
            Combination c = *best_;
            c[i] = static_cast<std::int8_t>(a);
            c[j] = static_cast<std::int8_t>(b);
            if (c != *best_ && take(c)) return true;
          }
        }
      }
    }
    return false;
  }

  const Plan& frame_;
  const ModelSpec& model_;
  const CostModel& costs_;
  const LayerChoices& choices_;
  const std::size_t blocks_;
  const std::size_t units_;
  const LayerPrograms programs_;
  Judge judge_;
  Bytes limit_;
  Bytes too_much_;
  bool is_exact_ = false;
  std::int64_t judged_ = 0;
  std::int64_t budget_ = 0;
  std::optional<Combination> best_;
  std::map<Combination, Judged> known_;
};

template <typename T>
RangedPolicy<T> ranged_of(const std::vector<T>& values) {
  RangedPolicy<T> policy;
  std::ptrdiff_t most = 0;
  for (const T& value : values) {
    const std::ptrdiff_t count = std::ranges::count(values, value);
    if (count <= most) continue;
    most = count;
    policy.value = value;
  }
  for (std::size_t begin = 0; begin < values.size();) {
    std::size_t end = begin + 1;
    while (end < values.size() && values[end] == values[begin]) ++end;
    if (!(values[begin] == policy.value))
      policy.ranges.push_back({static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end) - 1, values[begin]});
    begin = end;
  }
  return policy;
}

}

RangedPolicy<Recompute> ranged(const std::vector<Recompute>& values) { return ranged_of(values); }
RangedPolicy<Reshard> ranged(const std::vector<Reshard>& values) { return ranged_of(values); }

std::optional<LayerResult> optimise_layers(
    const Plan& frame, const ModelSpec& model, const CostModel& costs, const LayerChoices& choices) {
  return LayerSearch(frame, model, costs, choices).run();
}

}
