// FullyShardedDataParallel: sizes of flat parameters, the order of gathers and reductions, the
// limiter's queue, memory. What the library itself does: tests/recordings.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/layers/variants.h"
#include "sim/graph/fsdp1/fsdp1_builder.h"
#include "sim/graph/host_log.h"
#include "sim/graph/training_step.h"
#include "tests/support/fixtures.h"

namespace foreshard::fsdp1_test {
namespace {

using Texts = std::vector<std::string>;

// q and o 512 x 512, k and v 256 x 512, three FFN matrices 1536 x 512, two norms; two tables of
// 4096 x 512 and the final norm.
constexpr std::int64_t kBlock = 2 * 512 * 512 + 2 * 256 * 512 + 3 * 1536 * 512 + 2 * 512;
constexpr std::int64_t kRoot = 2 * 4096 * 512 + 512;

Plan fsdp1_plan() {
  Plan plan = tiny_plan();
  plan.runtime = {RuntimeKind::kFsdp1, "2.11"};
  plan.units.embedding = plan.units.head = UnitPlacement::kRoot;
  return plan;
}

UnitParameter of(std::int64_t numel) { return UnitParameter{.numel = numel}; }

// "all_gather 1": what FSDP does, without the boundaries of modules; blocks by their number.
Texts spelled(const std::vector<LibraryEvent>& log) {
  Texts texts;
  for (const LibraryEvent& event : log) {
    const std::string kind(event.kind);
    if (kind.starts_with("forward_") || kind.starts_with("backward_")) continue;
    const std::size_t dot = event.unit.rfind('.');
    std::string text = kind + " " + (dot == std::string::npos ? event.unit : event.unit.substr(dot + 1));
    if (kind == "rate_limiter_wait") {
      const std::size_t begin = event.note.find('=') + 1;
      std::string freed = event.note.substr(begin, event.note.find(' ') - begin);
      const std::size_t last = freed.rfind('.', freed.find('@'));
      text = "wait for " + (last == std::string::npos ? freed : freed.substr(last + 1));
    }
    texts.push_back(text);
  }
  return texts;
}

std::vector<LibraryEvent> step_of(const ModelSpec& model, const Plan& plan, std::int32_t step) {
  const LayerPrograms programs(model, plan);
  LibraryRun run = record_library_run(model, plan, programs, {.steps = step});
  return std::move(run.steps.back().log);
}

Texts only(const Texts& texts, const Texts& kinds) {
  Texts found;
  std::ranges::copy_if(texts, std::back_inserter(found), [&](const std::string& text) {
    return std::ranges::any_of(kinds, [&](const std::string& kind) { return text.starts_with(kind); });
  });
  return found;
}

TEST(Fsdp1Flat, ShardsAreChunks) {
  Plan plan = fsdp1_plan();
  plan.mesh = {4, 1};
  plan.named_rank = 3;
  const FlatSize size = flat_size({of(7), of(3)}, plan);
  EXPECT_EQ(size.numel, 10);
  EXPECT_EQ(size.flat, 10);      // no padding inside
  EXPECT_EQ(size.shard, 3);      // ceil(10 / 4)
  EXPECT_EQ(size.padded, 12);    // gathered
  EXPECT_EQ(size.shard_pad, 2);  // rank 3 has element 9 alone
  plan.mesh = {7, 1};            // chunks of 2: ranks 0 to 4 have elements, the others nothing
  plan.named_rank = 5;
  EXPECT_EQ(flat_size({of(7), of(3)}, plan).shard_pad, 2);
}

TEST(Fsdp1Flat, OriginalParametersBeginAt16Bytes) {
  Plan plan = fsdp1_plan();
  plan.mesh = {5, 1};
  plan.fsdp1.use_orig_params = true;
  plan.param_dtype = DType::kBf16;  // 8 elements
  const FlatSize low = flat_size({of(9), of(3), of(8)}, plan);
  // 9 -> 16, + 3 = 19 -> 24, + 8 = 32, to a multiple of 5 ranks: 35.
  EXPECT_EQ(low.flat, 35);
  EXPECT_EQ(low.shard, 7);
  EXPECT_EQ(low.shard_pad, 0);
  plan.param_dtype = DType::kFp32;  // 4 elements: 9 -> 12, 15 -> 16, 24 -> 25
  EXPECT_EQ(flat_size({of(9), of(3), of(8)}, plan).flat, 25);
}

TEST(Fsdp1Flat, NoShardIsPaddedToTheWorld) {
  Plan plan = fsdp1_plan();
  plan.mesh = {1, 6};
  plan.fsdp1.use_orig_params = true;
  plan.param_dtype = DType::kFp32;
  const FlatSize size = flat_size({of(10)}, plan);
  EXPECT_EQ(size.flat, 12);
  EXPECT_EQ(size.shard, 12);
  EXPECT_EQ(size.padded, 12);
}

TEST(Fsdp1, GathersAndReducesEachUnit) {
  Plan plan = fsdp1_plan();
  const EventGraph full = build_training_step(tiny_model(4), plan);
  // Root and 4 blocks in forward, the blocks again in backward.
  EXPECT_EQ(count(full, EventKind::kAllGather), 5 + 4);
  EXPECT_EQ(count(full, EventKind::kAllGatherCopyIn), 5 + 4);  // casts of the shards
  EXPECT_EQ(count(full, EventKind::kReduceScatter), 5);
  EXPECT_EQ(count(full, EventKind::kAllReduce), 0);
  plan.reshard_after_forward.value.kind = Reshard::Kind::kNever;  // SHARD_GRAD_OP
  EXPECT_EQ(count(build_training_step(tiny_model(4), plan), EventKind::kAllGather), 5);
  plan.mesh = {4, 2};  // HYBRID_SHARD
  const EventGraph hybrid = build_training_step(tiny_model(4), plan);
  EXPECT_EQ(count(hybrid, EventKind::kReduceScatter), 5);
  EXPECT_EQ(count(hybrid, EventKind::kAllReduce), 5);
  plan.mesh = {1, 8};  // NO_SHARD
  const EventGraph none = build_training_step(tiny_model(4), plan);
  EXPECT_EQ(count(none, EventKind::kAllGather), 0);
  EXPECT_EQ(count(none, EventKind::kReduceScatter), 0);
  EXPECT_EQ(count(none, EventKind::kAllReduce), 5);
  // The cast parameters are freed after forward and made again.
  EXPECT_EQ(count(none, EventKind::kAllGatherCopyIn), 2 * 5);
}

// From half a million parameters on: each FFN matrix (786,432), the attention of a block as a whole
// (the same, in four smaller ones), embedding and head; norms are left to the root.
TEST(Fsdp1, ModulesAreUnitsForTheirSize) {
  Plan plan = fsdp1_plan();
  plan.units = {.embedding = UnitPlacement::kOwn,
      .head = UnitPlacement::kOwn,
      .blocks = UnitPlacement::kRoot,
      .min_parameters = 500'000};
  const EventGraph graph = build_training_step(with_variants(tiny_model(2), plan), plan);
  std::vector<std::int64_t> sizes;
  for (const Unit& unit : graph.units) sizes.push_back(unit.numel);
  constexpr std::int64_t kMatrix = 1536 * 512, kTable = 4096 * 512;
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{5 * 512, kTable, kMatrix, kMatrix, kMatrix, kMatrix, kMatrix, kMatrix,
                       kMatrix, kMatrix, kTable}));
  // Gathered in forward, and all but the root in backward; each reduced once.
  const auto count = [&](EventKind kind) {
    return std::ranges::count_if(graph.rows, [&](const Row& row) { return row.kind == kind; });
  };
  EXPECT_EQ(count(EventKind::kAllGather), 11 + 10);
  EXPECT_EQ(count(EventKind::kReduceScatter), 11);
}

// A rank of 8 beside a block's first matrix of 512 rows: two units of 8 x 512 elements inside the
// block's, each gathered in forward and backward, and alone reduced.
TEST(Fsdp1, ModulesOfAdaptersAreUnits) {
  Plan plan = fsdp1_plan();
  plan.lora = {.rank = 8, .targets = {"q_proj"}};
  plan.units.adapters_alone = true;
  const EventGraph graph = build_training_step(with_variants(tiny_model(2), plan), plan);
  const auto count = [&](EventKind kind) {
    return std::ranges::count_if(graph.rows, [&](const Row& row) { return row.kind == kind; });
  };
  EXPECT_EQ(std::ranges::count(graph.units, 8 * 512, &Unit::numel), 2 * 2);
  EXPECT_EQ(count(EventKind::kReduceScatter), 2 * 2);
  plan.units.adapters_alone = false;
  const EventGraph one = build_training_step(with_variants(tiny_model(2), plan), plan);
  EXPECT_EQ(one.units.size() + 2 * 2, graph.units.size());
}

TEST(Fsdp1, PrefetchBeforeOrAfterTheGradients) {
  Plan plan = fsdp1_plan();
  plan.fsdp1.limit_all_gathers = false;
  const Texts kinds = {"pre_backward", "all_gather", "unshard_free", "reduce_scatter"};
  const auto backward = [&] {
    const Texts all = only(spelled(step_of(tiny_model(3), plan, 2)), kinds);
    return Texts(std::find(all.begin(), all.end(), "pre_backward root"), all.end());
  };
  EXPECT_EQ(backward(),
      Texts({"pre_backward root", "all_gather 2", "pre_backward 2", "all_gather 1", "unshard_free 2",
          "reduce_scatter 2", "pre_backward 1", "all_gather 0", "unshard_free 1", "reduce_scatter 1", "pre_backward 0",
          "unshard_free 0", "reduce_scatter 0", "unshard_free root", "reduce_scatter root"}));
  plan.fsdp1.backward_prefetch = Fsdp1Options::BackwardPrefetch::kPost;
  EXPECT_EQ(backward(),
      Texts({"pre_backward root", "pre_backward 2", "all_gather 2", "unshard_free 2", "all_gather 1",
          "reduce_scatter 2", "pre_backward 1", "unshard_free 1", "all_gather 0", "reduce_scatter 1", "pre_backward 0",
          "unshard_free 0", "reduce_scatter 0", "unshard_free root", "reduce_scatter root"}));
  plan.prefetch.backward = 0;
  EXPECT_EQ(backward(),
      Texts({"pre_backward root", "pre_backward 2", "all_gather 2", "unshard_free 2", "reduce_scatter 2",
          "pre_backward 1", "all_gather 1", "unshard_free 1", "reduce_scatter 1", "pre_backward 0", "all_gather 0",
          "unshard_free 0", "reduce_scatter 0", "unshard_free root", "reduce_scatter root"}));
}

// Views of unit i + 1 are made before unit i runs forward, so autograd meets them after unit i's backward.
TEST(Fsdp1, ForwardPrefetchReducesOneUnitLate) {
  Plan plan = fsdp1_plan();
  plan.fsdp1.limit_all_gathers = false;
  plan.prefetch.forward = 1;
  const Texts all = spelled(step_of(tiny_model(3), plan, 2));
  EXPECT_EQ(only(all, {"pre_backward", "post_backward"}),
      Texts({"pre_backward root", "pre_backward 2", "pre_backward 1", "post_backward 2", "pre_backward 0",
          "post_backward 1", "post_backward 0", "post_backward root"}));
  // A reentrant checkpoint runs forward without views and its own graph's backward at once.
  Plan again = plan;
  again.recompute = {Recompute::kFull, {}};
  again.recompute_reentrant = true;
  EXPECT_EQ(only(spelled(step_of(tiny_model(3), again, 2)), {"pre_backward", "post_backward"}),
      Texts({"pre_backward root", "pre_backward 2", "post_backward 2", "pre_backward 1", "post_backward 1",
          "pre_backward 0", "post_backward 0", "post_backward root"}));
  // Gathered in the pre-forward of the unit in front.
  const Texts forward = only(all, {"all_gather", "unshard_free"});
  EXPECT_EQ(Texts(forward.begin(), forward.begin() + 5),
      Texts({"all_gather root", "all_gather 0", "all_gather 1", "unshard_free 0", "all_gather 2"}));
  // Not yet in the first forward, whose order nobody knows.
  const Texts first = only(spelled(step_of(tiny_model(3), plan, 1)), {"all_gather", "unshard_free"});
  EXPECT_EQ(Texts(first.begin(), first.begin() + 3), Texts({"all_gather root", "all_gather 0", "unshard_free 0"}));
}

// Every unshard takes one event off once two are queued. In the first step the gather of block 2
// waits for block 0; from the second on three are left over, and it waits for a backward before.
TEST(Fsdp1, TheLimitersQueueIsCarriedOver) {
  const Plan plan = fsdp1_plan();
  const Texts first = only(spelled(step_of(tiny_model(5), plan, 1)), {"wait", "all_gather"});
  EXPECT_EQ(Texts(first.begin(), first.begin() + 5),
      Texts({"all_gather root", "all_gather 0", "all_gather 1", "wait for 0@fwd1.0", "all_gather 2"}));
  const Texts third = only(spelled(step_of(tiny_model(5), plan, 3)), {"wait", "all_gather"});
  EXPECT_EQ(Texts(third.begin(), third.begin() + 10),
      Texts({"wait for 2@bwd2.0", "all_gather root", "wait for 1@bwd2.0", "all_gather 0", "wait for 0@bwd2.0",
          "all_gather 1", "wait for root@bwd2.0", "all_gather 2", "wait for 0@fwd3.0", "all_gather 3"}));
  // The graph is that of the steady step: block 3's gather, the 5th, waits for block 0's forward.
  const EventGraph graph = build_training_step(tiny_model(5), plan);
  std::vector<Row> gathers;
  for (const Row& row : graph.rows) {
    if (row.kind == EventKind::kAllGather) gathers.push_back(row);
  }
  ASSERT_EQ(gathers.size(), 6U + 5U);
  for (std::size_t g = 0; g < 4; ++g) EXPECT_EQ(gathers[g].host_wait, kNoEvent) << g;
  const EventId freed = gathers[4].host_wait;
  ASSERT_NE(freed, kNoEvent);
  EXPECT_EQ(graph.rows[at(freed)].kind, EventKind::kForward);
  EXPECT_EQ(graph.units[at(graph.details[at(freed)].unit)].name, "layers.0");
  // What those four wait for lies a step back: the end of the backward.
  ASSERT_NE(graph.final_host_wait, kNoEvent);
  EXPECT_EQ(graph.rows[at(graph.final_host_wait)].stream, Stream::kCompute);
  Plan unlimited = plan;
  unlimited.fsdp1.limit_all_gathers = false;
  EXPECT_EQ(build_training_step(tiny_model(5), unlimited).final_host_wait, kNoEvent);
}

TEST(Fsdp1, NoSyncKeepsWhatForwardKeeps) {
  Plan plan = fsdp1_plan();
  plan.batch.accumulation = 2;
  plan.accumulation = AccumulationMode::kKeepUnsharded;
  // FULL_SHARD: 9 gathers in each micro-batch; reductions in the last one only.
  const EventGraph full = build_training_step(tiny_model(4), plan);
  EXPECT_EQ(count(full, EventKind::kAllGather), 2 * 9);
  EXPECT_EQ(count(full, EventKind::kReduceScatter), 5);
  plan.reshard_after_forward.value.kind = Reshard::Kind::kNever;
  EXPECT_EQ(count(build_training_step(tiny_model(4), plan), EventKind::kAllGather), 5);
  plan.accumulation = AccumulationMode::kReduceEach;
  const EventGraph each = build_training_step(tiny_model(4), plan);
  EXPECT_EQ(count(each, EventKind::kAllGather), 2 * 5);
  EXPECT_EQ(count(each, EventKind::kReduceScatter), 2 * 5);
}

TEST(Fsdp1, DividesInTwoKernels) {
  Plan plan = fsdp1_plan();
  plan.param_dtype = plan.reduce_dtype = DType::kFp32;
  const auto kernels = [&](std::int64_t ranks, EventKind kind) {
    plan.mesh = {ranks, 1};
    const EventGraph graph = build_training_step(tiny_model(1), plan);
    const auto row = std::ranges::find_if(graph.rows, [&](const Row& r) { return r.kind == kind; });
    if (row == graph.rows.end()) return std::vector<std::int64_t>();
    const Work& work = graph.works[row->work];
    std::vector<std::int64_t> bytes;
    for (std::uint32_t k = work.kernels_begin; k < work.kernels_end; ++k) {
      bytes.push_back(graph.kernels[k].bytes.count());
    }
    return bytes;
  };
  using Bytes = std::vector<std::int64_t>;
  // 16 ranks: 4 before, 4 after; the block is reduced first.
  EXPECT_EQ(kernels(16, EventKind::kReduceScatterCopyIn), Bytes({2 * kBlock * 4}));
  EXPECT_EQ(kernels(16, EventKind::kAccumulate), Bytes({2 * kBlock / 16 * 4}));
  // 2 ranks: 2 before, nothing after. 3 ranks: 2 and 1.5, and a copy to pad to 3 shards.
  EXPECT_EQ(kernels(2, EventKind::kReduceScatterCopyIn), Bytes({2 * kBlock * 4}));
  EXPECT_EQ(kernels(2, EventKind::kAccumulate), Bytes());
  const std::int64_t padded = (kBlock + 2) / 3 * 3;
  EXPECT_EQ(kernels(3, EventKind::kReduceScatterCopyIn), Bytes({(kBlock + padded) * 4, 2 * padded * 4}));
}

// Written in the reduce dtype where they are reduced: what is left is the sum of micro-batches over
// the shard, read twice and written, in fp32.
TEST(Fsdp1, GradientsInPlaceAreNotCopied) {
  Plan plan = fsdp1_plan();
  plan.reduce_dtype = DType::kFp32;
  plan.batch.accumulation = 2;
  const auto bytes = [&](EventKind kind) {
    const EventGraph graph = build_training_step(tiny_model(4), plan);
    std::int64_t sum = 0;
    for (const Row& row : graph.rows) {
      const Work& work = graph.works[row.work];
      if (row.kind != kind) continue;
      for (std::uint32_t k = work.kernels_begin; k < work.kernels_end; ++k) sum += graph.kernels[k].bytes.count();
    }
    return sum;
  };
  EXPECT_GT(bytes(EventKind::kGradientCopyIn), 0);
  EXPECT_GT(bytes(EventKind::kReduceScatterCopyIn), 0);
  plan.fsdp1.gradients_in_place = true;
  EXPECT_EQ(bytes(EventKind::kGradientCopyIn), 0);
  EXPECT_EQ(bytes(EventKind::kReduceScatterCopyIn), 0);
  EXPECT_EQ(bytes(EventKind::kAccumulate), 3 * 4 * (4 * kBlock + kRoot) / plan.mesh.shard);
  EXPECT_EQ(count(build_training_step(tiny_model(4), plan), EventKind::kReduceScatter), 2 * 5);
}

TEST(Fsdp1, WhatLivesBetweenSteps) {
  const EventGraph graph = build_training_step(tiny_model(2), fsdp1_plan());
  std::int64_t shards = 0, states = 0;
  for (const std::int32_t id : graph.persistent) {
    const Buffer buffer = graph.buffer(id);
    if (buffer.category == MemoryCategory::kShardedParam) shards += buffer.bytes.count();
    if (buffer.category == MemoryCategory::kOptimizerState) states += buffer.bytes.count();
  }
  EXPECT_EQ(shards, (allocated_size(kRoot / 8 * 4) + 2 * allocated_size(kBlock / 8 * 4)).count());
  EXPECT_EQ(states, 2 * shards);
}

// Under the same forward SHARD_GRAD_OP keeps the blocks that FULL_SHARD frees.
TEST(Fsdp1, MemoryOfKeptParameters) {
  Plan plan = fsdp1_plan();
  plan.batch = {16, 1, 1};  // parameters decide
  const auto peak_after_forward = [&] {
    const EventGraph graph = build_training_step(tiny_model(6), plan);
    std::int64_t alive = 0;
    for (const MemoryAction& action : graph.actions) {
      if (action.kind == MemoryAction::Kind::kBackward) break;
      if (action.target < graph.first_own_buffer) continue;
      const bool moves = action.kind == MemoryAction::Kind::kAllocate || action.kind == MemoryAction::Kind::kFree;
      if (!moves || graph.buffer(action.target).category != MemoryCategory::kUnshardedParam) continue;
      const std::int64_t bytes = graph.buffer(action.target).bytes.count();
      alive += action.kind == MemoryAction::Kind::kAllocate ? bytes : -bytes;
    }
    return alive;
  };
  // When the loss' backward begins: the root alone; or the root and the 6 blocks.
  EXPECT_EQ(peak_after_forward(), kRoot * 2);
  plan.reshard_after_forward.value.kind = Reshard::Kind::kNever;
  EXPECT_EQ(peak_after_forward(), (kRoot + 6 * kBlock) * 2);
}

TEST(Fsdp1, OffloadCopiesShardsInAndGradientsOut) {
  Plan plan = fsdp1_plan();
  plan.offload = Offload::kCpu;
  const EventGraph graph = build_training_step(tiny_model(3), plan);
  // Every unshard call copies, also the root's in backward, which gathers nothing.
  EXPECT_EQ(count(graph, EventKind::kHostToDevice), 4 + 4);
  EXPECT_EQ(count(graph, EventKind::kAllGather), 4 + 3);
  EXPECT_EQ(count(graph, EventKind::kDeviceToHost), 4);
  // The final callback synchronises: the optimizer is issued behind the last copy.
  const auto step =
      std::ranges::find_if(graph.rows, [](const Row& row) { return row.kind == EventKind::kHostOptimizer; });
  ASSERT_NE(step, graph.rows.end());
  ASSERT_NE(step->host_wait, kNoEvent);
  EXPECT_EQ(graph.rows[at(step->host_wait)].kind, EventKind::kDeviceToHost);
  for (const std::int32_t id : graph.persistent) EXPECT_TRUE(graph.buffer(id).on_host) << id;
}

TEST(Fsdp1, ClipsOverTheShardGroup) {
  Plan plan = fsdp1_plan();
  plan.optimizer.clip_norm = 1.0;
  EXPECT_EQ(count(build_training_step(tiny_model(2), plan), EventKind::kAllReduce), 1);
  plan.mesh = {1, 8};  // whole gradients: nothing to sum
  EXPECT_EQ(count(build_training_step(tiny_model(2), plan), EventKind::kAllReduce), 3);
}

TEST(Fsdp1, FrozenBlocksAreFreedAndNotReduced) {
  Plan plan = fsdp1_plan();
  plan.fsdp1.use_orig_params = true;
  plan.frozen.blocks.ranges = {{1, 1, true}};
  const EventGraph graph = build_training_step(tiny_model(3), plan);
  EXPECT_EQ(count(graph, EventKind::kReduceScatter), 3);
  EXPECT_EQ(count(graph, EventKind::kAllGather), 4 + 3);
  const Texts all = only(spelled(step_of(tiny_model(3), plan, 2)), {"pre_backward", "post_backward", "unshard_free"});
  EXPECT_EQ(Texts(all.begin() + 3, all.end()),
      Texts({"pre_backward root", "pre_backward 2", "post_backward 2", "unshard_free 2", "pre_backward 1",
          "pre_backward 0", "unshard_free 1", "post_backward 0", "unshard_free 0", "post_backward root",
          "unshard_free root"}));
}

TEST(Fsdp1, NothingIsLeftBehind) {
  for (const std::int64_t replicate : {1, 2, 8}) {
    for (const bool never : {false, true}) {
      for (const AccumulationMode mode : {AccumulationMode::kReduceEach, AccumulationMode::kKeepUnsharded}) {
        Plan plan = fsdp1_plan();
        plan.mesh = {8 / replicate, replicate};
        plan.batch.accumulation = 2;
        plan.accumulation = mode;
        plan.recompute.value = Recompute::kFull;
        if (never) plan.reshard_after_forward.value.kind = Reshard::Kind::kNever;
        const EventGraph graph = build_training_step(tiny_model(2), plan);
        std::vector<int> alive(at(graph.buffer_count()), 0);
        for (const MemoryAction& action : graph.actions) {
          if (action.kind == MemoryAction::Kind::kAllocate) ++alive[std::size_t(action.target)];
          if (action.kind == MemoryAction::Kind::kFree) --alive[std::size_t(action.target)];
        }
        EXPECT_TRUE(std::ranges::all_of(alive, [](int n) { return n == 0; }))
            << replicate << never << static_cast<int>(mode);
      }
    }
  }
}

}
}
