// Budgets against a brute force over the same plans, and against predict.
#include "planner/memory_budget.h"

#include <gtest/gtest.h>

#include "models/layers/variants.h"
#include "planner/job_variants.h"
#include "sim/search/judge.h"

namespace foreshard {
namespace {

constexpr Bytes kMiB(std::int64_t{1} << 20);

// A job of few plans, by a code that is told.
JobOptions small_job() {
  JobOptions options = {.model = "gpt2", .cluster = "4xh100", .sequence = "1024", .micro_batch = "8"};
  options.assignments.push_back({"stack=hf_trainer", "prefetch.forward=implicit", "prefetch.backward=1", "loss=eager",
      "batch.micro_batch=8", "allocator=expandable_segments:False"});
  return options;
}

SearchOptions quietly() { return SearchOptions{.threads = 2}; }

// Whether predict says that the plan holds on a GPU of so much memory.
bool holds(const JobOptions& options, const Plan& plan, Bytes memory) {
  JobOptions own = options;
  own.gpu_memory = memory.count();
  Job job = load_job(own);
  job.model = with_variants(job.plain_model, plan);
  const CostModel costs = cost_model(job);
  const Report report = report_of(job, forecast(job.model, plan, costs), costs);
  return report.fit.fits() && report.fit_probability >= kConfidence;
}

TEST(MemoryBudget, MoreMemoryIsNeverSlowerAndEveryPlanHoldsInItsOwn) {
  const JobOptions job = small_job();
  const BudgetCurve curve = fit_to_budget(job, 40 * 1024 * kMiB, quietly()).curve;
  ASSERT_GE(curve.points.size(), 3U);
  EXPECT_EQ(curve.points.front().budget, curve.floor->budget);
  for (std::size_t i = 0; i < curve.points.size(); ++i) {
    const BudgetPoint& point = curve.points[i];
    EXPECT_TRUE(holds(job, point.plan, point.budget)) << i;
    EXPECT_EQ(point.report.fit.capacity, point.budget);
    if (i == 0) continue;
    EXPECT_GT(point.budget, curve.points[i - 1].budget);
    EXPECT_LT(point.report.seconds.value, curve.points[i - 1].report.seconds.value);
  }
  ASSERT_TRUE(curve.best);
  EXPECT_TRUE(holds(job, curve.best->plan, curve.budget));
}

// Every plan of the grid, one by one, at a budget between the floor and what the fastest needs.
TEST(MemoryBudget, NoPlanOfTheGridIsFasterWithinTheBudget) {
  JobOptions options = small_job();
  const Bytes budget = 10 * 1024 * kMiB;
  const BudgetCurve curve = fit_to_budget(options, budget, quietly()).curve;
  ASSERT_TRUE(curve.best);
  EXPECT_GT(curve.points.back().budget, budget) << "the budget binds";
  options.gpu_memory = budget.count();
  const Job job = load_job(options);
  const CostModel costs = cost_model(job);
  const FitRule rule;
  std::size_t held = 0;
  for (const JobVariant& variant : search_variants(job, {}).list) {
    for (const Plan& plan : plans_of(variant)) {
      const auto judged = judge_plan(plan, variant.job.model, costs, rule);
      if (!judged) continue;
      ++held;
      // What plans of equal speed differ by.
      EXPECT_GE(judged->seconds * (1 + SearchOptions().tie), curve.best->report.seconds.value);
    }
  }
  EXPECT_GT(held, 5U);
}

TEST(MemoryBudget, NothingHoldsBelowTheFloor) {
  const JobOptions job = small_job();
  const BudgetCurve at_all = fit_to_budget(job, 40 * 1024 * kMiB, quietly()).curve;
  ASSERT_TRUE(at_all.floor);
  const Bytes floor = at_all.floor->budget;
  EXPECT_TRUE(fit_to_budget(job, floor, quietly()).curve.best);
  const BudgetCurve below = fit_to_budget(job, floor - 16 * kMiB, quietly()).curve;
  EXPECT_FALSE(below.best);
  EXPECT_EQ(below.floor->budget, floor);
  EXPECT_FALSE(holds(job, below.floor->plan, floor - 16 * kMiB));
}

TEST(MemoryBudget, AFloorAboveTheGpuIsSaid) {
  JobOptions job = small_job();
  job.model = "llama-3.1-405b";
  job.assignments.push_back({"offload=none"});
  job.micro_batch = "1";
  const BudgetCurve curve = fit_to_budget(job, 80'000 * kMiB, quietly()).curve;
  EXPECT_FALSE(curve.best);
  EXPECT_TRUE(curve.points.empty());
  ASSERT_TRUE(curve.floor);
  EXPECT_GT(curve.floor->budget, curve.cluster.gpu.memory);
}

TEST(MemoryBudget, MoreThanTheGpuHasIsAllThatItHas) {
  const JobOptions job = small_job();
  const BudgetCurve curve = fit_to_budget(job, 200'000 * kMiB, quietly()).curve;  // an H100: 80 GB
  ASSERT_TRUE(curve.best);
  EXPECT_EQ(curve.best->budget, curve.cluster.gpu.memory);
  EXPECT_EQ(curve.best->plan, curve.points.back().plan);
}

}
}
