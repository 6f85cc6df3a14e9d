// ZeRO stage 3's model states against DeepSpeed's own estimator, estimate_zero3_model_states_mem_needs
// (deepspeed/runtime/zero/stage3.py, DeepSpeed 0.19.8), over all of its offload variants. With P parameters on n nodes
// of g GPUs and L parameters in the largest layer it counts, for zero_init:
//
//   offload_optimizer  offload_param  a GPU             the host of a node
//   none               none           4 L + 18 P / ng   4 L g x buffer factor
//   cpu                none           4 L + 2 P / ng    16 P / n x buffer factor
//   cpu                cpu            4 L               18 P / n x buffer factor
//
// The 4 L are the largest layer gathered (2 bytes) and its gradient (2); the 2 is the 16-bit
// partition; the 16, by its difference of the first two lines, all that the optimizer takes with
// it: fp32 parameter, fp32 gradient and two moments, 4 bytes each.
//
// Where it counts differently from us:
//   - It leaves out the 16-bit gradient partitions that stage 3 keeps from backward to the step
//     (2 P / ng, on the host with the optimizer): ours has 2 more.
//   - It counts fp32 gradients of all parameters, though on the GPU they exist for one sub-group
//     at a time: with one sub-group, for all of them.
//   - Its buffer factor (1.5) stands for whatever the host needs beside: not defined, left out
//     here. So is what zero_init = 0 adds, the whole model on each rank's host before the step.
#include <gtest/gtest.h>

#include <string>

#include "sim/graph/training_step.h"
#include "sim/memory/memory_profile.h"
#include "tests/support/fixtures.h"

namespace foreshard::zero3_estimator_test {
namespace {

struct Offload {
  bool optimizer = false, parameters = false;
};

struct Estimate {
  std::int64_t host_of_node = 0;  // buffer factor 1
  std::int64_t gpu = 0;
};

// The estimator, line by line; what it does for zero_init.
Estimate deepspeed_estimate(
    std::int64_t parameters, std::int64_t largest, Offload offload, std::int64_t nodes, std::int64_t gpus_per_node) {
  const std::int64_t gpus = nodes * gpus_per_node;
  if (!offload.optimizer) return {largest * 4 * gpus_per_node, 4 * largest + 18 * parameters / gpus};
  if (!offload.parameters) return {16 * parameters / nodes, 4 * largest + 2 * parameters / gpus};
  return {18 * parameters / nodes, 4 * largest};
}

// tiny_model(4): the largest module is the table of tokens, 4096 x 512, as is the head.
constexpr std::int64_t kLargest = 4096 * 512;

// Nothing ahead of time and nothing kept, so that what is gathered is one module's.
Plan estimated_plan(Offload offload, std::int64_t gpus) {
  Plan plan = tiny_plan();
  plan.runtime = {RuntimeKind::kZero3, "0.19"};
  plan.reduce_dtype = DType::kBf16;
  plan.mesh = {gpus, 1};
  plan.zero.stage3_prefetch_bucket_size = 0;
  plan.zero.stage3_max_reuse_distance = 0;
  plan.zero.stage3_param_persistence_threshold = 0;
  plan.optimizer.implementation = Optimizer::Implementation::kFused;  // no temporaries of its own
  if (offload.optimizer) plan.zero.offload_optimizer = ZeroOffload::kCpu;
  if (offload.parameters) plan.zero.offload_param = ZeroOffload::kCpu;
  return plan;
}

struct Counted {
  std::int64_t device = 0, host = 0;     // model states of a rank, the step's fp32 gradients included
  std::int64_t gradient_partitions = 0;  // of these, the 16-bit ones that the estimator leaves out
  std::int64_t layer = 0;                // gathered parameters and gradients of one module
};

Counted count_states(const EventGraph& graph) {
  Counted counted;
  for (const std::int32_t id : graph.persistent) {
    const Buffer buffer = graph.buffer(id);
    // The bucket of gradients is no model state.
    if (buffer.category == MemoryCategory::kReduceScatterInput) continue;
    (buffer.on_host ? counted.host : counted.device) += buffer.bytes.count();
    if (buffer.category == MemoryCategory::kShardedGrad) counted.gradient_partitions += buffer.bytes.count();
  }
  const MemoryProfile profile = replay_allocations(graph);
  const auto peak = [&](MemoryCategory category) { return profile.own_peak[at(category)].count(); };
  // Without offload the step's: 16-bit partitions are concatenated and cast.
  const std::int64_t step = peak(MemoryCategory::kOptimizerTemp);
  counted.device += step - (step > 0 ? counted.gradient_partitions : 0);
  counted.layer = peak(MemoryCategory::kUnshardedParam) + peak(MemoryCategory::kUnshardedGrad);
  return counted;
}

class Zero3Estimator : public testing::TestWithParam<Offload> {};

TEST_P(Zero3Estimator, CountsWhatOursDoesButTheGradientPartitions) {
  const Offload offload = GetParam();
  const ModelSpec model = tiny_model(4);
  const std::int64_t parameters = model.parameters();
  for (const std::int64_t nodes : {1, 2, 4}) {
    constexpr std::int64_t kGpusPerNode = 8;
    const std::int64_t gpus = nodes * kGpusPerNode;
    SCOPED_TRACE(std::to_string(gpus) + " GPUs");
    const Counted ours = count_states(build_training_step(model, estimated_plan(offload, gpus)));
    const Estimate theirs = deepspeed_estimate(parameters, kLargest, offload, nodes, kGpusPerNode);
    ASSERT_EQ(parameters % gpus, 0);
    // At most eight buffers, each rounded up to 512 bytes.
    constexpr double kRounding = 8 * 512;
    EXPECT_NEAR(static_cast<double>(ours.gradient_partitions), static_cast<double>(2 * parameters / gpus), 512);
    EXPECT_EQ(ours.layer, 4 * kLargest);
    const std::int64_t device = ours.device + ours.layer - (offload.optimizer ? 0 : ours.gradient_partitions);
    EXPECT_NEAR(static_cast<double>(device), static_cast<double>(theirs.gpu), kRounding);
    if (!offload.optimizer) {
      EXPECT_EQ(ours.host, 0);  // its host holds the largest layer while the model is made
      continue;
    }
    const std::int64_t host = (ours.host - ours.gradient_partitions) * kGpusPerNode;
    EXPECT_NEAR(static_cast<double>(host), static_cast<double>(theirs.host_of_node), kRounding * kGpusPerNode);
  }
}

INSTANTIATE_TEST_SUITE_P(Offloads, Zero3Estimator,
    testing::Values(Offload{false, false}, Offload{true, false}, Offload{true, true}),
    [](const testing::TestParamInfo<Offload>& info) {
      return std::string(info.param.parameters  ? "OptimizerAndParameters"
                         : info.param.optimizer ? "Optimizer"
                                                : "None");
    });

// What the estimator prints for 7.5 billion parameters, 131 million in the largest layer, on eight GPUs, derived by
// hand: 18 x 7.5e9 / 8 = 16.875 GB, 2 x 7.5e9 / 8 = 1.875 GB, 4 x 131e6 = 0.524 GB.
TEST(Zero3EstimatorFormula, IsDeepSpeedsOwn) {
  const std::int64_t parameters = 7'500'000'000, largest = 131'000'000;
  EXPECT_EQ(deepspeed_estimate(parameters, largest, {false, false}, 1, 8).gpu, 17'399'000'000);
  EXPECT_EQ(deepspeed_estimate(parameters, largest, {true, false}, 1, 8).gpu, 2'399'000'000);
  EXPECT_EQ(deepspeed_estimate(parameters, largest, {true, true}, 1, 8).gpu, 524'000'000);
  EXPECT_EQ(deepspeed_estimate(parameters, largest, {true, false}, 2, 8).host_of_node, 60'000'000'000);
  EXPECT_EQ(deepspeed_estimate(parameters, largest, {true, true}, 2, 8).host_of_node, 67'500'000'000);
}

// With sub-groups smaller than the model the fp32 gradients are those of one at a time.
TEST(Zero3, Fp32GradientsAreThoseOfOneSubGroup) {
  const ModelSpec model = tiny_model(4);
  Plan plan = estimated_plan({}, 8);
  const std::int64_t whole = count_states(build_training_step(model, plan)).device;
  plan.zero.sub_group_size = model.parameters() / 8 / 4;
  const std::int64_t quarters = count_states(build_training_step(model, plan)).device;
  // Six bytes (16-bit concatenation and fp32) of at most a quarter and the parameter that closes it, instead of all.
  const std::int64_t share = model.parameters() / 8;
  EXPECT_LT(quarters, whole - 6 * (share - share / 4 - kLargest / 8) + 4096);
}

}
}
