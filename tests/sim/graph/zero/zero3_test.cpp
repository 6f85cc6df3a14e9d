// DeepSpeed's ZeRO stage 3: what is gathered where, kept, let go of and reduced; rules worked out on a small Llama.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/graph/host_log.h"
#include "sim/graph/training_step.h"
#include "tests/support/fixtures.h"

namespace foreshard::zero3_test {
namespace {

// Of tiny_model(): table and head 4096 x 512, norms 512, q and o 512 x 512, k and v 256 x 512,
// three FFN matrices 1536 x 512.
constexpr std::int64_t kTable = 4096 * 512;
constexpr std::int64_t kBlock = 2 * 512 * 512 + 2 * 256 * 512 + 3 * 1536 * 512 + 2 * 512;
constexpr std::int64_t elements(std::int64_t blocks) { return 2 * kTable + blocks * kBlock + 512; }

Plan zero3_plan() {
  Plan plan = tiny_plan();
  plan.runtime = {RuntimeKind::kZero3, "0.19"};
  plan.reduce_dtype = DType::kBf16;
  return plan;
}

// Nothing ahead of time, nothing kept.
Plan bare_plan() {
  Plan plan = zero3_plan();
  plan.zero.stage3_prefetch_bucket_size = 0;
  plan.zero.stage3_max_reuse_distance = 0;
  plan.zero.stage3_param_persistence_threshold = 0;
  return plan;
}

LibraryRun record(const ModelSpec& model, const Plan& plan, std::int32_t steps = 3) {
  LibraryWatch watch = {.steps = steps, .modules = LibraryWatch::Modules::kOwners};
  return record_library_run(model, plan, LayerPrograms(model, plan), watch);
}

std::vector<std::string> units_of(const LibraryStep& step, const std::string& kind, const std::string& note) {
  std::vector<std::string> units;
  for (const LibraryEvent& event : step.log) {
    if (event.kind == kind && contains(event.note, note)) units.push_back(event.unit);
  }
  return units;
}

TEST(Zero3, WithNothingAheadAndNothingKeptEachModuleGathersItsOwn) {
  const EventGraph graph = build_training_step(tiny_model(4), bare_plan());
  // Table, nine parameters a block, norm and head, in forward and again in backward; each is a
  // gather of one parameter, which needs no copies.
  const std::int64_t parameters = 1 + 4 * 9 + 2;
  EXPECT_EQ(count(graph, EventKind::kAllGather), 2 * parameters);
  EXPECT_EQ(count(graph, EventKind::kAllGatherCopyIn), 0);
  EXPECT_EQ(count(graph, EventKind::kAllGatherCopyOut), 0);
  EXPECT_EQ(count(graph, EventKind::kReduceScatter), 1);  // the bucket holds 5e8 elements
}

TEST(Zero3, DefaultsGatherASmallModelAtTheRoot) {
  const EventGraph graph = build_training_step(tiny_model(4), zero3_plan());
  // 16.8 M elements fit the 50 M of one prefetch: the root's. Norms persist: 9 gathers after the step.
  EXPECT_EQ(count(graph, EventKind::kAllGather), 1 + 9);
  EXPECT_EQ(count(graph, EventKind::kAllGatherCopyIn), 1);
  EXPECT_EQ(count(graph, EventKind::kAllGatherCopyOut), 1);
}

TEST(Zero3, TheFirstForwardAndBackwardOnlyRecord) {
  const LibraryRun run = record(tiny_model(1), zero3_plan());
  EXPECT_TRUE(units_of(run.steps[0], "all_gather", "prefetch").empty());
  EXPECT_EQ(units_of(run.steps[0], "all_gather", "fetch").size(), 2 * 12U);  // norms too
  EXPECT_EQ(units_of(run.steps[1], "all_gather", "prefetch").size(), 1U);
  EXPECT_TRUE(units_of(run.steps[1], "all_gather", "at=model.layers").empty());
  const auto& reset = run.steps[1].log.front();
  EXPECT_EQ(reset.kind, "trace_reset");
  EXPECT_NE(reset.note.find("mode_before=RECORD"), std::string::npos);
}

TEST(Zero3, EveryEntryOfAModulePrefetchesABucketAndOvershootsByOne) {
  Plan plan = bare_plan();
  plan.zero.stage3_prefetch_bucket_size = 1;
  const LibraryRun run = record(tiny_model(1), plan);
  const auto prefetched = units_of(run.steps[2], "all_gather", "prefetch");
  // Root: the table. "model": the first norm, whose module is two entries away.
  ASSERT_GE(prefetched.size(), 4U);
  EXPECT_EQ(prefetched[0], "model.embed_tokens.weight");
  EXPECT_EQ(prefetched[1], "model.layers.0.input_layernorm.weight");
  // embed_tokens and the block, a container, each one more.
  EXPECT_EQ(prefetched[2], "model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(prefetched[3], "model.layers.0.self_attn.k_proj.weight");
}

TEST(Zero3, MaxLiveParametersStopsPrefetchOnly) {
  Plan plan = bare_plan();
  plan.zero.stage3_prefetch_bucket_size = 1'000'000'000;
  plan.zero.stage3_max_live_parameters = 1;
  const LibraryRun run = record(tiny_model(2), plan);
  // The root takes the table (the limit is soft); while it is there nothing more is taken.
  const auto prefetched = units_of(run.steps[2], "all_gather", "prefetch");
  ASSERT_FALSE(prefetched.empty());
  EXPECT_EQ(prefetched[0], "model.embed_tokens.weight");
  EXPECT_TRUE(units_of(run.steps[2], "all_gather", "prefetch n=2").empty());
}

TEST(Zero3, ReuseDistanceKeepsTheHeadBetweenItsForwardAndItsBackward) {
  Plan plan = bare_plan();
  plan.zero.stage3_max_reuse_distance = 1;
  const LibraryRun run = record(tiny_model(2), plan);
  // Behind the head's forward come the root's backward, which owns nothing, and the head's: at
  // distance 0. Anything else is at least a head away.
  const auto heads = units_of(run.steps[2], "all_gather", "at=lm_head");
  EXPECT_EQ(heads.size(), 1U);
  EXPECT_EQ(units_of(run.steps[2], "all_gather", "at=model.norm").size(), 2U);
}

TEST(Zero3, ModelStatesAreSixteenBytesAParameterOverTheRanks) {
  const ModelSpec model = tiny_model(4);
  Plan plan = zero3_plan();
  plan.optimizer.implementation = Optimizer::Implementation::kFused;
  const EventGraph graph = build_training_step(model, plan);
  std::int64_t states = 0, bucket = 0, gathered = 0;
  for (const std::int32_t id : graph.persistent) {
    const Buffer buffer = graph.buffer(id);
    (buffer.category == MemoryCategory::kReduceScatterInput  ? bucket
        : buffer.category == MemoryCategory::kUnshardedParam ? gathered
                                                             : states) += buffer.bytes.count();
  }
  // 2 for the partition, 2 for its gradient, 12 for AdamW with the fp32 master (arXiv:1910.02054);
  // every parameter is a multiple of 8. 7.5 B parameters over 64: 1.9 GB.
  // Five buffers, each rounded up to 512 bytes.
  EXPECT_NEAR(static_cast<double>(states), static_cast<double>(16 * elements(4) / 8), 5 * 512);
  EXPECT_NEAR(16.0 * 7.5e9 / 64, 1.9e9, 0.03e9);
  EXPECT_EQ(bucket, 2 * 500'000'000);          // permanent, whatever fills it
  EXPECT_EQ(gathered, (2 * 4 + 1) * 512 * 2);  // norms
}

TEST(Zero3, ACoalescedGatherHoldsItsParametersTwice) {
  const ModelSpec model = tiny_model(1);
  const LibraryRun run = record(model, zero3_plan());
  // Until the last of them, the head, is waited for.
  const std::string flat = "gather_buffers=" + std::to_string(2 * (elements(1) - 3 * 512));
  const auto& log = run.steps[2].log;
  const auto at = [&](const std::string& kind, const std::string& unit) {
    return std::ranges::find_if(
        log, [&](const LibraryEvent& event) { return event.kind == kind && event.unit == unit; });
  };
  EXPECT_NE(at("forward_begin", "lm_head")->note.find(flat), std::string::npos);
  EXPECT_NE(at("forward_end", "lm_head")->note.find("gather_buffers=0"), std::string::npos);
}

TEST(Zero3, BucketsCloseBeforeTheGradientThatWouldOverflowThem) {
  Plan plan = bare_plan();
  plan.zero.reduce_bucket_size = kTable + 512;
  const LibraryRun run = record(tiny_model(1), plan);
  // Backward: head and norm fill a bucket exactly; down and up (2 x 786,432); gate with what comes
  // before the table: attention and norms.
  const std::vector<std::string> expected = {"model.norm.weight..lm_head.weight",
      "model.layers.0.mlp.up_proj.weight..model.layers.0.mlp.down_proj.weight",
      "model.layers.0.input_layernorm.weight..model.layers.0.mlp.gate_proj.weight", "model.embed_tokens.weight"};
  EXPECT_EQ(units_of(run.steps[2], "reduce_scatter", ""), expected);
}

TEST(Zero3, GradientsAreReducedInEveryMicroBatch) {
  Plan plan = zero3_plan();
  plan.batch.accumulation = 3;
  const EventGraph graph = build_training_step(tiny_model(2), plan);
  EXPECT_EQ(count(graph, EventKind::kReduceScatter), 3);
}

TEST(Zero3, SecondaryPartitionsServeTheGathersAfterTheFirstRelease) {
  Plan plan = bare_plan();
  plan.zero.zero_hpz_partition_size = 2;
  const LibraryRun run = record(tiny_model(1), plan);
  std::int64_t world = 0, small = 0;
  for (const LibraryEvent& event : run.steps[2].log) {
    if (event.kind != "all_gather") continue;
    (event.group == "world" ? world : small) += 1;
  }
  EXPECT_EQ(world, 12);  // forward
  EXPECT_EQ(small, 12);  // backward
}

TEST(Zero3, LeafBlocksAreFetchedWhole) {
  Plan plan = bare_plan();
  plan.zero.leaf_blocks = true;
  const LibraryRun run = record(tiny_model(2), plan);
  const auto fetched = units_of(run.steps[2], "all_gather", "fetch n=9");
  EXPECT_EQ(fetched.size(), 4U);
  EXPECT_EQ(fetched.front(), "model.layers.0.input_layernorm.weight..model.layers.0.mlp.down_proj.weight");
}

// Recorded from DeepSpeed 0.19.8 with torch.utils.checkpoint(use_reentrant=False) around blocks.
TEST(Zero3, RecomputationStartsInsideTheFirstNodeThatUnpacksAndStopsEarly) {
  Plan plan = bare_plan();
  plan.recompute.value = Recompute::kFull;
  const LibraryRun run = record(tiny_model(1), plan);
  std::vector<std::string> boundaries;
  bool backward = false;
  for (const LibraryEvent& event : run.steps[2].log) {
    backward |= event.unit == "model.layers.0.mlp.down_proj" && event.kind == "backward_begin";
    const bool is_boundary = contains(event.kind, "_begin") || contains(event.kind, "_end");
    if (!backward || !is_boundary) continue;
    boundaries.push_back(std::string(event.kind) + " " + event.unit.substr(14));
  }
  const std::vector<std::string> expected = {"backward_begin .mlp.down_proj", "forward_begin .input_layernorm",
      "forward_end .input_layernorm", "forward_begin .self_attn.q_proj", "forward_end .self_attn.q_proj",
      "forward_begin .self_attn.k_proj", "forward_end .self_attn.k_proj", "forward_begin .self_attn.v_proj",
      "forward_end .self_attn.v_proj", "forward_begin .self_attn.o_proj", "forward_end .self_attn.o_proj",
      "forward_begin .post_attention_layernorm", "forward_end .post_attention_layernorm",
      "forward_begin .mlp.gate_proj", "forward_end .mlp.gate_proj", "forward_begin .mlp.up_proj",
      "forward_end .mlp.up_proj", "forward_begin .mlp.down_proj", "backward_end .mlp.down_proj",
      "backward_begin .mlp.up_proj"};
  ASSERT_GE(boundaries.size(), expected.size());
  boundaries.resize(expected.size());
  EXPECT_EQ(boundaries, expected);
}

TEST(Zero3, WhatStepsTwoAndThreeDoIsTheSteadyStep) {
  Plan plan = zero3_plan();
  plan.zero.stage3_prefetch_bucket_size = 700'000;
  plan.zero.stage3_max_live_parameters = 5'000'000;
  plan.zero.stage3_max_reuse_distance = 2'000'000;
  plan.zero.reduce_bucket_size = 3'000'000;
  for (const std::int64_t accumulation : {1, 2}) {
    plan.batch.accumulation = accumulation;
    const ModelSpec model = tiny_model(5);
    const LibraryRun run = record(model, plan);
    const EventGraph graph = build_training_step(model, plan);
    EXPECT_EQ(run.steps[2].graph.fingerprint(), graph.fingerprint()) << accumulation;
    EXPECT_EQ(run.steps[1].graph.fingerprint(), graph.fingerprint()) << accumulation;
    EXPECT_NE(run.steps[0].graph.fingerprint(), graph.fingerprint()) << accumulation;
  }
}

// A build follows what was traced once; a recording asks the coordinator step by step.
TEST(Zero3, ATracedStepIsTheOneThatIsAskedFor) {
  std::vector<Plan> plans;
  Plan plan = zero3_plan();
  plan.zero.stage3_prefetch_bucket_size = 700'000;
  plan.zero.stage3_max_live_parameters = 5'000'000;
  plan.zero.reduce_bucket_size = 3'000'000;
  for (const std::int64_t distance : {0, 1'500'000, 1'000'000'000}) {
    plan.zero.stage3_max_reuse_distance = distance;
    plans.push_back(plan);
  }
  plans.push_back(plan);
  plans.back().batch.accumulation = 4;  // the later ones share what was traced
  plans.push_back(plan);
  plans.back().recompute.value = Recompute::kFull;
  plans.back().batch.accumulation = 2;
  plans.push_back(plan);
  plans.back().zero.leaf_blocks = true;
  plans.push_back(plan);
  plans.back().zero.overlap_comm = false;
  plans.push_back(plan);
  plans.back().zero.stage3_use_all_reduce_for_fetch_params = true;
  plans.push_back(plan);
  plans.back().frozen.embedding = true;
  plans.back().frozen.blocks.ranges = {{0, 1, true}};
  plans.push_back(plan);
  plans.back().zero.offload_optimizer = plans.back().zero.offload_param = ZeroOffload::kNvme;
  plans.back().mesh = {2, 1};
  plans.back().param_dtype = plans.back().reduce_dtype = DType::kFp32;
  const ModelSpec model = tiny_model(5);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const LibraryRun run = record(model, plans[i]);
    EXPECT_EQ(run.steps[2].graph.fingerprint(), build_training_step(model, plans[i]).fingerprint()) << i;
  }
}

// One trace for plans that differ in their ranks, another where it would be another.
TEST(Zero3, PlansOfOneShapeShareATrace) {
  const ModelSpec model = tiny_model(4);
  Plan plan = bare_plan();
  const LayerPrograms programs(model, plan);
  for (const std::int64_t ranks : {2, 4, 8}) {
    plan.mesh = {ranks, 1};
    EXPECT_EQ(build_training_step(model, plan, programs).fingerprint(), build_training_step(model, plan).fingerprint());
  }
  plan.zero.stage3_prefetch_bucket_size = 1'000'000;
  plan.recompute.ranges = {};
  EXPECT_EQ(build_training_step(model, plan, programs).fingerprint(), build_training_step(model, plan).fingerprint());
}

TEST(Zero3, EveryBufferIsFreedOnce) {
  for (const bool all_reduce : {false, true}) {
    for (const std::int64_t bucket : {0, 1'000'000, 50'000'000}) {
      Plan plan = zero3_plan();
      plan.zero.stage3_prefetch_bucket_size = bucket;
      plan.zero.stage3_max_reuse_distance = 3'000'000;
      plan.zero.stage3_use_all_reduce_for_fetch_params = all_reduce;
      plan.recompute.value = all_reduce ? Recompute::kFull : Recompute::kNone;
      const EventGraph graph = build_training_step(tiny_model(3), plan);
      std::vector<int> alive(static_cast<std::size_t>(graph.buffer_count()), 0);
      for (const std::int32_t id : graph.persistent) ++alive[static_cast<std::size_t>(id)];
      for (const MemoryAction& action : graph.actions) {
        const bool own = action.target >= graph.first_own_buffer;
        if (action.kind == MemoryAction::Kind::kAllocate && own) {
          EXPECT_EQ(++alive[static_cast<std::size_t>(action.target)], 1);
        } else if (action.kind == MemoryAction::Kind::kFree && own) {
          EXPECT_EQ(--alive[static_cast<std::size_t>(action.target)], 0);
        }
      }
      std::int64_t before = 0, after = 0;
      for (const std::int32_t id : graph.persistent) before += graph.buffer(id).bytes.count();
      for (std::int32_t id = graph.first_own_buffer; id < graph.buffer_count(); ++id) {
        after += alive[static_cast<std::size_t>(id)] * graph.buffer(id).bytes.count();
      }
      EXPECT_EQ(before, after) << bucket;
    }
  }
}

TEST(Zero3, OffloadTakesStatesToTheHostAndTheStepWithThem) {
  Plan plan = zero3_plan();
  plan.zero.offload_optimizer = ZeroOffload::kCpu;
  plan.zero.offload_param = ZeroOffload::kCpu;
  const EventGraph graph = build_training_step(tiny_model(2), plan);
  EXPECT_EQ(count(graph, EventKind::kHostOptimizer), 1);
  EXPECT_EQ(count(graph, EventKind::kOptimizer), 0);
  EXPECT_GT(count(graph, EventKind::kHostToDevice), 0);
  for (const std::int32_t id : graph.persistent) {
    const Buffer buffer = graph.buffer(id);
    const bool on_device =
        buffer.category == MemoryCategory::kReduceScatterInput || buffer.category == MemoryCategory::kUnshardedParam;
    EXPECT_EQ(buffer.on_host, !on_device) << to_string(buffer.category);
  }
}

// PartitionedOptimizerSwapper reads and writes synchronously, and so are partitions of parameters
// written (swap_out_and_release).
TEST(Zero3, TheHostWaitsForWhatIsReadFromNvmeAndWrittenToIt) {
  Plan plan = zero3_plan();
  plan.zero.offload_optimizer = plan.zero.offload_param = ZeroOffload::kNvme;
  for (const std::int64_t threshold : {std::int64_t{0}, std::int64_t{100'000}}) {
    plan.zero.stage3_param_persistence_threshold = threshold;  // 0: nothing is gathered behind it
    plan.zero.sub_group_size = 500'000;
    const EventGraph graph = build_training_step(tiny_model(4), plan);
    const auto rows = static_cast<EventId>(graph.rows.size());
    EventId first = kNoEvent;
    std::int64_t writes = 0;
    for (EventId id = 0; id < rows; ++id) {
      const EventKind kind = graph.rows[static_cast<std::size_t>(id)].kind;
      if (first == kNoEvent && kind == EventKind::kHostOptimizer) first = id;
      if (first == kNoEvent || kind != EventKind::kStorageWrite) continue;
      ++writes;
      const EventId awaited =
          id + 1 < rows ? graph.rows[static_cast<std::size_t>(id) + 1].host_wait : graph.final_host_wait;
      EXPECT_EQ(awaited, id) << threshold;
    }
    // Parameters and states of each sub-group.
    EXPECT_EQ(writes, 2 * count(graph, EventKind::kHostOptimizer));
  }
}

// Partitions of at least 1 MiB live on the drive: with 2 ranks in fp32 the tables (4 MiB) and the
// FFN matrices (1.5 MiB), not what attention has (at most 0.5 MiB). Each is read before it is
// copied to the device, once per gather; those of later modules while gathers are in flight.
TEST(Zero3, PartitionsAreReadFromNvmeAheadOfTheirGathers) {
  Plan plan = bare_plan();
  plan.mesh = {2, 1};
  plan.param_dtype = plan.reduce_dtype = DType::kFp32;
  plan.zero.offload_optimizer = plan.zero.offload_param = ZeroOffload::kNvme;
  constexpr std::int64_t kMiB = 1 << 20;
  for (const std::int64_t bucket : {std::int64_t{0}, std::int64_t{1'000'000}}) {
    plan.zero.stage3_prefetch_bucket_size = bucket;
    const EventGraph graph = build_training_step(tiny_model(3), plan);
    std::int64_t reads = 0, copies = 0, ahead = 0, outstanding = 0;
    for (std::size_t id = 0; id + 1 < graph.rows.size(); ++id) {
      const Row& row = graph.rows[id];
      if (row.kind == EventKind::kHostOptimizer) break;
      const std::int64_t bytes = graph.works[row.work].bytes.count();
      if (row.kind == EventKind::kHostToDevice && row.stream == Stream::kCopyIn) {
        copies += bytes >= kMiB ? 1 : 0;
        outstanding -= bytes >= kMiB ? 1 : 0;
        EXPECT_GE(outstanding, 0);  // what is copied has been read
      }
      if (row.kind != EventKind::kStorageRead || row.stream != Stream::kAllReduce) continue;
      EXPECT_GE(bytes, kMiB);
      ++reads;
      ++outstanding;
      EXPECT_LE(outstanding, 5);  // buffer_count
      ahead += graph.rows[id + 1].host_wait < static_cast<EventId>(id) ? 1 : 0;
    }
    // In forward and in backward; what the queue has passed by the end of forward is kept for the
    // backward that begins there.
    const std::int64_t all = 2 * (2 + 3 * 3);
    EXPECT_EQ(reads == all, bucket == 0);
    EXPECT_LE(reads, all);
    EXPECT_GT(reads, all / 2);
    EXPECT_EQ(copies, reads) << bucket;
    EXPECT_EQ(ahead > 0, bucket > 0) << bucket;
  }
}

TEST(Zero3, WhatDeepSpeedRefuses) {
  const ModelSpec model = tiny_model(2);
  const Cluster cluster = round_cluster(8);
  Plan plan = zero3_plan();
  EXPECT_NO_THROW(check(plan, model, cluster));
  plan.zero.zero_hpz_partition_size = 3;
  EXPECT_THROW(check(plan, model, cluster), Error);
  plan = zero3_plan();
  plan.zero.zero_quantized_gradients = true;
  EXPECT_NO_THROW(check(plan, model, cluster));
  plan.zero.reduce_scatter = false;
  EXPECT_THROW(check(plan, model, cluster), Error);
  plan = zero3_plan();
  plan.mesh = {4, 2};
  EXPECT_THROW(check(plan, model, cluster), Error);
}

}
}
