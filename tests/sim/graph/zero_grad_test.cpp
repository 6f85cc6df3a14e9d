// Optimizer::zero_grad: gradients that the step before leaves live through the first forward, and no longer.
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/graph/training_step.h"
#include "sim/memory/memory_profile.h"
#include "sim/memory/reserved.h"
#include "tests/support/fixtures.h"

namespace foreshard::zero_grad_test {
namespace {

std::int64_t gradient_bytes(const EventGraph& graph) {
  std::int64_t bytes = 0;
  for (const std::int32_t id : graph.persistent) {
    const Buffer buffer = graph.buffer(id);
    bytes += buffer.category == MemoryCategory::kShardedGrad ? buffer.bytes.count() : 0;
  }
  return bytes;
}

TEST(ZeroGrad, AfterForwardLeavesGradientsToTheNextStepsForward) {
  const ModelSpec model = tiny_model(3);
  for (const RuntimeKind runtime : {RuntimeKind::kFsdp2, RuntimeKind::kFsdp1, RuntimeKind::kDdp}) {
    for (const std::int64_t microbatches : {1, 3, 0}) {  // 0: one, on one rank
      Plan plan = tiny_plan();
      if (microbatches == 0) plan.mesh.shard = 1;
      plan.runtime = {runtime, "2.11"};
      if (runtime == RuntimeKind::kDdp) plan.mesh = {1, plan.mesh.shard};
      plan.batch.accumulation = std::max<std::int64_t>(1, microbatches);
      const EventGraph usual = build_training_step(model, plan);
      plan.optimizer.zero_grad = Optimizer::ZeroGrad::kAfterForward;
      const EventGraph late = build_training_step(model, plan);
      const std::int64_t left = gradient_bytes(late);
      // fp32, of shards that may be padded; of DDP, whose buckets hold them a second time, whole.
      const std::int64_t all = 4 * model.parameters() / plan.mesh.shard;
      EXPECT_GE(left, all);
      EXPECT_LT(left, all + all / 10);
      EXPECT_EQ(gradient_bytes(usual), 0);

      const MemoryProfile a = replay_allocations(usual), b = replay_allocations(late);
      ASSERT_EQ(a.samples.size(), b.samples.size());
      EXPECT_EQ((b.at_start - a.at_start).count(), left);
      EXPECT_EQ(b.samples.back().now, b.at_start);  // a step leaves what it found
      EXPECT_TRUE(replay_reserved(late, {}, DeviceMemory::unlimited()).repeats);
      bool in_forward = true;
      for (std::size_t r = 0; r < usual.rows.size(); ++r) {
        in_forward &= usual.rows[r].kind != EventKind::kLoss;
        const bool is_last =
            r + 1 == usual.rows.size() || usual.rows[r].kind == EventKind::kOptimizer;  // which dropped them
        if (usual.rows[r].kind == EventKind::kLoss || is_last) continue;
        EXPECT_EQ((b.samples[r].now - a.samples[r].now).count(), in_forward ? left : 0) << r;
      }
    }
  }
}

// What a step was seen to hold, and the passes that it takes (SGD's: six tensors).
TEST(OwnOptimizers, HoldAndMoveWhatTheyWereSeenTo) {
  const ModelSpec model = tiny_model(3);
  for (const RuntimeKind runtime : {RuntimeKind::kFsdp2, RuntimeKind::kFsdp1, RuntimeKind::kDdp}) {
    Plan plan = tiny_plan();
    plan.runtime = {runtime, "2.11"};
    if (runtime == RuntimeKind::kDdp) plan.mesh = {1, plan.mesh.shard};
    plan.optimizer.kind = Optimizer::Kind::kMomentum;
    std::vector<std::int64_t> held, moved;
    for (const int times : {0, 2}) {
      plan.optimizer.temporaries = times;
      plan.optimizer.passes = 6 * times;
      const EventGraph graph = build_training_step(model, plan);
      held.push_back(0), moved.push_back(0);
      for (const Buffer& buffer : graph.buffers) {
        if (buffer.category == MemoryCategory::kOptimizerTemp) held.back() += buffer.bytes.count();
      }
      for (const Row& row : graph.rows) {
        if (row.kind != EventKind::kOptimizer) continue;
        for (const Kernel& kernel : graph.kernels_of(graph.works[at(row.work)])) moved.back() += kernel.bytes.count();
      }
    }
    const std::int64_t all = 4 * model.parameters() / plan.mesh.shard;
    EXPECT_GE(held[1] - held[0], 2 * all);
    EXPECT_LT(held[1] - held[0], 2 * all + all / 4);
    EXPECT_EQ(moved[1], 2 * moved[0]);
  }
}

// Batch::prefetched: all of the step's batches are there throughout, beside the next one's first.
TEST(ZeroGrad, ABatchThatIsPrefetchedLivesThroughTheStep) {
  const ModelSpec model = tiny_model(3);
  for (const RuntimeKind runtime : {RuntimeKind::kFsdp2, RuntimeKind::kFsdp1, RuntimeKind::kDdp, RuntimeKind::kZero3}) {
    Plan plan = tiny_plan();
    plan.runtime.kind = runtime;
    if (runtime == RuntimeKind::kDdp) plan.mesh = {1, plan.mesh.shard};
    plan.batch.accumulation = 5;
    const auto [sequence, samples] = std::pair(plan.batch.sequence, plan.batch.micro_batch);
    const Bytes one =
        allocated_size(input_bytes(model, samples, sequence)) + allocated_size(label_bytes(model, samples, sequence));
    const MemoryProfile each = replay_allocations(build_training_step(model, plan));
    plan.batch.prefetched = true;
    for (const Plan& told : {plan, shortened(plan, 3)}) {
      const EventGraph graph = build_training_step(model, told);
      const MemoryProfile all = replay_allocations(graph);
      EXPECT_EQ(all.at_start - each.at_start, one * 5);
      EXPECT_EQ(all.samples.back().now, all.at_start);
      EXPECT_GE(all.peak - each.peak, one * 4) << to_string(runtime);
      EXPECT_LE(all.peak - each.peak, one * 5);  // at the optimizer, where no batch is else
      EXPECT_TRUE(replay_reserved(graph, {}, DeviceMemory::unlimited()).repeats);
    }
  }
}

}
}
