// What each of Megatron-Core's modules runs again, and what its absence from memory is worth.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "models/zoo.h"
#include "sim/graph/axes/layer_cutter.h"
#include "sim/graph/layers/layer_program.h"

namespace foreshard::recompute_modules_test {
namespace {

using Module = MegatronOptions::Module;
using Names = std::set<std::string>;

LayerSpec block_of(const char* model, const char* kind) {
  for (const LayerSpec& layer : load_zoo_model(model).kinds) {
    if (layer.name == kind) return layer;
  }
  ADD_FAILURE() << kind;
  return {};
}
LayerSpec expert_block() { return block_of("deepseek-v3", "deepseek_v3 expert block"); }

// Outputs of what runs again.
Names again(LayerSpec layer, std::vector<Module> modules) {
  recompute_modules(layer, modules);
  Names names;
  for (const Operation& op : layer.operations) {
    if (op.kept_by_selective) continue;
    for (const std::int16_t t : op.outputs) names.insert(layer.tensors[at(t)].name);
  }
  return names;
}

TEST(RecomputeModules, AttentionNormsAndActivationsAreTheirOwn) {
  EXPECT_EQ(again(expert_block(), {}), Names{});
  EXPECT_EQ(again(expert_block(), {Module::kCoreAttn}), (Names{"attention", "logsumexp", "rng_state", "rng_unused"}));
  EXPECT_EQ(again(expert_block(), {Module::kMoeAct}), (Names{"expert_silu", "expert_silu_times_up"}));
  // Latent attention's input norm is a module, as is a mixture's.
  EXPECT_EQ(again(expert_block(), {Module::kLayernorm}), (Names{"norm1", "norm1_rstd", "norm2", "norm2_rstd"}));
  // A dense block's are in the linear layers that read them.
  EXPECT_EQ(again(block_of("llama-3.1-8b", "llama block"), {Module::kLayernorm}), Names{});
  EXPECT_EQ(
      again(block_of("qwen3-30b-a3b", "qwen3_moe expert block"), {Module::kLayernorm}), (Names{"norm2", "norm2_rstd"}));
}

// From latents to attention: products that widen, rotations, what puts heads together.
TEST(RecomputeModules, LatentsAreWidenedAgain) {
  const Names widened = {"q", "q_nope", "q_rope", "q_fp32", "q_rotated_fp32", "q_rotated", "q_whole", "k_fp32",
      "k_rotated_fp32", "k_rotated", "kv", "k_nope", "v", "k_rope_of_heads", "k_whole"};
  EXPECT_EQ(again(expert_block(), {Module::kMlaUpProj}), widened);
  EXPECT_EQ(again(block_of("deepseek-v3", "deepseek_v3 block"), {Module::kMlaUpProj}), widened);
  EXPECT_EQ(again(block_of("qwen3-30b-a3b", "qwen3_moe expert block"), {Module::kMlaUpProj}), Names{});
}

TEST(RecomputeModules, FeedForwardsRunAgainWhole) {
  EXPECT_EQ(again(block_of("llama-3.1-8b", "llama block"), {Module::kMlp}),
      (Names{"norm2", "norm2_rstd", "gate", "silu", "up", "silu_times_up", "down"}));
  EXPECT_EQ(again(expert_block(), {Module::kMlp}), Names{});
  EXPECT_EQ(again(expert_block(), {Module::kSharedExperts}), (Names{"gate", "silu", "up", "silu_times_up", "down"}));
  const Names moe = again(expert_block(), {Module::kMoe});
  for (const char* name : {"router_logits", "rows", "expert_output", "down", "experts_output"}) {
    EXPECT_TRUE(moe.contains(name)) << name;
  }
  for (const char* name : {"norm2", "attention", "mlp_residual"}) EXPECT_FALSE(moe.contains(name)) << name;
}

ProgramOptions megatron() {
  ProgramOptions options = {.sequence = 64, .recompute = Recompute::kSelective};
  options.keeps_read = options.recomputes_first = true;
  return options;
}

// What backward reads is kept where nothing runs again, and nothing else.
TEST(RecomputeModules, NoModuleIsNoRecomputation) {
  for (LayerSpec layer : {expert_block(), block_of("llama-3.1-8b", "llama block")}) {
    recompute_modules(layer, {});
    ProgramOptions none = megatron();
    none.recompute = Recompute::kNone;
    const LayerProgram whole = build_layer_program(layer, none);
    const LayerProgram listed = build_layer_program(layer, megatron());
    EXPECT_EQ(listed.saved_bytes(), whole.saved_bytes()) << layer.name;
    EXPECT_EQ(listed.recompute.kernels.size(), 0U) << layer.name;
  }
}

// Of 64 tokens, 8 rows each: silu's result and its product with up, 2048 elements of two bytes;
// experts' activation again, for the two kernels that make them.
TEST(RecomputeModules, AnActivationThatRunsAgainIsNotKept) {
  LayerSpec layer = expert_block();
  recompute_modules(layer, {});
  const Bytes all = build_layer_program(layer, megatron()).saved_bytes();
  const std::vector<Module> modules = {Module::kMoeAct};
  recompute_modules(layer, modules);
  const LayerProgram program = build_layer_program(layer, megatron());
  EXPECT_EQ((all - program.saved_bytes()).count(), 64 * 8 * 2 * 2048 * 2);
  EXPECT_EQ(program.recompute.kernels.size(), 2U);
}

}
}
