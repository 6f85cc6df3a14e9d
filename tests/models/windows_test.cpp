// Windows of attention: kernels that take them compute the pairs of positions that they hold.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <string>

#include "models/layers/variants.h"
#include "models/zoo.h"
#include "sim/base/lookup.h"
#include "sim/spec/model_spec.h"

namespace foreshard {
namespace {

// A query attends to its own position and the window - 1 before it (transformers'
// masking_utils.py, sliding_window_overlay), counted pair by pair; the diagonal counts half, as in
// the half of the square that causal attention counts.
double pairs(std::int64_t positions, std::int64_t window) {
  double sum = 0;
  for (std::int64_t query = 0; query < positions; ++query) {
    for (std::int64_t key = 0; key <= query; ++key) {
      if (window == 0 || key > query - window) sum += key == query ? 0.5 : 1;
    }
  }
  return sum;
}

RC_GTEST_PROP(Windows, FlopsAreThoseOfThePairs, ()) {
  const auto positions = *rc::gen::inRange<std::int64_t>(1, 120);
  Operation op = {.kind = OperationKind::kAttention, .function = Function::kAttention};
  op.attention.heads = op.attention.kv_heads = 1;
  op.attention.head_dim = 4;
  op.attention.window = *rc::gen::inRange<std::int64_t>(0, 140);
  const double of_a_pair = 2.0 * 2 * 4;  // q k and p v
  const double counted = forward_flops(op, 1, positions).count() / of_a_pair;
  const bool is_bound = op.attention.window > 0 && op.attention.window < positions;
  // The farthest key is a whole pair where the continuous window has half of it.
  const double rounding = is_bound ? static_cast<double>(positions) / 2 : 1e-9;
  RC_ASSERT(std::abs(counted - pairs(positions, op.attention.window)) <= rounding);
}

const AttentionShape* attention_of(const ModelSpec& model, const std::string& kind) {
  for (const LayerSpec& layer : model.kinds) {
    if (!contains(layer.name, kind) || layer.role != LayerRole::kBlock) continue;
    for (const Operation& op : layer.operations) {
      if (op.kind == OperationKind::kAttention) return &op.attention;
    }
  }
  return nullptr;
}

ModelSpec planned(const char* name, AttentionKernel kernel, std::int64_t sequence) {
  Plan plan = {.attention = kernel};
  plan.batch.sequence = sequence;
  return with_variants(load_zoo_model(name), plan);
}

// gemma-3-4b: five of six layers within 1,024. Kernels that take windows compute these; PyTorch's
// own are given a mask, and compute everything.
TEST(Windows, OfTheCatalogueBoundSomeLayers) {
  using enum AttentionKernel;
  const ModelSpec fa3 = planned("gemma-3-4b", kFa3, 8192);
  ASSERT_NE(attention_of(fa3, "windowed"), nullptr);
  EXPECT_EQ(attention_of(fa3, "windowed")->window, 1024);
  EXPECT_EQ(attention_of(fa3, "gemma3 block")->window, 0);
  const ModelSpec flash = planned("gemma-3-4b", kFlash, 8192);
  EXPECT_EQ(attention_of(flash, "windowed")->window, 0);
  EXPECT_FALSE(attention_of(flash, "windowed")->causal);
  EXPECT_LT(fa3.training_flops_per_sequence(8192), flash.training_flops_per_sequence(8192));
}

// FlexAttention of torchtitan takes the windows of gpt-oss and the chunks of Llama 4, which are as
// documents of their length.
TEST(Windows, FlexAttentionTakesWindowsAndChunks) {
  const ModelSpec oss = planned("gpt-oss-20b", AttentionKernel::kFlash, 4096);
  EXPECT_EQ(attention_of(oss, "windowed")->window, 128);
  EXPECT_TRUE(attention_of(oss, "windowed")->causal);
  const ModelSpec scout = planned("llama-4-scout", AttentionKernel::kFlash, 20000);
  EXPECT_EQ(attention_of(scout, "windowed")->documents, 3);
  EXPECT_EQ(attention_of(scout, "unrotated")->documents, 1);
  EXPECT_EQ(attention_of(planned("llama-4-scout", AttentionKernel::kFlash, 8192), "windowed")->documents, 1);
}

}
}
