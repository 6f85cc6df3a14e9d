// Which micro-batches are whose, and how their losses make one number.
#include "exec/engine/schedule.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace foreshard::schedule_test {
namespace {

Plan plan_of(Mesh mesh, std::int64_t accumulation, AccumulationMode mode) {
  Plan plan = {.mesh = mesh};
  plan.batch.accumulation = accumulation;
  plan.accumulation = mode;
  return plan;
}

std::vector<std::int64_t> numbers(const Plan& plan, std::int64_t rank) {
  std::vector<std::int64_t> all;
  for (std::int64_t m = 0; m < plan.batch.accumulation; ++m) all.push_back(global_microbatch(plan, rank, m));
  return all;
}

using Numbers = std::vector<std::int64_t>;

TEST(Schedule, RanksTakeMicroBatchesInTheOrderTheyAreSummed) {
  const Plan flat = plan_of({2, 1}, 2, AccumulationMode::kReduceEach);
  EXPECT_EQ(numbers(flat, 0), (Numbers{0, 2}));
  EXPECT_EQ(numbers(flat, 1), (Numbers{1, 3}));
  // Replica 0 has the first half, whole.
  const Plan replicas = plan_of({2, 2}, 2, AccumulationMode::kReduceEach);
  EXPECT_EQ(numbers(replicas, 1), (Numbers{1, 3}));
  EXPECT_EQ(numbers(replicas, 2), (Numbers{4, 6}));
  const Plan kept = plan_of({2, 1}, 2, AccumulationMode::kKeepUnsharded);
  EXPECT_EQ(numbers(kept, 0), (Numbers{0, 1}));
  EXPECT_EQ(numbers(kept, 1), (Numbers{2, 3}));
}

TEST(Schedule, EveryMicroBatchIsSomebodysOnce) {
  for (const AccumulationMode mode : {AccumulationMode::kReduceEach, AccumulationMode::kKeepUnsharded}) {
    for (const Mesh mesh : {Mesh{1, 1}, Mesh{4, 1}, Mesh{1, 3}, Mesh{2, 3}}) {
      const Plan plan = plan_of(mesh, 3, mode);
      std::set<std::int64_t> seen;
      for (std::int64_t rank = 0; rank < mesh.world(); ++rank) {
        for (const std::int64_t number : numbers(plan, rank)) EXPECT_TRUE(seen.insert(number).second);
      }
      EXPECT_EQ(*seen.begin(), 0);
      EXPECT_EQ(*seen.rbegin(), microbatches_of_step(plan) - 1);
      EXPECT_EQ(static_cast<std::int64_t>(seen.size()), microbatches_of_step(plan));
    }
  }
}

// 1e16 + 1 is 1e16 in doubles, and 1e16 + 2 is not: the order shows, and it is the global one.
TEST(Schedule, LossesAreAddedInGlobalOrder) {
  const std::vector<double> ordered = {1, 1, 1e16, 0};
  const double expected = (((0.0 + 1) + 1) + 1e16) / 4;
  EXPECT_NE(expected, ((1e16 + 1) + 1) / 4);
  EXPECT_EQ(mean_loss(plan_of({1, 1}, 4, AccumulationMode::kReduceEach), {ordered}), expected);
  EXPECT_EQ(mean_loss(plan_of({2, 1}, 2, AccumulationMode::kReduceEach), {{1, 1e16}, {1, 0}}), expected);
  EXPECT_EQ(mean_loss(plan_of({2, 1}, 2, AccumulationMode::kKeepUnsharded), {{1, 1}, {1e16, 0}}), expected);
  EXPECT_EQ(mean_loss(plan_of({4, 1}, 1, AccumulationMode::kReduceEach), {{1}, {1}, {1e16}, {0}}), expected);
}

}
}
