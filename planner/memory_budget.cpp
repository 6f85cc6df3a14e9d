// What varies is what search varies, offload where the runtime has it, and reshard per unit and recompute per layer.
// The floor is a search for the least memory. What its plan needs, and what the fastest needs, is bisected: how sure a
// plan is to fit grows with the memory there is. Between the two the budgets are even.
#include "planner/memory_budget.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "planner/job_search.h"
#include "planner/search_space.h"
#include "sim/search/judge.h"

namespace foreshard {
namespace {

constexpr int kBudgets = 7;  // of the curve
constexpr Bytes kStep(std::int64_t{16} << 20);
// More than any plan needs.
constexpr Bytes kMost(std::int64_t{1} << 44);

// As if its GPUs had so much.
JobOptions with_memory(JobOptions options, Bytes budget) {
  options.gpu_memory = budget.count();
  return options;
}
Job with_memory(Job job, Bytes budget) {
  job.options = with_memory(std::move(job.options), budget);
  job.cluster.gpu.memory = budget;
  return job;
}

// A plan with the job whose model it is of.
struct Found {
  Job job;
  Plan plan;
};

BudgetPoint point_of(const Found& found, Bytes budget) {
  const Job job = with_memory(found.job, budget);
  const CostModel costs = cost_model(job);
  const Forecast of_plan = forecast(job.model, found.plan, costs);
  return {budget, found.plan, report_of(job, of_plan, costs)};
}

class Budgets {
 public:
  Budgets(const JobOptions& options, const SearchOptions& search) : options_(options), search_(search) {}

  std::optional<Found> fastest(Bytes budget) const {
    const JobSearch found = search_job(variants(with_memory(options_, budget)), search_);
    const std::optional<Candidate> best = search_layers(found, search_);
    if (!best) return std::nullopt;
    return Found{found.chosen.job, best->plan};
  }

  // Whether it fits these GPUs or not.
  std::optional<Found> smallest() const {
    SearchOptions search = search_;
    search.objective = Objective::kMemory;
    const JobSearch found = search_job(variants(options_), search);
    const auto& plan = found.result.best ? found.result.best : found.result.smallest;
    if (!plan) return std::nullopt;
    return Found{found.chosen.job, plan->plan};
  }

  // The least memory on which the plan holds, to kStep.
  Bytes needed(const Found& found) const {
    std::int64_t too_little = 0, enough = kMost.count() / kStep.count();
    while (enough - too_little > 1) {
      const std::int64_t middle = too_little + (enough - too_little) / 2;
      (holds(found, kStep * middle) ? enough : too_little) = middle;
    }
    return kStep * enough;
  }

 private:
  static SearchVariants variants(const JobOptions& options) {
    const Job job = without_choices(load_job(options));
    SpaceRequest request;
    if (!is_fixed(job, "offload")) request.vary = {"offload"};
    return search_variants(job, request);
  }

  bool holds(const Found& found, Bytes budget) const {
    const Job job = with_memory(found.job, budget);
    const CostModel costs = cost_model(job);
    const StackSet stacks = stack_set(job, costs);
    StackOdds odds(stacks);
    FitRule rule = search_.fit;
    rule.probability = std::ref(odds);
    return judge_plan(found.plan, job.model, costs, rule).has_value();
  }

  const JobOptions& options_;
  const SearchOptions& search_;
};

}

FittedBudget fit_to_budget(const JobOptions& options, Bytes budget, const SearchOptions& search) {
  const Job job = without_choices(load_job(options));
  const Bytes capacity = job.cluster.gpu.memory;
  FittedBudget fitted{{job.model, job.cluster, job.resolved.plan, budget, search.fit.terms.confidence, {}, {}, {}}, {}};
  BudgetCurve& curve = fitted.curve;
  std::int64_t done = 0, all = kBudgets;
  SearchOptions how = search;
  how.detail = SearchDetail::kBest;
  how.progress = [&](std::int64_t, std::int64_t) { return !search.progress || search.progress(done, all); };
  const Budgets budgets(options, how);
  const std::optional<Found> smallest = budgets.smallest();
  if (!smallest) return fitted;
  const Bytes floor = budgets.needed(*smallest);
  curve.floor = point_of(*smallest, floor);
  if (floor > capacity) return fitted;

  // Of the budgets below: the floor has its plan, and so has the top.
  const std::optional<Found> fastest = budgets.fastest(capacity);
  const Bytes top = fastest ? std::clamp(budgets.needed(*fastest), floor, std::max(floor, capacity)) : floor;
  std::vector<Bytes> steps = {floor, top};
  for (int k = 1; k + 1 < kBudgets; ++k) steps.push_back(floor + (top - floor) * k / (kBudgets - 1));
  if (budget > floor && budget < top) steps.push_back(budget);
  std::ranges::sort(steps);
  all = std::ssize(steps);
  Found best = *smallest;
  std::optional<Found> within;  // the budget
  for (const Bytes step : steps) {
    BudgetPoint point = point_of(best, step);  // what fits less memory fits this
    const auto other = step == top ? fastest : step == floor ? std::nullopt : budgets.fastest(step);
    if (other) {
      BudgetPoint of_other = point_of(*other, step);
      if (of_other.report.seconds.value < point.report.seconds.value) {
        point = std::move(of_other);
        best = *other;
      }
    }
    const bool is_new = curve.points.empty() || curve.points.back().plan != point.plan;
    if (is_new) curve.points.push_back(std::move(point));
    if (step <= budget) within = best;
    ++done;
  }
  if (within) {
    curve.best = point_of(*within, std::min(budget, capacity));
    fitted.job = with_memory(within->job, curve.best->budget);
  }
  return fitted;
}

}
