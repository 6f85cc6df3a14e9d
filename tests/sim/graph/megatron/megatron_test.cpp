// Megatron-Core: which collectives a layer makes and how many bytes, derived here; what a rank
// holds against Megatron's own report of theoretical memory; buckets.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "models/layers/variants.h"
#include "models/zoo.h"
#include "sim/graph/training_step.h"
#include "sim/memory/memory_profile.h"
#include "sim/spec/checks/plan_check.h"
#include "tests/support/fixtures.h"
#include "tests/support/generators.h"

namespace foreshard {
namespace {

Plan megatron_plan() {
  Plan plan = tiny_plan();
  plan.runtime = {RuntimeKind::kMegatron, "0.20"};
  plan.batch = {128, 2, 1};
  plan.mesh = {4, 1};
  plan.units.embedding = plan.units.head = UnitPlacement::kRoot;
  plan.optimizer.clip_norm = 1.0;
  return plan;
}

// Eight ranks share the experts.
Plan over_experts(std::int64_t shard = 8, std::int64_t micro_batches = 1) {
  Plan plan = megatron_plan();
  plan.batch = {1024, 1, micro_batches};
  plan.mesh = {shard, 1};
  plan.mesh.ep = 8;
  return plan;
}

struct Sent {
  std::int64_t count = 0, bytes = 0;
  bool operator==(const Sent&) const = default;
};

// Of one micro-batch, by communicator and kind.
std::map<std::pair<std::string, EventKind>, Sent> sent(const EventGraph& graph) {
  std::map<std::pair<std::string, EventKind>, Sent> sums;
  for (const Row& row : graph.rows) {
    if (!is_collective(row.kind)) continue;
    const Work& work = graph.works[row.work];
    Sent& sum = sums[{graph.communicators[work.communicator].name, row.kind}];
    ++sum.count;
    sum.bytes += work.bytes.count();
  }
  return sums;
}

// Forward of a block gathers in front of linear_qkv and linear_fc1 and scatters behind linear_proj
// and linear_fc2; backward gathers the gradients of the latter and, once more, what the former
// read, whose gradients it scatters: 6 gathers and 4 scatters of T*d. The embedding scatters and
// the output layer gathers forward; backward the one gathers, the other gathers and scatters.
TEST(Megatron, ABlockGathersSixTimesAndScattersFour) {
  Plan plan = megatron_plan();
  plan.mesh.tp = 2;
  for (const int blocks : {1, 3}) {
    const auto sums = sent(build_training_step(tiny_model(blocks), plan));
    const std::int64_t positions = 2 * 128, whole = positions * 512 * 2;
    EXPECT_EQ(sums.at({"tp", EventKind::kAllGather}), (Sent{6 * blocks + 3, (6 * blocks + 3) * whole}));
    EXPECT_EQ(sums.at({"tp", EventKind::kReduceScatter}), (Sent{4 * blocks + 2, (4 * blocks + 2) * whole}));
    // The loss: the greatest logit, the chosen one and the sum, in fp32; then the gradients of all
    // norms at once, in the dtype of the buffer.
    const std::int64_t norms = (2 * blocks + 1) * 512;
    EXPECT_EQ(
        sums.at({"tp", EventKind::kAllReduce}), (Sent{4, 3 * positions * 4 + norms * size_of(plan.reduce_dtype)}));
  }
}

// Megatron-Core 0.16.1, 1F1B on two stages, tied (under foreshard-null): in the last micro-batch a
// bucket of all else and one of the table are reduced, then the table's whole gradient is summed
// over both stages, then the norm. Of the stages between nothing of it is seen.
TEST(Megatron, BothEndsOfAPipelineHaveATiedTable) {
  const ModelSpec model = load_zoo_model("gpt2");
  Plan plan = megatron_plan();
  plan.batch = {128, 2, 2};  // fewer micro-batches than stages
  plan.mesh = {2, 1};
  plan.mesh.pp = 4;
  const EventGraph graph = build_training_step(model, plan);
  constexpr std::int64_t kTable = 50304 * 768;  // of 128 rows a multiple
  ASSERT_EQ(graph.pipeline.size(), 4U);
  for (std::size_t stage = 0; stage < 4; ++stage) {
    const EventGraph& rank = graph.pipeline[stage] ? *graph.pipeline[stage] : graph;
    std::vector<std::pair<std::string, std::int64_t>> last;
    for (const Row& row : rank.rows) {
      const Work& work = rank.works[row.work];
      const bool reduces = row.kind == EventKind::kReduceScatter || row.kind == EventKind::kAllReduce;
      if (reduces) last.emplace_back(rank.communicators[work.communicator].name, work.bytes.count());
    }
    const bool is_end = stage == 0 || stage == 3;
    const std::int64_t bytes = kTable * size_of(plan.reduce_dtype);
    ASSERT_EQ(last.size(), is_end ? 4U : 2U) << stage;
    EXPECT_EQ(last.back(), std::pair(std::string("world"), std::int64_t{4}));
    if (!is_end) continue;
    // Reduced first where backward begins.
    EXPECT_EQ(last[stage == 0 ? 1 : 0], std::pair(std::string("shard"), bytes));
    EXPECT_EQ(last[2], std::pair(std::string("embedding"), bytes));
  }
}

// Without sequence parallel: each of the two row-parallel layers sums forward, each of the two
// column-parallel ones the gradient of its input.
TEST(Megatron, WithoutSequenceParallelEachLinearLayerIsSummedOnce) {
  Plan plan = megatron_plan();
  plan.mesh.tp = 4;
  plan.tensor_parallel.sequence = false;
  const auto sums = sent(build_training_step(tiny_model(2), plan));
  EXPECT_FALSE(sums.contains({"tp", EventKind::kAllGather}));
  EXPECT_FALSE(sums.contains({"tp", EventKind::kReduceScatter}));
  // The embedding, the output layer's input; three of the loss.
  EXPECT_EQ(sums.at({"tp", EventKind::kAllReduce}).count, 4 * 2 + 2 + 3);
}

// Every element of the buffer is reduced once a step and gathered once, whatever the buckets.
// 8 heads of 64 on 8 ranks, of keys and values 4: each rank projects an eighth of 8 + 2 * 4 heads,
// and what all projected is gathered, its gradient scattered.
TEST(Megatron, RanksShareAHeadOfKeys) {
  Plan plan = megatron_plan();
  plan.mesh = {2, 1};
  plan.mesh.tp = 8;
  const auto sums = sent(build_training_step(tiny_model(2), plan));
  const std::int64_t positions = 2 * 128, whole = positions * 512 * 2;
  const std::int64_t heads = positions * (8 + 2 * 4) * 64 * 2;
  EXPECT_EQ(sums.at({"tp", EventKind::kAllGather}), (Sent{15 + 2, 15 * whole + 2 * heads}));
  EXPECT_EQ(sums.at({"tp", EventKind::kReduceScatter}), (Sent{10 + 2, 10 * whole + 2 * heads}));
}

TEST(Megatron, BucketsHoldEveryParameterOnce) {
  const ModelSpec model = tiny_model(4);
  for (const std::int64_t bucket : {std::int64_t{0}, std::int64_t{100'000}, std::int64_t{1}}) {
    Plan plan = megatron_plan();
    plan.batch.accumulation = 3;
    plan.megatron.bucket_size = bucket;
    const auto sums = sent(build_training_step(model, plan));
    const Sent reduced = sums.at({"shard", EventKind::kReduceScatter});
    const Sent gathered = sums.at({"shard", EventKind::kAllGather});
    EXPECT_EQ(reduced.count, gathered.count);
    EXPECT_EQ(reduced.bytes / size_of(plan.reduce_dtype), gathered.bytes / 2);
    const std::int64_t numel = gathered.bytes / 2;
    EXPECT_GE(numel, model.parameters());
    EXPECT_LE(numel, model.parameters() + gathered.count * 128 + 64 * 64);
    EXPECT_EQ(reduced.count == 1, bucket == 0);
    if (bucket == 1) {
      EXPECT_GT(reduced.count, 4 * 6);
    }
  }
}

// Overlap changes when, not what.
TEST(Megatron, OverlapsChangeNoBytes) {
  Plan plan = megatron_plan();
  plan.mesh = {8, 1};
  plan.megatron.bucket_size = 500'000;
  const EventGraph both = build_training_step(tiny_model(3), plan);
  plan.megatron.overlap_param_gather = false;
  const EventGraph late = build_training_step(tiny_model(3), plan);
  EXPECT_EQ(sent(both).at({"shard", EventKind::kAllGather}), sent(late).at({"shard", EventKind::kAllGather}));
  const auto first = [](const EventGraph& graph, EventKind kind) {
    std::size_t i = 0;
    while (graph.rows[i].kind != kind) ++i;
    return i;
  };
  EXPECT_LT(first(both, EventKind::kAllGather), first(both, EventKind::kOptimizer));
  EXPECT_GT(first(late, EventKind::kAllGather), first(late, EventKind::kOptimizer));
}

double held_bytes(const EventGraph& graph) {
  double held = 0;
  for (const std::int32_t id : graph.persistent) {  // but for what libraries keep beside
    const Buffer buffer = graph.buffer(id);
    const bool is_state =
        buffer.category != MemoryCategory::kBackwardTemp && buffer.category != MemoryCategory::kCommTemp;
    held += is_state ? static_cast<double>(buffer.bytes.count()) : 0;
  }
  return held;
}

// compute_weight_and_optimizer_memory (megatron/training/theoretical_memory_usage.py, 0.20): 6 bytes a parameter of the
// rank and 12 of each it steps, all of them without the distributed optimizer; what tp cuts and what it does not.
double theoretical_states(const ModelSpec& model, const Plan& plan) {
  double cut = 0, whole = 0;
  for (const LayerInstance& layer : model.order) {
    for (const ParameterSpec& p : model.kinds[at(layer.kind)].parameters) {
      (p.is_norm ? whole : cut) += p.tied ? 0.0 : static_cast<double>(p.numel());
    }
  }
  const auto ranks = static_cast<double>(plan.megatron.distributed_optimizer ? plan.mesh.fsdp() : 1);
  return (cut / static_cast<double>(plan.mesh.tp) + whole) * (6 + 12 / ranks);
}

TEST(Megatron, StatesAreThoseOfMegatronsOwnReport) {
  const ModelSpec model = load_zoo_model("llama-3.1-8b");
  for (const auto& [tp, shard] : {std::pair{1, 8}, {2, 32}, {8, 1}, {4, 16}}) {
    Plan plan = megatron_plan();
    plan.mesh.shard = shard;
    plan.mesh.tp = tp;
    plan.batch = {2048, 1, 1};
    for (const bool distributed : {true, false}) {
      plan.megatron.distributed_optimizer = distributed;
      const double held = held_bytes(build_training_step(model, plan));
      EXPECT_NEAR(held / theoretical_states(model, plan), 1, 0.001) << tp << " x " << shard;
    }
  }
}

// Whole gradients are summed, once and without padding, and nothing is gathered; ranks of tp alone
// have parts of the norm.
TEST(Megatron, WithoutTheDistributedOptimizerGradientsAreSummed) {
  const ModelSpec model = tiny_model(3);
  Plan plan = megatron_plan();
  plan.megatron.distributed_optimizer = false;
  plan.megatron.bucket_size = 500'000;
  const auto sums = sent(build_training_step(model, plan));
  ASSERT_EQ(sums.size(), 1);
  const auto& [what, reduced] = *sums.begin();
  EXPECT_EQ(what, std::pair(std::string("shard"), EventKind::kAllReduce));
  EXPECT_GT(reduced.count, 3);
  EXPECT_EQ(reduced.bytes, model.parameters() * size_of(plan.reduce_dtype));
  plan.mesh = {2, 1};
  plan.mesh.tp = 2;
  const auto over_tp = sent(build_training_step(model, plan));
  plan.optimizer.clip_norm.reset();
  const auto without = sent(build_training_step(model, plan));
  const std::pair norm(std::string("tp"), EventKind::kAllReduce);
  EXPECT_EQ(over_tp.at(norm).bytes, without.at(norm).bytes + 4);
}

// What a block keeps with sequence parallel, every tensor cut by tp: its input, both normed inputs
// and the sum between (2 d each), queries and the attention's output (2 d), keys and values, the
// statistics of both norms and of attention (fp32), fc1's output and the product behind it.
TEST(Megatron, WhatABlockKeepsIsCutByTensorParallel) {
  const ModelSpec model = tiny_model(2);
  const std::int64_t positions = 2 * 128, d = 512, kv = 256, ffn = 1536, heads = 8;
  for (const std::int64_t tp : {1, 2, 4}) {
    Plan plan = megatron_plan();
    plan.mesh.tp = tp;
    plan.compile = Compile::kNone;
    const LayerPrograms programs(model, plan);
    const auto& block = *programs.at(1, Recompute::kNone);
    const std::int64_t least = positions / tp * (2 * (4 * d + 2 * d + 2 * kv + 3 * ffn) + 4 * (2 + heads));
    EXPECT_GE(block.saved_bytes().count() + block.slots.front().bytes.count(), least) << tp;
    // Eager kernels keep silu's output as well, and views their whole.
    const std::int64_t most = least + positions / tp * 2 * (2 * d + 2 * kv + 2 * ffn) + 16 * 512;
    EXPECT_LE(block.saved_bytes().count() + block.slots.front().bytes.count(), most) << tp;
  }
}

// One fp32 copy of the rank's part of the logits, beside them in the compute dtype: 6 bytes each at
// the peak (core/tensor_parallel/cross_entropy.py works in place).
TEST(Megatron, TheLossHoldsSixBytesOfEachLogit) {
  for (const std::int64_t tp : {1, 2, 4}) {
    Plan plan = megatron_plan();
    plan.mesh.tp = tp;
    const ModelSpec model = tiny_model(1);
    const LayerPrograms programs(model, plan);
    const auto last = static_cast<std::int32_t>(model.order.size()) - 1;
    const LayerProgram& loss = *programs.at(last, Recompute::kNone);
    const std::int64_t logits = 2 * 128 * 4096 / tp;
    const std::int64_t logits_bytes = loss.slots.front().bytes.count();
    EXPECT_EQ(logits_bytes, 2 * logits);
    const std::int64_t slack = 64 * 1024;
    EXPECT_LE(std::abs(loss.forward.swing.peak - 4 * logits), slack);
    // Then the gradient takes the copy's place, and is cast.
    const std::int64_t most = loss.forward.swing.net + loss.backward.swing.peak;
    EXPECT_LE(std::abs(most - 4 * logits), slack);
  }
}

// Compiled (jit_fuser), the exponentials are a copy of their own; TransformerEngine's works on the
// logits themselves. Of both, two exchanges: the greatest, then the sums; or all three at once.
TEST(Megatron, FusedLossesHoldTenAndTwoBytesOfEachLogit) {
  const ModelSpec plain = tiny_model(1);
  for (const std::int64_t tp : {1, 2}) {
    for (const auto& [kind, bytes] : {std::pair{Loss::Kind::kCompiled, 10}, {Loss::Kind::kFused, 2}}) {
      Plan plan = megatron_plan();
      plan.mesh.tp = tp;
      plan.loss.kind = kind;
      const ModelSpec model = with_variants(plain, plan);
      const LayerPrograms programs(model, plan);
      const auto last = static_cast<std::int32_t>(model.order.size()) - 1;
      const LayerProgram& loss = *programs.at(last, Recompute::kNone);
      const std::int64_t logits = 2 * 128 * 4096 / tp;
      EXPECT_LE(std::abs(loss.forward.swing.peak - (bytes - 2) * logits), 64 * 1024) << tp << bytes;
      const auto sums = sent(build_training_step(model, plan));
      const auto count = [&](EventKind kind) {
        const auto found = sums.find({"tp", kind});
        return found == sums.end() ? 0 : found->second.count;
      };
      // (One more all-reduce: gradients of norms.)
      EXPECT_EQ(count(EventKind::kAllReduce), tp == 1 ? 0 : kind == Loss::Kind::kFused ? 1 : 3);
    }
  }
}

TEST(Megatron, RecomputationEndsBeforeBackwardBegins) {
  Plan plan = megatron_plan();
  plan.mesh.tp = 2;
  plan.recompute.value = Recompute::kFull;
  const EventGraph graph = build_training_step(tiny_model(2), plan);
  bool in_backward = false;
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const std::int32_t layer = graph.details[i].layer;
    if (graph.rows[i].kind == EventKind::kBackward && layer == 2) in_backward = true;
    if (graph.rows[i].kind == EventKind::kRecompute && layer == 2) {
      EXPECT_FALSE(in_backward);
    }
  }
  // Two gathers and two scatters more of each block.
  const auto sums = sent(graph);
  EXPECT_EQ(sums.at({"tp", EventKind::kAllGather}).count, 8 * 2 + 3);
  EXPECT_EQ(sums.at({"tp", EventKind::kReduceScatter}).count, 6 * 2 + 2);
}

TEST(Megatron, ExpertsAreReducedOverTheirOwnRanks) {
  const ModelSpec model = load_zoo_model("qwen3-30b-a3b");
  Plan plan = over_experts(16);
  const EventGraph graph = build_training_step(model, plan);
  const auto sums = sent(graph);
  EXPECT_TRUE(sums.contains({"efsdp", EventKind::kReduceScatter}));
  EXPECT_TRUE(sums.contains({"ep", EventKind::kAllToAll}));
  // Rows out and back, forward and backward, and out what weighs them; counts of 128 experts once,
  // to all: of 48 blocks.
  EXPECT_EQ(sums.at({"ep", EventKind::kAllToAll}).count, (4 + 2) * 48);
  EXPECT_EQ(sums.at({"ep", EventKind::kAllGather}), (Sent{48, 48 * 8 * 128 * 8}));
  // With tp each rank routes its own positions: rows are cut, nothing is gathered for them.
  plan.mesh = {8, 1};
  plan.mesh.tp = 2;
  plan.mesh.ep = 8;
  const auto cut = sent(build_training_step(model, plan));
  EXPECT_EQ(cut.at({"ep", EventKind::kAllToAll}).bytes * 2, sums.at({"ep", EventKind::kAllToAll}).bytes);
  // Attention alone gathers: qkv forward and backward, proj's gradient; embedding and head 3.
  EXPECT_EQ(cut.at({"tp", EventKind::kAllGather}).count, 3 * 48 + 3);
}

// Two ranks share each expert: what is routed over ep is as much, and both multiply the rows of
// both by half of each weight. Rows are gathered where they arrived and scattered before they go
// home, once each in both passes; 1,024 / 2 positions of 8 experts' rows of 2,048 values a rank.
TEST(Megatron, RanksThatShareExpertsGatherTheirRows) {
  const ModelSpec model = load_zoo_model("qwen3-30b-a3b");
  Plan plan = over_experts();
  plan.mesh.tp = 2;
  const EventGraph whole = build_training_step(model, plan);
  plan.mesh.etp = 2;
  const EventGraph shared = build_training_step(model, plan);
  const auto before = sent(whole), after = sent(shared);
  const auto at_experts = [](const EventGraph& graph) {
    double flops = 0;
    for (const Kernel& kernel : graph.kernels) {
      if (kernel.groups > 1) flops += kernel.flops.count();
    }
    return flops;
  };
  EXPECT_EQ(at_experts(shared), at_experts(whole));
  EXPECT_EQ(after.at({"ep", EventKind::kAllToAll}), before.at({"ep", EventKind::kAllToAll}));
  const std::int64_t rows = 2 * 1024 / 2 * 8;               // both ranks', two bytes an element
  const Sent each{3 * 48, 48 * rows * (2 * 2048 + 1) * 2};  // with what weighs them
  EXPECT_EQ(after.at({"etp", EventKind::kAllGather}), each);
  EXPECT_EQ(after.at({"etp", EventKind::kReduceScatter}), each);
  // Half of three weights for each of 16 experts, with a gradient: 6 bytes each. What is stepped is
  // a 16th of all of them either way.
  const double half = 48.0 * 16 * 3 * 2048 * 768 / 2;
  EXPECT_NEAR((held_bytes(whole) - held_bytes(shared)) / (6 * half), 1, 0.001);
  // Over these two alone nothing goes further, but for numbers of rows.
  plan.mesh.ep = 1;
  const EventGraph near = build_training_step(model, plan);
  const auto alone = sent(near);
  EXPECT_FALSE(alone.contains({"ep", EventKind::kAllToAll}));
  EXPECT_EQ(at_experts(near), at_experts(whole));
  EXPECT_EQ(alone.at({"etp", EventKind::kReduceScatter}), each);
  EXPECT_EQ(alone.at({"etp", EventKind::kAllGather}).count, 4 * 48);
}

// Only the first forward and the last backward have no other micro-batch beside them, and wait for
// rows of experts; what travels is the same.
TEST(Megatron, RowsOfExpertsTravelBesideAnotherMicroBatch) {
  const ModelSpec model = load_zoo_model("qwen3-30b-a3b");
  Plan plan = over_experts(8, 3);
  // Rows of compute that wait for an all-to-all, by kind and micro-batch.
  const auto waiting = [](const EventGraph& graph) {
    std::map<std::pair<EventKind, std::int32_t>, std::int64_t> counts;
    for (std::size_t i = 0; i < graph.rows.size(); ++i) {
      const Row& row = graph.rows[i];
      if (row.kind != EventKind::kForward && row.kind != EventKind::kBackward) continue;
      for (const EventId waited : graph.waits_of(static_cast<EventId>(i))) {
        const bool rows = graph.rows[at(waited)].kind == EventKind::kAllToAll;
        if (rows) ++counts[{row.kind, graph.details[i].microbatch}];
      }
    }
    return counts;
  };
  const EventGraph apart = build_training_step(model, plan);
  plan.megatron.overlap_expert_parallel = true;
  const EventGraph beside = build_training_step(model, plan);
  EXPECT_EQ(sent(apart), sent(beside));
  const auto before = waiting(apart), after = waiting(beside);
  for (const EventKind kind : {EventKind::kForward, EventKind::kBackward}) {
    for (const std::int32_t m : {0, 1, 2}) {
      ASSERT_GE(before.at({kind, m}), 48) << m;
      const bool alone = m == (kind == EventKind::kForward ? 0 : 2);
      const auto found = after.find({kind, m});
      EXPECT_EQ(found == after.end() ? 0 : found->second, alone ? before.at({kind, m}) : 0) << m;
    }
  }
}

// Of a block's experts a rank has a part over fewer ranks than of the rest: every size divides, so nothing is padding.
TEST(Megatron, UnitsOfAMixtureAreNoLessThanWhatIsInThem) {
  const ModelSpec model = load_zoo_model("qwen3-30b-a3b");
  Plan plan = megatron_plan();
  plan.mesh = {8, 1};
  for (const std::int64_t ep : {1, 2, 8}) {
    plan.mesh.ep = ep;
    std::int64_t sum = 0;
    for (const Unit& unit : build_training_step(model, plan).units) {
      EXPECT_EQ(unit.padded_numel(), unit.numel) << unit.name << " ep " << ep;
      sum += unit.numel;
    }
    EXPECT_EQ(sum, model.parameters()) << ep;
  }
}

// linear_fc1 of experts is gate and up (experts.py, TEGroupedMLP): two grouped products a block forward, four backward.
TEST(Megatron, ExpertsMultiplyTwiceABlock) {
  const ModelSpec model = load_zoo_model("qwen3-30b-a3b");
  Plan plan = over_experts();
  const EventGraph graph = build_training_step(model, plan);
  std::map<EventKind, std::int64_t> grouped;
  for (const Row& row : graph.rows) {
    for (const Kernel& kernel : graph.kernels_of(graph.works[row.work])) {
      if (kernel.groups > 1) ++grouped[row.kind];
    }
  }
  EXPECT_EQ(grouped[EventKind::kForward], 2 * 48);
  EXPECT_EQ(grouped[EventKind::kBackward], 4 * 48);
}

// Launches of a block that a capture of Megatron-Core's MoELayer has besides moe.cpp's (sums, maps,
// selections), less permutations that are fused: 22 + 10 forward, the second by all-to-all alone,
// and 11 backward; a fused router has none.
TEST(Megatron, RoutersLaunchMapsAndSums) {
  Plan plan = over_experts();
  const auto small = [&](const std::string& name) {
    const EventGraph graph = build_training_step(load_zoo_model(name), plan);
    std::map<EventKind, std::int64_t> counts;
    for (const Row& row : graph.rows) {
      for (const Kernel& kernel : graph.kernels_of(graph.works[row.work])) {
        const bool is_map =
            kernel.bytes.count() <= 8 * 1024 * 128 && kernel.kind == KernelKind::kMemory && kernel.bytes.count() > 0;
        if (is_map) ++counts[row.kind];
      }
    }
    return counts;
  };
  const auto through = small("qwen3-30b-a3b");
  plan.expert_parallel.dispatcher = ExpertParallel::Dispatcher::kDeepEp;
  const auto flex = small("qwen3-30b-a3b");
  EXPECT_GE(through.at(EventKind::kForward) - flex.at(EventKind::kForward), 10 * 48);
  EXPECT_GE(flex.at(EventKind::kForward), 22 * 48);
  EXPECT_GE(flex.at(EventKind::kBackward), 11 * 48);
  plan.megatron.cuda_graphs = MegatronOptions::CudaGraphs::kRouters;
  const auto fused = small("qwen3-30b-a3b");
  EXPECT_EQ(flex.at(EventKind::kForward) - fused.at(EventKind::kForward), 22 * 48);
  EXPECT_EQ(flex.at(EventKind::kBackward) - fused.at(EventKind::kBackward), 11 * 48);
}

// Bytes of a pass' kernels of one function, of all micro-batches.
std::int64_t moved(const EventGraph& graph, EventKind kind, Function function) {
  std::int64_t bytes = 0;
  for (const Row& row : graph.rows) {
    const Work& work = graph.works[row.work];
    for (std::uint32_t k = work.kernels_begin; k < work.kernels_end && row.kind == kind; ++k) {
      if (graph.kernels[k].function == function) bytes += graph.kernels[k].bytes.count();
    }
  }
  return bytes;
}

// One kernel scales, masks and makes the softmax of two bytes a score, another its gradient;
// heads are views. Before 2024-04 no module is TransformerEngine's.
TEST(Megatron, AttentionThatIsNotFusedHasItsOwnSoftmax) {
  Plan plan = megatron_plan();
  plan.param_dtype = DType::kBf16;
  plan.attention = AttentionKernel::kEager;
  const ModelSpec model = with_variants(load_zoo_model("gpt2"), plan);
  const EventGraph graph = build_training_step(model, plan);
  const std::int64_t scores = std::int64_t{12} * 12 * 2 * 128 * 128;
  EXPECT_EQ(moved(graph, EventKind::kForward, Function::kSoftmax), scores * 2 * 2);
  EXPECT_EQ(moved(graph, EventKind::kBackward, Function::kSoftmax), scores * 2 * 3);
  EXPECT_EQ(moved(graph, EventKind::kForward, Function::kScale), 0);
  EXPECT_EQ(moved(graph, EventKind::kBackward, Function::kMultiply), 0);
  EXPECT_TRUE(graph.host.engine);
  plan.runtime.version = kLocalMegatron;
  EXPECT_FALSE(build_training_step(model, plan).host.engine);
}

// experts.py, _apply_bias: of each row of the experts' outputs, 2880 wide, bias * score is made in
// fp32, added to two bytes, put beside the other experts' and cast. A graph of whole iterations
// counts no rows on the host, so its experts are fused.
TEST(Megatron, TheLastBiasOfExpertsIsAddedInFp32) {
  const ModelSpec model = load_zoo_model("gpt-oss-20b");
  Plan plan = over_experts();
  const auto copied = [&] { return moved(build_training_step(model, plan), EventKind::kForward, Function::kCopy); };
  const std::int64_t eager = copied();
  plan.megatron.cuda_graphs = MegatronOptions::CudaGraphs::kIteration;
  const std::int64_t rows = 1024 * 4;  // a rank's
  EXPECT_EQ(eager - copied(), 24 * rows * 2880 * (4 + 4));
}

// TransformerEngine casts weights in the first micro-batch alone, to both layouts.
TEST(Megatron, WeightsAreCastOnceAStep) {
  Plan plan = megatron_plan();
  plan.float8 = Float8::kDelayed;
  const ModelSpec model = with_variants(tiny_model(1), plan);
  const auto casts = [&](int microbatches) {
    plan.batch.accumulation = microbatches;
    const EventGraph graph = build_training_step(model, plan);
    std::int64_t once = 0;
    for (const Row& row : graph.rows) {
      if (row.kind == EventKind::kQuantize) once += graph.works[row.work].bytes.count();
    }
    return std::pair(once, moved(graph, EventKind::kForward, Function::kCast));
  };
  const auto [once, one] = casts(1);
  const auto [again, three] = casts(3);
  std::int64_t weights = 0;
  for (const ParameterSpec& p : model.kinds[1].parameters) {
    if (p.shape.size() == 2) weights += p.shape[0] * p.shape[1];
  }
  EXPECT_EQ(once, 2 * weights);  // written
  EXPECT_EQ(again, once);
  EXPECT_EQ(three, 3 * one);
  EXPECT_LT(one, 2 * once);  // of what products read
}

// fp8_param_gather: weights travel, lie and are transposed in a byte, and are cast behind the optimizer's step with the
// scales of all ranks; norms and tables go in one gather, the last weights' (partition_buckets), and in two bytes.
TEST(Megatron, WeightsInFp8TravelInAByte) {
  Plan plan = megatron_plan();
  plan.megatron.overlap_grad_reduce = plan.megatron.overlap_param_gather = true;
  plan.megatron.bucket_size = 1;
  plan.float8 = Float8::kCurrent;
  const auto build = [&](bool narrow) {
    plan.float8_all_gather = narrow;
    return build_training_step(with_variants(tiny_model(3), plan), plan);
  };
  const EventGraph wide = build(false), narrow = build(true);
  const ModelSpec model = with_variants(tiny_model(3), plan);
  std::int64_t weights = 0;
  const std::int64_t count = 4 * 3;  // queries, keys and values are one, gate and up too
  for (const LayerInstance& layer : model.order) {
    for (const ParameterSpec& p : model.kinds[at(layer.kind)].parameters) weights += p.gathered_in_fp8 ? p.numel() : 0;
  }
  const auto gathered = [](const EventGraph& graph) { return sent(graph).at({"shard", EventKind::kAllGather}); };
  EXPECT_EQ(gathered(narrow).count, count);
  EXPECT_NEAR(as_double(gathered(wide).bytes - gathered(narrow).bytes), as_double(weights), 1e5);
  const auto reduced = [](const EventGraph& graph) { return sent(graph)[{"shard", EventKind::kAllReduce}].bytes; };
  EXPECT_EQ(reduced(narrow) - reduced(wide), 4 * count);
  std::int64_t cast = 0;
  for (const Row& row : narrow.rows) {
    if (row.kind == EventKind::kQuantize) cast += narrow.works[row.work].bytes.count();
  }
  EXPECT_EQ(2 * cast, 2 * weights + (2 + 3) * (weights / 4));  // bytes are of one way
}

RC_GTEST_PROP(MegatronProperty, RowsPointBackAndBuffersAreFreedOnce, ()) {
  const RandomStep r = random_step();
  Plan plan;
  plan.model = r.plan.model;
  plan.runtime = {RuntimeKind::kMegatron, "0.20"};
  plan.recompute = r.plan.recompute;
  plan.recompute.value = *rc::gen::element(Recompute::kNone, Recompute::kFull);
  plan.recompute.ranges.clear();
  plan.batch = {*rc::gen::element<std::int64_t>(16, 64), *rc::gen::inRange<std::int64_t>(1, 4),
      *rc::gen::inRange<std::int64_t>(1, 4)};
  plan.mesh.shard = *rc::gen::element<std::int64_t>(1, 2, 6);
  plan.mesh.replicate = *rc::gen::element<std::int64_t>(1, 2);
  std::int64_t heads = 1;
  for (const LayerSpec& layer : r.model.kinds) {
    for (const Operation& op : layer.operations) heads = std::max(heads, op.attention.kv_heads);
  }
  plan.mesh.tp = heads % 2 == 0 ? *rc::gen::element<std::int64_t>(1, 2) : 1;
  plan.tensor_parallel.sequence = *rc::gen::arbitrary<bool>();
  plan.units.embedding = plan.units.head = UnitPlacement::kRoot;
  plan.reduce_dtype = *rc::gen::element(DType::kBf16, DType::kFp32);
  plan.optimizer = r.plan.optimizer;
  plan.megatron.overlap_grad_reduce = *rc::gen::arbitrary<bool>();
  plan.megatron.overlap_param_gather = *rc::gen::arbitrary<bool>();
  plan.megatron.bucket_size = *rc::gen::element<std::int64_t>(0, 1, 5000);
  const EventGraph graph = build_training_step(r.model, plan);
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const auto id = static_cast<EventId>(i);
    for (const EventId waited : graph.waits_of(id)) RC_ASSERT(waited >= 0 && waited < id);
    RC_ASSERT(graph.rows[i].host_wait < id);
  }
  RC_ASSERT(replay_allocations(graph).peak == peak_allocated(graph));
}

}
}
