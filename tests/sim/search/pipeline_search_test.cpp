// Plans of a pipeline in a search: judged as predict judges them, and never below their bounds.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <optional>

#include "sim/graph/training_step.h"
#include "sim/memory/memory_profile.h"
#include "sim/memory/outside_allocator.h"
#include "sim/search/judge.h"
#include "sim/search/search.h"
#include "sim/simulate/folded.h"
#include "sim/simulate/forecast.h"
#include "sim/spec/checks/plan_check.h"
#include "tests/support/fixtures.h"

namespace foreshard::pipeline_search_test {
namespace {

Plan random_pipeline(const ModelSpec& model, const Cluster& cluster, std::int64_t most) {
  Plan plan = tiny_plan();
  plan.runtime.kind = *rc::gen::element(RuntimeKind::kFsdp2, RuntimeKind::kMegatron);
  plan.runtime.version = newest_version(plan.runtime.kind);
  plan.units.embedding = UnitPlacement::kOwn;
  plan.units.head = UnitPlacement::kWithNorm;
  const std::int64_t pp = *rc::gen::element<std::int64_t>(2, 4);
  const std::int64_t tp = *rc::gen::element<std::int64_t>(1, 2);
  const std::int64_t data = cluster.gpus / (pp * tp);
  const std::int64_t shard = *rc::gen::element<std::int64_t>(1, 2, data);
  plan.mesh = {shard, data / shard, MeshInner::kShard, 1, tp, 1, 1, pp};
  plan.pipeline.schedule =
      *rc::gen::element(PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved1F1B, PipelineSchedule::kGPipe,
          PipelineSchedule::kLoopedBfs, PipelineSchedule::kInterleavedZeroBubble, PipelineSchedule::kZbvZeroBubble);
  plan.pipeline.stages_per_rank = *rc::gen::inRange<std::int64_t>(1, 4);
  plan.batch = {*rc::gen::element<std::int64_t>(64, 512), *rc::gen::inRange<std::int64_t>(1, 3),
      *rc::gen::inRange<std::int64_t>(1, most)};
  plan.reshard_after_forward.value.kind = *rc::gen::element(Reshard::Kind::kAlways, Reshard::Kind::kNever);
  plan.recompute.value = *rc::gen::element(Recompute::kNone, Recompute::kFull, Recompute::kSelective);
  plan.prefetch = {*rc::gen::element<std::int64_t>(-1, 1, 2), *rc::gen::inRange<std::int64_t>(1, 3)};
  if (plan.runtime.kind == RuntimeKind::kMegatron) {
    plan.units = Units();
    plan.reshard_after_forward = {};
    plan.prefetch = {};
  }
  RC_PRE(!find_problem(plan, model, cluster));
  return plan;
}

Forecast predicted(const ModelSpec& model, const Plan& plan, const CostModel& costs, std::int64_t micro_batches) {
  return forecast(model, shortened(plan, micro_batches), costs);
}

// Time, the fullest rank's memory, and the odds.
RC_GTEST_PROP(PipelineSearch, JudgesAPlanAsPredictDoes, ()) {
  const ModelSpec model = tiny_model(*rc::gen::inRange(6, 13));
  const Cluster cluster = round_cluster(16);
  const Plan plan = random_pipeline(model, cluster, 80);
  const CostModel costs(cluster, round_calibration());
  const FitRule rule;
  const std::optional<Candidate> judged = judge_plan(plan, model, costs, rule);
  RC_ASSERT(judged.has_value());
  const LaidOut few = laid_out_of(plan);
  const Forecast told = predicted(model, plan, costs, few.count);
  RC_ASSERT(judged->peak_allocated == told.memory.peak);
  RC_ASSERT(judged->peak_reserved == told.reserved.peak);
  RC_ASSERT(judged->outside_allocator == total(memory_outside(told.graph, cluster, plan.runtime)));
  double seconds = told.timeline.period.seconds();
  if (few.fewer < few.count) {
    const double fewer = predicted(model, plan, costs, few.fewer).timeline.period.seconds();
    seconds = of_whole_step(few, seconds, fewer, plan.batch.accumulation);
  }
  RC_ASSERT(judged->seconds == Time::seconds(seconds).seconds());
}

RC_GTEST_PROP(PipelineSearch, NoPlanUndercutsItsBounds, ()) {
  const ModelSpec model = tiny_model(*rc::gen::inRange(6, 13));
  const Cluster cluster = round_cluster(16);
  const Plan plan = random_pipeline(model, cluster, 30);
  const CostModel costs(cluster, round_calibration());
  const FitRule rule;
  Judge judge(model, costs, rule);
  const LayerPrograms programs(model, plan);
  PlanOutcome outcome;
  judge.weigh(plan, programs, outcome);
  judge.time(plan, programs, outcome);
  RC_ASSERT(judge.bound(plan, programs) <= outcome.step);
  RC_ASSERT(judge.bound_weighed(plan, programs) <= outcome.step);
  const LayersFloor floor = judge.floor(plan, LazyPrograms(model, plan));
  RC_ASSERT((floor.step > Time()) == (plan.runtime.kind == RuntimeKind::kFsdp2));
  RC_ASSERT(floor.step <= outcome.step);
  RC_ASSERT(memory_floor(plan, model, floor) <= outcome.peak);
  RC_ASSERT(memory_floor(plan, model, LayersFloor()) <= outcome.peak);
}

// A stage of the embedding alone, too, under tp: with 6 blocks on 8 stages.
RC_GTEST_PROP(PipelineSearch, EveryRankEndsItsStepAsItBeganIt, ()) {
  const ModelSpec model = tiny_model(*rc::gen::inRange(6, 13));
  const Plan plan = random_pipeline(model, round_cluster(16), 8);
  const LayerPrograms programs(model, plan);
  for (std::int64_t rank = 0; rank < plan.mesh.pp; ++rank) {
    const MemoryProfile memory = replay_allocations(build_pipeline_rank(model, at_pipeline_rank(plan, rank), programs));
    RC_ASSERT(memory.samples.back().now == memory.at_start);
  }
}

// Rank 0, too; where none is named, the fullest.
RC_GTEST_PROP(PipelineSearch, TellsTheRankThatIsNamed, ()) {
  const ModelSpec model = tiny_model(*rc::gen::inRange(6, 13));
  const Cluster cluster = round_cluster(16);
  Plan plan = random_pipeline(model, cluster, 8);
  const CostModel costs(cluster, round_calibration());
  const Bytes fullest = forecast(model, plan, costs).memory.peak;
  Bytes most;
  for (std::int64_t rank = 0; rank < plan.mesh.pp; ++rank) {
    plan.named_rank = rank * plan.mesh.stage_ranks();
    const Forecast told = forecast(model, plan, costs);
    RC_ASSERT(told.plan == plan);
    RC_ASSERT(told.graph.pipeline_rank == rank);
    most = std::max(most, told.memory.peak);
  }
  RC_ASSERT(most == fullest);
}

// Of all the grid's plans, each judged by itself.
TEST(PipelineSearch, FindsTheFastestOfAll) {
  const ModelSpec model = tiny_model(8);
  const CostModel costs(round_cluster(16), round_calibration());
  for (const std::int64_t stages : {1, 2}) {
    SearchSpace space = {.base = tiny_plan()};
    space.base.units.embedding = UnitPlacement::kOwn;
    space.base.mesh.pp = 2;
    space.base.pipeline.stages_per_rank = stages;
    if (stages > 1) space.base.pipeline.schedule = PipelineSchedule::kInterleaved1F1B;
    space.global_batch = 64;
    SearchOptions options = {.threads = 1, .detail = SearchDetail::kBest, .tie = 0};
    const SearchResult found = search(space, model, costs, options);
    ASSERT_TRUE(found.best);
    EXPECT_GT(found.pruned, 0);
    std::optional<double> fastest;
    for (const Plan& plan : enumerate(space, model, costs.cluster())) {
      EXPECT_GE(plan.batch.accumulation, stages == 1 ? 2 : 1);
      const auto judged = judge_plan(plan, model, costs, options.fit);
      if (judged && (!fastest || judged->seconds < *fastest)) fastest = judged->seconds;
    }
    EXPECT_EQ(found.best->seconds, *fastest);
  }
}

}
}
