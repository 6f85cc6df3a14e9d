// Encoders and the decoders whose blocks are not Llama's, derived here once more by hand.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/zoo.h"
#include "sim/graph/layers/layer_program.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard::encoders_test {
namespace {

constexpr std::int64_t kSequence = 128;

LayerSpec kind_of(const ModelSpec& model, LayerRole role) {
  for (const LayerSpec& kind : model.kinds) {
    if (kind.role == role) return kind;
  }
  throw std::logic_error("no such layer");
}

double flops_of(const LayerSpec& layer, OperationKind kind) {
  double sum = 0;
  for (const Operation& op : layer.operations) {
    if (op.kind == kind) sum += forward_flops(op, 1, kSequence).count();
  }
  return sum;
}

std::vector<std::string> names_in(const LayerSpec& layer) {
  std::vector<std::string> names;
  for (const ParameterSpec& parameter : layer.parameters) names.push_back(parameter.name);
  return names;
}

std::int64_t saved_bytes(const LayerSpec& layer) {
  ProgramOptions options = {.sequence = kSequence};
  return build_layer_program(layer, options).saved_bytes().count();
}

// Tables of 30522 words, 512 positions, 2 segments and a norm; 12 layers of 4 d^2 + 2 d f with
// their biases and two norms; the head's transform with its norm, and a bias per word.
TEST(EncoderTest, ParametersOfBert) {
  const std::int64_t d = 768, f = 3072;
  const std::int64_t embedding = (30522 + 512 + 2) * d + 2 * d;
  const std::int64_t layer = 4 * (d * d + d) + d * f + f + f * d + d + 2 * 2 * d;
  const std::int64_t head = d * d + d + 2 * d + 30522;
  EXPECT_EQ(load_zoo_model("bert-base").parameters(), embedding + 12 * layer + head);
  EXPECT_EQ(embedding + 12 * layer + head, 109'514'298);
}

TEST(EncoderTest, AttentionOverAllPositionsCostsTwiceTheCausalOne) {
  const ModelSpec bert = load_zoo_model("bert-base");
  EXPECT_DOUBLE_EQ(
      flops_of(kind_of(bert, LayerRole::kBlock), OperationKind::kAttention), 4.0 * 12 * kSequence * kSequence * 64);
  const ModelSpec gpt2 = load_zoo_model("gpt2");  // as many heads of the same size
  EXPECT_DOUBLE_EQ(flops_of(kind_of(bert, LayerRole::kBlock), OperationKind::kAttention),
      2 * flops_of(kind_of(gpt2, LayerRole::kBlock), OperationKind::kAttention));
}

// Kept per token: attention's q, k, v and output 4 x 2d, its logsumexp 4h and (fixed) two seeds;
// the masks of both dropouts d each; the sums that the norms read 2 x 2d with mean and 1/std of 8
// each; the first norm's output 2d; before and after gelu 2 x 2f. The input is the layer before's.
TEST(EncoderTest, BlockSavesWhatAutogradSaves) {
  const LayerSpec& block = kind_of(load_zoo_model("bert-base"), LayerRole::kBlock);
  const std::int64_t d = 768, f = 3072;
  EXPECT_EQ(saved_bytes(block),
      kSequence * (4 * 2 * d + 4 * 12 + 2 * d + 2 * 2 * d + 2 * 8 + 2 * d + 2 * 2 * f) + 2 * kAllocationGranularity);
}

TEST(EncoderTest, HeadIsTheTableWithABiasOfItsOwn) {
  const ModelSpec bert = load_zoo_model("bert-base");
  const LayerSpec& head = kind_of(bert, LayerRole::kHead);
  EXPECT_EQ(
      names_in(head), (std::vector<std::string>{"bert.embeddings.word_embeddings.weight", "cls.predictions.bias"}));
  EXPECT_TRUE(head.parameters[0].tied);
  EXPECT_EQ(head.numel(), 30522);
  EXPECT_EQ(names_in(kind_of(bert, LayerRole::kFinalNorm)),
      (std::vector<std::string>{"cls.predictions.transform.dense.weight", "cls.predictions.transform.dense.bias",
          "cls.predictions.transform.LayerNorm.weight", "cls.predictions.transform.LayerNorm.bias"}));
}

TEST(EncoderTest, ParameterNamesAreThoseOfHuggingFace) {
  EXPECT_EQ(names_in(kind_of(load_zoo_model("roberta-base"), LayerRole::kEmbedding)),
      (std::vector<std::string>{"roberta.embeddings.word_embeddings.weight",
          "roberta.embeddings.token_type_embeddings.weight", "roberta.embeddings.LayerNorm.weight",
          "roberta.embeddings.LayerNorm.bias", "roberta.embeddings.position_embeddings.weight"}));
  EXPECT_EQ(load_zoo_model("roberta-base").block_prefix, "roberta.encoder.layer");
}

// x + attention(norm(x)) + mlp(norm(x)): one norm is kept once, both branches read it.
TEST(VariantBlocksTest, FalconHasOneNormAndTwoBranches) {
  const ModelSpec falcon = load_zoo_model("falcon-7b");
  const LayerSpec& block = kind_of(falcon, LayerRole::kBlock);
  EXPECT_EQ(names_in(block), (std::vector<std::string>{"input_layernorm.weight", "input_layernorm.bias",
                                 "self_attention.query_key_value.weight", "self_attention.dense.weight",
                                 "mlp.dense_h_to_4h.weight", "mlp.dense_4h_to_h.weight"}));
  // 71 heads of 64 with one of keys and of values, d = 4544, f = 4d.
  const double d = 4544;
  EXPECT_DOUBLE_EQ(flops_of(block, OperationKind::kGemm), 2.0 * kSequence * (d * (d + 128) + d * d + 8 * d * d));
}

TEST(VariantBlocksTest, PhiProjectsOnceForQueriesKeysAndValues) {
  const LayerSpec& block = kind_of(load_zoo_model("phi-3-medium"), LayerRole::kBlock);
  EXPECT_EQ(names_in(block),
      (std::vector<std::string>{"input_layernorm.weight", "self_attn.qkv_proj.weight", "self_attn.o_proj.weight",
          "post_attention_layernorm.weight", "mlp.gate_up_proj.weight", "mlp.down_proj.weight"}));
  // Kept per token: two norms' outputs and 1/rms, q and k rotated, the projection that v is a view
  // of, attention's output and logsumexp, the residual; gate and up in one tensor, silu, product.
  const std::int64_t d = 5120, kv = 1280, f = 17920;
  EXPECT_EQ(saved_bytes(block), kSequence * (2 * 2 * d + 2 * 4 + 2 * (d + kv) + 2 * (d + 2 * kv) + 2 * d + 4 * 40 +
                                                2 * d + 2 * 2 * f + 2 * f + 2 * f) +
                                    2 * kAllocationGranularity);
}

TEST(VariantBlocksTest, Gemma2HasFourNormsAndCapsItsLogits) {
  const ModelSpec gemma = load_zoo_model("gemma-2-2b");
  std::int64_t norms = 0;
  for (const Operation& op : kind_of(gemma, LayerRole::kBlock).operations) norms += op.kind == OperationKind::kNorm;
  EXPECT_EQ(norms, 4);
  // tanh keeps its output: the logits once more.
  EXPECT_EQ(saved_bytes(kind_of(gemma, LayerRole::kHead)), 2 * kSequence * 256000);
}

TEST(VariantBlocksTest, PythiaRotatesAQuarterOfEveryHead) {
  const LayerSpec& block = kind_of(load_zoo_model("pythia-6.9b"), LayerRole::kBlock);
  for (const Operation& op : block.operations) {
    if (op.function != Function::kRotary) continue;
    EXPECT_EQ(block.tensors[at(op.outputs.front())].per_token, 32 * 32);
  }
}

TEST(VariantBlocksTest, TheEngineRefusesWhatItHasNoKernelsFor) {
  Plan plan = {.runtime = {RuntimeKind::kNative, "1"}};
  plan.batch.sequence = 512;
  plan.mesh = {8, 1};
  plan.units.embedding = plan.units.head = UnitPlacement::kRoot;
  Cluster cluster = {.gpus = 8};
  for (const char* name : {"mixtral-8x7b", "deepseek-v2-lite", "qwen1.5-moe-a2.7b", "bert-base", "gemma-2b",
           "falcon-7b", "phi-4", "pythia-1b"}) {
    const auto problem = find_problem(plan, load_zoo_model(name, Stack::kNative), cluster);
    ASSERT_TRUE(problem) << name;
    EXPECT_EQ(problem->exit_code, ExitCode::kMissingCapability) << name;
    EXPECT_EQ(problem->did_you_mean, "runtime: fsdp2") << name;
  }
  EXPECT_FALSE(find_problem(plan, load_zoo_model("llama-3-8b", Stack::kNative), cluster));
}

}
}
