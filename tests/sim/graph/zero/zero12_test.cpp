// ZeRO-1 and 2 of DeepSpeed: buckets, who owns what, when it is reduced, what a rank holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "models/families.h"
#include "sim/graph/training_step.h"
#include "sim/graph/zero/zero_partition.h"
#include "sim/memory/memory_profile.h"
#include "tests/support/fixtures.h"

namespace foreshard::zero12_test {
namespace {

using Parameter = GradientHooks::Parameter;

Plan zero_plan(RuntimeKind kind) {
  Plan plan = tiny_plan();
  plan.runtime = {kind, "0.19"};
  plan.mesh = {4, 1};
  plan.reduce_dtype = DType::kBf16;
  return plan;
}

LibraryRun record(const ModelSpec& model, const Plan& plan, std::int32_t steps = 2) {
  return record_library_run(model, plan, LayerPrograms(model, plan), {.steps = steps});
}

std::vector<LibraryEvent> collectives(const LibraryStep& step, std::string_view kind) {
  std::vector<LibraryEvent> events;
  for (const LibraryEvent& event : step.log) {
    if (event.kind == kind && !event.unit.empty()) events.push_back(event);
  }
  return events;
}

Parameter halves(std::int64_t numel) { return {.used = true, .dtype = DType::kBf16, .numel = numel}; }

TEST(ZeroPartition, IsPaddedToTwiceTheRanksAndCutsThroughParameters) {
  // 10 + 7 + 4 = 21 elements over 3 ranks: padded to 24, 8 each. Rank 1 holds the end of the first,
  // and of the second all but its last element.
  const std::vector<Parameter> parameters = {halves(10), halves(7), halves(4)};
  const ZeroPartition partition = lay_out(parameters, {0, 1, 2}, 3, false);
  EXPECT_EQ(partition.flat_numel, 24);
  EXPECT_EQ(partition.partition_numel, 8);
  EXPECT_EQ(partition.padding(1), 0);
  EXPECT_EQ(partition.padding(2), 3);
  // In the order of backward; neighbours of one owner join.
  const std::array<std::int32_t, 3> bucket = {2, 1, 0};
  std::vector<ZeroSlice> slices;
  for_each_slice(
      std::span(&partition, 1), parameters, bucket, -1, [&](const ZeroSlice& slice) { slices.push_back(slice); });
  const std::vector<std::pair<std::int64_t, std::int64_t>> expected = {{2, 4}, {1, 6}, {2, 1}, {0, 8}, {1, 2}};
  ASSERT_EQ(slices.size(), expected.size());
  for (std::size_t i = 0; i < slices.size(); ++i) {
    EXPECT_EQ(slices[i].rank, expected[i].first);
    EXPECT_EQ(slices[i].numel, expected[i].second);
  }
}

TEST(ZeroPartition, RoundRobinDealsParametersOut) {
  const std::vector<Parameter> parameters = {halves(1), halves(2), halves(3), halves(4), halves(5)};
  // Over 2 ranks: 0, 2, 4, then 1, 3.
  const ZeroPartition partition = lay_out(parameters, {0, 1, 2, 3, 4}, 2, true);
  EXPECT_EQ(partition.offset, (std::vector<std::int64_t>{0, 9, 1, 11, 4}));
}

TEST(Zero12, Stage1FillsBucketsInTheOrderOfRegistrationAfterBackward) {
  const LibraryRun run = record(tiny_model(2), zero_plan(RuntimeKind::kZero1));
  const auto sent = collectives(run.steps[1], "all_reduce");
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_TRUE(sent[0].unit.starts_with("model.embed_tokens.weight.."));
  const auto& log = run.steps[1].log;
  const auto last =
      std::find_if(log.rbegin(), log.rend(), [](const LibraryEvent& e) { return e.kind == "grad_ready"; });
  EXPECT_EQ((last - 1)->kind, "all_reduce");
}

TEST(Zero12, OverlapAndStage2ReduceInTheOrderOfReadiness) {
  Plan plan = zero_plan(RuntimeKind::kZero1);
  plan.zero.overlap_comm = true;
  for (const RuntimeKind kind : {RuntimeKind::kZero1, RuntimeKind::kZero2}) {
    plan.runtime.kind = kind;
    const auto sent = collectives(record(tiny_model(2), plan).steps[1], "all_reduce");
    ASSERT_EQ(sent.size(), 1U);
    EXPECT_TRUE(sent[0].unit.starts_with("lm_head.weight.."));
  }
}

// Bucket of 1,000,000 elements: lm_head (4096 x 512) is larger, so it empties the empty bucket and
// goes alone; nothing else exceeds the size.
TEST(Zero12, ABucketIsReducedBeforeTheParameterThatWouldOverflowIt) {
  Plan plan = zero_plan(RuntimeKind::kZero2);
  plan.zero.reduce_bucket_size = 1'000'000;
  const ModelSpec model = tiny_model(2);
  const LibraryRun run = record(model, plan);
  ASSERT_GT(run.buckets.size(), 4U);
  EXPECT_EQ(run.buckets[0].bytes, 0);
  EXPECT_EQ(run.buckets[1].parameters, std::vector<std::string>{"lm_head.weight"});
  std::int64_t bytes = 0;
  for (const LibraryBucket& bucket : run.buckets) {
    bytes += bucket.bytes;
    if (bucket.parameters.size() > 1) {
      EXPECT_LE(bucket.bytes, 2 * 1'000'000);
    }
  }
  EXPECT_EQ(bytes, model.parameters() * 2);
}

TEST(Zero12, AReducePerOwnerSendsWhatTheAllReduceWouldToEachOwner) {
  Plan plan = zero_plan(RuntimeKind::kZero2);
  plan.zero.use_multi_rank_bucket_allreduce = false;
  plan.named_rank = 2;
  const ModelSpec model = tiny_model(2);
  const LibraryRun run = record(model, plan);
  std::int64_t sent = 0, received = 0;
  for (const LibraryEvent& event : collectives(run.steps[1], "reduce")) {
    sent += event.bytes_in;
    received += event.bytes_out;
    EXPECT_EQ(event.bytes_out > 0, event.note.ends_with("dst=2"));
  }
  EXPECT_EQ(sent, model.parameters() * 2);
  const std::int64_t partition = run.facts.at("partition_numel.0");
  EXPECT_EQ(received, partition * 2);
}

TEST(Zero12, Stage1ReducesAtTheBoundaryAndStage2InEveryMicroBatch) {
  for (const RuntimeKind kind : {RuntimeKind::kZero1, RuntimeKind::kZero2}) {
    Plan plan = zero_plan(kind);
    plan.batch.accumulation = 3;
    std::vector<std::int32_t> micro;
    for (const LibraryEvent& e : collectives(record(tiny_model(2), plan).steps[1], "all_reduce")) {
      micro.push_back(e.microbatch);
    }
    EXPECT_EQ(micro, kind == RuntimeKind::kZero1 ? std::vector<std::int32_t>{2} : (std::vector<std::int32_t>{0, 1, 2}));
  }
}

// The step: a byte of overflow, the norm, the gather; fp32 has no overflow check.
TEST(Zero12, TheStepReadsOverflowAndNormOnTheHost) {
  Plan plan = zero_plan(RuntimeKind::kZero2);
  const ModelSpec model = tiny_model(2);
  const auto tail_of = [](const LibraryStep& step) {
    std::vector<std::pair<std::string, std::int64_t>> tail;
    bool after = false;
    for (const LibraryEvent& event : step.log) {
      if (after && !event.dtype.empty()) tail.emplace_back(event.dtype, event.bytes_in);
      after |= event.kind == "engine_step";
    }
    return tail;
  };
  using Tail = std::vector<std::pair<std::string, std::int64_t>>;
  const LibraryRun run = record(model, plan);
  const std::int64_t part = run.facts.at("partition_numel.0") * 2;
  EXPECT_EQ(tail_of(run.steps[1]), (Tail{{"uint8", 1}, {"float32", 4}, {"bfloat16", part}}));
  plan.param_dtype = plan.reduce_dtype = DType::kFp32;
  EXPECT_EQ(tail_of(record(model, plan).steps[1]), (Tail{{"float32", 4}, {"float32", 2 * part}}));
  const EventGraph graph = build_training_step(model, zero_plan(RuntimeKind::kZero2));
  const auto waits = std::ranges::count_if(graph.rows, [](const Row& row) { return row.host_wait != kNoEvent; });
  EXPECT_EQ(waits, 2);
}

// Five norms of 512 are a group of their own: 2560 elements over 4 ranks, 640 each, whose norm and gather are their
// own, too. Neighbours of one owner still go together, and stage 1 fills its bucket group by group.
TEST(Zero12, ParametersThatDoNotDecayAreAGroupOfTheirOwn) {
  const ModelSpec model = tiny_model(2);
  Plan plan = zero_plan(RuntimeKind::kZero1);
  const LibraryRun one = record(model, plan);
  plan.optimizer.groups = Optimizer::Groups::kDecay;
  const LibraryRun two = record(model, plan);
  EXPECT_EQ(two.facts.at("flat_numel.1"), 5 * 512);
  EXPECT_EQ(two.facts.at("partition_numel.1"), 640);
  EXPECT_EQ(two.facts.at("flat_numel.0") + 5 * 512, one.facts.at("flat_numel.0"));
  const auto bytes_of = [](const LibraryStep& step, std::string_view kind) {
    std::vector<std::int64_t> bytes;
    for (const LibraryEvent& e : step.log) {
      if (e.kind == kind) bytes.push_back(e.bytes_out);
    }
    return bytes;
  };
  EXPECT_EQ(bytes_of(two.steps[1], "all_gather"),
      (std::vector<std::int64_t>{(model.parameters() - 5 * 512) * 2, 5 * 512 * 2}));
  // The gradients, overflow, two norms.
  EXPECT_EQ(bytes_of(two.steps[1], "all_reduce"), (std::vector<std::int64_t>{model.parameters() * 2, 1, 4, 4}));
  const auto sent = collectives(two.steps[1], "all_reduce");
  EXPECT_TRUE(sent[0].unit.ends_with("..model.norm.weight")) << sent[0].unit;
}

// Four ranks in groups of 2 (mesh 2 x 2): gradients are reduced over all 4, states and the gather
// are those of a world of 2.
TEST(Zero12, StatesMayBePartitionedInGroups) {
  const ModelSpec model = tiny_model(2);
  Plan plan = zero_plan(RuntimeKind::kZero1);
  plan.mesh = {2, 1};
  const LibraryRun pair = record(model, plan);
  plan.mesh = {2, 2};
  plan.zero.partition_in_groups = true;
  const LibraryRun groups = record(model, plan);
  EXPECT_EQ(groups.facts.at("partition_numel.0"), pair.facts.at("partition_numel.0"));
  const EventGraph graph = build_training_step(model, plan);
  std::int64_t reduced = 0, gathered = 0;
  for (const Work& work : graph.works) {
    if (work.communicator == kNoCommunicator) continue;
    const std::int64_t size = graph.communicators[work.communicator].group.size;
    if (work.kind == EventKind::kAllReduce) reduced += size == 4 ? 1 : 100;
    if (work.kind == EventKind::kAllGather) gathered += size == 2 ? 1 : 100;
  }
  EXPECT_GT(reduced, 0);
  EXPECT_LT(reduced, 100);
  EXPECT_EQ(gathered, 1);
  plan.named_rank = 3;  // the second of its group holds what rank 1 of a pair does
  Plan second = plan;
  second.mesh = {2, 1};
  second.zero.partition_in_groups = false;
  second.named_rank = 1;
  EXPECT_EQ(record(model, plan).facts.at("padding_this_rank.0"), record(model, second).facts.at("padding_this_rank.0"));
}

struct States {
  std::int64_t device = 0, host = 0;  // between steps
};

States between_steps(const EventGraph& graph) {
  States states;
  for (const std::int32_t id : graph.persistent) {
    const Buffer buffer = graph.buffer(id);
    (buffer.on_host ? states.host : states.device) += buffer.bytes.count();
  }
  return states;
}

// GPT of 36 blocks of 4096: 7.46 billion parameters.
ModelSpec large_model() {
  ModelDims dims = family_dims("gpt3", "gpt-7.5b", {36, 4096, 32, 32, 128, std::int64_t{4} * 4096, 50257, 1024});
  dims.tied = true;
  return build_model(dims);
}

// Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, figure
// 1 (mixed precision Adam, 7.5 billion parameters, 64 GPUs): 120 GB without ZeRO, 31.4 with P_os,
// 16.6 with P_os+g. Of P bytes each: 2 of the parameter, 2 of its gradient, 12 of optimizer states.
TEST(Zero12, ModelStatesAreThoseOfThePaper) {
  const ModelSpec model = large_model();
  const auto parameters = static_cast<double>(model.parameters());
  EXPECT_NEAR(parameters, 7.5e9, 0.05e9);
  Plan plan = zero_plan(RuntimeKind::kZero1);
  plan.mesh = {64, 1};
  plan.units.embedding = plan.units.head = UnitPlacement::kRoot;
  plan.batch = {8, 1, 1};
  const auto per_parameter = [&](std::int64_t bytes) {
    return static_cast<double>(bytes) / parameters * 7.5;  // GB
  };
  const EventGraph stage1 = build_training_step(model, plan);
  const MemoryProfile profile1 = replay_allocations(stage1);
  const std::int64_t gradients1 = profile1.own_peak[at(MemoryCategory::kUnshardedGrad)].count();
  EXPECT_NEAR(per_parameter(between_steps(stage1).device + gradients1), 31.4, 0.05);
  // What DeepSpeed keeps of gradients in stage 2 are whole parameters: the last one of a partition
  // may reach beyond it by up to a matrix of 4096 x 16384.
  plan.runtime.kind = RuntimeKind::kZero2;
  const EventGraph stage2 = build_training_step(model, plan);
  const MemoryProfile profile2 = replay_allocations(stage2);
  const std::int64_t gradients2 = profile2.own_peak[at(MemoryCategory::kShardedGrad)].count();
  const double excess = per_parameter(std::int64_t{2} * 2 * 4096 * 16384);
  const double states2 = per_parameter(between_steps(stage2).device + gradients2);
  EXPECT_GE(states2, 16.55);
  EXPECT_LE(states2, 16.65 + excess);
}

// estimate_zero2_model_states_mem_needs (deepspeed/runtime/zero/stage_1_and_2.py, 0.19.8): without
// offload 4 bytes a parameter and 16 of each rank's share, with optimizer offload 2 bytes on the
// GPU. The share's 16 are fp32 parameter, moments and, in the step, gradient.
TEST(Zero12, ModelStatesAreThoseOfDeepSpeedsEstimator) {
  const ModelSpec model = large_model();
  const std::int64_t parameters = model.parameters();
  Plan plan = zero_plan(RuntimeKind::kZero2);
  plan.mesh = {16, 1};
  plan.units.embedding = plan.units.head = UnitPlacement::kRoot;
  plan.batch = {8, 1, 1};
  const EventGraph graph = build_training_step(model, plan);
  std::int64_t gradients = 0;  // all of a backward
  for (const LayerExecution& execution : graph.executions) {
    const LayerProgram& program = graph.program(execution);
    for (const std::int32_t slot : program.weight_gradients) {
      if (slot < 0) continue;
      const Slot& each = program.slots[at(slot)];
      if (each.stored == MemoryCategory::kUnshardedGrad) gradients += each.bytes.count();
    }
  }
  const std::int64_t share = parameters / 16;
  const std::int64_t states = between_steps(graph).device + gradients + 4 * share;
  const std::int64_t estimate = 4 * parameters + 16 * share;
  EXPECT_NEAR(static_cast<double>(states), static_cast<double>(estimate), 1e-4 * 3e10);
  plan.zero.offload_optimizer = ZeroOffload::kCpu;
  const States offloaded = between_steps(build_training_step(model, plan));
  // A buffer of the largest parameter stays on the device.
  const std::int64_t largest = std::int64_t{50257} * 4096 * 2;
  EXPECT_NEAR(static_cast<double>(offloaded.device), static_cast<double>(2 * parameters + largest), 1e5);
  EXPECT_GE(offloaded.host, 16 * share);
}

TEST(Zero12, OverlapTakesASecondBuffer) {
  Plan plan = zero_plan(RuntimeKind::kZero2);
  plan.zero.reduce_bucket_size = 10'000'000;
  const ModelSpec model = tiny_model(2);
  const auto buckets = [&] {
    const MemoryProfile profile = replay_allocations(build_training_step(model, plan));
    return profile.own_peak[at(MemoryCategory::kReduceScatterInput)].count();
  };
  EXPECT_EQ(buckets(), 20'000'256);  // rounded up to 512
  plan.zero.overlap_comm = true;
  EXPECT_EQ(buckets(), 2 * 20'000'256);
}

// BF16_Optimizer: one all-reduce of the whole flat gradient, in the communication dtype; no other
// collective but the gather. Besides, 4 bytes a parameter of gradients on every rank.
TEST(Zero12, Bf16WithFp32GradientsIsAnotherOptimizer) {
  const ModelSpec model = tiny_model(2);
  Plan plan = zero_plan(RuntimeKind::kZero1);
  plan.batch.accumulation = 2;
  const States plain = between_steps(build_training_step(model, plan));
  plan.zero.fp32_gradient_accumulation = true;
  const LibraryRun run = record(model, plan);
  std::vector<std::pair<std::string, std::int64_t>> sent;
  for (const LibraryEvent& event : run.steps[1].log) {
    if (!event.group.empty()) sent.emplace_back(event.kind, event.bytes_out);
  }
  const std::int64_t flat = model.parameters();  // a multiple of 2 x 4
  ASSERT_EQ(flat % 8, 0);
  using Sent = std::vector<std::pair<std::string, std::int64_t>>;
  EXPECT_EQ(sent, (Sent{{"all_reduce", 2 * flat}, {"all_gather", 2 * flat}}));
  const States wide = between_steps(run.steps[1].graph);
  EXPECT_NEAR(static_cast<double>(wide.device - plain.device), 4.0 * static_cast<double>(flat), 512);
  EXPECT_EQ(replay_allocations(run.steps[1].graph).peak, peak_allocated(run.steps[1].graph));
}

// Everything that a step allocates it frees, in every variant; a step after the first repeats.
TEST(Zero12, AStepLeavesNothingBehind) {
  for (const RuntimeKind kind : {RuntimeKind::kZero1, RuntimeKind::kZero2}) {
    for (int variant = 0; variant < 64; ++variant) {
      Plan plan = zero_plan(kind);
      plan.named_rank = variant % 4;
      plan.zero.overlap_comm = (variant & 1) != 0;
      plan.zero.contiguous_gradients = (variant & 2) == 0;
      plan.zero.reduce_scatter = (variant & 4) == 0;
      plan.batch.accumulation = (variant & 8) != 0 ? 3 : 1;
      if ((variant & 16) != 0) plan.zero.offload_optimizer = ZeroOffload::kCpu;
      if ((variant & 32) != 0) {
        plan.zero.fp32_gradient_accumulation = true;
        plan.param_dtype = plan.reduce_dtype = DType::kFp16;
      }
      plan.zero.reduce_bucket_size = 300'000;
      const ModelSpec model = tiny_model(2);
      const EventGraph graph = build_training_step(model, plan);
      // Fails where a buffer is freed twice or never.
      EXPECT_NO_THROW(EXPECT_EQ(replay_allocations(graph).peak, peak_allocated(graph)))
          << to_string(kind) << " " << variant;
      EXPECT_EQ(graph.fingerprint(), record(model, plan).steps[1].graph.fingerprint()) << variant;
    }
  }
}

}
}
