// Forms of context parallelism that no recording has, and how rows are shared among experts.
#include <gtest/gtest.h>

#include <vector>

#include "models/families.h"
#include "models/layers/variants.h"
#include "models/model_dims.h"
#include "sim/graph/axes/layer_cutter.h"
#include "sim/graph/training_step.h"
#include "sim/memory/memory_profile.h"
#include "sim/memory/reserved.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

using Rotate = ContextParallel::Rotate;

Plan cp_plan(RuntimeKind kind, const char* version, Rotate rotate) {
  Plan plan = tiny_plan();
  plan.runtime = {kind, version};
  plan.batch = {512, 1, 1};
  plan.mesh = {2, 1};
  plan.mesh.cp = 4;
  plan.context_parallel.rotate = rotate;
  return plan;
}

struct Sum {
  int count = 0;
  std::int64_t bytes = 0;
};

Sum all_to_alls(const EventGraph& graph) {
  Sum sum;
  for (const Row& row : graph.rows) {
    if (row.kind != EventKind::kAllToAll) continue;
    ++sum.count;
    sum.bytes += graph.works[row.work].bytes.count();
  }
  return sum;
}

double attention_flops(const EventGraph& graph) {
  double sum = 0;
  for (const Row& row : graph.rows) {
    for (const Kernel& kernel : graph.kernels_of(graph.works[row.work])) {
      if (kernel.kind == KernelKind::kAttention) sum += kernel.flops.count();
    }
  }
  return sum;
}

// Queries, keys, values there and the result back, forward; their gradients the other way.
TEST(Ulysses, EveryRuntimeExchangesHeadsEightTimesABlock) {
  const ModelSpec model = tiny_model(3);
  const std::int64_t positions = 512 / 4, d = 512, kv = 256;
  const std::int64_t block = 2 * positions * 2 * (2 * d + 2 * kv);
  for (const Plan& plan :
      {cp_plan(RuntimeKind::kFsdp2, "2.11", Rotate::kUlysses), cp_plan(RuntimeKind::kZero3, "0.19", Rotate::kUlysses),
          cp_plan(RuntimeKind::kMegatron, "0.20", Rotate::kUlysses)}) {
    const EventGraph graph = build_training_step(model, plan);
    const Sum sum = all_to_alls(graph);
    EXPECT_EQ(sum.count, 3 * 8) << to_string(plan.runtime.kind);
    EXPECT_EQ(sum.bytes, 3 * block) << to_string(plan.runtime.kind);
    EXPECT_EQ(replay_allocations(graph).peak, peak_allocated(graph));
  }
}

// Where a cast stands behind the checkpoint, backward begins outside of it.
TEST(Ulysses, ARecomputedBlockWithAnFp32StreamExchangesTwelveTimes) {
  for (Plan plan :
      {cp_plan(RuntimeKind::kFsdp2, "2.11", Rotate::kUlysses), cp_plan(RuntimeKind::kZero3, "0.19", Rotate::kUlysses),
          cp_plan(RuntimeKind::kMegatron, "0.20", Rotate::kUlysses)}) {
    plan.recompute.value = Recompute::kFull;
    plan.kernels.residual = ModuleKernels::Residual::kFp32;
    const ModelSpec model = with_variants(tiny_model(3), plan);
    const EventGraph graph = build_training_step(model, plan);
    EXPECT_EQ(all_to_alls(graph).count, 3 * (8 + 4)) << to_string(plan.runtime.kind);
    EXPECT_EQ(replay_allocations(graph).peak, peak_allocated(graph));
  }
}

// A ring's exchange is a message to one rank, Ulysses' is an all-to-all of tokens; the name of the
// communicator says neither (with one axis it is the world's).
TEST(ContextParallel, ARingSendsToOneRankAndUlyssesToAll) {
  const ModelSpec model = tiny_model(1);
  for (const Rotate rotate : {Rotate::kAllGather, Rotate::kAllToAll, Rotate::kUlysses}) {
    for (const std::int64_t shard : {1, 2}) {
      Plan plan = cp_plan(RuntimeKind::kFsdp2, "2.11", rotate);
      plan.mesh.shard = shard;
      const EventGraph graph = build_training_step(model, plan);
      int exchanges = 0;
      for (const Row& row : graph.rows) {
        if (row.kind != EventKind::kAllToAll) continue;
        ++exchanges;
        EXPECT_EQ(graph.works[row.work].to_neighbour, rotate != Rotate::kUlysses);
      }
      EXPECT_GT(exchanges, 0) << to_string(rotate) << " shard " << shard;
    }
  }
}

// Megatron-Bridge's ParallelLinearAdapter with sequence parallel: gathers of what queries', keys' and values' first
// products make, of all that the output's second makes and of its gradient; sums behind each second product, and of the
// output's first.
TEST(Adapters, AreCutWithTheLayersBesideThem) {
  Plan plan = cp_plan(RuntimeKind::kMegatron, "0.20", Rotate::kUlysses);
  plan.mesh.cp = 1;
  plan.mesh.tp = 2;
  plan.lora.rank = 16;
  plan.lora.targets = {"q_proj", "k_proj", "v_proj", "o_proj"};
  const auto built = [&](int blocks) { return build_training_step(with_variants(tiny_model(blocks), plan), plan); };
  const EventGraph less = built(2), more = built(3);
  EXPECT_EQ(count(more, EventKind::kAllGather) - count(less, EventKind::kAllGather), 4 + 3 + 2);
  EXPECT_EQ(count(more, EventKind::kReduceScatter) - count(less, EventKind::kReduceScatter), 4);
  EXPECT_EQ(count(more, EventKind::kAllReduce) - count(less, EventKind::kAllReduce), 5);
  EXPECT_EQ(replay_allocations(more).peak, peak_allocated(more));
}

ModelSpec small_model(const char* family) {
  return build_model(family_dims(family, family, {2, 512, 8, 8, 64, 2048, 1024, 1024}));
}

// GPT-2's block has one projection for queries, keys and values, OPT's three of the same sizes.
TEST(ContextParallel, APackedProjectionSendsWhatThreeSend) {
  for (const RuntimeKind kind : {RuntimeKind::kFsdp2, RuntimeKind::kMegatron}) {
    const Plan plan = cp_plan(kind, kind == RuntimeKind::kFsdp2 ? "2.11" : "0.20", Rotate::kAllToAll);
    const EventGraph packed = build_training_step(small_model("gpt3"), plan);
    const Sum one = all_to_alls(packed);
    const Sum three = all_to_alls(build_training_step(small_model("opt"), plan));
    EXPECT_GT(one.count, 0);
    EXPECT_EQ(one.count, three.count);
    EXPECT_EQ(one.bytes, three.bytes);
    EXPECT_EQ(replay_allocations(packed).peak, peak_allocated(packed));
  }
}

// Nothing wraps the model: gradients go with the step, or when the next one begins.
TEST(TensorParallelAlone, StepsFollowEachOther) {
  for (const StepFrame frame : {StepFrame::kPlain, StepFrame::kTorchtitan}) {
    Plan plan = cp_plan(RuntimeKind::kFsdp2, "2.11", Rotate::kAllGather);
    plan.mesh = {1, 1};
    plan.mesh.tp = 4;
    plan.master_dtype = plan.optimizer.state = plan.param_dtype;
    plan.step_frame = frame;
    plan.units.head = UnitPlacement::kRoot;
    const EventGraph graph = build_training_step(small_model("llama"), plan);
    EXPECT_FALSE(replay_reserved(graph, {}, DeviceMemory::unlimited()).out_of_memory);
  }
}

// A rank's share of attention is the same whatever comes round.
TEST(ContextParallel, FormsShareAttentionEvenly) {
  const ModelSpec model = tiny_model(2);
  Plan alone = cp_plan(RuntimeKind::kFsdp2, "2.11", Rotate::kAllGather);
  alone.mesh = {8, 1};
  const double all = attention_flops(build_training_step(model, alone));
  Plan flex = cp_plan(RuntimeKind::kFsdp2, "2.11", Rotate::kAllGather);
  flex.attention = AttentionKernel::kFlex;
  for (const Plan& plan : {cp_plan(RuntimeKind::kFsdp2, "2.11", Rotate::kAllGather),
           cp_plan(RuntimeKind::kFsdp2, "2.11", Rotate::kAllToAll),
           cp_plan(RuntimeKind::kFsdp2, "2.11", Rotate::kUlysses), flex,
           cp_plan(RuntimeKind::kMegatron, "0.20", Rotate::kAllGather)}) {
    EXPECT_NEAR(attention_flops(build_training_step(model, plan)) / (all / 4), 1, 1e-9)
        << to_string(plan.context_parallel.rotate);
  }
}

// TransformerEngine's ring sends gradients of keys and values in the compute dtype, PyTorch's in
// fp32; and not those of the rank's own, which stay.
TEST(ContextParallel, MegatronsRingIsNarrower) {
  const ModelSpec model = tiny_model(1);
  const Sum torch = all_to_alls(build_training_step(model, cp_plan(RuntimeKind::kFsdp2, "2.11", Rotate::kAllToAll)));
  const Sum megatron =
      all_to_alls(build_training_step(model, cp_plan(RuntimeKind::kMegatron, "0.20", Rotate::kAllToAll)));
  EXPECT_EQ(torch.count, megatron.count + 1);
  const std::int64_t keys = 2 * (512 / 4) * 256 * 2;
  EXPECT_EQ(torch.bytes - megatron.bytes, (4 * 2 - 3) * keys);
}

double expert_flops(const EventGraph& graph) {
  double sum = 0;
  for (const Row& row : graph.rows) {
    for (const Kernel& kernel : graph.kernels_of(graph.works[row.work])) {
      if (kernel.groups > 1) sum += kernel.flops.count();
    }
  }
  return sum;
}

ModelSpec tiny_mixture() {
  ModelDims dims = family_dims("qwen3_moe", "tiny mixture", {2, 256, 4, 4, 64, 512, 512, 512});
  dims.moe.experts = 16;
  dims.moe.top_k = 4;
  dims.moe.ffn = 128;
  return build_model(dims, Stack::kEager);
}

// Ranks share their experts' products evenly: of all ranks together they are what one rank computes
// alone for each rank's tokens, which the ranks of tp share.
TEST(ExpertParallel, RanksShareTheProductsOfTheExperts) {
  const ModelSpec model = tiny_mixture();
  for (const RuntimeKind kind : {RuntimeKind::kFsdp2, RuntimeKind::kMegatron}) {
    Plan plan = cp_plan(kind, kind == RuntimeKind::kFsdp2 ? "2.11" : "0.20", Rotate::kAllGather);
    plan.mesh = {8, 1};
    const double alone = expert_flops(build_training_step(model, plan));
    ASSERT_GT(alone, 0);
    plan.mesh.ep = 4;
    EXPECT_NEAR(expert_flops(build_training_step(model, plan)) / alone, 1, 1e-9);
    plan.mesh.shard = 4;
    plan.mesh.tp = 2;
    EXPECT_NEAR(expert_flops(build_training_step(model, plan)) / (alone / 2), 1, 1e-9);
    // A rank that receives all that goes to it from every other one has as much more to do.
    plan.expert_parallel.zipf = 1.5;
    EXPECT_GT(expert_flops(build_training_step(model, plan)), 1.2 * alone / 2);
  }
}

// What travels once says so in its row; counts do not.
TEST(ExpertParallel, ADispatcherThatSendsOnceSaysOfHowManyRows) {
  Plan plan = cp_plan(RuntimeKind::kMegatron, "0.20", Rotate::kAllGather);
  plan.mesh = {8, 1};
  plan.mesh.ep = 4;
  const auto exchanges = [&] {
    const EventGraph graph = build_training_step(tiny_mixture(), plan);
    std::vector<Work> works;
    for (const Row& row : graph.rows) {
      if (row.kind != EventKind::kAllToAll) continue;
      // (What weighs the rows goes with them where they are sent once.)
      const Work& work = graph.works[row.work];
      if (work.bytes > Bytes(4096)) works.push_back(work);
    }
    return works;
  };
  const std::vector<Work> rows = exchanges();
  plan.expert_parallel.dispatcher = ExpertParallel::Dispatcher::kDeepEp;
  const std::vector<Work> once = exchanges();
  ASSERT_EQ(rows.size(), once.size());
  std::int64_t told = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].copies, 1);
    EXPECT_EQ(rows[i].bytes, once[i].bytes);
    EXPECT_TRUE(once[i].copies == 1 || once[i].copies == 4);
    told += once[i].copies == 4 ? 1 : 0;
  }
  EXPECT_EQ(told, 2 * 4);  // of each block there and back, forward and backward
}

// Kernels of the step by kind, and what those between products move forward.
struct Kernels {
  std::int64_t products = 0, moved = 0;
};
Kernels kernels_of(const EventGraph& graph) {
  Kernels sum;
  for (const Row& row : graph.rows) {
    const Work& work = graph.works[row.work];
    for (const Kernel& kernel : graph.kernels_of(work)) {
      if (kernel.kind == KernelKind::kGemm) ++sum.products;
      const bool moves = work.kind == EventKind::kForward && kernel.kind == KernelKind::kMemory;
      if (moves) sum.moved += kernel.bytes.count();
    }
  }
  return sum;
}

// With R bytes of rows torchtitan writes R of tokens' copies, reads and writes 3R, 4R and 3R to weigh them in fp32 (a
// cast, the product, a cast) and reads R to sum them. A dispatcher that takes tokens leaves none of these;
// Megatron-Core's all-to-all leaves the copies and sums. All train the router.
TEST(ExpertParallel, DispatchersOfTokensMoveNoRowsAroundTheExperts) {
  constexpr std::int64_t kBlocks = 2, kRows = 4 * 512 * 256 * 2;
  Plan plan = cp_plan(RuntimeKind::kFsdp2, "2.15", Rotate::kAllGather);
  plan.mesh = {8, 1};
  plan.mesh.ep = 4;
  const Kernels rows = kernels_of(build_training_step(tiny_mixture(), plan));
  plan.expert_parallel.dispatcher = ExpertParallel::Dispatcher::kDeepEp;
  const Kernels tokens = kernels_of(build_training_step(tiny_mixture(), plan));
  EXPECT_EQ(rows.products, tokens.products);
  const double saved = static_cast<double>(rows.moved - tokens.moved) / (kBlocks * kRows);
  EXPECT_NEAR(saved, 12 + 4.0 / 4, 0.1);  // input, zeros written and read, what rows are added to
  plan.runtime = {RuntimeKind::kMegatron, "0.20"};
  plan.megatron.cuda_graphs = MegatronOptions::CudaGraphs::kRouters;  // maps are no rows
  plan.expert_parallel.dispatcher = ExpertParallel::Dispatcher::kAllToAll;
  const Kernels core = kernels_of(build_training_step(tiny_mixture(), plan));
  plan.expert_parallel.dispatcher = ExpertParallel::Dispatcher::kDeepEp;
  const Kernels once = kernels_of(build_training_step(tiny_mixture(), plan));
  EXPECT_EQ(core.products, once.products);
  EXPECT_NEAR(static_cast<double>(core.moved - once.moved) / (kBlocks * kRows), 2 + 4.0 / 4, 0.1);
}

// kernels.residual: fp32 puts a cast in front of the experts.
TEST(ExpertParallel, ACastInFrontOfTheExpertsIsDispatchedWithThem) {
  Plan plan = cp_plan(RuntimeKind::kFsdp2, "2.15", Rotate::kAllGather);
  plan.mesh = {8, 1};
  plan.kernels.residual = ModuleKernels::Residual::kFp32;
  const ModelSpec model = with_variants(tiny_mixture(), plan);
  const double alone = expert_flops(build_training_step(model, plan));
  plan.mesh.ep = 4;
  EXPECT_NEAR(expert_flops(build_training_step(model, plan)) / alone, 1, 1e-9);
}

TEST(ReceivedRows, TheFullestRankDecides) {
  EXPECT_EQ(received_rows({}, {4, 8}, 1000), 1000);
  ExpertParallel counted = {.counts = {1, 1, 1, 1, 1, 1, 5, 5}};
  EXPECT_EQ(received_rows(counted, {4, 8}, 1600), 4000);  // 10 of 16 of 6400
  ExpertParallel listed = {.sent = {25, 25, 25, 25}, .received = {10, 20, 30, 40}};
  EXPECT_EQ(received_rows(listed, {4, 8}, 100), 100);
}

TEST(ReceivedRows, SteeperIsFuller) {
  std::int64_t before = 1000;
  for (const double zipf : {0.1, 0.5, 1.0, 2.0}) {
    ExpertParallel how = {.zipf = zipf};
    const std::int64_t rows = received_rows(how, {8, 64}, 1000);
    EXPECT_GT(rows, before) << zipf;
    EXPECT_LE(rows, 8000);
    before = rows;
  }
}

}
}
