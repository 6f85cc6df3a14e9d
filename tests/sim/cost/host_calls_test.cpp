#include "sim/cost/host_calls.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sim/graph/training_step.h"
#include "tests/support/fixtures.h"

namespace foreshard::host_calls_test {
namespace {

std::int64_t of(const HostCounts& counts, HostCall call) { return counts[at(call)]; }

HostCounts of_step(const EventGraph& graph) {
  HostCounts sum{};
  for (const Row& row : graph.rows) {
    const HostCounts counts = host_calls(graph, graph.works[row.work]);
    for (std::size_t c = 0; c < kHostCalls; ++c) sum[c] += counts[c];
  }
  return sum;
}

HostCounts of_step(const ModelSpec& model, const Plan& plan) { return of_step(build_training_step(model, plan)); }

TEST(HostCalls, ParametersAreClippedAndUpdatedOnceWhateverTheAccumulation) {
  const ModelSpec model = tiny_model(2);
  Plan plan = tiny_plan();
  std::int64_t parameters = 0;
  for (const LayerInstance& layer : model.order) {
    parameters += static_cast<std::int64_t>(model.kinds[at(layer.kind)].parameters.size());
  }
  const HostCounts once = of_step(model, plan);
  EXPECT_EQ(of(once, HostCall::kUpdatedTensor), parameters);
  EXPECT_EQ(of(once, HostCall::kStep), 1);
  plan.batch.accumulation = 3;
  const HostCounts thrice = of_step(model, plan);
  EXPECT_EQ(of(thrice, HostCall::kUpdatedTensor), parameters);
  for (HostCall call :
      {HostCall::kForwardProduct, HostCall::kForwardAttention, HostCall::kBackwardProduct, HostCall::kHook}) {
    EXPECT_EQ(of(thrice, call), 3 * of(once, call)) << to_string(call);
  }
}

TEST(HostCalls, CheckpointingIssuesTheForwardOfItsBlocksAgain) {
  Plan plan = tiny_plan();
  const HostCounts kept = of_step(tiny_model(2), plan);
  plan.recompute = {Recompute::kFull, {}};
  const HostCounts again = of_step(tiny_model(2), plan);
  EXPECT_EQ(of(kept, HostCall::kRecomputed), 0);
  EXPECT_EQ(of(again, HostCall::kRecomputed), 2);  // a block is one, whatever is in it
  Plan cut = plan;
  cut.mesh.tp = 2;
  EXPECT_EQ(of(of_step(tiny_model(2), cut), HostCall::kRecomputed), 2);
  EXPECT_EQ(of(again, HostCall::kForwardAttention), 2 * of(kept, HostCall::kForwardAttention));
  EXPECT_EQ(of(again, HostCall::kBackwardProduct), of(kept, HostCall::kBackwardProduct));
}

TEST(HostCalls, OnlyShardsOfFsdp2AreDTensors) {
  Plan plan = tiny_plan();
  EXPECT_EQ(of(of_step(tiny_model(2), plan), HostCall::kUpdatedShard),
      of(of_step(tiny_model(2), plan), HostCall::kUpdatedTensor));
  plan.runtime.kind = RuntimeKind::kFsdp1;
  EXPECT_EQ(of(of_step(tiny_model(2), plan), HostCall::kUpdatedShard), 0);
}

Plan megatron_plan() {
  Plan plan = tiny_plan();
  plan.runtime = {RuntimeKind::kMegatron, "0.20"};
  plan.mesh = {4, 1};
  return plan;
}

HostCurve unit_curve() {
  HostCurve curve;
  curve.calls.fill(1e-5);
  curve.per_driver_launch = 3e-6;
  return curve;
}

// Megatron-Core's layers and buckets call c10d; fully_shard's gathers go through Python for every parameter first.
TEST(HostCalls, LoopsTakeAnOperationForEachParameter) {
  Plan plan = tiny_plan();
  plan.optimizer.implementation = Optimizer::Implementation::kLoop;
  const EventGraph graph = build_training_step(tiny_model(2), plan);
  const auto work = std::ranges::find(graph.works, EventKind::kOptimizer, &Work::kind);
  EXPECT_EQ(work->launches, 8 * work->tensors);
  EXPECT_GT(host_seconds(graph, *work, unit_curve()).during, 20e-6 * work->tensors);
}

TEST(HostCalls, MegatronsCollectivesAreCallsOfC10d) {
  const ModelSpec model = tiny_model(2);
  Plan plan = megatron_plan();
  plan.mesh.tp = 2;
  const EventGraph graph = build_training_step(model, plan);
  const HostCounts counts = of_step(graph);
  const auto collectives = std::ranges::count_if(graph.rows, [](const Row& row) { return is_collective(row.kind); });
  EXPECT_GT(collectives, 0);
  EXPECT_EQ(of(counts, HostCall::kBucketRow), collectives);
  EXPECT_EQ(of(counts, HostCall::kCollective), 0);
}

// compile: blocks says which kernels Megatron-Core fuses; its modules are Python all the same. Of a product 56 us are
// te.Linear's and 112 the layer's, backward 26 and 12; other operations take 2.7 times as long as PyTorch's.
TEST(HostCalls, ModulesOfTransformerEngineAreNotCompiled) {
  Plan plan = megatron_plan();
  plan.compile = Compile::kBlocks;
  EventGraph graph = build_training_step(tiny_model(2), plan);
  const HostCounts counts = of_step(graph);
  EXPECT_EQ(of(counts, HostCall::kCompiled), 0);
  EXPECT_GT(of(counts, HostCall::kForwardProduct), 0);
  for (const Work& work : graph.works) {
    graph.host.engine = true;
    const double engine = host_seconds(graph, work, unit_curve()).during;
    graph.host.engine = false;
    double expected = host_seconds(graph, work, unit_curve()).during;
    if (work.kind == EventKind::kForward || work.kind == EventKind::kBackward) {
      const bool forward = work.kind == EventKind::kForward;
      expected = 3e-6 * work.launches;
      for (const Kernel& kernel : graph.kernels_of(work)) {
        expected += kernel.kind == KernelKind::kGemm        ? (forward ? 168e-6 : 38e-6)
                    : kernel.kind == KernelKind::kAttention ? (forward ? 100e-6 : 30e-6)
                                                            : 2.7e-5;
      }
    }
    EXPECT_NEAR(engine, expected, 1e-12) << to_string(work.kind);
  }
}

// Megatron-Core's checkpoint is one function of autograd's: 79 us, and what runs again.
TEST(HostCalls, MegatronCoresCheckpointIsNoHookOfEachOperation) {
  EventGraph graph = {.host = {.python = true, .engine = true}};
  graph.kernels.resize(3);
  Work work = {.kind = EventKind::kRecompute, .kernels_end = 3};
  for (const bool begins : {false, true}) {
    work.begins = begins;
    EXPECT_EQ(of(host_calls(graph, work), HostCall::kRecomputed), 0);
    EXPECT_NEAR(host_seconds(graph, work, unit_curve()).during, 2.7 * 3 * 1e-5 + (begins ? 79e-6 : 0), 1e-12);
  }
}

// A pass is one, whatever collectives its loss over tp is cut by.
TEST(HostCalls, AMicroBatchIsOnePass) {
  Plan plan = megatron_plan();
  plan.batch.accumulation = 3;
  for (const std::int64_t tp : {1, 2}) {
    plan.mesh.tp = tp;
    EXPECT_EQ(of(of_step(tiny_model(2), plan), HostCall::kPass), 3) << tp;
  }
}

// Experts' products are launched one by one, from C++.
TEST(HostCalls, GroupsAreLaunchedOneByOne) {
  EventGraph graph = {.host = {.python = true, .engine = true}};
  Kernel product, other;
  product.kind = KernelKind::kGemm;
  product.groups = 16;
  other.kind = KernelKind::kMemory;
  graph.kernels = {other, product, other};
  Work work = {.launches = 3, .kernels_end = 3};
  // Two operations, a product, three launches, 15 more of the groups.
  EXPECT_NEAR(host_seconds(graph, work, unit_curve()).during, 2 * 2.7e-5 + 56e-6 + 15 * 13e-6 + (3 + 15) * 3e-6, 1e-12);
  // In fp8 each group's rows are cast first, with four kernels; backward the two products of a layer cast one gradient.
  graph.host.cast_launches = 4;
  graph.kernels[1].fp8 = true;
  EXPECT_NEAR(host_seconds(graph, work, unit_curve()).during,
      2 * 2.7e-5 + 2 * 56e-6 + 15 * (13e-6 + 9e-6 + 4 * 4e-6) + (3 + 15 * 5) * 3e-6, 1e-12);
  graph.kernels = {product, product, other};
  for (Kernel& kernel : graph.kernels) {
    kernel.fp8 = true;
    kernel.pass = Pass::kBackward;
  }
  EXPECT_NEAR(host_seconds(graph, work, unit_curve()).during,
      2.7e-5 + 2 * 2 * 26e-6 + 15 * (2 * 13e-6 + 9e-6 + 4 * 4e-6) + (3 + 15 * 6) * 3e-6, 1e-12);
}

// A product and a norm take 65 us more each, twice as long on a processor half as fast; products of
// groups, other operations, layers without tensor parallelism and a compiler's kernels nothing.
TEST(HostCalls, ProductsAndNormsOfTensorParallelismWorkOnDTensors) {
  EventGraph graph = {.host = {.python = true, .dtensors = true}};
  Kernel product, grouped, norm, other;
  product.kind = grouped.kind = KernelKind::kGemm;
  grouped.groups = 16;
  norm.memory_class = MemoryClass::kNormForward;
  graph.kernels = {norm, product, other, grouped};
  Work work = {.kernels_end = 4};
  HostCurve curve = unit_curve();
  curve.processor = 2;
  const double plain = host_seconds(graph, work, curve).during;
  EXPECT_NEAR(plain, 2 * 4 * 1e-5, 1e-12);
  graph.communicators.resize(2);
  graph.communicators.back().name = "tp";
  EXPECT_NEAR(host_seconds(graph, work, curve).during, plain + 2 * 2 * 65e-6, 1e-12);
  work.kind = EventKind::kRecompute;  // under checkpointing's hooks
  EXPECT_NEAR(host_seconds(graph, work, curve).during, plain + 2 * 2 * 150e-6, 1e-12);
  graph.host.compiled = true;
  EXPECT_NEAR(host_seconds(graph, work, curve).during, plain, 1e-12);
}

// All of a dense block is one call and one launch; of the whole iteration the optimizer is left.
TEST(HostCalls, CudaGraphsTakeTheHostOneCall) {
  Plan plan = megatron_plan();
  plan.megatron.cuda_graphs = MegatronOptions::CudaGraphs::kModules;
  const EventGraph modules = build_training_step(tiny_model(2), plan);
  std::int64_t captured = 0;
  for (const Row& row : modules.rows) captured += modules.works[row.work].captured ? 1 : 0;
  EXPECT_EQ(of(of_step(modules), HostCall::kCompiled), captured);
  EXPECT_GE(captured, 2 * 2);  // two blocks, forward and backward
  plan.megatron.cuda_graphs = MegatronOptions::CudaGraphs::kIteration;
  const EventGraph whole = build_training_step(tiny_model(2), plan);
  const HostCounts counts = of_step(whole);
  EXPECT_EQ(of(counts, HostCall::kForwardProduct) + of(counts, HostCall::kPass), 0);
  EXPECT_EQ(of(counts, HostCall::kStep), 1);
  for (const Work& work : whole.works) {
    if (work.kind != EventKind::kForward && work.kind != EventKind::kBackward) continue;
    EXPECT_EQ(host_seconds(whole, work, unit_curve()).during, 0);
  }
}

TEST(HostCalls, TheEngineCallsNothingOfPython) {
  Plan plan = tiny_plan();
  plan.runtime = {RuntimeKind::kNative, "1"};
  EXPECT_EQ(of_step(tiny_model(2), plan), HostCounts{});
}

TEST(HostCalls, SecondsFollowTheProcessorAndTheDriver) {
  const EventGraph graph = build_training_step(tiny_model(2), tiny_plan());
  HostCurve curve;
  curve.calls.fill(1e-5);
  curve.processor = 2;
  curve.per_driver_launch = 3e-6;
  for (const Work& work : graph.works) {
    const HostCounts counts = host_calls(graph, work);
    std::int64_t all = 0;
    for (const std::int64_t count : counts) all += count;
    const HostSeconds seconds = host_seconds(graph, work, curve);
    EXPECT_DOUBLE_EQ(seconds.before, 2e-5 * work.hooks);
    EXPECT_NEAR(seconds.before + seconds.during, 2e-5 * static_cast<double>(all) + 3e-6 * work.launches, 1e-12);
  }
}

// 50 us a hook where one of fully_shard takes 256, 52 a collective where a unit's takes 172: docs/host.md.
TEST(HostCalls, DeepSpeedsHooksAndCollectivesAreThoseOfModules) {
  Plan plan = tiny_plan();
  plan.runtime = {RuntimeKind::kZero3, "0.19"};
  const EventGraph graph = build_training_step(tiny_model(2), plan);
  HostCurve curve;
  curve.calls[at(HostCall::kHook)] = 256.4e-6;
  curve.calls[at(HostCall::kCollective)] = 171.7e-6;
  curve.processor = 2;
  std::int64_t hooks = 0, collectives = 0;
  for (const Work& work : graph.works) {
    hooks += work.hooks;
    const std::int64_t count = is_collective(work.kind) ? 1 : 0;
    collectives += count;
    const HostSeconds seconds = host_seconds(graph, work, curve);
    EXPECT_NEAR(seconds.before, 100e-6 * work.hooks, 1e-12);
    EXPECT_NEAR(seconds.during, 104e-6 * static_cast<double>(count), 1e-12);
  }
  EXPECT_GT(hooks, 0);
  EXPECT_GT(collectives, 0);
}

}
}
