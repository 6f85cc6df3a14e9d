// The native builder: no copies, slots bound how far gathers run ahead.
#include <gtest/gtest.h>

#include <algorithm>

#include "models/zoo.h"
#include "sim/graph/training_step.h"
#include "sim/memory/memory_profile.h"
#include "sim/simulate/simulate.h"
#include "tests/support/fixtures.h"
#include "tests/support/sweep.h"

namespace foreshard {
namespace {

Plan native_plan() {
  Plan plan = tiny_plan();
  plan.runtime = {RuntimeKind::kNative, "1"};
  return plan;
}

// Everything takes 1 ms on the device, nothing on the host.
CostTable unit_costs(const EventGraph& graph) {
  return table_costs(graph, [](const Work& work, int) {
    Cost cost;
    const bool counted =
        work.kind == EventKind::kAllGather || work.kind == EventKind::kForward || work.kind == EventKind::kBackward;
    cost.duration = Time::ns(counted ? 1'000'000 : 0);
    return cost;
  });
}

TEST(Native, CopiesNothing) {
  const EventGraph graph = build_training_step(tiny_model(4), native_plan());
  EXPECT_EQ(count(graph, EventKind::kAllGatherCopyIn), 0);
  EXPECT_EQ(count(graph, EventKind::kAllGatherCopyOut), 0);
  EXPECT_EQ(count(graph, EventKind::kReduceScatterCopyIn), 0);
  // Embedding, 4 blocks, norm+head in forward; in backward all but the embedding, whose gradient needs no weight.
  EXPECT_EQ(count(graph, EventKind::kAllGather), 6 + 5);
  EXPECT_EQ(count(graph, EventKind::kReduceScatter), 6);
}

// One rank: the shadow is the parameters, gradients are written where the optimizer reads them;
// with micro-batches to add up they have a buffer of the unit again.
TEST(Native, OneRankCopiesNeitherParametersNorGradients) {
  Plan plan = native_plan();
  plan.mesh = {1, 1};
  plan.param_dtype = DType::kBf16;
  const EventGraph graph = build_training_step(tiny_model(4), plan);
  EXPECT_EQ(count(graph, EventKind::kAllGather), 0);
  EXPECT_EQ(count(graph, EventKind::kAccumulate), 0);
  // Per element: master 4, shadow 2, moments 8; the gradient's 4 from its backward on.
  std::int64_t elements = 0, bytes = 0, sums = 0, whole = 0;
  for (const Unit& unit : graph.units) elements += unit.shard_numel;
  for (const std::int32_t id : graph.persistent) bytes += graph.buffer(id).bytes.count();
  for (const Buffer& buffer : graph.buffers) {
    if (buffer.role == BufferRole::kGradient) sums += buffer.bytes.count();
    if (buffer.role == BufferRole::kUnitGradient) whole += buffer.bytes.count();
  }
  EXPECT_EQ(bytes, 14 * elements);
  EXPECT_EQ(sums, 4 * elements);
  EXPECT_EQ(whole, 0);
  plan.batch.accumulation = 2;
  EXPECT_EQ(count(build_training_step(tiny_model(4), plan), EventKind::kAccumulate), 2 * 6);
}

// No gradient is there in the first forward, no unit's at the end of a later one and no sum after
// the step; of whole units at most buffers.reduce_scatter + 1 and the root's.
TEST(Native, GradientsAreThereFromTheirBackwardOn) {
  Plan plan = native_plan();
  plan.batch.accumulation = 3;
  for (const std::int64_t buffers : {0, 1, 3}) {
    plan.reduce_scatter_buffers = buffers;
    const EventGraph graph = build_training_step(tiny_model(6), plan);
    std::int64_t whole = 0, most = 0, sums = 0;
    for (std::size_t id = 0; id < graph.rows.size(); ++id) {
      const RowDetail& detail = graph.details[id];
      if (graph.rows[id].kind == EventKind::kLoss) {
        EXPECT_EQ(whole, 0);
        EXPECT_EQ(sums, detail.microbatch == 0 ? 0 : std::ssize(graph.units));
      }
      for (std::uint32_t a = detail.actions_begin; a < detail.actions_end; ++a) {
        const MemoryAction& action = graph.actions[a];
        const bool begins = action.kind == MemoryAction::Kind::kAllocate;
        if (!begins && action.kind != MemoryAction::Kind::kFree) continue;
        const BufferRole role = graph.buffer(action.target).role;
        if (role == BufferRole::kGradient) sums += begins ? 1 : -1;
        if (role == BufferRole::kUnitGradient) whole += begins ? 1 : -1;
        most = std::max(most, whole);
      }
    }
    EXPECT_EQ(sums + whole, 0);
    EXPECT_EQ(most, buffers + 1);
  }
}

// Of a Llama block's tensors five have a second gradient: the input and the attention's residual,
// from their norms; the first norm's result, from k and v; the second one's, from up. On a GPU
// kernels add: norms read one tensor more (2Td bytes), products add in place. A CPU rank's do not.
TEST(Native, OnAGpuKernelsAddSecondGradients) {
  const ModelSpec model = load_zoo_model("tinyllama-1.1b", Stack::kNative);
  const auto block = [&](HostKind host) {
    Plan plan = native_plan();
    plan.param_dtype = DType::kBf16;
    plan.batch = {128, 2, 1};
    plan.host = host;
    const EventGraph graph = build_training_step(model, plan);
    return *std::ranges::max_element(graph.programs,
        [](const auto& a, const auto& b) { return a->backward.steps.size() < b->backward.steps.size(); });
  };
  const auto sums = [](const auto& program) {
    const auto& steps = program->backward.steps;
    return std::ranges::count_if(steps, [](const LayerStep& step) { return step.kind == LayerStep::Kind::kSum; });
  };
  const auto bytes = [](const auto& program, Function function) {
    std::int64_t sum = 0;
    for (const Kernel& kernel : program->backward.kernels) {
      if (kernel.function == function) sum += kernel.bytes.count();
    }
    return sum;
  };
  constexpr std::int64_t kTensor = 2 * 256 * 2048;  // bf16, 2 x 128 tokens, 2,048 wide
  const auto gpu = block(HostKind::kFeedsDevice), cpu = block(HostKind::kComputes);
  EXPECT_EQ(sums(cpu), 5);
  EXPECT_EQ(sums(gpu), 0);
  EXPECT_EQ(bytes(cpu, Function::kAdd), 5 * 3 * kTensor);
  EXPECT_EQ(bytes(gpu, Function::kAdd), 0);
  EXPECT_EQ(bytes(gpu, Function::kRmsNorm), bytes(cpu, Function::kRmsNorm) + 2 * kTensor);
  // Nor are gradients of weights cast into the sum.
  EXPECT_GT(bytes(cpu, Function::kCast), 0);
  EXPECT_EQ(bytes(gpu, Function::kCast), 0);
}

TEST(Native, PrefetchDepthZeroGathersOnlyBetweenComputations) {
  Plan plan = native_plan();
  plan.prefetch = {0, 0};
  const EventGraph graph = build_training_step(tiny_model(4), plan);
  const Timeline t = sweep_once(graph, unit_costs(graph));
  for (std::size_t a = 0; a < graph.rows.size(); ++a) {
    if (graph.rows[a].kind != EventKind::kAllGather) continue;
    for (std::size_t b = 0; b < graph.rows.size(); ++b) {
      if (graph.rows[b].stream != Stream::kCompute) continue;
      const bool overlap = t.spans[a].arrive < t.spans[b].end && t.spans[b].start < t.spans[a].end;
      EXPECT_FALSE(overlap) << a << " beside " << b;
    }
  }
}

TEST(Native, DeeperPrefetchIsNeverSlowerAndTakesOneSlotMore) {
  const ModelSpec model = tiny_model(6);
  Time last_time = Time::ns(std::int64_t{1} << 60);
  Bytes last_peak;
  for (std::int64_t depth = 0; depth <= 4; ++depth) {
    Plan plan = native_plan();
    plan.prefetch = {depth, depth};
    // On a shared communicator deeper prefetch can hold a reduce-scatter up and cost time.
    plan.communicators = Communicators::kSeparate;
    const EventGraph graph = build_training_step(model, plan);
    const Time time = sweep_once(graph, unit_costs(graph)).period;
    EXPECT_LE(time, last_time) << depth;
    const Bytes peak = peak_allocated(graph);
    if (depth > 0) {
      // One slot of the largest unit, a block: q and o 512 x 512, k and v 256 x 512, three FFN
      // matrices 1536 x 512, two norms.
      const std::int64_t block = 2 * 512 * 512 + 2 * 256 * 512 + 3 * 1536 * 512 + 2 * 512;
      EXPECT_EQ(peak - last_peak, Bytes(block * 2)) << depth;
    }
    last_time = time;
    last_peak = peak;
  }
}

TEST(Native, GradientsAreAllReducedOncePerStep) {
  Plan plan = native_plan();
  plan.mesh = {4, 2};
  plan.batch.accumulation = 3;
  const EventGraph graph = build_training_step(tiny_model(2), plan);
  EXPECT_EQ(count(graph, EventKind::kReduceScatter), 3 * 4);
  EXPECT_EQ(count(graph, EventKind::kAllReduce), 4);
  plan.accumulation = AccumulationMode::kKeepUnsharded;
  EXPECT_EQ(count(build_training_step(tiny_model(2), plan), EventKind::kReduceScatter), 4);
}

std::vector<std::int64_t> persistent_bytes(const EventGraph& graph) {
  std::vector<std::int64_t> bytes;
  for (const std::int32_t id : graph.persistent) bytes.push_back(graph.buffer(id).bytes.count());
  return bytes;
}

// It runs in the step's arenas, keeps nothing for a backward, and leaves nothing behind.
TEST(Native, AnEvaluationIsAForwardInTheArenasOfTheStep) {
  for (const std::int64_t accumulation : {1, 3}) {
    Plan plan = native_plan();
    plan.batch.accumulation = accumulation;
    const EventGraph step = build_training_step(tiny_model(4), plan);
    const EventGraph evaluation = build_evaluation(tiny_model(4), plan);
    EXPECT_EQ(persistent_bytes(evaluation), persistent_bytes(step));
    // Embedding, 4 blocks, norm and head, of which the last two are one unit.
    EXPECT_EQ(count(evaluation, EventKind::kForward), 7);
    EXPECT_EQ(count(evaluation, EventKind::kAllGather), 6);
    EXPECT_EQ(count(evaluation, EventKind::kLoss), 1);
    EXPECT_EQ(evaluation.rows.size(), 7U + 6U + 1U);
    const MemoryProfile of_step = replay_allocations(step);
    const MemoryProfile of_evaluation = replay_allocations(evaluation);
    EXPECT_EQ(of_evaluation.samples.back().now, of_evaluation.at_start);
    EXPECT_EQ(of_evaluation.at_start, of_step.at_start);
    EXPECT_LT(of_evaluation.peak, of_step.peak);
  }
}

// On CPU ranks a communicator's scratch is a buffer; a GPU's library has its own.
TEST(Native, CpuRanksHaveAScratchOfEachCommunicator) {
  Plan plan = native_plan();
  const auto scratches = [&] {
    const EventGraph graph = build_training_step(tiny_model(4), plan);
    std::vector<std::int64_t> bytes;
    for (const Buffer& buffer : graph.buffers) {
      if (buffer.role == BufferRole::kScratch) bytes.push_back(buffer.bytes.count());
    }
    EXPECT_TRUE(bytes.empty() || bytes.size() == graph.communicators.size());
    return bytes;
  };
  EXPECT_TRUE(scratches().empty());
  plan.host = HostKind::kComputes;
  const std::vector<std::int64_t> bytes = scratches();
  ASSERT_FALSE(bytes.empty());
  EXPECT_GT(bytes[0], 0);
}

TEST(Native, FingerprintsTellPlansApartAndNotMachines) {
  const ModelSpec model = tiny_model(2);
  Plan plan = native_plan();
  const std::string fingerprint = build_training_step(model, plan).fingerprint();
  EXPECT_EQ(build_training_step(model, plan).fingerprint(), fingerprint);
  plan.cluster = "8xother";
  EXPECT_EQ(build_training_step(model, plan).fingerprint(), fingerprint);
  plan.prefetch.backward = 2;
  EXPECT_NE(build_training_step(model, plan).fingerprint(), fingerprint);
}

}
}
