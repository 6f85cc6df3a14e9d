// Reduction orders: which runs add the same gradients in the same order, so that their bits agree,
// and how far the others are apart.
//
// A step has 4 micro-batches, g0 to g3 in global order (exec/engine/schedule.h). The default order
// is ((g0 + g1) + g2) + g3. With 2 replicas each adds its own two: (g0 + g1) + (g2 + g3).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/spec/checks/plan_check.h"
#include "tests/exec/engine/engine_runs.h"
#include "tests/exec/engine/expect_same.h"

namespace foreshard::reduction_order_test {
namespace {

constexpr int kSteps = 3;

// |difference| / |parameters| after 3 steps. fp32 rounds to 2^-24 = 6e-8 of a gradient, AdamW turns
// a gradient's relative error into one of the update, which is 3 * 1e-3 against parameters of 0.02:
// 6e-8 * 0.15 and some, far below.
constexpr double kTolerance = 1e-6;

Plan plan_of(std::int64_t shard, std::int64_t replicate) {
  Plan plan = small_plan(shard, replicate);
  plan.optimizer.learning_rate = 1e-3;
  return plan;
}

Plan keep_unsharded(Plan plan) {
  plan.accumulation = AccumulationMode::kKeepUnsharded;
  return plan;
}

Plan bf16(Plan plan) {
  plan.param_dtype = DType::kBf16;
  return plan;
}

void expect_near(const EngineRun& run, const EngineRun& reference) {
  EXPECT_NE(run.hash, reference.hash);  // another order is another sum: else this tests nothing
  EXPECT_LE(relative_difference(run, reference), kTolerance);
  for (std::size_t s = 0; s < run.losses.size(); ++s) {
    EXPECT_NEAR(run.losses[s], reference.losses[s], 1e-6 * reference.losses[s]) << s;
  }
}

// Variants that must not show in the numbers.
std::vector<Plan> variants(const Plan& plan) {
  std::vector<Plan> all(4, plan);
  all[0].prefetch = {0, 0};
  all[1].reshard_after_forward.value = {Reshard::Kind::kNever, 0};
  all[2].recompute = recompute_every(2, 3);
  all[2].prefetch = {2, 2};
  all[3].recompute.value = Recompute::kSelective;
  all[3].units = {2, UnitPlacement::kRoot, UnitPlacement::kRoot};
  all[3].reduce_scatter_buffers = 2;
  all[3].communicators = Communicators::kSeparate;
  return all;
}

void expect_same_over_variants(const ModelSpec& model, const Plan& plan, const EngineRun& reference) {
  const std::vector<Plan> all = variants(plan);
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE("variant " + std::to_string(i));
    expect_same(run_in_threads(model, fitted(all[i], model), kSteps), reference);
  }
}

// Two replicas add (g0 + g1) + (g2 + g3), whoever computed them: one rank each and two
// micro-batches (1x2), or two ranks each and one (2x2).
TEST(ReductionOrder, ReplicasOfAnySizeGiveTheSameBits) {
  const ModelSpec model = small_model("llama");
  const EngineRun reference = run_in_threads(model, plan_of(1, 2), kSteps);
  expect_same(run_in_threads(model, plan_of(2, 2), kSteps), reference);
  expect_same_over_variants(model, plan_of(1, 2), reference);
  expect_same_over_variants(model, plan_of(2, 2), reference);
  expect_near(reference, run_in_threads(model, plan_of(1, 1), kSteps));
}

TEST(ReductionOrder, ReplicasGiveTheSameBitsInBf16) {
  const ModelSpec model = small_model("llama");
  const EngineRun reference = run_in_threads(model, bf16(plan_of(1, 2)), kSteps);
  expect_same(run_in_threads(model, bf16(plan_of(2, 2)), kSteps), reference);
  expect_same_over_variants(model, bf16(plan_of(2, 2)), reference);
}

// Four replicas of one rank and one micro-batch add ((g0 + g1) + g2) + g3, in rank order: the
// default order itself. A replica alone (2x1) is the default order too.
TEST(ReductionOrder, OneMicroBatchPerReplicaIsTheDefaultOrder) {
  const ModelSpec model = small_model("llama");
  const EngineRun reference = run_in_threads(model, plan_of(1, 1), kSteps);
  expect_same(run_in_threads(model, plan_of(1, 4), kSteps), reference);
  expect_same(run_in_threads(model, plan_of(2, 1), kSteps), reference);
}

// With keep_unsharded a rank adds its own micro-batches first: rank 0 of two g0 + g1, rank 1
// g2 + g3, and the reduce-scatter adds the ranks in order: (g0 + g1) + (g2 + g3), as two replicas.
// Where each rank has one micro-batch, or there is one rank, it is the default order.
TEST(ReductionOrder, KeepUnshardedAddsAsReplicasDo) {
  for (const char* family : {"llama", "gpt2"}) {
    SCOPED_TRACE(family);
    const ModelSpec model = small_model(family);
    const EngineRun kept = run_in_threads(model, keep_unsharded(plan_of(2, 1)), kSteps);
    expect_same(kept, run_in_threads(model, plan_of(1, 2), kSteps));
    expect_same_over_variants(model, keep_unsharded(plan_of(2, 1)), kept);
    const EngineRun reference = run_in_threads(model, plan_of(1, 1), kSteps);
    expect_same(run_in_threads(model, keep_unsharded(plan_of(4, 1)), kSteps), reference);
    expect_same(run_in_threads(model, keep_unsharded(plan_of(1, 1)), kSteps), reference);
    if (std::string(family) == "llama") expect_near(kept, reference);
  }
}

// A tied table has two gradients per micro-batch, the head's h and the embedding's e. Kept
// unsharded they are added one by one, ((h0 + e0) + h1) + e1, while a replica adds
// (h0 + e0) + (h1 + e1): near, and the same for every variant.
TEST(ReductionOrder, KeepUnshardedTablesThatAreTied) {
  const ModelSpec model = small_model("llama", true);
  const Plan plan = fitted(plan_of(2, 1), model);
  const EngineRun kept = run_in_threads(model, keep_unsharded(plan), kSteps);
  expect_same_over_variants(model, keep_unsharded(plan), kept);
  expect_near(kept, run_in_threads(model, fitted(plan_of(1, 2), model), kSteps));
  expect_near(kept, run_in_threads(model, fitted(plan_of(1, 1), model), kSteps));
  // One micro-batch per rank: nothing is kept.
  expect_same(run_in_threads(model, keep_unsharded(fitted(plan_of(4, 1), model)), kSteps),
      run_in_threads(model, fitted(plan_of(1, 1), model), kSteps));
}

TEST(ReductionOrder, KeepUnshardedGivesTheSameBitsInBf16) {
  const ModelSpec model = small_model("llama");
  Plan plan = bf16(keep_unsharded(plan_of(2, 1)));
  const EngineRun reference = run_in_threads(model, plan, kSteps);
  expect_same_over_variants(model, plan, reference);
}

// library: every reduce-scatter makes a sum of its own, so the number of ranks shows, and nothing else does.
TEST(ReductionOrder, LibraryDependsOnTheNumberOfRanksAlone) {
  const ModelSpec model = small_model("llama");
  const EngineRun usual = run_in_threads(model, plan_of(1, 1), kSteps);
  for (const std::int64_t ranks : {1, 2, 4}) {
    Plan plan = plan_of(ranks, 1);
    plan.reduction_order = ReductionOrder::kLibrary;
    const EngineRun reference = run_in_threads(model, plan, kSteps);
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    expect_same_over_variants(model, plan, reference);
    EXPECT_LE(relative_difference(reference, usual), kTolerance);
  }
}

TEST(ReductionOrder, LibraryInBf16) {
  const ModelSpec model = small_model("llama");
  for (const DType reduce : {DType::kFp32, DType::kBf16}) {
    Plan plan = bf16(plan_of(2, 1));
    plan.reduce_dtype = reduce;
    plan.reduction_order = ReductionOrder::kLibrary;
    expect_same_over_variants(model, plan, run_in_threads(model, plan, kSteps));
  }
}

}
}
