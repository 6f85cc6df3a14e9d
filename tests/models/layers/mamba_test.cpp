// Layers of several kinds and Mamba-2's mixer: parameters, what is kept and what moves, derived here once more by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "models/families.h"
#include "models/layers/variants.h"
#include "models/zoo.h"
#include "sim/base/error.h"
#include "sim/graph/axes/rank_part.h"
#include "sim/graph/layers/layer_program.h"

namespace foreshard::mamba_test {
namespace {

constexpr std::int64_t kBatch = 2, kSequence = 256, kTokens = kBatch * kSequence;

ModelDims small() {
  ModelDims dims = family_dims("nemotron_h", "small", {5, 512, 8, 2, 64, 768, 1000, 4096});
  dims.pattern = "ME*-M";
  dims.mamba.scan = {.heads = 16, .head_dim = 64, .state = 128, .groups = 4, .chunk = 128};
  dims.moe = {.experts = 16, .top_k = 4, .ffn = 256, .shared_ffn = 320, .sigmoid = true};
  dims.moe.latent = 128;
  return dims;
}

constexpr std::int64_t kHidden = 512, kInner = 16 * 64, kShared = 4 * 128, kHeads = 16;
constexpr std::int64_t kConvolved = kInner + 2 * kShared;
constexpr std::int64_t kProjected = kInner + kConvolved + kHeads;

std::int64_t kept(RuntimeKind runtime) {
  Plan plan = {.batch = {kSequence, kBatch, 1}};
  plan.runtime.kind = runtime;
  const ModelSpec model = with_variants(build_model(small()), plan);
  ProgramOptions options = {.batch = kBatch, .sequence = kSequence};
  return build_layer_program(model.kinds[1], options).saved_bytes().count();
}

std::string failure(const ModelDims& dims) {
  try {
    build_model(dims);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// 24 mixers, 24 feed-forward layers, 4 of attention: z and x of 128 heads of 64, B and C of 8
// groups of 128, a step for each head.
TEST(MambaTest, ParametersOfNemotronH8B) {
  constexpr std::int64_t d = 4096, inner = 128 * 64, shared = 8 * 128;
  constexpr std::int64_t convolved = inner + 2 * shared;
  constexpr std::int64_t mixer = d * (inner + convolved + 128) + inner * d;
  constexpr std::int64_t small = 4 * convolved + convolved + 3 * 128 + inner + d;
  constexpr std::int64_t dense = 2 * d * 21504 + d, attention = 2 * d * d + 2 * d * 1024 + d;
  const std::int64_t expected = 24 * (mixer + small + dense) + 4 * attention + 2 * 131072 * d + d;
  EXPECT_EQ(load_zoo_model("nemotron-h-8b").parameters(), expected);
}

// As published: 31.6B of which 3.6B meet a token (the tables of words included), 120.6B and 12.7B,
// 550B and 55B.
TEST(MambaTest, ActiveParametersAreAsPublished) {
  const auto billions = [](const char* name) {
    return static_cast<double>(load_zoo_model(name).active_parameters()) / 1e9;
  };
  EXPECT_NEAR(billions("nemotron-3-nano-30b-a3b"), 3.6, 0.05);
  EXPECT_NEAR(billions("nemotron-3-super-120b-a12b"), 12.7, 0.1);
  EXPECT_NEAR(billions("nemotron-3-ultra-550b-a55b"), 55, 1.1);
}

TEST(MambaTest, EachLetterIsAKind) {
  const ModelSpec model = build_model(small());
  std::string kinds;
  for (const LayerInstance& layer : model.order) {
    const LayerSpec& kind = model.kinds[at(layer.kind)];
    if (kind.role == LayerRole::kBlock) kinds += kind.name + ";";
  }
  EXPECT_EQ(kinds,
      "nemotron_h mamba layer;nemotron_h expert layer;nemotron_h attention layer;"
      "nemotron_h feed-forward layer;nemotron_h mamba layer;");
}

// What one function of autograd keeps: what in_proj made, what the scan made, a statistic for each group; beside it the
// first norm's statistic and in_proj's input (the layer's own is its predecessor's). out_proj keeps nothing.
TEST(MambaTest, TheMixerKeepsTwoTensors) {
  const std::int64_t before = 4 + 2 * kHidden;
  const std::int64_t fused = 2 * kProjected + 2 * kInner + 4 * 4;
  EXPECT_EQ(kept(RuntimeKind::kFsdp2), kTokens * (before + fused));
  // Megatron-Core's norm and out_proj keep their inputs.
  EXPECT_EQ(kept(RuntimeKind::kMegatron), kTokens * (before + fused + 2 * 2 * kInner));
}

// Forward moves x five times (convolved: read, written; read for states and for the result, which
// is written), and the states of each chunk three times in fp32, twice in the compute dtype.
TEST(MambaTest, KernelsOfTheScan) {
  ProgramOptions options = {.batch = kBatch, .sequence = kSequence};
  const ModelSpec model = build_model(small());
  const LayerProgram p = build_layer_program(model.kinds[1], options);
  std::int64_t moved = 0, kernels = 0;
  for (const Kernel& kernel : p.forward.kernels) {
    if (kernel.function != Function::kScan) continue;
    moved += kernel.bytes.count();
    ++kernels;
  }
  EXPECT_EQ(kernels, 6);
  const std::int64_t x = 2 * kTokens * kInner, shared = 2 * kTokens * kShared;
  const std::int64_t steps = 4 * kTokens * kHeads, pairs = 4 * kTokens * 128 * 4;
  const std::int64_t states = 4 * kBatch * (kSequence / 128) * kInner * 128;
  EXPECT_EQ(moved, 2 * (x + 2 * shared) + 3 * x + 4 * shared + 6 * steps + 2 * pairs + 2 * states + 2 * (states / 2));
  const auto scans = [](const Kernel& kernel) { return kernel.function == Function::kScan; };
  EXPECT_EQ(std::ranges::count_if(p.backward.kernels, scans), 20);
}

// Megatron-LM's count of a scan: seven operations an element of every state.
TEST(MambaTest, FlopsOfTheScan) {
  const ModelSpec model = build_model(small());
  for (const Operation& op : model.kinds[1].operations) {
    if (op.kind != OperationKind::kScan) continue;
    EXPECT_DOUBLE_EQ(forward_flops(op, kBatch, kSequence).count(), 7.0 * kTokens * kInner * 128);
  }
}

// Projections to 128 and back around experts of two matrices, a shared one of the hidden width.
TEST(MambaTest, ExpertsReadLatents) {
  const LayerSpec layer = build_model(small()).kinds[2];
  EXPECT_EQ(layer.numel(), kHidden + 16 * kHidden + 2 * kHidden * 128 + 16 * 2 * 256 * 128 + 2 * kHidden * 320);
}

// Over tp each rank has the heads and groups that are its own, with their parameters, and of the
// norm's weight; experts' projections run on its own positions and stay whole.
TEST(MambaTest, RanksOfTpShareHeadsAndGroups) {
  Plan plan;
  plan.runtime.kind = RuntimeKind::kMegatron;
  plan.batch = {kSequence, kBatch, 1};
  plan.mesh.tp = 2;
  plan.mesh.ep = 2;
  plan.mesh.shard = 2;
  const ModelSpec part = part_of_rank(with_variants(build_model(small()), plan), plan);
  const LayerSpec& layer = part.kinds[1];
  EXPECT_EQ(
      layer.numel(), kHidden + (kProjected * kHidden + kInner * kHidden + 3 * kHeads + 5 * kConvolved + kInner) / 2);
  const auto scans = std::ranges::find(layer.operations, OperationKind::kScan, &Operation::kind);
  ASSERT_NE(scans, layer.operations.end());
  EXPECT_EQ(scans->scan.heads, kHeads / 2);
  EXPECT_EQ(scans->scan.groups, 2);
  // (The router and the shared expert's first product read the same: one of both's columns.)
  EXPECT_EQ(part.kinds[2].numel(),
      kHidden + (16 + 320) * kHidden / 2 + 2 * kHidden * 128 + 8 * 2 * 256 * 128 + kHidden * 320 / 2);
}

// An element takes 4 bits and a sixteenth of a scale's 8; each operand is read for its greatest
// value and once for each of its layouts. The last two blocks stay as they are.
TEST(Nvfp4Test, ProductsInFourBits) {
  Plan plan;
  plan.runtime.kind = RuntimeKind::kMegatron;
  plan.batch = {kSequence, kBatch, 1};
  plan.float8 = Float8::kNvfp4;
  plan.float8_wide_blocks = 2;
  const ModelSpec model = with_variants(build_model(small()), plan);
  ProgramOptions options = {.batch = kBatch, .sequence = kSequence};
  const auto forward = [&](std::size_t block) {
    return build_layer_program(model.kinds[at(model.order[1 + block].kind)], options).forward;
  };
  const LayerPhaseProgram first = forward(0), last = forward(4);
  const auto product = std::ranges::find(first.kernels, KernelKind::kGemm, &Kernel::kind);
  ASSERT_NE(product, first.kernels.end());
  EXPECT_TRUE(product->fp4);
  const std::int64_t operands = kTokens * kHidden + kProjected * kHidden;
  EXPECT_EQ(product->bytes.count(), operands * 9 / 16 + 2 * kTokens * kProjected);
  std::int64_t casts = 0;
  for (auto kernel = first.kernels.begin(); kernel != product; ++kernel) {
    if (kernel->function == Function::kCast) casts += kernel->bytes.count();
  }
  // Weights are cast once a step.
  EXPECT_EQ(casts, 3 * 2 * kTokens * kHidden + 2 * (kTokens * kHidden * 9 / 16));
  EXPECT_TRUE(std::ranges::none_of(last.kernels, &Kernel::fp4));
}

TEST(MambaTest, RefusesWhatIsNoPattern) {
  ModelDims dims = small();
  dims.pattern = "ME*-Q";
  EXPECT_NE(failure(dims).find("'Q'"), std::string::npos);
  dims.pattern = "ME*-";
  EXPECT_EQ(failure(dims), "model small: the pattern has 4 layers of 5");
  dims = small();
  dims.mamba.scan.groups = 3;
  EXPECT_NE(failure(dims).find("3 groups"), std::string::npos);
  dims = small();
  dims.moe = {};
  EXPECT_NE(failure(dims).find("without a number of experts"), std::string::npos);
}

}
}
