// What stages are, and that nothing of a step is lost between them. That they do what the library's
// do is held against recordings in tests/interop/recordings/pipeline_ranks_test.cpp.
#include "sim/graph/pipeline/stages.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "sim/graph/training_step.h"
#include "sim/memory/memory_profile.h"
#include "sim/simulate/folded.h"
#include "sim/simulate/simulate.h"
#include "sim/spec/checks/plan_check.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

Plan pipelined_plan(RuntimeKind runtime, PipelineSchedule schedule) {
  Plan plan = tiny_plan();
  plan.runtime = {runtime, runtime == RuntimeKind::kFsdp2 ? "2.11" : "0.20"};
  plan.batch = {128, 1, 8};
  plan.mesh = {2, 1};
  plan.mesh.pp = 4;
  plan.pipeline.schedule = schedule;
  const bool is_single = schedule == PipelineSchedule::kGPipe || schedule == PipelineSchedule::k1F1B;
  plan.pipeline.stages_per_rank = is_single ? 1 : 2;
  plan.units.embedding = UnitPlacement::kOwn;
  plan.units.head = UnitPlacement::kWithNorm;
  plan.reshard_after_forward.value = {Reshard::Kind::kNever, 0};
  return plan;
}

// Three stages behind each other on every rank, which give each other what they make.
Plan neighbours_on_a_rank() {
  Plan plan = pipelined_plan(RuntimeKind::kFsdp2, PipelineSchedule::kCustom);
  plan.pipeline.stages_per_rank = 3;
  for (std::int64_t rank = 0; rank < plan.mesh.pp; ++rank) {
    std::string order;
    for (const char kind : {'F', 'B'}) {
      for (std::int64_t k = 0; k < plan.batch.accumulation; ++k) {
        for (std::int64_t s = 0; s < 3; ++s) {
          order += fmt::format("{}{}{} ", 3 * rank + (kind == 'F' ? s : 2 - s), kind, k);
        }
      }
    }
    plan.pipeline.orders.push_back(std::move(order));
  }
  return plan;
}

std::vector<Plan> some_plans() {
  std::vector<Plan> plans;
  for (const PipelineSchedule schedule : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B,
           PipelineSchedule::kInterleaved1F1B, PipelineSchedule::kLoopedBfs, PipelineSchedule::kInterleavedZeroBubble,
           PipelineSchedule::kZbvZeroBubble, PipelineSchedule::kDualPipeV}) {
    plans.push_back(pipelined_plan(RuntimeKind::kFsdp2, schedule));
  }
  plans.push_back(plans.back());
  plans.back().mesh.shard = 1;  // without fully_shard
  plans.back().param_dtype = plans.back().reduce_dtype = plans.back().master_dtype;
  plans.push_back(pipelined_plan(RuntimeKind::kFsdp2, PipelineSchedule::kLoopedBfs));
  plans.back().mesh.tp = 2;  // norms' gradients are summands of several
  plans.push_back(pipelined_plan(RuntimeKind::kFsdp2, PipelineSchedule::kInterleaved1F1B));
  plans.back().pipeline.microbatches = 4;  // two calls
  for (const char* version : {"2.12", "2.15"}) {
    plans.push_back(pipelined_plan(RuntimeKind::kFsdp2, PipelineSchedule::kInterleaved1F1B));
    plans.back().runtime.version = version;
  }
  plans.push_back(pipelined_plan(RuntimeKind::kFsdp2, PipelineSchedule::k1F1B));
  plans.back().runtime.version = "2.15";
  plans.back().loss = {.kind = Loss::Kind::kChunkedHead, .chunks = 8};
  plans.push_back(neighbours_on_a_rank());
  plans.push_back(pipelined_plan(RuntimeKind::kMegatron, PipelineSchedule::k1F1B));
  plans.push_back(pipelined_plan(RuntimeKind::kMegatron, PipelineSchedule::kInterleaved1F1B));
  for (const bool sums : {false, true}) {
    plans.push_back(pipelined_plan(RuntimeKind::kZero1, PipelineSchedule::k1F1B));
    plans.back().zero.fp32_gradient_accumulation = sums;
  }
  return plans;
}

// Of all ranks.
std::vector<const EventGraph*> ranks_of(const EventGraph& graph) {
  std::vector<const EventGraph*> list;
  for (const auto& rank : graph.pipeline) list.push_back(rank ? rank.get() : &graph);
  return list;
}

TEST(Stages, BlocksAreSpreadEvenly) {
  Plan plan = pipelined_plan(RuntimeKind::kFsdp2, PipelineSchedule::k1F1B);
  // 14 blocks and one each for embedding and head: 16 on 4 stages.
  EXPECT_EQ(blocks_of_stages(14, plan), (std::vector<std::int64_t>{3, 4, 4, 3}));
  // 17 on 4: the first one gets what is left.
  EXPECT_EQ(blocks_of_stages(15, plan), (std::vector<std::int64_t>{4, 4, 4, 3}));
  plan.pipeline.first_less = plan.pipeline.last_less = 0;
  EXPECT_EQ(blocks_of_stages(14, plan), (std::vector<std::int64_t>{4, 4, 3, 3}));
}

// What all ranks compute is what one rank does without stages, and every allocation ends.
TEST(Stages, ComputeWhatTheWholeModelDoes) {
  const ModelSpec model = tiny_model(14);
  const auto flops_of = [](const EventGraph& graph) {
    Flops sum;
    for (const Row& row : graph.rows) sum += graph.works[row.work].flops;
    return sum.count();
  };
  for (const Plan& plan : some_plans()) {
    Plan whole = plan;
    whole.mesh.pp = 1;
    double flops = 0;
    const EventGraph graph = build_training_step(model, plan);
    for (const EventGraph* rank : ranks_of(graph)) {
      flops += flops_of(*rank);
      EXPECT_EQ(replay_allocations(*rank).peak, peak_allocated(*rank));
    }
    const double of_whole = flops_of(build_training_step(model, whole));
    EXPECT_NEAR(flops, of_whole, of_whole * 1e-12)
        << to_string(plan.runtime.kind) << " " << to_string(plan.pipeline.schedule);
  }
}

CostTable compute_costs(const EventGraph& of) {
  CostTable table;
  for (const Work& work : of.works) {
    Cost cost;
    if (!is_collective(work.kind)) cost.duration = Time::ns(1000);
    table.works.push_back(cost);
  }
  return table;
}

// Of rows that all take one unit of time and transfers that take none.
Timeline timeline_of(const EventGraph& graph) {
  CostTable costs = compute_costs(graph);
  for (const EventGraph* rank : ranks_of(graph))
    costs.pipeline.push_back(rank == &graph ? CostTable() : compute_costs(*rank));
  return Simulator().simulate(graph, costs);
}

// No rank is done before the pipeline has been filled and drained, and the busiest is never faster than its own rows.
TEST(Stages, WaitForEachOther) {
  const ModelSpec model = tiny_model(14);
  for (const Plan& plan : some_plans()) {
    const EventGraph graph = build_training_step(model, plan);
    std::int64_t most = 0;  // compute rows of a rank
    for (const EventGraph* rank : ranks_of(graph))
      most = std::max<std::int64_t>(most, std::ranges::count(rank->rows, Stream::kCompute, &Row::stream));
    const Timeline timeline = timeline_of(graph);
    EXPECT_GE(timeline.period, Time::ns(1000 * most));
    EXPECT_GT(timeline.first_step, Time::ns(1000 * most));
    EXPECT_EQ(timeline.pipeline.size(), 4U);
  }
}

// A receive that is posted early holds up sends to its own peer alone where ranks have communicators in pairs.
TEST(Stages, ExchangeInPairsFromPyTorch12To14) {
  const ModelSpec model = tiny_model(14);
  Plan plan = pipelined_plan(RuntimeKind::kFsdp2, PipelineSchedule::kInterleaved1F1B);
  const Time batched = timeline_of(build_training_step(model, plan)).period;
  for (const char* version : {"2.12", "2.14"}) {
    plan.runtime.version = version;
    EXPECT_LT(10 * timeline_of(build_training_step(model, plan)).period, 9 * batched) << version;
  }
}

// A checkpointed block is computed once more with the gradients of inputs, and again with those of
// each of its 9 groups of weights (7 products, 2 norms), which end before the last product.
TEST(Stages, HalvesOfBackwardsRecomputeForEachGroupOfWeights) {
  const ModelSpec model = tiny_model(14);
  const auto products_of = [&](Recompute recompute) {
    Plan plan = pipelined_plan(RuntimeKind::kFsdp2, PipelineSchedule::kInterleavedZeroBubble);
    plan.recompute.value = recompute;
    plan.named_rank = plan.mesh.stage_ranks();  // stages 1 and 5: blocks alone
    const EventGraph graph = build_training_step(model, plan);
    std::int64_t products = 0;
    for (const Row& row : graph.rows) {
      for (const Kernel& kernel : graph.kernels_of(graph.works[row.work])) {
        products += kernel.kind == KernelKind::kGemm ? 1 : 0;
      }
    }
    return products;
  };
  // 4 blocks and 8 micro-batches: 10 times 6 more products for each block and micro-batch.
  EXPECT_EQ(products_of(Recompute::kFull) - products_of(Recompute::kNone), 4 * 8 * 10 * 6);
}

// What a second half gathers over cp for its blocks is gathered behind what the first one sends.
TEST(Stages, SecondHalvesGatherForThemselves) {
  Plan plan = pipelined_plan(RuntimeKind::kFsdp2, PipelineSchedule::kInterleavedZeroBubble);
  plan.recompute.value = Recompute::kFull;
  plan.mesh.cp = 2;
  plan.named_rank = plan.mesh.stage_ranks();
  EventKind before = EventKind::kLoss;
  for (const Row& row : build_training_step(tiny_model(6), plan).rows) {  // a block for each stage
    const bool moves = row.kind == EventKind::kAllGather || row.kind == EventKind::kSendRecv;
    if (!moves && row.kind != EventKind::kAllToAll) continue;
    EXPECT_FALSE(before == EventKind::kAllToAll && row.kind == EventKind::kAllGather);
    before = row.kind;
  }
  EXPECT_NE(before, EventKind::kLoss);
}

// Received into buffers for all of them.
TEST(Stages, ManyMicroBatchesAreToldByFew) {
  const ModelSpec model = tiny_model(14);
  for (const PipelineSchedule schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved1F1B}) {
    Plan plan = pipelined_plan(RuntimeKind::kFsdp2, schedule);
    plan.batch.accumulation = 80;
    const LaidOut few = laid_out_of(plan);
    ASSERT_EQ(few.count, 12);  // three times as many as ranks
    EXPECT_EQ(peak_allocated(build_training_step(model, shortened(plan, few.count))),
        peak_allocated(build_training_step(model, plan)));
  }
}

TEST(Stages, WhatTheLibraryLosesIsRefused) {
  const ModelSpec model = tiny_model(14);
  Plan plan = pipelined_plan(RuntimeKind::kFsdp2, PipelineSchedule::kZbvZeroBubble);
  const auto problem = [&] { return find_problem(plan, model, round_cluster(plan.mesh.world())); };
  EXPECT_FALSE(problem());
  plan.reshard_after_forward.value = {Reshard::Kind::kAlways, 0};
  EXPECT_TRUE(problem());
  plan.reshard_after_forward.value = {Reshard::Kind::kNever, 0};
  plan.recompute.value = Recompute::kSelective;
  EXPECT_TRUE(problem());
  plan.recompute.value = Recompute::kNone;
  plan.pipeline.microbatches = 3;  // of 8
  EXPECT_TRUE(problem());
}

TEST(Stages, OneOfManyMicroBatchesHoldsFewerActivationsTheLaterItsStage) {
  const ModelSpec model = tiny_model(14);
  // 1F1B: rank r has pp - r of them in flight (Schedule1F1B: warm-up).
  const EventGraph graph = build_training_step(model, pipelined_plan(RuntimeKind::kFsdp2, PipelineSchedule::k1F1B));
  Bytes before = peak_allocated(*ranks_of(graph)[1]);
  const Bytes next = peak_allocated(*ranks_of(graph)[2]);
  EXPECT_GT(before, next);
}

}
}
