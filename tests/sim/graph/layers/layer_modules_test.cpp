// Modules from parameter names, and the hooks that a layer's phases are cut at.
#include "sim/graph/layers/layer_modules.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "models/families.h"
#include "sim/graph/training_step.h"
#include "tests/support/fixtures.h"

namespace foreshard::layer_modules_test {
namespace {

constexpr std::int32_t kBlock = 1;  // of tiny_model's order

const LayerSpec& layer_of(const ModelSpec& model, std::int32_t layer) {
  return model.kinds[static_cast<std::size_t>(model.order[static_cast<std::size_t>(layer)].kind)];
}

// Four blocks of GPT-2: biases, LayerNorm, one matrix for q, k and v, tied embeddings.
ModelSpec tiny_gpt() {
  ModelDims dims = family_dims("gpt3", "tiny", {4, 64, 4, 4, 16, 256, 100, 32});
  dims.tied = true;
  return build_model(dims);
}

LayerProgram program_of(const ModelSpec& model, std::int32_t layer) {
  ProgramOptions options = {.sequence = 8, .hooks = true};
  const bool is_table = layer_of(model, layer).role == LayerRole::kEmbedding && model.tied_embeddings;
  options.tied = is_table ? Tying::kTokenTable : Tying::kNone;
  return build_layer_program(layer_of(model, layer), options);
}

std::vector<std::string> gradients_of(const ModelSpec& model, std::int32_t layer) {
  std::vector<std::string> names;
  for (const LayerHook& hook : program_of(model, layer).backward.hooks) {
    if (hook.kind != LayerHook::Kind::kGradient) continue;
    names.push_back(layer_of(model, layer).parameters[static_cast<std::size_t>(hook.index)].name);
  }
  return names;
}

TEST(LayerModules, OuterModulesComeBeforeInnerOnes) {
  const ModelSpec model = tiny_model(2);
  std::vector<std::string> names;
  for (const LayerModule& module : modules_of(layer_of(model, kBlock))) {
    names.push_back(module.name);
    if (module.parent >= 0) {
      EXPECT_TRUE(module.name.starts_with(names[static_cast<std::size_t>(module.parent)]));
    }
  }
  const auto at = [&](const char* name) { return std::find(names.begin(), names.end(), name) - names.begin(); };
  EXPECT_LT(at("self_attn"), at("self_attn.q_proj"));
  EXPECT_LT(at("self_attn.o_proj"), at("mlp.gate_proj"));
  // Two norms, attention and its four matrices, the MLP and its three.
  EXPECT_EQ(names.size(), 2U + 5U + 4U);
}

TEST(LayerModules, NamesCarryTheBlocksNumber) {
  const ModelSpec model = tiny_model(3);
  const auto& parameters = layer_of(model, kBlock).parameters;
  const auto q =
      std::ranges::find_if(parameters, [](const ParameterSpec& p) { return p.name == "self_attn.q_proj.weight"; });
  ASSERT_NE(q, parameters.end());
  EXPECT_EQ(parameter_name(model, kBlock + 2, static_cast<std::int16_t>(q - parameters.begin())),
      model.block_prefix + ".2.self_attn.q_proj.weight");
}

// The order of grad_ready in recordings of PyTorch 2.11 (the recorder's llama and gpt blocks).
TEST(LayerModules, GradientsOfALlamaBlockAreStoredInAutogradsOrder) {
  EXPECT_EQ(gradients_of(tiny_model(2), kBlock),
      (std::vector<std::string>{"mlp.down_proj.weight", "mlp.up_proj.weight", "mlp.gate_proj.weight",
          "post_attention_layernorm.weight", "self_attn.o_proj.weight", "self_attn.v_proj.weight",
          "self_attn.k_proj.weight", "self_attn.q_proj.weight", "input_layernorm.weight"}));
}

TEST(LayerModules, GradientsOfAGptBlockHaveBiasesFirst) {
  EXPECT_EQ(gradients_of(tiny_gpt(), kBlock),
      (std::vector<std::string>{"mlp.c_proj.bias", "mlp.c_proj.weight", "mlp.c_fc.bias", "mlp.c_fc.weight",
          "ln_2.weight", "ln_2.bias", "attn.c_proj.bias", "attn.c_proj.weight", "attn.c_attn.bias",
          "attn.c_attn.weight", "ln_1.weight", "ln_1.bias"}));
}

// A tied head stores nothing: the table's gradient is complete with the lookup's.
TEST(LayerModules, ATiedTableIsStoredLast) {
  const ModelSpec model = tiny_gpt();
  const auto last = static_cast<std::int32_t>(model.order.size()) - 2;
  ASSERT_EQ(layer_of(model, last).role, LayerRole::kHead);
  EXPECT_TRUE(gradients_of(model, last).empty());
  EXPECT_EQ(gradients_of(model, 0), (std::vector<std::string>{"transformer.wpe.weight", "transformer.wte.weight"}));
}

// Cutting moves no work: segments are the phase in pieces, hooks between them in order.
TEST(LayerModules, SegmentsAreThePhaseInPieces) {
  for (const ModelSpec& model : {tiny_model(2), tiny_gpt()}) {
    for (std::int32_t l = 0; l < static_cast<std::int32_t>(model.order.size()); ++l) {
      ProgramOptions options = {.sequence = 8};
      const LayerProgram whole = build_layer_program(layer_of(model, l), options);
      options.hooks = true;
      const LayerProgram cut = build_layer_program(layer_of(model, l), options);
      EXPECT_EQ(cut.backward.actions, whole.backward.actions);
      EXPECT_EQ(cut.backward.swing.peak, whole.backward.swing.peak);
      ASSERT_FALSE(cut.backward.segments.empty());
      EXPECT_EQ(cut.backward.segments.back().actions_end, cut.backward.actions.size());
      EXPECT_EQ(cut.backward.segments.back().kernels_end, cut.backward.kernels.size());
      std::uint16_t before = 0;
      for (const LayerHook& hook : cut.backward.hooks) {
        EXPECT_GE(hook.segment, before);
        before = hook.segment;
        EXPECT_LT(hook.segment, cut.backward.segments.size());
      }
    }
  }
}

// Every module is entered once and left once in each pass; what is entered last is left first.
TEST(LayerModules, ModulesNest) {
  const ModelSpec model = tiny_model(2);
  const LayerProgram program = program_of(model, kBlock);
  const std::size_t count = modules_of(layer_of(model, kBlock)).size();
  for (const LayerPhaseProgram* phase : {&program.forward, &program.backward}) {
    std::vector<std::int16_t> open;
    std::size_t entered = 0;
    for (const LayerHook& hook : phase->hooks) {
      if (hook.kind == LayerHook::Kind::kEnter) {
        open.push_back(hook.index);
        ++entered;
      } else if (hook.kind == LayerHook::Kind::kExit) {
        ASSERT_FALSE(open.empty());
        EXPECT_EQ(open.back(), hook.index);
        open.pop_back();
      }
    }
    EXPECT_EQ(entered, count);
    EXPECT_TRUE(open.empty());
  }
}

}
}
