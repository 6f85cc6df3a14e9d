// The engine's device half on the stand-in for a GPU: lanes, events, communicators between threads, paced collectives,
// steps issued ahead. Its arithmetic (ATen's operators) is another than that of CPU ranks (loops in a fixed order), so
// the two agree by tolerance; on one side, a plan that only says when things are done gives equal bits.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>

#include "exec/device/device_communicators.h"
#include "exec/device/host_accelerator.h"
#include "exec/engine/engine.h"
#include "models/layers/variants.h"
#include "sim/graph/training_step.h"
#include "tests/exec/engine/engine_runs.h"

namespace foreshard::device_engine_test {
namespace {

constexpr int kSteps = 3;

Plan device_plan(std::int64_t shard, std::int64_t replicate = 1) {
  Plan plan = small_plan(shard, replicate);
  plan.host = HostKind::kFeedsDevice;
  plan.reduction_order = ReductionOrder::kLibrary;
  return plan;
}

// fp32 sums in another order: a few units in the last place per operation, 3 steps of AdamW.
constexpr double kFp32 = 1e-4;

void expect_near(const EngineRun& a, const EngineRun& b, double tolerance) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (std::size_t s = 0; s < a.losses.size(); ++s) {
    EXPECT_NEAR(a.losses[s], b.losses[s], tolerance * b.losses[s]) << "step " << s + 1;
    EXPECT_NEAR(a.norms[s], b.norms[s], 10 * tolerance * b.norms[s]) << "step " << s + 1;
  }
  EXPECT_LT(relative_difference(a, b), tolerance);
}

class DeviceFamilies : public testing::TestWithParam<const char*> {};

TEST_P(DeviceFamilies, TrainAsOnTheCpu) {
  const ModelSpec model = small_model(GetParam());
  const Plan plan = device_plan(2);
  const EngineRun cpu = run_in_threads(model, plan, kSteps);
  const EngineRun device = run_in_threads(model, plan, kSteps, true, Feeds::kStandin);
  expect_near(device, cpu, kFp32);
  EXPECT_EQ(device.arena, cpu.arena);
  // What stays: tokens, labels and the loss of two steps' micro-batches, 512 bytes each.
  EXPECT_EQ(device.tensors_held, 2 * plan.batch.accumulation * 3 * 512);
}
INSTANTIATE_TEST_SUITE_P(DeviceEngine, DeviceFamilies, testing::Values("llama", "gpt2", "qwen3", "opt"));

TEST(DeviceEngine, TiedTablesTrainAsOnTheCpu) {
  const ModelSpec model = small_model("llama", true);
  const Plan plan = fitted(device_plan(2), model);
  expect_near(run_in_threads(model, plan, kSteps, true, Feeds::kStandin), run_in_threads(model, plan, kSteps), kFp32);
}

// bf16 compute with fp32 masters: a loss of 4.6 is known to about 2^-8.
TEST(DeviceEngine, Bf16TrainsAsOnTheCpu) {
  const ModelSpec model = small_model("llama");
  Plan plan = device_plan(2);
  plan.param_dtype = DType::kBf16;
  for (const DType reduce : {DType::kFp32, DType::kBf16}) {
    plan.reduce_dtype = reduce;
    const EngineRun cpu = run_in_threads(model, plan, kSteps);
    const EngineRun device = run_in_threads(model, plan, kSteps, true, Feeds::kStandin);
    for (std::size_t s = 0; s < cpu.losses.size(); ++s) {
      EXPECT_NEAR(device.losses[s], cpu.losses[s], 0.02 * cpu.losses[s]);
    }
    // AdamW's first steps are signs of gradients: near zero these differ.
    EXPECT_LT(relative_difference(device, cpu), 0.1);
  }
}

// When things are gathered and dropped must not show.
TEST(DeviceEngine, SchedulesGiveEqualBits) {
  const ModelSpec model = small_model("llama");
  const EngineRun usual = run_in_threads(model, device_plan(4), kSteps, true, Feeds::kStandin);
  for (int variant = 0; variant < 7; ++variant) {
    Plan plan = device_plan(4);
    if (variant == 0) plan.prefetch = {0, 0};
    if (variant == 1) plan.prefetch = {2, 2};
    if (variant == 2) plan.reshard_after_forward.value = {Reshard::Kind::kNever, 0};
    if (variant == 3) plan.reshard_after_forward.value = {Reshard::Kind::kGroup, 2};
    if (variant == 4) plan.recompute.value = Recompute::kFull;
    if (variant == 5) plan.host_sync = HostSync::kStep;
    if (variant == 6) {
      plan.recompute.value = Recompute::kSelective;
      plan.recompute_keeps = SelectivePolicy::kDots;
    }
    const EngineRun run = run_in_threads(with_variants(model, plan), plan, kSteps, true, Feeds::kStandin);
    EXPECT_EQ(run.hash, usual.hash) << "variant " << variant;
    EXPECT_EQ(run.losses, usual.losses) << "variant " << variant;
  }
}

// Where shards, states and sums live between steps must not show either.
TEST(DeviceEngine, OffloadGivesEqualBits) {
  const ModelSpec model = small_model("llama");
  for (int variant = 0; variant < 8; ++variant) {
    Plan plan = device_plan(variant == 1 ? 1 : 2, variant == 2 ? 2 : 1);
    if (variant == 3) plan.param_dtype = DType::kBf16;
    if (variant == 4) plan.accumulation = AccumulationMode::kKeepUnsharded;
    if (variant == 5) plan.reshard_after_forward.value = {Reshard::Kind::kNever, 0};
    if (variant == 6) {
      plan.reshard_after_forward.value = {Reshard::Kind::kGroup, 2};
      plan.prefetch = {2, 2};
      plan.mesh = {4, 1};
      plan.batch.accumulation = 1;
    }
    if (variant == 7) {
      plan.optimizer.clip_norm.reset();
      plan.optimizer.kind = Optimizer::Kind::kSgd;
    }
    const EngineRun kept = run_in_threads(model, plan, kSteps, true, Feeds::kStandin);
    plan.offload = Offload::kCpu;
    const EngineRun run = run_in_threads(model, plan, kSteps, true, Feeds::kStandin);
    EXPECT_EQ(run.hash, kept.hash) << "variant " << variant;
    EXPECT_EQ(run.losses, kept.losses) << "variant " << variant;
    EXPECT_EQ(run.norms, kept.norms) << "variant " << variant;
    EXPECT_LT(run.arena, kept.arena) << "variant " << variant;
  }
}

// What changes from step to step (tokens, the step's number, its learning rate) is read from the
// device's memory, or a replayed step would repeat the one that was recorded.
TEST(DeviceEngine, ReplayedStepsGiveEqualBits) {
  const ModelSpec model = small_model("llama");
  for (int variant = 0; variant < 4; ++variant) {
    Plan plan = device_plan(1);
    plan.optimizer.warmup_steps = 6;
    if (variant == 1) plan.param_dtype = DType::kBf16;
    if (variant == 2) plan.host_sync = HostSync::kStep;
    if (variant == 3) {
      plan.optimizer.kind = Optimizer::Kind::kSgd;
      plan.recompute.value = Recompute::kFull;
    }
    const EngineRun eager = run_in_threads(model, plan, 9, false, Feeds::kStandin);
    const EngineRun replayed = run_in_threads(model, plan, 9, false, Feeds::kReplayed);
    EXPECT_EQ(replayed.hash, eager.hash) << "variant " << variant;
    EXPECT_EQ(replayed.losses, eager.losses) << "variant " << variant;
    EXPECT_EQ(replayed.norms, eager.norms) << "variant " << variant;
    EXPECT_NE(eager.losses.back(), eager.losses[7]);
  }
}

TEST(DevicePlans, WhatCannotBeRecordedIsRefused) {
  const auto alone = std::move(thread_worlds(1).front());
  const auto paced = paced_world(8);
  Plan plan = device_plan(1);
  EXPECT_FALSE(find_graph_problem(plan, *alone));
  EXPECT_FALSE(find_graph_problem(device_plan(8), *paced));
  plan.offload = Offload::kCpu;
  EXPECT_NE(find_graph_problem(plan, *alone)->find("offload: none"), std::string::npos);
  const auto threads = thread_worlds(2);
  EXPECT_NE(find_graph_problem(device_plan(2), *threads[0])->find("share a device"), std::string::npos);
  plan = small_plan(1);
  EXPECT_NE(find_graph_problem(plan, *alone)->find("CPU ranks"), std::string::npos);
}

TEST(DeviceEngine, ReplicasAndAccumulationTrainAsOnTheCpu) {
  const ModelSpec model = small_model("llama");
  for (const bool keeps : {false, true}) {
    Plan plan = device_plan(1, 2);
    if (keeps) plan.accumulation = AccumulationMode::kKeepUnsharded;
    expect_near(run_in_threads(model, plan, kSteps, true, Feeds::kStandin), run_in_threads(model, plan, kSteps), kFp32);
  }
  const Plan both = device_plan(2, 2);
  expect_near(run_in_threads(model, both, kSteps, true, Feeds::kStandin), run_in_threads(model, both, kSteps), kFp32);
}

TEST(HostAccelerator, RecordedWorkIsDoneAtEveryReplay) {
  const auto device = host_accelerator();
  device->enter(device->open_lane(false));
  int from = 1, to = 0;
  const DeviceGraph graph = device->capture([&] { device->copy(&to, &from, sizeof from); });
  EXPECT_EQ(to, 0);
  for (from = 5; from < 8; ++from) {
    device->replay(graph);
    EXPECT_EQ(to, from);
  }
  device->free_graph(graph);
}

// --- paced ranks ---

struct PacedRun {
  std::vector<MeasuredStep> steps;
  StepResult last;
};

std::vector<MicroBatch> batches_of(const Plan& plan, const ModelSpec& model) {
  std::vector<MicroBatch> batches(static_cast<std::size_t>(plan.batch.accumulation));
  for (MicroBatch& batch : batches) {
    batch.sequences = plan.batch.micro_batch;
    batch.sequence = plan.batch.sequence;
    batch.loss_scale = 1.0;
    batch.tokens = at::randint(model.vocabulary, {batch.count()}, at::kLong);
    batch.labels = at::randint(model.vocabulary, {batch.count()}, at::kLong);
  }
  return batches;
}

PacedRun run_paced(const Plan& plan, const Pacing& pacing, const EventGraph& graph, int steps, bool replays = false) {
  const ModelSpec model = small_model("llama");
  const auto device = host_accelerator();
  const auto world = paced_world(static_cast<int>(plan.mesh.world()));
  Engine engine(model, plan, graph, *world, {.device = device.get(), .pacing = &pacing, .graph = replays});
  engine.initialise();
  std::array<std::vector<MicroBatch>, 2> batches = {batches_of(plan, model), batches_of(plan, model)};
  PacedRun run;
  int pending = 0;
  const auto collect = [&] {
    run.last = engine.collect();
    run.steps.push_back(run.last.times);
    --pending;
  };
  for (int s = 0; s < steps; ++s) {
    engine.issue(s + 1, batches[static_cast<std::size_t>(s % 2)]);
    ++pending;
    while (pending > engine.ahead()) collect();
  }
  while (pending > 0) collect();
  return run;
}

Pacing all_last(const EventGraph& graph, Time duration) {
  Pacing pacing;
  pacing.durations.resize(graph.rows.size());
  pacing.ctas.assign(graph.rows.size(), 8);
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    if (is_collective(graph.rows[i].kind)) pacing.durations[i] = duration;
  }
  return pacing;
}

TEST(PacedEngine, CollectivesLastAsLongAsAsked) {
  const ModelSpec model = small_model("llama");
  Plan plan = device_plan(64);
  plan.batch.accumulation = 1;
  const EventGraph graph = build_training_step(model, plan);
  const Time asked = Time::ns(2'000'000);
  const PacedRun run = run_paced(plan, all_last(graph, asked), graph, 3);
  ASSERT_EQ(run.steps.size(), 3U);
  int collectives = 0;
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const Span& span = run.steps.back().spans[i];
    EXPECT_LE(span.start.nanoseconds(), span.arrive.nanoseconds());
    EXPECT_LE(span.arrive.nanoseconds(), span.end.nanoseconds());
    if (!is_collective(graph.rows[i].kind)) continue;
    ++collectives;
    // Never shorter by more than what a request is shortened by for the launch; a busy machine wakes a sleeper late.
    EXPECT_GT((span.end - span.arrive).seconds(), 0.7 * asked.seconds());
  }
  EXPECT_GT(collectives, 5);
}

TEST(PacedEngine, StepsFollowEachOther) {
  const ModelSpec model = small_model("llama");
  Plan plan = device_plan(8);
  plan.batch.accumulation = 1;
  const EventGraph graph = build_training_step(model, plan);
  for (const HostSync sync : {HostSync::kNone, HostSync::kStep}) {
    plan.host_sync = sync;
    const PacedRun run = run_paced(plan, all_last(graph, Time::ns(100'000)), graph, 5);
    ASSERT_EQ(run.steps.size(), 5U);
    for (std::size_t s = 0; s < run.steps.size(); ++s) {
      const MeasuredStep& step = run.steps[s];
      EXPECT_EQ(step.step, static_cast<std::int64_t>(s) + 1);
      EXPECT_GT(step.duration.nanoseconds(), 0);
      if (s == 0) continue;
      const MeasuredStep& before = run.steps[s - 1];
      EXPECT_NEAR(step.begin.seconds(), (before.begin + before.duration).seconds(), 1e-6);
    }
    EXPECT_TRUE(std::isfinite(run.last.losses.front()));
    EXPECT_GT(run.last.gradient_norm, 0);
  }
}

// A recorded step is given to the device at once, its rows run as ever.
TEST(PacedEngine, RecordedStepsAreTimedRowByRow) {
  const ModelSpec model = small_model("llama");
  Plan plan = device_plan(8);
  plan.batch.accumulation = 1;
  const EventGraph graph = build_training_step(model, plan);
  const Time asked = Time::ns(1'000'000);
  const PacedRun run = run_paced(plan, all_last(graph, asked), graph, 8, true);
  ASSERT_EQ(run.steps.size(), 8U);
  const MeasuredStep& eager = run.steps.front();
  EXPECT_LT(eager.spans.front().issue, eager.spans.back().issue);
  const MeasuredStep& replayed = run.steps.back();
  EXPECT_EQ(replayed.spans.front().issue, replayed.spans.back().issue);
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const Span& span = replayed.spans[i];
    EXPECT_LE(span.start, span.arrive);
    EXPECT_LE(span.arrive, span.end);
    EXPECT_LE(span.end, replayed.duration);
    if (i > 0) {
      EXPECT_GE(span.start, replayed.spans[i - 1].start);
    }
    if (is_collective(graph.rows[i].kind)) {
      EXPECT_GT((span.end - span.arrive).seconds(), 0.7 * asked.seconds());
    }
  }
}

// The own shard everywhere: every parameter of the gathered unit is one that exists.
TEST(PacedEngine, EchoesGiveRealNumbers) {
  const auto device = host_accelerator();
  const auto world = paced_world(4);
  const auto communicator = make_device_communicator({*device, *world, "shard/4/0", {0, 1, 2, 3}, true});
  device->enter(device->open_lane(false));
  std::vector<float> whole = {1, 2, 0, 0, 0, 0, 0, 0};
  communicator->pace(0, 4);
  communicator->all_gather(whole.data(), 2 * sizeof(float), DType::kFp32);
  EXPECT_EQ(whole, (std::vector<float>{1, 2, 1, 2, 1, 2, 1, 2}));
  std::vector<float> shard(2);
  communicator->reduce_scatter(whole.data(), shard.data(), 2, DType::kFp32);
  EXPECT_EQ(shard, (std::vector<float>{4, 8}));
}

TEST(DevicePlans, WhatADeviceCannotDoIsRefused) {
  const ModelSpec model = small_model("llama");
  EXPECT_FALSE(find_device_problem(model, device_plan(2), false));
  Plan plan = device_plan(2);
  plan.reduction_order = ReductionOrder::kMicrobatch;
  EXPECT_NE(find_device_problem(model, plan, false)->find("reduction_order: library"), std::string::npos);
  plan = device_plan(2);
  plan.master_dtype = DType::kBf16;
  EXPECT_TRUE(find_device_problem(model, plan, false));
  EXPECT_TRUE(find_device_problem(model, device_plan(1), true));
}

}
}
