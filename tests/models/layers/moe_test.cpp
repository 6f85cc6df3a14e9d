// Mixtures of experts and latent attention: parameters, FLOPs and saved tensors, derived here once more by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "models/families.h"
#include "models/layers/layers.h"
#include "models/layers/variants.h"
#include "models/zoo.h"
#include "sim/base/error.h"
#include "sim/graph/layers/layer_program.h"
#include "sim/graph/runtimes.h"
#include "sim/graph/training_step.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

constexpr std::int64_t kBatch = 2, kSequence = 128, T = kBatch * kSequence;

LayerSpec kind_named(const ModelSpec& model, const std::string& name) {
  for (const LayerSpec& kind : model.kinds) {
    if (kind.name == name) return kind;
  }
  throw std::logic_error("no layer " + name);
}

std::int64_t instances(const ModelSpec& model, const std::string& name) {
  return std::ranges::count_if(
      model.order, [&](const LayerInstance& layer) { return model.kinds[at(layer.kind)].name == name; });
}

double forward_flops_of(const LayerSpec& layer, OperationKind kind) {
  double sum = 0;
  for (const Operation& op : layer.operations) {
    if (op.kind == kind) sum += forward_flops(op, 1, kSequence).count();
  }
  return sum / kSequence;
}

ModelDims small_mixture() {
  ModelDims dims = family_dims("mixtral", "small", {2, 512, 8, 4, 64, 256, 1000, 4096});
  dims.moe = {.experts = 8, .top_k = 2, .ffn = 256, .normalized = true};
  return dims;
}

// Attention 2 x 4096^2 + 2 x 4096 x 1024, 8 experts of three matrices 4096 x 14336, a router of 8
// rows, two norms; 32 layers, two tables of 32000 words, the final norm.
TEST(MixtureTest, ParametersOfMixtral) {
  const ModelSpec model = load_zoo_model("mixtral-8x7b");
  const std::int64_t attention = 2 * 4096 * 4096 + 2 * 4096 * 1024;
  const std::int64_t expert = 3LL * 4096 * 14336;
  const std::int64_t rest = 8 * 4096 + 2 * 4096;
  const std::int64_t outside = 2LL * 32000 * 4096 + 4096;
  EXPECT_EQ(model.parameters(), 32 * (attention + 8 * expert + rest) + outside);
  EXPECT_EQ(model.parameters(), 46'702'792'704);  // the checkpoint's
  EXPECT_EQ(model.active_parameters(), 32 * (attention + 2 * expert + rest) + outside);
  EXPECT_EQ(model.active_parameters(), 12'879'925'248);  // "12.9B", arXiv 2401.04088
}

// Published as activated: 21B of 236B, 37B of 671B, 2.7B of 14.3B, 3.3B of 30.5B, 22B of 235B.
TEST(MixtureTest, ActiveParametersAreAsPublished) {
  const std::map<std::string, double> billions = {{"deepseek-v2", 21.4}, {"deepseek-v3", 37.6},
      {"qwen1.5-moe-a2.7b", 2.7}, {"qwen2-57b-a14b", 14.2}, {"qwen3-30b-a3b", 3.35}, {"qwen3-235b-a22b", 22.2}};
  for (const auto& [name, active] : billions) {
    const double built = static_cast<double>(load_zoo_model(name).active_parameters()) / 1e9;
    EXPECT_NEAR(built, active, 0.05) << name;
  }
}

TEST(MixtureTest, FlopsCountTheExpertsThatATokenMeets) {
  const ModelSpec model = load_zoo_model("mixtral-8x7b");
  const LayerSpec& block = kind_named(model, "mixtral expert block");
  // Two multiply-adds per weight: projections, router, two experts.
  const double weights = 2.0 * 4096 * 4096 + 2.0 * 4096 * 1024 + 8.0 * 4096 + 2 * 3.0 * 4096 * 14336;
  EXPECT_DOUBLE_EQ(forward_flops_of(block, OperationKind::kGemm), 2 * weights);
  const double head = 2.0 * 4096 * 32000;
  const double attention = 2.0 * 4096 * kSequence;  // 4 h S d / 2
  EXPECT_DOUBLE_EQ(
      model.training_flops_per_sequence(kSequence).count(), 3 * kSequence * (32 * (2 * weights + attention) + head));
}

TEST(MixtureTest, ExpertsAreOneTensorPerMatrix) {
  const ModelSpec model = load_zoo_model("mixtral-8x7b");
  const LayerSpec& block = kind_named(model, "mixtral expert block");
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const ParameterSpec& p : block.parameters) shapes[p.name] = p.shape;
  EXPECT_EQ(shapes["block_sparse_moe.gate.weight"], (std::vector<std::int64_t>{8, 4096}));
  EXPECT_EQ(shapes["block_sparse_moe.experts.w1"], (std::vector<std::int64_t>{8, 14336, 4096}));
  EXPECT_EQ(shapes["block_sparse_moe.experts.w2"], (std::vector<std::int64_t>{8, 4096, 14336}));
  EXPECT_EQ(block.nested, std::vector<std::string>{"block_sparse_moe.experts"});
}

// What autograd keeps of the mixture for T tokens of width d, E experts of width f, k per token: the norm's output 2d
// (which attention's input is not), scores' softmax 4E, chosen scores and their sum 4k + 4 (division), experts 8k,
// order 8k, tokens of rows 8k, rows 2kd, four of 2kf (gate, silu, up, product), and for the weighing in fp32 4kd and
// 4k; once 4E of offsets. The same bytes as saved tensor hooks of PyTorch 2.11 count.
TEST(MixtureTest, SavesWhatAutogradSaves) {
  const ModelDims dims = small_mixture();
  const std::int64_t d = dims.hidden, f = dims.moe.ffn, e = dims.moe.experts, k = dims.moe.top_k;
  ModelDims dense = dims;
  dense.moe = {};
  ProgramOptions options = {.batch = kBatch, .sequence = kSequence};
  const auto saved = [&](const ModelDims& of, FeedForwardKind kind) {
    return build_layer_program(decoder_block(of, Stack::kEager, {.mlp = kind}), options).saved_bytes().count();
  };
  const std::int64_t mixture = T * (4 * e + 4 * k + 4 + 3 * 8 * k + 2 * k * d + 4 * 2 * k * f + 4 * k * d + 4 * k);
  const std::int64_t plain = T * 4 * 2 * f;  // gate, silu, up, product
  EXPECT_EQ(saved(dims, FeedForwardKind::kExperts) - saved(dense, FeedForwardKind::kDense),
      mixture - plain + kAllocationGranularity);  // offsets, rounded up
}

// Balanced routing: T k / E rows for each expert, in one launch; backward's inner width is those rows.
TEST(MixtureTest, GroupedProductsShareTheRows) {
  const ModelDims dims = small_mixture();
  ProgramOptions options = {.batch = kBatch, .sequence = kSequence};
  const LayerProgram p =
      build_layer_program(decoder_block(dims, Stack::kEager, {.mlp = FeedForwardKind::kExperts}), options);
  const auto grouped = [](const LayerPhaseProgram& phase) {
    std::vector<Kernel> kernels;
    std::ranges::copy_if(phase.kernels, std::back_inserter(kernels), [](const Kernel& k) { return k.groups > 1; });
    return kernels;
  };
  const std::vector<Kernel> forward = grouped(p.forward), backward = grouped(p.backward);
  ASSERT_EQ(forward.size(), 3U);
  ASSERT_EQ(backward.size(), 6U);
  const std::int64_t rows = T * 2 / 8;
  EXPECT_EQ(forward[0].m, rows);
  EXPECT_EQ(forward[0].n, 256);
  EXPECT_EQ(forward[0].k, 512);
  EXPECT_EQ(forward[0].groups, 8);
  EXPECT_DOUBLE_EQ(forward[0].flops.count(), 2.0 * T * 2 * 256 * 512);
  // All experts' weights are read, whatever goes to them.
  EXPECT_EQ(forward[0].bytes.count(), 2 * (T * 2 * 512 + 8 * 256 * 512 + T * 2 * 256));
  EXPECT_EQ(backward[0].k, rows);  // the last product's weights
  EXPECT_EQ(backward[1].m, rows);
}

TEST(MixtureTest, DenseAndExpertLayersMix) {
  const ModelSpec model = load_zoo_model("deepseek-v3");
  EXPECT_EQ(instances(model, "deepseek_v3 block"), 3);
  EXPECT_EQ(instances(model, "deepseek_v3 expert block"), 58);
  EXPECT_EQ(model.order[3].name, "layers.2");
  EXPECT_NE(model.order[3].kind, model.order[4].kind);
}

// Per layer: q_a 7168 x 1536, its norm, q_b 1536 x 128 x 192, kv_a 7168 x 576, its norm, kv_b
// 512 x 128 x 256, o 128 x 128 x 7168; two norms. 3 dense layers of 18432, 58 of 256 + 1 experts of 2048 and a router.
TEST(LatentAttentionTest, ParametersOfDeepSeekV3) {
  const std::int64_t d = 7168;
  const std::int64_t attention =
      d * 1536 + 1536 + 1536 * 128 * 192 + d * 576 + 512 + 512 * 128 * 256 + 128 * 128 * d + 2 * d;
  const std::int64_t experts = 257 * 3 * d * 2048 + 256 * d;
  const std::int64_t expected = 61 * attention + 3 * 3 * d * 18432 + 58 * experts + 2 * 129280 * d + d;
  EXPECT_EQ(load_zoo_model("deepseek-v3").parameters(), expected);
  EXPECT_EQ(expected, 671'026'404'352);
  // The checkpoint also counts a correction bias per expert and layer.
  EXPECT_EQ(expected + 58 * 256, 671'026'419'200);
}

// Keys of 192, values of 128: q k costs 2 S 192 per head and token, p v 2 S 128, half of it causal;
// backward three products of keys' width and two of the values'.
TEST(LatentAttentionTest, FlopsOfKeysWiderThanValues) {
  const ModelSpec model = load_zoo_model("deepseek-v3");
  const LayerSpec& block = kind_named(model, "deepseek_v3 block");
  const double expected = 2.0 * 128 * kSequence * (192 + 128) / 2;
  EXPECT_DOUBLE_EQ(forward_flops_of(block, OperationKind::kAttention), expected);
  ProgramOptions options = {.sequence = kSequence};
  const LayerProgram p = build_layer_program(block, options);
  double backward = 0;
  for (const Kernel& k : p.backward.kernels) {
    if (k.kind == KernelKind::kAttention) backward += k.flops.count();
  }
  EXPECT_DOUBLE_EQ(backward, kSequence * 2.0 * 128 * kSequence * (3 * 192 + 2 * 128) / 2);
}

// Products of one layer: two multiply-adds for each weight of them.
TEST(LatentAttentionTest, ProductsAreItsWeights) {
  const ModelSpec model = load_zoo_model("deepseek-v2-lite");
  const LayerSpec& block = kind_named(model, "deepseek_v2 block");
  const double weights = 2048.0 * 16 * 192 + 2048.0 * 576 + 512.0 * 16 * 256 + 2048.0 * 2048 + 3.0 * 2048 * 10944;
  EXPECT_DOUBLE_EQ(forward_flops_of(block, OperationKind::kGemm), 2 * weights);
}

TEST(ShardDimensionTest, ExpertsFewerThanShardsAreCutAlongTheNextDimension) {
  const ParameterSpec experts = {.name = "w1", .shape = {8, 14336, 4096}};
  EXPECT_EQ(shard_dim_of(experts, Units::kExpertsDim, 8), 0);
  EXPECT_EQ(shard_dim_of(experts, Units::kExpertsDim, 64), 1);
  EXPECT_EQ(shard_dim_of(experts, 0, 64), 0);                   // fully_shard left alone
  EXPECT_EQ(shard_dim_of(experts, Units::kExpertsDim, 60), 0);  // does not divide 14336: padded
  EXPECT_EQ(shard_dim_of({.name = "w", .shape = {8, 64}}, Units::kExpertsDim, 64), 0);
  EXPECT_EQ(shard_dim_of({.name = "b", .shape = {8}}, 1, 64), 0);
  // Spread over ep, two are left for the others of the 16 ranks: 4, or 2.
  EXPECT_EQ(shard_dim_of(experts, Units::kExpertsDim, Mesh{.shard = 16, .ep = 4}), 1);
  EXPECT_EQ(shard_dim_of(experts, Units::kExpertsDim, Mesh{.shard = 8, .ep = 4}), 0);
  EXPECT_EQ(shard_dim_of(experts, Units::kExpertsDim, Mesh{.shard = 8, .cp = 2}), 1);
}

// The host reads the rows of each expert before the first product: the phase is cut there, and the
// next segment's issue waits. Every expert has kernels of its own.
TEST(ExpertLoopTest, TheHostWaitsForTheRouter) {
  Plan plan;
  plan.batch.sequence = kSequence;
  plan.experts = ExpertKernels::kLoop;
  plan.mesh = {8, 1};
  const ModelSpec grouped = build_model(small_mixture());
  const ModelSpec loop = with_variants(grouped, plan);
  const LayerPrograms programs(loop, plan);
  const LayerProgram& p = *programs.at(1, Recompute::kNone);
  ASSERT_EQ(p.forward.segments.size(), 2U);
  EXPECT_TRUE(p.forward.segments[0].host_waits);
  EXPECT_FALSE(p.forward.segments[1].host_waits);
  const auto products = [](const LayerPhaseProgram& phase) {
    return std::ranges::count_if(phase.kernels, [](const Kernel& k) { return k.kind == KernelKind::kGemm; });
  };
  EXPECT_EQ(products(p.forward), 4 + 1 + 3 * 8);  // attention, router, experts
  EXPECT_EQ(products(p.backward), 2 * (4 + 1 + 3 * 8));
  // The gradient of each of the eight's three weights: into zeros of the size of all, a copy of an
  // eighth, and but for the first a sum with what is there.
  const auto moved = [](const LayerPhaseProgram& phase, Function function) {
    std::int64_t sum = 0;
    for (const Kernel& k : phase.kernels) {
      if (k.kind == KernelKind::kMemory && k.function == function) sum += k.bytes.count();
    }
    return sum;
  };
  const LayerProgram& one = *LayerPrograms(grouped, plan).at(1, Recompute::kNone);
  std::int64_t all = 0;
  for (const ParameterSpec& weight : loop.kinds[1].parameters) {
    if (weight.shape.size() == 3) all += 2 * weight.numel();
  }
  const auto more = [&](Function function) { return moved(p.backward, function) - moved(one.backward, function); };
  EXPECT_EQ(more(Function::kScale), 8 * all);
  EXPECT_EQ(more(Function::kCopy), 2 * all);
  EXPECT_EQ(more(Function::kAdd), 7 * 3 * all);
  // Without the mixed blocks nothing waits.
  const auto waits = [&](const ModelSpec& model) {
    const EventGraph graph = build_fsdp2(model, plan, LayerPrograms(model, plan), {});
    return std::ranges::count_if(graph.rows, [](const Row& row) { return row.host_wait != kNoEvent; });
  };
  EXPECT_EQ(waits(loop), 2);
  EXPECT_EQ(waits(grouped), 0);
  // The same work.
  ProgramOptions options = {.sequence = kSequence};
  EXPECT_DOUBLE_EQ(p.forward.flops.count(), build_layer_program(grouped.kinds[1], options).forward.flops.count());
}

// In fp32 the products keep copies in bf16: both first ones one of the rows, which are as much as
// the rows in fp32, each one of its weights, and what lies between them is half as wide.
TEST(GroupedProductsTest, MultiplyInBf16) {
  Plan plan = {.batch = {kSequence, kBatch, 1}, .mesh = {8, 1}};
  plan.param_dtype = plan.master_dtype = DType::kFp32;
  const ModelSpec plain = build_model(small_mixture());
  const auto casted = [&] {
    ModelSpec model = plain;
    multiply_experts_in_bf16(model, plan);
    return model;
  };
  const auto kept = [&](const ModelSpec& model) {
    return LayerPrograms(model, plan).at(1, Recompute::kNone)->saved_bytes().count();
  };
  constexpr std::int64_t kExperts = 8, kTopK = 2, kHidden = 512, kFfn = 256, kBf16 = 2;
  const std::int64_t weights = 3 * kExperts * kHidden * kFfn * kBf16;
  const std::int64_t between = 4 * kTopK * T * kFfn * (4 - kBf16);
  EXPECT_EQ(kept(casted()) - kept(plain), weights - between);
  plan.param_dtype = DType::kBf16;
  EXPECT_EQ(casted().kinds, plain.kinds);
}

TEST(BuildMixtureTest, RefusesImpossibleSizes) {
  const auto failure = [](const ModelDims& dims) {
    try {
      build_model(dims);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  ModelDims dims = small_mixture();
  dims.moe.top_k = 9;
  EXPECT_EQ(failure(dims), "model small: every token goes to 9 of 8 experts");
  dims = small_mixture();
  dims.moe.ffn = 0;
  EXPECT_EQ(failure(dims), "model small: the width of an expert is 0; expected at least 1");
  dims = small_mixture();
  dims.moe.dense_layers = {2};
  EXPECT_EQ(failure(dims), "model small: dense layer 2 is none of the 2");
  dims = small_mixture();
  dims.latent.kv_rank = 64;
  EXPECT_NE(failure(dims).find("the plain part of each head"), std::string::npos);
}

}
}
