// What whole steps reserve, through the allocator.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>

#include "models/layers/variants.h"
#include "sim/memory/allocation_log.h"
#include "sim/memory/memory_profile.h"
#include "sim/memory/reserved_forecast.h"
#include "sim/spec/checks/plan_check.h"
#include "tests/support/generators.h"

namespace foreshard {
namespace {

RC_GTEST_PROP(ReservedProperty, AllocatedIsAtLeastTheReplayedPeakAndReservedHoldsIt, ()) {
  const RandomStep r = random_step();
  const ReservedProfile p = replay_reserved(r.graph, {}, DeviceMemory::unlimited());
  RC_ASSERT(!p.out_of_memory);
  RC_ASSERT(p.steady.peak_allocated >= peak_allocated(r.graph));  // blocks that were not split
  RC_ASSERT(p.steady.peak_active == p.steady.peak_allocated);     // nothing waits for events
  RC_ASSERT(p.steady.peak_reserved >= p.steady.peak_active);
  RC_ASSERT(p.peak_reserved >= p.steady.peak_reserved);
  RC_ASSERT(p.first.peak_allocated <= p.steady.peak_allocated);  // no optimizer state yet
  RC_ASSERT(p.steady.fragmentation >= 0);
  RC_ASSERT(p.steady.fragmentation < 1);
  std::int64_t calls = 0;
  Bytes taken;
  for (const HostStall& stall : p.first_stalls) {
    calls += stall.device_allocs;
    taken += stall.allocated;
  }
  RC_ASSERT(calls == p.first.device_allocs);
  RC_ASSERT(taken == p.first.reserved_after);  // without a limit nothing is given back
}

RC_GTEST_PROP(ReservedProperty, ADeviceAsLargeAsWhatIsReservedSeesNoRetry, ()) {
  const RandomStep r = random_step();
  AllocatorSettings settings = {.expandable_segments = *rc::gen::arbitrary<bool>()};
  const Bytes peak = replay_reserved(r.graph, settings, DeviceMemory::unlimited()).peak_reserved;
  const DeviceMemory same{DeviceMemory::unlimited().total, peak};
  const ReservedProfile enough = replay_reserved(r.graph, settings, same);
  RC_ASSERT(!enough.out_of_memory);
  RC_ASSERT(enough.stats.num_alloc_retries == 0);
  RC_ASSERT(enough.peak_reserved == peak);
  // With a byte less it has to retry, or fails.
  const DeviceMemory less{same.total, peak - Bytes(1)};
  RC_ASSERT(replay_reserved(r.graph, settings, less).stats.num_alloc_retries > 0);
}

EventGraph without_parts(EventGraph graph) {
  for (Buffer& buffer : graph.buffers) buffer.parts = -1;
  return graph;
}

// Parameters are tensors of their own, and no byte is lost by dividing a unit's buffer among them.
// Between steps only persistent buffers are there.
RC_GTEST_PROP(ReservedProperty, AUnitsParametersAreAllocatedOneByOne, ()) {
  const RandomStep r = random_step();
  const DeviceMemory memory = DeviceMemory::unlimited();
  const ReservedProfile apart = replay_reserved(r.graph, {}, memory);
  const ReservedProfile whole = replay_reserved(without_parts(r.graph), {}, memory);
  const Bytes at_start = replay_allocations(r.graph).at_start;
  RC_ASSERT(apart.stats.all.requested_bytes.current == at_start.count());
  RC_ASSERT(whole.stats.all.requested_bytes.current == at_start.count());
  const auto on_device =
      std::ranges::count_if(r.graph.persistent, [&](std::int32_t id) { return !r.graph.buffer(id).on_host; });
  RC_ASSERT(whole.stats.all.allocation.current == on_device);
  const bool has_parts = r.plan.runtime.kind != RuntimeKind::kNative;
  RC_ASSERT(has_parts == (apart.stats.all.allocation.current > whole.stats.all.allocation.current));
}

// The traced step's entries add up to the profile's steady step.
RC_GTEST_PROP(ReservedProperty, TheTraceOfAStepReachesItsPeak, ()) {
  const RandomStep r = random_step();
  const ReservedProfile p = replay_reserved(r.graph, {}, DeviceMemory::unlimited());
  const TracedStep step = trace_step(r.graph, {}, DeviceMemory::unlimited(), p.steady_step - 1);
  std::int64_t allocs = 0, frees = 0;
  EventId row = kNoEvent;
  for (const TracedAction& action : step.actions) {
    allocs += action.entry.action == AllocatorTraceEntry::Action::kAlloc;
    frees += action.entry.action == AllocatorTraceEntry::Action::kFreeCompleted;
    RC_ASSERT(action.row >= row);  // host order
    row = action.row;
    RC_ASSERT(action.buffer >= 0);
    RC_ASSERT(action.buffer < r.graph.buffer_count());
  }
  RC_ASSERT(p.steady_step == 1 || allocs == frees);
  RC_ASSERT(!step.segments.empty());
}

// What libraries take stays allocated, so every step's peak carries it; it is taken once, in
// step 1.
RC_GTEST_PROP(ReservedProperty, LibrariesKeepWhatTheyTake, ()) {
  const RandomStep r = random_step();
  const auto has = [&](EventKind kind) {
    return std::ranges::any_of(r.graph.rows, [&](const auto& row) { return row.kind == kind; });
  };
  RC_PRE(has(EventKind::kForward) && has(EventKind::kBackward));
  const Bytes each(std::int64_t{32} << 20);
  const LibraryBuffers library = {{each}, {each, Stream::kCompute, EventKind::kBackward}};
  const ReservedProfile with = replay_reserved(r.graph, {}, DeviceMemory::unlimited(), library);
  RC_ASSERT(with.steady.peak_active.count() >= peak_allocated(r.graph).count() + 2 * each.count());
  RC_ASSERT(with.steady.peak_reserved >= with.steady.peak_active);
  int taken = 0;
  const TracedStep first = trace_step(r.graph, {}, DeviceMemory::unlimited(), 0, library);
  for (const TracedAction& action : first.actions) {
    if (action.row == kNoEvent || action.buffer >= 0) continue;
    if (action.entry.action == AllocatorTraceEntry::Action::kAlloc) ++taken;
  }
  RC_ASSERT(taken == 2);
  const TracedStep second = trace_step(r.graph, {}, DeviceMemory::unlimited(), 1, library);
  for (const TracedAction& action : second.actions) RC_ASSERT(action.buffer >= 0);
}

// One bucket for all gradients, given back and cut anew when step 2 begins, once.
TEST(ReservedReplay, DdpAssignsItsBucketsInTheSecondStep) {
  Plan plan = tiny_plan();
  plan.runtime = {RuntimeKind::kDdp, newest_version(RuntimeKind::kDdp)};
  plan.mesh = {1, 8};
  plan.ddp.bucket_cap_mb = 0.001;
  const EventGraph graph = build_training_step(tiny_model(2), plan);
  ReplayInputs inputs;
  inputs.buckets = buckets_of(plan);
  const AllocationLog log = allocation_log(graph, {}, inputs.buckets);
  ASSERT_GT(log.rebuilt.size(), 2U);
  std::vector<std::int64_t> expected = {0};
  for (const std::int32_t tensor : log.rebuilt) {
    expected.push_back(log.bytes[at(tensor)]);
    expected.front() -= expected.back();
  }
  const auto before_rows = [&](int steps_before) {
    using Action = AllocatorTraceEntry::Action;
    std::vector<std::int64_t> sizes;  // negative: freed
    for (const TracedAction& a : trace_step(graph, {}, DeviceMemory::unlimited(), steps_before, inputs).actions) {
      if (a.row != kNoEvent) break;
      if (a.entry.action == Action::kAlloc) sizes.push_back(a.entry.size);
      if (a.entry.action == Action::kFreeRequested) sizes.push_back(-a.entry.size);
    }
    return sizes;
  };
  EXPECT_EQ(before_rows(0).back(), -expected.front());
  // Parameters, below 250 MiB in all, were sent in one piece.
  std::int64_t whole = 0;
  for (const std::int32_t t : log.before) {
    const Buffer buffer = graph.buffer(log.buffer[at(t)]);
    if (buffer.category != MemoryCategory::kShardedParam) continue;
    whole += log.bytes[at(t)];
  }
  const std::vector<std::int64_t> first = before_rows(0);
  const auto sent = std::find(first.begin(), first.end(), whole);
  ASSERT_NE(sent, first.end());
  EXPECT_EQ(*(sent + 1), -whole);
  EXPECT_EQ(before_rows(1), expected);
  EXPECT_TRUE(before_rows(2).empty());
  // Two micro-batches that each reduce: the second one's forward assigns them, in step 1.
  plan.batch.accumulation = 2;
  const EventGraph twice = build_training_step(tiny_model(2), plan);
  for (const TracedAction& a : trace_step(twice, {}, DeviceMemory::unlimited(), 1, inputs).actions) {
    EXPECT_NE(a.row, kNoEvent);
  }
  plan.ddp.find_unused_parameters = true;
  EXPECT_EQ(buckets_of(plan), Buckets::kFromTheStart);
}

// What is allocated before the first step; negative: freed.
std::vector<std::int64_t> sizes_before_steps(const EventGraph& graph) {
  std::vector<std::int64_t> sizes;
  for (const TracedAction& a : trace_step(graph, {}, DeviceMemory::unlimited(), 0).actions) {
    if (a.row != kNoEvent) break;
    if (a.entry.action == AllocatorTraceEntry::Action::kAlloc) sizes.push_back(a.entry.size);
    if (a.entry.action == AllocatorTraceEntry::Action::kFreeRequested) sizes.push_back(-a.entry.size);
  }
  return sizes;
}

// The parameters of a unit and the flat one that they make stand beside the shards of those before.
TEST(ReservedReplay, Fsdp1FlattensUnitAfterUnit) {
  Plan plan = tiny_plan();
  plan.runtime = {RuntimeKind::kFsdp1, newest_version(RuntimeKind::kFsdp1)};
  const EventGraph graph = build_training_step(tiny_model(2), plan);
  const std::vector<std::int64_t> sizes = sizes_before_steps(graph);
  const auto rounded = [](std::int64_t bytes) { return (bytes + 511) / 512 * 512; };
  auto next = sizes.begin();
  for (std::size_t u = 1; u <= graph.units.size(); ++u) {  // the root is the last
    const Unit& unit = graph.units[u % graph.units.size()];
    const std::int64_t flat = rounded(unit.padded_numel() * 4);
    const std::array<std::int64_t, 3> shards = {flat, rounded(unit.shard_numel * 4), -flat};
    const auto made = std::search(next, sizes.end(), shards.begin(), shards.end());
    ASSERT_NE(made, sizes.end()) << unit.name;
    std::int64_t parameters = 0;
    for (; next != made; ++next) parameters += std::max<std::int64_t>(0, *next);
    EXPECT_NEAR(static_cast<double>(parameters), static_cast<double>(unit.numel * 4), 4096.0);
    next = made + 3;
  }
}

// Of ZeRO-3's partitions a cast and its copy, the master, are made before the first step, and the
// largest gradient once (stage3.py, _create_fp32_partitions and initialize_optimizer_states).
TEST(ReservedReplay, Zero3HasItsMastersBeforeTheFirstStep) {
  Plan plan = tiny_plan();
  plan.runtime = {RuntimeKind::kZero3, newest_version(RuntimeKind::kZero3)};
  const EventGraph graph = build_training_step(tiny_model(2), plan);
  const std::vector<std::int64_t> sizes = sizes_before_steps(graph);
  const auto master =
      std::ranges::find_if(graph.buffers, [](const Buffer& b) { return b.role == BufferRole::kMaster; });
  ASSERT_NE(master, graph.buffers.end());
  const std::int64_t bytes = master->bytes.count();
  const std::array<std::int64_t, 5> made = {bytes, bytes, -bytes, bytes, -bytes};
  EXPECT_NE(std::search(sizes.begin(), sizes.end(), made.begin(), made.end()), sizes.end());
}

// Gradients and labels live until the next step drops them first.
// cuBLAS' workspaces, 32 MiB each, are taken behind what the first product of forward and of
// backward makes, not in front of the first layer, which is an embedding; a loss by tiles makes
// the first of backward.
TEST(ReservedReplay, AWorkspaceIsTakenBehindTheFirstProductsResult) {
  const ModelSpec model = tiny_model(1);
  Plan plan = tiny_plan();
  EventGraph graph = build_training_step(model, plan);
  const auto taken = [&](EventKind kind) {
    const AllocationLog log = allocation_log(graph, {{Bytes(32 << 20), Stream::kCompute, kind}});
    EXPECT_EQ(log.library.size(), 1U);
    // What is allocated just before it.
    const std::int32_t made = log.actions[log.library.at(0).action - 1];
    EXPECT_GE(made, 0);
    const std::int32_t buffer = log.buffer[at(made)];
    const LayerExecution& e = *graph.execution_of(buffer);
    return graph.program(e).slots[at(buffer - e.first_buffer)].name;
  };
  EXPECT_EQ(taken(EventKind::kForward), "q");
  EXPECT_EQ(taken(EventKind::kBackward), "lm_head.weight.grad");
  plan.loss.kind = Loss::Kind::kTiledLinear;
  graph = build_training_step(with_variants(model, plan), plan);
  EXPECT_EQ(taken(EventKind::kBackward), "tile of logits");
}

// One token a rank: next to nothing but parameters. A model that was whole on the device leaves as
// much behind as it has; units that came one after the other leave the largest, at least.
TEST(ReservedReplay, WhatWasWholeBeforeItWasShardedStaysCached) {
  const ModelSpec model = tiny_model(2);
  Plan plan = tiny_plan();
  plan.batch = {8, 1, 1};
  const auto first = [&](BuiltOn place) {
    plan.built_on = place;
    return replay_reserved(build_training_step(model, plan), {}, DeviceMemory::unlimited())
        .first.reserved_after.count();
  };
  const std::int64_t device = first(BuiltOn::kDevice), host = first(BuiltOn::kHost);
  EXPECT_GE(device, model.parameters() * 4);
  EXPECT_GE(host, std::int64_t{4096} * 512 * 4);
  EXPECT_LE(host, device);
  EXPECT_LE(first(BuiltOn::kMeta), host);
}

TEST(ReservedReplay, AnEmptiedCacheIsTakenFromTheDriverAgain) {
  const ModelSpec model = tiny_model(2);
  Plan plan = tiny_plan();
  const auto steady = [&] {
    return replay_reserved(build_training_step(model, plan), {}, DeviceMemory::unlimited()).steady;
  };
  EXPECT_EQ(steady().device_frees, 0);
  const Bytes kept = steady().peak_reserved;
  plan.empties_cache = true;
  EXPECT_GT(steady().device_frees, 0);
  EXPECT_EQ(steady().device_frees, steady().device_allocs);
  EXPECT_LE(steady().peak_reserved, kept);
}

TEST(ReservedReplay, WhatAStepLeavesTheNextOneFrees) {
  Plan plan = tiny_plan();
  plan.step_frame = StepFrame::kTorchtitan;
  for (const std::int64_t accumulation : {1, 3, 0}) {
    plan.batch.accumulation = std::max<std::int64_t>(1, accumulation);
    plan.offload = accumulation == 0 ? Offload::kCpu : Offload::kNone;
    const EventGraph graph = build_training_step(tiny_model(2), plan);
    const ReservedProfile p = replay_reserved(graph, {}, DeviceMemory::unlimited());
    EXPECT_TRUE(p.repeats) << accumulation;
    EXPECT_GE(p.steady.peak_allocated, peak_allocated(graph)) << accumulation;
    EXPECT_EQ(p.stats.all.requested_bytes.current, replay_allocations(graph).at_start.count()) << accumulation;
  }
}

// Two GPUs that differ by one byte: one on which the plan's segments just fit, and one on which
// the allocator must give cached ones back. What it holds never exceeds what there is.
TEST(ForecastReserved, RetriesInsteadOfOutgrowingTheGpu) {
  const ModelSpec model = tiny_model(4);
  const Plan plan = tiny_plan();
  const EventGraph graph = build_training_step(model, plan);
  Cluster cluster = round_cluster(8);
  cluster.memory_outside_allocator = Bytes(0);
  cluster.gpu.memory = Bytes(std::int64_t{1} << 40);
  const ReservedForecast roomy = forecast_reserved(graph, plan, cluster);
  EXPECT_EQ(roomy.steady.device_allocs, 0);
  EXPECT_TRUE(roomy.stalls.empty());
  EXPECT_FALSE(roomy.first_stalls.empty());  // step 1 takes every segment from the driver
  EXPECT_GT(roomy.first.device_allocs, 0);
  cluster.gpu.memory = roomy.peak;
  EXPECT_EQ(forecast_reserved(graph, plan, cluster).peak, roomy.peak);
  for (Bytes memory = roomy.peak - Bytes(1); memory > peak_allocated(graph); memory = memory - Bytes(2 << 20)) {
    cluster.gpu.memory = memory;
    const ReservedForecast tight = forecast_reserved(graph, plan, cluster);
    if (tight.peak > memory) break;  // it runs out of memory for good, and says what it would want
    EXPECT_LE(tight.peak, memory);
    if (tight.retries_for_good) {
      EXPECT_GT(tight.steady.retries, 0);
      EXPECT_GT(tight.stalls.size(), 0U);
    }
  }
}

TEST(ForecastReserved, FollowsThePlansAllocatorSettings) {
  const ModelSpec model = tiny_model(4);
  Plan plan = tiny_plan();
  const EventGraph graph = build_training_step(model, plan);
  Cluster cluster = round_cluster(8);
  cluster.memory_outside_allocator = Bytes(0);
  cluster.gpu.memory = Bytes(std::int64_t{1} << 40);
  const Bytes usual = forecast_reserved(graph, plan, cluster).peak;
  plan.allocator = parse_alloc_conf("expandable_segments:True");
  const Bytes expandable = forecast_reserved(graph, plan, cluster).peak;
  EXPECT_GE(expandable, peak_allocated(graph));
  plan.allocator = parse_alloc_conf("roundup_power2_divisions:2");
  EXPECT_GT(forecast_reserved(graph, plan, cluster).peak, usual);
}

}
}
