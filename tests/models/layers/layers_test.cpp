// What one block computes, keeps and names, derived here once more by hand.
#include "models/layers/layers.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "models/families.h"
#include "models/zoo.h"
#include "sim/base/error.h"
#include "sim/graph/layers/layer_program.h"

namespace foreshard::layers_test {
namespace {

ModelDims sized(std::string_view family) {
  ModelDims dims = family_dims(family).value();
  dims.name = "small";
  dims.layers = 2;
  dims.hidden = 512;
  dims.heads = 8;
  dims.kv_heads = dims.fused_qkv || family == "opt" ? 8 : 4;
  dims.head_dim = 64;
  dims.ffn = 1536;
  dims.vocabulary = 4096;
  dims.max_positions = 128;
  if (dims.positions == Positions::kLearned) dims.position_rows = 128;
  return dims;
}

// Bytes of everything that some operation of the layer saves, in bf16, the layer's input included.
std::int64_t saved_bytes(const LayerSpec& layer, std::int64_t batch, std::int64_t sequence) {
  std::set<std::int16_t> saved;
  for (const Operation& op : layer.operations) saved.insert(op.saved.begin(), op.saved.end());
  std::int64_t bytes = 0;
  for (const std::int16_t t : saved) {
    const TensorSpec& tensor = layer.tensors[at(t)];
    const std::map<ElementType, std::int64_t> sizes = {
        {ElementType::kCompute, 2}, {ElementType::kFp32, 4}, {ElementType::kInt64, 8}, {ElementType::kByte, 1}};
    bytes += elements(tensor, batch, sequence) * sizes.at(tensor.type);
  }
  return bytes;
}

std::vector<std::string> kept(const LayerSpec& layer) {
  std::vector<std::string> names;
  for (const Operation& op : layer.operations) {
    if (op.kept_by_selective) names.push_back(op.name);
  }
  return names;
}

std::vector<std::string> names_in(const LayerSpec& layer) {
  std::vector<std::string> names;
  for (const ParameterSpec& parameter : layer.parameters) names.push_back(parameter.name);
  return names;
}

TEST(LayersTest, LlamaBlockSavesWhatAutogradSaves) {
  const ModelDims dims = sized("llama");
  const std::int64_t b = 2;
  const std::int64_t s = 128;
  const std::int64_t tokens = b * s;
  const std::int64_t d = dims.hidden;
  const std::int64_t d_kv = dims.kv_heads * dims.head_dim;
  const std::int64_t f = dims.ffn;
  // x, norm1, q, attention, residual, norm2: 6 of width d; k, v; gate, silu, up, product;
  // logsumexp; two 1/rms; two seeds
  const std::int64_t expected =
      12 * tokens * d + 4 * tokens * d_kv + 8 * tokens * f + 4 * tokens * dims.heads + 8 * tokens + 24;
  EXPECT_EQ(saved_bytes(decoder_block(dims), b, s), expected);
}

TEST(LayersTest, LayerProgramKeepsTheSameBytes) {
  const ModelDims dims = sized("llama");
  const LayerProgram program = build_layer_program(decoder_block(dims), {.batch = 2, .sequence = 128});
  // The input belongs to the layer before, the seeds take one allocation unit each.
  const std::int64_t tokens = 256;
  const std::int64_t own = 10 * tokens * 512 + 4 * tokens * 256 + 8 * tokens * 1536 + 4 * tokens * 8 + 8 * tokens +
                           2 * kAllocationGranularity;
  EXPECT_EQ(program.saved_bytes().count(), own);
}

TEST(LayersTest, GptBlockSaves) {
  const ModelDims dims = sized("gpt3");
  const std::int64_t tokens = 256;
  // x, norm1, attention, residual, norm2 (5 d), qkv (3 d), before and after gelu (2 f); logsumexp; two means, two 1/std
  const std::int64_t expected = 2 * tokens * (8 * 512 + 2 * 1536) + 4 * tokens * 8 + 16 * tokens + 24;
  EXPECT_EQ(saved_bytes(decoder_block(dims), 2, 128), expected);
  // relu keeps its output only, which the next product keeps anyway
  EXPECT_EQ(saved_bytes(decoder_block(sized("opt")), 2, 128), expected - 2 * tokens * 1536);
}

// Recorded from PyTorch 2.11 (fsdp2 recording gpt2_tied): 4 sequences of 1024 through a GPT-2 block.
TEST(LayersTest, GptBlockKeepsWhatWasRecorded) {
  ModelDims dims = sized("gpt3");
  dims.hidden = 768;
  dims.heads = dims.kv_heads = 12;
  dims.ffn = 3072;
  const LayerProgram program = build_layer_program(decoder_block(dims), {.batch = 4, .sequence = 1024});
  // The block's output is kept by its successor; the program counts it there.
  const std::int64_t output = 2 * 4096 * 768;
  EXPECT_EQ(program.saved_bytes().count() + output, 100'926'464);
}

TEST(LayersTest, QkNormKeepsProjectionsAndStatistics) {
  const ModelDims llama = sized("llama");
  const ModelDims qwen3 = sized("qwen3");
  const std::int64_t tokens = 256;
  EXPECT_EQ(saved_bytes(decoder_block(qwen3), 2, 128) - saved_bytes(decoder_block(llama), 2, 128),
      2 * tokens * (8 + 4) * 64 + 4 * tokens * (8 + 4));
  EXPECT_EQ(decoder_block(qwen3).numel() - decoder_block(llama).numel(), 2 * 64);
}

TEST(LayersTest, SelectiveKeepsAttentionAndEverySecondProduct) {
  EXPECT_EQ(kept(decoder_block(sized("llama"))), (std::vector<std::string>{"self_attn.q_proj", "self_attn.v_proj",
                                                     "attention", "mlp.gate_proj", "mlp.down_proj"}));
  // With biases its products are aten::addmm, which is not on the list (recorded: layers.csv, gpt2_sel).
  EXPECT_EQ(kept(decoder_block(sized("gpt2"))), std::vector<std::string>{"attention"});
}

TEST(LayersTest, ParameterNamesAreThoseOfHuggingFace) {
  EXPECT_EQ(names_in(decoder_block(sized("llama"))),
      (std::vector<std::string>{"input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight",
          "self_attn.v_proj.weight", "self_attn.o_proj.weight", "post_attention_layernorm.weight",
          "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"}));
  EXPECT_EQ(names_in(decoder_block(sized("gpt2"))),
      (std::vector<std::string>{"ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias",
          "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias",
          "mlp.c_proj.weight", "mlp.c_proj.bias"}));
  EXPECT_EQ(names_in(decoder_block(sized("mpt"))),
      (std::vector<std::string>{"norm_1.weight", "attn.Wqkv.weight", "attn.out_proj.weight", "norm_2.weight",
          "ffn.up_proj.weight", "ffn.down_proj.weight"}));
  EXPECT_EQ(build_model(sized("llama")).block_prefix, "model.layers");
}

TEST(LayersTest, Gpt2StoresItsWeightsTheOtherWayRound) {
  const LayerSpec gpt2 = decoder_block(sized("gpt2"));
  const LayerSpec gpt3 = decoder_block(sized("gpt3"));
  EXPECT_EQ(gpt2.parameters[2].shape, (std::vector<std::int64_t>{512, 1536}));
  EXPECT_EQ(gpt3.parameters[2].shape, (std::vector<std::int64_t>{1536, 512}));
  EXPECT_EQ(gpt2.numel(), gpt3.numel());
}

TEST(LayersTest, TiedHeadOwnsNoWeightButComputesWithIt) {
  ModelDims dims = sized("llama");
  const ModelSpec untied = build_model(dims);
  dims.tied = true;
  const ModelSpec tied = build_model(dims);
  EXPECT_EQ(untied.parameters() - tied.parameters(), 4096 * 512);
  const LayerSpec head = head_layer(dims);
  ASSERT_EQ(head.parameters.size(), 1U);
  EXPECT_TRUE(head.parameters[0].tied);
  EXPECT_EQ(head.parameters[0].name, "model.embed_tokens.weight");
  EXPECT_EQ(head.numel(), 0);
  EXPECT_EQ(untied.training_flops_per_sequence(128), tied.training_flops_per_sequence(128));
}

// 6 FLOPs per token and weight that is multiplied (all but embedding and norms), and for causal
// attention 3 (forward + 2 x backward) x 4 h S head_dim / 2 = 6 L d S.
TEST(FlopsTest, Llama31) {
  const ModelSpec model = load_zoo_model("llama-3.1-8b");
  const double block = 4096.0 * 4096 * 2 + 4096.0 * 1024 * 2 + 4096.0 * 14336 * 3;
  const double weights = 32 * block + 4096.0 * 128256;
  const double per_token = 6 * weights + 6.0 * 32 * 4096 * 8192;
  EXPECT_DOUBLE_EQ(model.training_flops_per_sequence(8192).count(), per_token * 8192);
  // As counted by hand: 45.03 GFLOPs of products and 6.44 of attention per token.
  EXPECT_NEAR(per_token / 1e9, 51.47, 0.01);
}

TEST(FlopsTest, Gpt3) {
  const ModelSpec model = load_zoo_model("gpt3-175b");
  const double d = 12288;
  const double weights = 96 * 12 * d * d + d * 50257;  // qkv 3, out 1, mlp 4 + 4; the tied head multiplies
  const double per_token = 6 * weights + 6 * 96 * d * 2048;
  EXPECT_DOUBLE_EQ(model.training_flops_per_sequence(2048).count(), per_token * 2048);
  // Brown et al. 2020, table D.1: 3.14e23 FLOPs for 300 B tokens without attention, from 6 x 174.6 B weights.
  EXPECT_NEAR(6 * weights * 300e9, 3.14e23, 0.01 * 3.14e23);
}

std::string failure(const ModelDims& dims) {
  try {
    build_model(dims);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
    return error.what();
  }
  return "no error";
}

TEST(BuildModelTest, RefusesImpossibleSizes) {
  ModelDims dims = sized("llama");
  dims.hidden = 0;
  EXPECT_EQ(failure(dims), "model small: the hidden size is 0; expected at least 1");
  dims = sized("llama");
  dims.kv_heads = 3;
  EXPECT_EQ(failure(dims), "model small: 3 key/value heads do not divide 8 heads");
  dims = sized("llama");
  dims.layers = -4;
  EXPECT_EQ(failure(dims), "model small: the number of layers is -4; expected at least 1");
  dims = sized("llama");
  dims.hidden = dims.ffn = 1'000'000'000;
  dims.layers = 1000;
  EXPECT_NE(failure(dims).find("overflows"), std::string::npos) << failure(dims);
  dims = sized("llama");
  dims.heads = dims.kv_heads = dims.head_dim = 1'000'000'000;
  EXPECT_NE(failure(dims).find("the width of all heads"), std::string::npos) << failure(dims);
}

TEST(ModelSpecTest, SizesAreChecked) {
  const TensorSpec tensor = {.name = "t", .per_token = 1'000'000'000, .per_position = 3, .fixed = 5};
  EXPECT_EQ(elements(tensor, 2, 10), 20'000'000'000 + 30 + 5);
  EXPECT_THROW(elements(tensor, 1'000'000, 1'000'000), Error);
  const ParameterSpec parameter = {.name = "p", .shape = {1LL << 40, 1LL << 40}};
  EXPECT_THROW(parameter.numel(), Error);
}

}
}
