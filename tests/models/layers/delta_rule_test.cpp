// Linear attention by the gated delta rule: parameters, what is kept, what is multiplied and what
// moves, derived here once more by hand.
#include <gtest/gtest.h>

#include <algorithm>

#include "models/families.h"
#include "models/layers/variants.h"
#include "sim/graph/layers/layer_program.h"

namespace foreshard::delta_rule_test {
namespace {

constexpr std::int64_t kBatch = 2, kSequence = 256, kTokens = kBatch * kSequence;
constexpr std::int64_t kHidden = 256, kFfn = 512, kHeads = 8, kKeyHeads = 4, kKey = 32, kValue = 64, kChunk = 64;
constexpr std::int64_t kKeys = kKeyHeads * kKey, kValues = kHeads * kValue, kConvolved = 2 * kKeys + kValues;

ModelDims small(std::string_view family) {
  ModelDims dims = *family_dims(family);
  dims.name = "small";
  dims.pattern = "da";
  dims.layers = 2;
  dims.hidden = kHidden;
  dims.heads = 4;
  dims.kv_heads = dims.family == "olmo_hybrid" ? 4 : 2;
  dims.head_dim = 64;
  dims.ffn = kFfn;
  dims.vocabulary = 1000;
  dims.max_positions = 4096;
  dims.delta.scan = {.heads = kHeads, .head_dim = kValue, .state = kKey, .groups = kKeyHeads, .chunk = kChunk};
  return dims;
}

LayerSpec block(std::string_view family, std::size_t of = 0) {
  Plan plan = {.batch = {kSequence, kBatch, 1}};
  const ModelSpec model = with_variants(build_model(small(family)), plan);
  return model.kinds[1 + of];
}

LayerProgram program(const LayerSpec& layer) {
  ProgramOptions options = {.batch = kBatch, .sequence = kSequence};
  return build_layer_program(layer, options);
}

Operation rule() {
  const LayerSpec layer = block("qwen3_5");
  return *std::ranges::find(layer.operations, Function::kDeltaRule, &Operation::function);
}

// However many products make them, q, k, v, the gate and two numbers for each head come of the
// hidden state; two numbers of each head, the convolution, one norm's weight for all heads, and the
// way back. The block has two norms and a feed-forward layer.
TEST(DeltaRuleTest, ProductsAreOtherOnesOfTheSameSize) {
  const std::int64_t mixer =
      kHidden * (kConvolved + kValues + 2 * kHeads) + 2 * kHeads + 4 * kConvolved + kValue + kValues * kHidden;
  for (const char* family : {"qwen3_next", "qwen3_5", "olmo_hybrid"}) {
    EXPECT_EQ(block(family).numel(), mixer + 2 * kHidden + 3 * kHidden * kFfn) << family;
  }
}

// Queries come with a gate of their width, norms of a head's.
TEST(DeltaRuleTest, AttentionIsGated) {
  EXPECT_EQ(block("qwen3_5", 1).numel(),
      kHidden * (2 * 256 + 2 * 128) + 256 * kHidden + 2 * 64 + 2 * kHidden + 3 * kHidden * kFfn);
  const std::int64_t width = 256;
  const auto kept = [](const LayerSpec& layer) { return program(layer).saved_bytes().count(); };
  ModelDims plain = small("qwen3_5");
  plain.parts.gate = OutputGate::kNone;
  plain.parts.gate_beside_queries = false;
  Plan plan = {.batch = {kSequence, kBatch, 1}};
  const ModelSpec model = with_variants(build_model(plain), plan);
  // The sigmoid and what o_proj reads; the product of queries with their gate stays for one of
  // their norms, which reads a part of it.
  EXPECT_EQ(kept(block("qwen3_5", 1)) - kept(model.kinds[2]), 2 * kTokens * width * 3);
}

TEST(DeltaRuleTest, WhatIsKept) {
  constexpr std::int64_t kBf16 = 2, kFp32 = 4;
  // The first norm's statistic and result; the second's with its input; the gated feed-forward.
  const std::int64_t around = kFp32 + kBf16 * kHidden + (kBf16 * kHidden + kFp32 + kBf16 * kHidden) + 4 * kBf16 * kFfn;
  const std::int64_t convolution = 2 * kBf16 * kConvolved;  // its input, and silu's
  // softplus' input and the product's; beta.
  const std::int64_t gates = 2 * kFp32 * kHeads + kBf16 * kHeads;
  // Of each head: unit q and k with their lengths, v, the sum of decays, a row of the inverse.
  const std::int64_t of_rule = kHeads * (2 * (kBf16 * kKey + kFp32) + kBf16 * kValue + kFp32 + kBf16 * kChunk);
  // The norm's input and statistics, both factors, silu's input, what out_proj reads.
  const std::int64_t out =
      kBf16 * kValues + kFp32 * kHeads + (kBf16 + kFp32) * kValues + kFp32 * kValues + kBf16 * kValues;
  const std::int64_t looks_back = kBatch * 3 * kConvolved * kBf16;  // positions that are cut off
  EXPECT_EQ(program(block("qwen3_5")).saved_bytes().count(),
      kTokens * (around + convolution + gates + of_rule + out) + looks_back);
}

// Every product of a chunk of a head, as rows x columns x what is summed over.
TEST(DeltaRuleTest, Flops) {
  constexpr std::int64_t c = kChunk, k = kKey, v = kValue;
  const std::int64_t products[][3] = {{c, c, k}, {c, c, k},  // keys with keys, queries with keys
      {c, k, c}, {c, v, c},                                  // the inverse times keys, times values
      {c, v, k}, {k, v, c}, {c, v, k},                       // the state: read by keys, written, read by queries
      {c, v, c}};                                            // what pairs add
  double sum = 0;
  for (const auto& [m, n, inner] : products) sum += 2.0 * static_cast<double>(m * n * inner);
  EXPECT_DOUBLE_EQ(forward_flops(rule(), kBatch, kSequence).count(), sum * kHeads * kBatch * (kSequence / kChunk));
}

// The kernels' tensors, by how often they are read or written.
TEST(DeltaRuleTest, Kernels) {
  const LayerProgram p = program(block("qwen3_5"));
  const std::int64_t rows = kTokens * kHeads, keys = 2 * rows * kKey, values = 2 * rows * kValue, row = 4 * rows,
                     pairs = 2 * rows * kChunk, states = 2 * kBatch * (kSequence / kChunk) * kHeads * kKey * kValue;
  const auto count = [](const LayerPhaseProgram& phase) {
    std::pair<std::int64_t, std::int64_t> found;  // kernels, bytes
    for (const Kernel& kernel : phase.kernels) {
      if (kernel.function != Function::kDeltaRule) continue;
      ++found.first;
      found.second += kernel.bytes.count();
    }
    return found;
  };
  // Unit q and k; sums; zeros, into which the inverse is written, of k, the sums and beta; w and u
  // of k and v; states and corrected values of k, w and u; the result of q, k, those and states.
  const std::int64_t again = (2 * keys + 2 * values + 2 * row + pairs) + (2 * keys + 2 * values + row + states);
  EXPECT_EQ(
      count(p.forward), std::pair(std::int64_t{8}, 2 * (2 * keys + row) + 2 * row + pairs + (keys + 2 * row + pairs) +
                                                       again + (2 * keys + 2 * values + row + states)));
  EXPECT_EQ(
      count(p.backward), std::pair(std::int64_t{12},
                             again + (17 * keys + 11 * values + 3 * states + pairs + 16 * row) + 2 * (3 * keys + row)));
}

// Kimi Linear's decays are as wide as keys, in fp32: before their sums and behind them; pairs of
// queries and keys stay beside the inverse.
TEST(DeltaRuleTest, DecaysOfChannels) {
  ModelDims dims = small("kimi_linear");
  dims.kv_heads = dims.heads;
  dims.latent = {.kv_rank = 64, .nope = 48, .rope = 16, .value = 32};
  dims.delta.scan = {.heads = kHeads, .head_dim = kKey, .state = kKey, .groups = kHeads, .chunk = kChunk};
  Plan plan = {.batch = {kSequence, kBatch, 1}};
  const LayerSpec layer = with_variants(build_model(dims), plan).kinds[1];
  // q, k, v and the way back; two products around a head's width for each gate; beta; a number of
  // each channel and head, the convolution, the norm of a head; norms and feed-forward layer.
  constexpr std::int64_t kWidth = kHeads * kKey;
  EXPECT_EQ(layer.numel(), 4 * kHidden * kWidth + 2 * (kHidden * kKey + kKey * kWidth) + kHidden * kHeads + kWidth +
                               kHeads + 4 * 3 * kWidth + kKey + 2 * kHidden + 3 * kHidden * kFfn);
  const Operation& op = *std::ranges::find(layer.operations, Function::kDeltaRule, &Operation::function);
  std::int64_t kept = 0;
  for (const std::int16_t t : op.saved) {
    const TensorSpec& spec = layer.tensors[at(t)];
    kept += spec.per_token * (spec.type == ElementType::kFp32 ? 4 : 2);
  }
  EXPECT_EQ(kept, 3 * 2 * kWidth + 2 * 4 * kHeads + 2 * 4 * kWidth + 2 * kHeads + 2 * 2 * kHeads * kChunk);
  const std::int64_t rows = kTokens * kHeads, keys = 2 * rows * kKey, row = 4 * rows, decays = row * kKey,
                     pairs = 2 * rows * kChunk, states = 2 * kBatch * (kSequence / kChunk) * kHeads * kKey * kKey;
  std::int64_t moved = 0;
  for (const Kernel& kernel : program(layer).forward.kernels) {
    if (kernel.function == Function::kDeltaRule) moved += kernel.bytes.count();
  }
  // Unit q and k; sums; zeros; pairs with the inverse's diagonals of 16 positions in fp32, then the
  // rest of it; w, u and decayed keys; states and corrected values; the result.
  EXPECT_EQ(moved, 2 * (2 * keys + row) + 2 * decays + pairs + 2 * (2 * keys + decays + row + 16 * row) + 3 * pairs +
                       (5 * keys + row + decays + pairs) + (4 * keys + row + states) +
                       (3 * keys + decays + pairs + states));
}

}
}
