// DDP: which buckets when, what waits for what, and what lives between steps.
#include <gtest/gtest.h>

#include <array>

#include "models/layers/variants.h"
#include "sim/graph/ddp/ddp_builder.h"
#include "sim/graph/training_step.h"
#include "sim/memory/memory_profile.h"
#include "tests/support/fixtures.h"

namespace foreshard::ddp_test {
namespace {

using Parameter = GradientHooks::Parameter;

Plan ddp_plan() {
  Plan plan = tiny_plan();
  plan.runtime = {RuntimeKind::kDdp, "2.11"};
  plan.mesh = {1, 8};
  plan.param_dtype = plan.master_dtype = plan.reduce_dtype = DType::kFp32;
  return plan;
}

LibraryRun record(const ModelSpec& model, const Plan& plan, std::int32_t steps) {
  return record_library_run(model, plan, LayerPrograms(model, plan), {.steps = steps});
}

std::vector<std::int64_t> bytes_of(const LibraryStep& step, std::string_view kind) {
  std::vector<std::int64_t> bytes;
  for (const LibraryEvent& event : step.log) {
    if (event.kind == kind) bytes.push_back(event.bytes_in);
  }
  return bytes;
}

std::int64_t sum(const std::vector<std::int64_t>& values) {
  std::int64_t total = 0;
  for (const std::int64_t value : values) total += value;
  return total;
}

std::int64_t trained_parameters(const ModelSpec& model) {
  std::int64_t parameters = 0;
  for (const LayerInstance& layer : model.order) {
    for (const ParameterSpec& p : model.kinds[at(layer.kind)].parameters) parameters += p.tied ? 0 : 1;
  }
  return parameters;
}

Parameter floats(std::int64_t numel, DType dtype = DType::kFp32) {
  return {.used = true, .dtype = dtype, .numel = numel};
}

// Their hooks part the layer's backward: a U-Net in one layer.
TEST(DdpState, ALayerMayHaveHundredsOfProducts) {
  ModelSpec model = tiny_model(1);
  LayerSpec& block = model.kinds[at(model.order[1].kind)];
  std::ptrdiff_t last = std::ssize(block.operations) - 1;
  while (block.operations[at(last)].n != 512 || block.operations[at(last)].k != 512) --last;
  for (int i = 0; i < 300; ++i) {
    Operation more = block.operations[at(last)];  // reads what the one before has made
    block.tensors.push_back(block.tensors[at(more.outputs[0])]);
    block.parameters.push_back(block.parameters[at(more.parameters[0])]);
    more.outputs = {static_cast<Index>(block.tensors.size() - 1)};
    more.parameters = {static_cast<Index>(block.parameters.size() - 1)};
    more.released = {};
    block.operations[at(last)].inputs = block.operations[at(last)].saved = more.outputs;
    block.operations.insert(block.operations.begin() + last++, more);
  }
  const EventGraph graph = build_training_step(model, ddp_plan());
  EXPECT_EQ(replay_allocations(graph).peak, peak_allocated(graph));
}

// torch.optim.AdamW(foreach=False): a root and a divisor of each parameter, the divisor until the
// next one's is there; foreach has one root of all.
TEST(DdpState, AdamwOneByOneHasARootAndADivisor) {
  const ModelSpec model = tiny_model(2);
  const auto temporaries = [&](Optimizer::Implementation implementation) {
    Plan plan = ddp_plan();
    plan.optimizer.implementation = implementation;
    const EventGraph graph = build_training_step(model, plan);
    std::int64_t count = 0, bytes = 0;
    for (const Buffer& buffer : graph.buffers) {
      if (buffer.category != MemoryCategory::kOptimizerTemp) continue;
      ++count;
      bytes += buffer.bytes.count();
    }
    return std::pair(count, bytes);
  };
  const auto [count, bytes] = temporaries(Optimizer::Implementation::kLoop);
  EXPECT_EQ(count, 2 * trained_parameters(model));
  EXPECT_EQ(bytes, 2 * 4 * model.parameters());
  EXPECT_EQ(temporaries(Optimizer::Implementation::kForeach).first, 1);
  EXPECT_EQ(temporaries(Optimizer::Implementation::kFused).first, 0);
}

// What each optimizer keeps of a parameter of so many elements, by its own rule.
TEST(DdpState, OptimizersKeepWhatTheyKeep) {
  const ModelSpec model = tiny_model(2);
  const auto kept = [&](Optimizer::Kind kind) {
    Plan plan = ddp_plan();
    plan.optimizer.kind = kind;
    plan.optimizer.implementation = Optimizer::Implementation::kFused;
    const EventGraph graph = build_training_step(model, plan);
    std::int64_t bytes = 0;
    for (const std::int32_t b : graph.persistent) {
      const Buffer buffer = graph.buffer(b);
      if (buffer.category == MemoryCategory::kOptimizerState) bytes += buffer.bytes.count();
    }
    return bytes;
  };
  using States = std::vector<std::int64_t> (*)(const ParameterSpec&, bool is_table);
  const auto expected = [&](States states) {
    std::int64_t bytes = 0;
    for (const LayerInstance& instance : model.order) {
      const LayerSpec& layer = model.kinds[at(instance.kind)];
      for (const ParameterSpec& p : layer.parameters) {
        if (p.tied) continue;
        for (const std::int64_t size : states(p, layer.role == LayerRole::kEmbedding)) {
          bytes += (size + 511) / 512 * 512;
        }
      }
    }
    return bytes;
  };
  EXPECT_EQ(kept(Optimizer::Kind::kSgd), 0);
  EXPECT_EQ(kept(Optimizer::Kind::kMomentum),
      expected([](const ParameterSpec& p, bool) { return std::vector<std::int64_t>{4 * p.numel()}; }));
  EXPECT_EQ(kept(Optimizer::Kind::kAdafactor), expected([](const ParameterSpec& p, bool) {
    if (p.shape.size() == 1) return std::vector<std::int64_t>{4 * p.numel()};
    return std::vector<std::int64_t>{4 * p.shape[0], 4 * p.shape[1]};
  }));
  EXPECT_EQ(kept(Optimizer::Kind::kAdamW8bit), expected([](const ParameterSpec& p, bool is_table) {
    const std::int64_t n = p.numel();
    if (is_table || n < 4096) return std::vector<std::int64_t>{4 * n, 4 * n};
    const std::int64_t scales = 4 * ((n + 255) / 256);
    return std::vector<std::int64_t>{n, n, scales, scales};
  }));
  EXPECT_EQ(kept(Optimizer::Kind::kPagedAdamW), expected([](const ParameterSpec& p, bool) {
    const std::int64_t n = p.numel();
    return n < 100'000 ? std::vector<std::int64_t>{4 * n, 4 * n} : std::vector<std::int64_t>{};
  }));
}

TEST(DdpState, BlocksMayBeLoadedNarrow) {
  const ModelSpec model = tiny_model(2);
  Plan plan = ddp_plan();
  plan.param_dtype = DType::kBf16;
  const auto stored = [&](bool is_narrow) {
    plan.ddp.blocks_narrow = is_narrow;
    const EventGraph graph = build_training_step(with_variants(model, plan), plan);
    std::int64_t bytes = 0;
    for (const std::int32_t b : graph.persistent) {
      const Buffer buffer = graph.buffer(b);
      if (buffer.category == MemoryCategory::kShardedParam) bytes += buffer.bytes.count();
    }
    return bytes;
  };
  std::int64_t matrices = 0;
  for (const LayerSpec& layer : model.kinds) {
    for (const ParameterSpec& p : layer.parameters) {
      if (layer.role == LayerRole::kBlock && !p.is_norm) matrices += p.numel();
    }
  }
  EXPECT_EQ(stored(false) - stored(true), 2 * 2 * matrices);  // two blocks, two bytes less
}

TEST(DdpBuckets, ABucketClosesWhenItReachesTheLimit) {
  // 4 bytes each: 40, 40, 20, 100, 4. The first bucket of 80 B is full at exactly 80; the later
  // ones of 100 B take 20 + 400 and what is left.
  const std::vector<Parameter> parameters = {floats(10), floats(10), floats(5), floats(100), floats(1)};
  const std::array<std::int32_t, 5> order = {0, 1, 2, 3, 4};
  const auto buckets = assign_buckets(parameters, order, std::array<std::int64_t, 2>{80, 100});
  ASSERT_EQ(buckets.size(), 3U);
  EXPECT_EQ(buckets[0].parameters, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(buckets[1].parameters, (std::vector<std::int32_t>{2, 3}));
  EXPECT_EQ(buckets[2].parameters, (std::vector<std::int32_t>{4}));
  EXPECT_EQ(buckets[1].bytes, 420);
}

TEST(DdpBuckets, EveryDtypeHasBucketsAndAFirstLimitOfItsOwn) {
  const std::vector<Parameter> parameters = {
      floats(10), floats(10, DType::kBf16), floats(10), floats(30, DType::kBf16), floats(1)};
  const std::array<std::int32_t, 5> order = {0, 1, 2, 3, 4};
  const auto buckets = assign_buckets(parameters, order, std::array<std::int64_t, 2>{60, 1000});
  ASSERT_EQ(buckets.size(), 3U);
  EXPECT_EQ(buckets[0].parameters, (std::vector<std::int32_t>{0, 2}));  // 80 B of fp32
  EXPECT_EQ(buckets[1].parameters, (std::vector<std::int32_t>{1, 3}));  // 80 B of bf16
  EXPECT_EQ(buckets[2].parameters, (std::vector<std::int32_t>{4}));
}

TEST(DdpBuckets, InitialBucketsAreReducedFromTheLastParameterOn) {
  const std::vector<Parameter> parameters = {floats(10), floats(10), floats(10)};
  const std::array<std::int32_t, 3> order = {0, 1, 2};
  const auto buckets = assign_initial_buckets(parameters, order, std::array<std::int64_t, 1>{40});
  ASSERT_EQ(buckets.size(), 3U);
  EXPECT_EQ(buckets[0].parameters, (std::vector<std::int32_t>{2}));
}

TEST(DdpBuckets, ZeroRedundancyGivesTheLargestToWhoHasLeast) {
  // 7, 5, 4, 3, 1: rank 0 takes 7, rank 1 takes 5 and 4 (9), rank 0 takes 3 (10), rank 1 takes 1.
  const std::vector<Parameter> parameters = {floats(4), floats(7), floats(1), floats(5), floats(3)};
  const auto owned = partition_by_size(parameters, 2);
  EXPECT_EQ(owned[0], (std::vector<std::int32_t>{1, 4}));
  EXPECT_EQ(owned[1], (std::vector<std::int32_t>{3, 0, 2}));
}

TEST(Ddp, TheFirstStepReducesOneBucketAfterTheLastGradient) {
  const ModelSpec model = tiny_model(2);
  const LibraryRun run = record(model, ddp_plan(), 1);
  const auto& log = run.steps[0].log;
  EXPECT_EQ(bytes_of(run.steps[0], "all_reduce"), (std::vector<std::int64_t>{model.parameters() * 4}));
  ASSERT_GE(log.size(), 3U);
  EXPECT_EQ(log[log.size() - 1].kind, "optimizer_step");
  EXPECT_EQ(log[log.size() - 2].kind, "all_reduce");
  EXPECT_EQ(log[log.size() - 3].kind, "grad_ready");
}

TEST(Ddp, TheSecondForwardRebuildsBucketsAndTellsTheOtherRanks) {
  const ModelSpec model = tiny_model(4);
  const LibraryRun run = record(model, ddp_plan(), 3);
  const auto buckets = bytes_of(run.steps[1], "all_reduce");
  // int32: an index per parameter and one number, then a size per bucket.
  EXPECT_EQ(bytes_of(run.steps[1], "broadcast"),
      (std::vector<std::int64_t>{4 * (trained_parameters(model) + 1), 4 * static_cast<std::int64_t>(buckets.size())}));
  EXPECT_TRUE(bytes_of(run.steps[2], "broadcast").empty());
  EXPECT_EQ(bytes_of(run.steps[2], "all_reduce"), buckets);
  EXPECT_EQ(sum(buckets), model.parameters() * 4);
  // The first one holds at least 1 MiB, the others but the last 25 MiB.
  EXPECT_GE(buckets.front(), kMiB);
  for (std::size_t b = 1; b + 1 < buckets.size(); ++b) EXPECT_GE(buckets[b], 25 * kMiB);
}

TEST(Ddp, ACapThatIsGivenHoldsForTheFirstBucketToo) {
  Plan plan = ddp_plan();
  plan.ddp.bucket_cap_mb = 3;
  const LibraryRun run = record(tiny_model(4), plan, 2);
  const auto buckets = bytes_of(run.steps[1], "all_reduce");
  ASSERT_GT(buckets.size(), 2U);
  for (std::size_t b = 0; b + 1 < buckets.size(); ++b) EXPECT_GE(buckets[b], 3 * kMiB);
}

TEST(Ddp, AStaticGraphRebuildsOneIterationLater) {
  Plan plan = ddp_plan();
  plan.ddp.static_graph = true;
  const ModelSpec model = tiny_model(4);
  const LibraryRun run = record(model, plan, 3);
  const std::int64_t whole = model.parameters() * 4;
  const std::int64_t used = 4 * trained_parameters(model);
  EXPECT_EQ(bytes_of(run.steps[0], "all_reduce"), (std::vector<std::int64_t>{used, whole}));
  EXPECT_EQ(bytes_of(run.steps[1], "all_reduce"), (std::vector<std::int64_t>{whole}));
  EXPECT_EQ(bytes_of(run.steps[2], "broadcast").size(), 2U);
}

TEST(Ddp, FindUnusedKeepsItsBucketsAndReducesAMapEveryStep) {
  for (const bool said : {false, true}) {  // that it is unused; else no operation reads it
    ModelSpec model = tiny_model(4);
    ParameterSpec extra{"extra.weight", {512, 512}};
    extra.trainable = !said;
    extra.unused = said;
    for (LayerSpec& kind : model.kinds) {
      if (kind.role == LayerRole::kHead) kind.parameters.push_back(extra);
    }
    Plan plan = ddp_plan();
    plan.ddp.find_unused_parameters = true;
    const LibraryRun run = record(model, plan, 3);
    const auto first = bytes_of(run.steps[0], "all_reduce");
    EXPECT_EQ(bytes_of(run.steps[2], "all_reduce"), first);
    EXPECT_EQ(first.back(), 4 * trained_parameters(model));
    // What nobody uses is the last parameter, so the first bucket's alone: reduced at once.
    EXPECT_EQ(first.front(), 512 * 512 * 4);
    EXPECT_EQ(run.facts.at("step1.grad_storage_bytes"), (model.parameters() - 512 * 512) * 4);
    // Its gradient is None: AdamW makes no state of it.
    const MemoryProfile memory = replay_allocations(build_training_step(model, plan));
    EXPECT_EQ(memory.at_peak[at(MemoryCategory::kOptimizerState)].count(), 2 * (model.parameters() - 512 * 512) * 4);
  }
}

TEST(Ddp, NoSyncReducesInTheLastMicroBatchOnly) {
  Plan plan = ddp_plan();
  plan.batch.accumulation = 3;
  plan.accumulation = AccumulationMode::kKeepUnsharded;
  const LibraryRun run = record(tiny_model(2), plan, 3);
  for (const LibraryEvent& event : run.steps[2].log) {
    if (event.kind == "all_reduce") {
      EXPECT_EQ(event.microbatch, 2);
    }
  }
  plan.accumulation = AccumulationMode::kReduceEach;
  const LibraryRun each = record(tiny_model(2), plan, 3);
  EXPECT_EQ(bytes_of(each.steps[2], "all_reduce").size(), 3 * bytes_of(run.steps[2], "all_reduce").size());
}

TEST(Ddp, TheSteadyStepIsTheThirdOne) {
  const ModelSpec model = tiny_model(4);
  const Plan plan = ddp_plan();
  const EventGraph steady = build_training_step(model, plan);
  EXPECT_EQ(steady.fingerprint(), record(model, plan, 3).steps[2].graph.fingerprint());
}

TEST(Ddp, BucketsOverlapBackwardAndAreCopiedBackInTheirOrder) {
  Plan plan = ddp_plan();
  plan.ddp.bucket_cap_mb = 3;
  const ModelSpec model = tiny_model(6);
  const EventGraph graph = build_training_step(model, plan);
  const std::int64_t buckets = count(graph, EventKind::kAllReduce);
  ASSERT_GT(buckets, 3);
  EXPECT_EQ(count(graph, EventKind::kGradientCopyOut), buckets);
  EventId first_reduction = kNoEvent, last_backward = kNoEvent;
  std::vector<EventId> reductions;
  std::size_t copied = 0;
  for (std::size_t r = 0; r < graph.rows.size(); ++r) {
    const auto id = static_cast<EventId>(r);
    if (graph.rows[r].kind == EventKind::kAllReduce) reductions.push_back(id);
    if (graph.rows[r].kind == EventKind::kAllReduce && first_reduction < 0) first_reduction = id;
    if (graph.rows[r].kind == EventKind::kBackward) last_backward = id;
    if (graph.rows[r].kind == EventKind::kGradientCopyOut) {
      ASSERT_EQ(graph.waits_of(id).size(), 1U);
      EXPECT_EQ(graph.waits_of(id)[0], reductions[copied++]);
    }
  }
  EXPECT_LT(first_reduction, last_backward);
}

TEST(Ddp, ViewsSaveTheSecondCopyOfGradients) {
  const ModelSpec model = tiny_model(4);
  Plan plan = ddp_plan();
  const EventGraph copies = build_training_step(model, plan);
  plan.ddp.gradient_as_bucket_view = true;
  const EventGraph views = build_training_step(model, plan);
  EXPECT_EQ(count(views, EventKind::kGradientCopyOut), 0);
  EXPECT_LT(peak_allocated(views).count(), peak_allocated(copies).count());
}

// Rajbhandari et al., ZeRO, figure 1: 7.5 billion parameters take 120 GB without ZeRO, 16 bytes
// each. DDP in fp32 with views: 4 of the parameter, 4 of its gradient in the bucket, 8 of Adam.
TEST(Ddp, ModelStatesAreSixteenBytesAParameter) {
  Plan plan = ddp_plan();
  plan.ddp.gradient_as_bucket_view = true;
  const ModelSpec model = tiny_model(4);
  const EventGraph graph = build_training_step(model, plan);
  std::int64_t held = 0;
  for (const std::int32_t id : graph.persistent) {
    const Buffer buffer = graph.buffer(id);
    if (!buffer.on_host) held += buffer.bytes.count();
  }
  const std::int64_t rounding = 512 * 4 * (trained_parameters(model) + 4);
  EXPECT_GE(held, 16 * model.parameters());
  EXPECT_LE(held, 16 * model.parameters() + rounding);
}

TEST(Ddp, ZeroRedundancyOptimizerHoldsItsShareAndBroadcastsEveryParameter) {
  const ModelSpec model = tiny_model(4);
  Plan plan = ddp_plan();
  plan.ddp.zero_redundancy_optimizer = true;
  const LibraryRun run = record(model, plan, 3);
  EXPECT_EQ(static_cast<std::int64_t>(bytes_of(run.steps[2], "broadcast").size()), trained_parameters(model));
  EXPECT_EQ(sum(bytes_of(run.steps[2], "broadcast")), model.parameters() * 4);
  const auto states = [](const EventGraph& graph) {
    std::int64_t bytes = 0;
    for (const std::int32_t id : graph.persistent) {
      const Buffer buffer = graph.buffer(id);
      const bool is_state = buffer.category == MemoryCategory::kOptimizerState;
      bytes += is_state && !buffer.on_host ? buffer.bytes.count() : 0;
    }
    return bytes;
  };
  const std::int64_t share = states(run.steps[2].graph);
  plan.ddp.zero_redundancy_optimizer = false;
  EXPECT_LT(4 * share, states(build_training_step(model, plan)));
}

// Autocast keeps parameters and gradients in fp32 and holds the casts of a layer's matrices from
// its forward to its backward; bf16_compress_hook halves what is sent.
TEST(Ddp, DtypesOfMixedPrecision) {
  const ModelSpec model = tiny_model(4);
  Plan plan = ddp_plan();
  plan.param_dtype = DType::kBf16;
  const LibraryRun autocast = record(model, plan, 3);
  EXPECT_EQ(sum(bytes_of(autocast.steps[2], "all_reduce")), model.parameters() * 4);
  EXPECT_GT(count(autocast.steps[2].graph, EventKind::kQuantize), 0);
  plan.reduce_dtype = DType::kBf16;
  const LibraryRun compressed = record(model, plan, 3);
  EXPECT_EQ(sum(bytes_of(compressed.steps[2], "all_reduce")), model.parameters() * 2);
  plan.ddp.mixed_precision = DdpOptions::MixedPrecision::kParameters;
  const LibraryRun copies = record(model, plan, 3);
  EXPECT_EQ(sum(bytes_of(copies.steps[2], "all_reduce")), model.parameters() * 2);
}

// Everything that a step allocates it frees, in every variant.
TEST(Ddp, AStepLeavesNothingBehind) {
  for (const bool view : {false, true}) {
    for (const std::int64_t accumulation : {1, 3}) {
      for (const DType compute : {DType::kFp32, DType::kBf16}) {
        Plan plan = ddp_plan();
        plan.ddp.gradient_as_bucket_view = view;
        plan.batch.accumulation = accumulation;
        plan.param_dtype = compute;
        plan.recompute.value = accumulation == 3 ? Recompute::kFull : Recompute::kNone;
        const EventGraph graph = build_training_step(tiny_model(3), plan);
        // Fails where a buffer is freed twice or never.
        EXPECT_EQ(replay_allocations(graph).peak, peak_allocated(graph)) << view << accumulation << to_string(compute);
      }
    }
  }
}

}
}
