// Bytes that the kernels of a block move per token, by hand. GPT block (gpt3's family): width d,
// MLP of 4d, projections of q, k and v in one; statistics and biases are small beside them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string_view>

#include "models/families.h"
#include "models/layers/variants.h"
#include "models/model_dims.h"
#include "models/yaml/model_yaml.h"
#include "sim/graph/layers/layer_program.h"
#include "sim/graph/training_step.h"
#include "tests/support/fixtures.h"

namespace foreshard::module_kernels_test {
namespace {

constexpr std::int64_t kTokens = 1024, kWidth = 1024;

ModelSpec small(const char* family) {
  ModelDims dims = *family_dims(family);
  dims.name = family;
  dims.layers = 2;
  dims.hidden = kWidth;
  dims.heads = dims.kv_heads = 16;
  dims.head_dim = 64;
  dims.ffn = 4 * kWidth;
  dims.vocabulary = 1000;
  dims.max_positions = kTokens;
  if (dims.positions == Positions::kLearned) dims.position_rows = kTokens;
  return build_model(dims);
}

Plan plan_with(const ModuleKernels& kernels, bool autocast) {
  Plan plan;
  plan.batch.sequence = kTokens;
  plan.kernels = kernels;
  if (autocast) {
    plan.param_dtype = DType::kFp32;
    plan.autocast = DType::kBf16;
  }
  return plan;
}

LayerProgram block(
    const char* family, const Plan& plan, Recompute recompute = Recompute::kNone, LayerRole role = LayerRole::kBlock) {
  const ModelSpec model = with_variants(small(family), plan);
  for (const LayerSpec& layer : model.kinds) {
    if (layer.role != role) continue;
    ProgramOptions options = {.sequence = kTokens, .recompute = recompute};
    if (plan.autocast) options.gradient_dtype = plan.param_dtype;
    return build_layer_program(layer, options);
  }
  return {};
}

// Per token and in units of the width, rounded: statistics and biases vanish.
std::map<Function, std::int64_t> moved(const LayerPhaseProgram& phase) {
  std::map<Function, std::int64_t> bytes;
  for (const Kernel& kernel : phase.kernels) {
    if (kernel.kind == KernelKind::kMemory) bytes[kernel.function] += kernel.bytes.count();
  }
  for (auto& [function, sum] : bytes) sum = (sum + kTokens * kWidth / 2) / (kTokens * kWidth);
  return bytes;
}

const ModuleKernels kComposer = {
    .norm = ModuleKernels::Norm::kFp32, .residual = ModuleKernels::Residual::kFp32, .unpads = true};

// Under autocast with fp32 weights and an fp32 stream:
//   norms  two, 4 bytes in and out: 16 d     sums  two, 4 + 2 in, 4 out: 20 d
//   casts  of both norms' results, 4 in, 2 out: 12 d; of weights 12 d^2 elements, 6 bytes each,
//   over
//          all tokens: 72 d * d / tokens = 72 d
//   gelu   2 * 4d in and out: 16 d           copies of q, k, v out of the batch: 2 * 2 * 3d = 12 d,
//          and of the result back into it: 4 d
TEST(ModuleKernels, AutocastBlockMovesWhatItsKernelsReadAndWrite) {
  auto bytes = moved(block("gpt3", plan_with(kComposer, true)).forward);
  EXPECT_EQ(bytes[Function::kLayerNorm], 16);
  EXPECT_EQ(bytes[Function::kAdd], 20);
  EXPECT_EQ(bytes[Function::kCast], 12 + 72);
  EXPECT_EQ(bytes[Function::kGelu], 16);
  EXPECT_EQ(bytes[Function::kGather], 12);
  EXPECT_EQ(bytes[Function::kScatterAdd], 4);
}

// The copies of the weights are saved: 12 d^2 elements of two bytes, 24 d a token here. Of the
// activations the casts instead of the norms' results.
TEST(ModuleKernels, AutocastKeepsItsCopiesOfTheWeights) {
  const auto saved = [](const Plan& plan) { return block("gpt3", plan).saved_bytes().count() / (kTokens * kWidth); };
  const ModuleKernels fp32 = {.norm = ModuleKernels::Norm::kFp32, .residual = ModuleKernels::Residual::kFp32};
  // norm1 and norm2's results cast 2 + 2, qkv 6, attention 2, gelu's input and result 8 + 8, the
  // fp32 sum that norm2 reads 4; the block's input is the layer before's.
  EXPECT_EQ(saved(plan_with(fp32, true)), 2 + 2 + 6 + 2 + 8 + 8 + 4 + 24);
  EXPECT_EQ(saved(plan_with({}, false)), 2 + 2 + 6 + 2 + 8 + 8 + 2);
}

constexpr const char* kTraced = R"(
model: m
family: m
positions: 64
source: modules.json of a capture
layers:
  e:
    role: embedding
    tensors: {input: {per_token: 1, type: int64}, rows: {per_token: 8, type: fp32}}
    parameters: {e: {shape: [16, 8]}}
    operations:
    - {op: embedding, name: rows, inputs: [input], outputs: [rows], parameters: [e]}
    output: rows
  l:
    role: head
    tensors:
      input: {per_token: 8, type: fp32}
      normed: {per_token: 8, type: fp32}
      narrow: {per_token: 8}
      made: {per_token: 4}
      wide: {per_token: 4, type: fp32}
    parameters: {n: {shape: [8], norm: true}, w: {shape: [4, 8]}}
    operations:
    - {op: layer_norm, name: norm, inputs: [input], outputs: [normed], parameters: [n], saved: [input]}
    - {op: cast, name: cast_1 of head, inputs: [normed], outputs: [narrow]}
    - {op: linear, name: linear_2 of head, inputs: [narrow], outputs: [made], parameters: [w], n: 4, k: 8, saved: [narrow]}
    - {op: cast, name: cast_3, inputs: [made], outputs: [wide]}
    output: wide
  loss:
    role: loss
    tensors: {input: {per_token: 4, type: fp32}, made: {per_token: 4, type: fp32}}
    operations:
    - {op: log_softmax, name: loss, inputs: [input], outputs: [made], saved: [made]}
    output: made
order:
- {kind: e, name: embedding}
- {kind: l, name: head}
- {kind: loss, name: loss}
)";

// A program that ran under autocast: its norm keeps the fp32 that it read, its product has a copy of its weight; and
// fp32 logits of a model in 16 bits stay fp32.
TEST(ModuleKernels, WhatATraceHasOfAutocastStays) {
  const ModelSpec traced = parse_model_yaml(parse_yaml(kTraced, "m.yaml"));
  const auto count = [](const ModelSpec& model, std::string_view end) {
    std::ptrdiff_t found = 0;
    for (const LayerSpec& kind : model.kinds)
      found += std::ranges::count_if(kind.tensors, [&](const TensorSpec& each) { return each.name.ends_with(end); });
    return found;
  };
  const ModelSpec own = with_variants(traced, plan_with({}, true));
  EXPECT_EQ(count(own, ".weight_cast"), 1);
  EXPECT_EQ(count(own, "input_cast"), 0);
  Plan narrow = plan_with({}, false);
  narrow.param_dtype = narrow.master_dtype = DType::kBf16;
  EXPECT_EQ(with_variants(traced, narrow).kinds.back().tensors.front().type, ElementType::kFp32);
}

// x.float() 2 + 4, pow 4 + 4, mean 4, x * rsqrt 4 + 4, type_as 4 + 2, weight 2 + 2: 36 d for each
// of two; against one kernel of 2 + 2.
TEST(ModuleKernels, EagerRmsNormIsSixPasses) {
  const auto total = [](const Plan& plan) {
    std::int64_t sum = 0;
    for (const auto& [function, bytes] : moved(block("llama", plan).forward)) sum += bytes;
    return sum;
  };
  const std::int64_t fused = total(plan_with({}, false));
  const std::int64_t eager = total(plan_with({.norm = ModuleKernels::Norm::kEager}, false));
  EXPECT_EQ(eager - fused, 2 * (36 - 4));
}

// Forward as above. Backward: weight 2 + 2 + 2, type_as 2 + 4, x * rsqrt 4 + 4 + 4 and the sum for
// rsqrt 4, mean 4, pow 4 + 4 + 4, the two gradients of x.float() 4 + 4 + 4, x.float() 4 + 2: 62 d.
// calibration/fit/fit_memory.cpp counts on both.
TEST(ModuleKernels, EagerRmsNormIsAClassOfItsOwn) {
  const Plan plan = plan_with({.norm = ModuleKernels::Norm::kEager}, false);
  const auto of_class = [](const LayerPhaseProgram& phase, MemoryClass which) {
    std::int64_t sum = 0;
    for (const Kernel& kernel : phase.kernels) {
      if (kernel.kind == KernelKind::kMemory && kernel.memory_class == which) sum += kernel.bytes.count();
    }
    return (sum + kTokens * kWidth / 2) / (kTokens * kWidth);
  };
  const LayerProgram program = block("llama", plan);
  EXPECT_EQ(of_class(program.forward, MemoryClass::kEagerNormForward), 2 * 36);
  EXPECT_EQ(of_class(program.backward, MemoryClass::kEagerNormBackward), 2 * 62);
  EXPECT_EQ(of_class(program.forward, MemoryClass::kNormForward), 0);
}

// Phi-3 chunks what gate and up make: SiLU, 2 * 4d in and out, and its gradient, 3 * 4d, read rows
// of a half, and so does the product forward, 3 * 4d. Llama's are whole.
TEST(ModuleKernels, PartsOfRowsDoNotStream) {
  const auto strided = [](const LayerPhaseProgram& phase) {
    LayerPhaseProgram kept;
    for (const Kernel& kernel : phase.kernels) {
      if (kernel.memory_class == MemoryClass::kStrided) kept.kernels.push_back(kernel);
    }
    return moved(kept);
  };
  Plan plan = plan_with({}, false);
  EXPECT_EQ(strided(block("llama", plan).forward)[Function::kSilu], 0);
  const LayerProgram halves = block("phi3", plan);
  auto forward = strided(halves.forward), backward = strided(halves.backward);
  EXPECT_EQ(forward[Function::kSilu], 2 * (4 + 4));
  EXPECT_EQ(forward[Function::kMultiply], 2 * (4 + 4 + 4));
  EXPECT_EQ(backward[Function::kSilu], 2 * (4 + 4 + 4));
  EXPECT_EQ(backward[Function::kMultiply], 0);
  // One mask for all 16 heads' scores of 1,024 positions, 2 + 2 bytes each.
  plan.attention = AttentionKernel::kEager;
  EXPECT_EQ(strided(block("llama", plan).forward)[Function::kAdd], 16 * kTokens * 4 / kWidth);
}

// Saved beyond a fused one, which keeps its input, 2 (the block's is the layer before's): x.float()
// 4, and its normalized values, cast back 2, or in fp32 4. Cohere's LayerNorm: x - mean twice,
// 4 + 4, and the normalized 4.
TEST(ModuleKernels, EagerNormsKeepWhatTheirOperationsRead) {
  const auto saved = [](const char* family, const ModuleKernels& kernels) {
    const std::int64_t bytes = block(family, plan_with(kernels, false)).saved_bytes().count();
    return (bytes + kTokens * kWidth / 2) / (kTokens * kWidth);
  };
  const auto norm = [&](const char* family, ModuleKernels::Norm kind) {
    return saved(family, {.norm = kind}) - saved(family, {});
  };
  EXPECT_EQ(norm("llama", ModuleKernels::Norm::kEager), 4 + 2 + 4 + 2 - 2);
  EXPECT_EQ(norm("llama", ModuleKernels::Norm::kEagerFp32), 4 + 4 + 4 + 4 - 2);
  EXPECT_EQ(norm("olmo2", ModuleKernels::Norm::kEager), norm("olmo2", ModuleKernels::Norm::kEagerFp32));
  EXPECT_EQ(norm("cohere", ModuleKernels::Norm::kEager), 4 + 4 + 4);
}

// Complex: q and k each cast 2 + 4, turned 4 + 4, cast back 4 + 2: 40 d. Real: half 2 + 2, two
// products 2 * (2 + 2), a sum 4 + 2: 36 d. Fused: 2 + 2 each: 8 d. Cohere's in fp32: cast 2 + 4,
// half 4 + 4, products 2 * (4 + 4), sum 8 + 4, cast 4 + 2: 96 d.
TEST(ModuleKernels, RotaryKernels) {
  const auto total = [](ModuleKernels::Rope rope, const char* family = "llama") {
    std::int64_t sum = 0;
    for (const auto& [function, bytes] : moved(block(family, plan_with({.rope = rope}, false)).forward)) sum += bytes;
    return sum;
  };
  const std::int64_t complex = total(ModuleKernels::Rope::kComplex);
  EXPECT_EQ(complex - total(ModuleKernels::Rope::kReal), 40 - 36);
  EXPECT_EQ(complex - total(ModuleKernels::Rope::kFused), 40 - 8);
  EXPECT_EQ(total(ModuleKernels::Rope::kComplex, "cohere") - total(ModuleKernels::Rope::kReal, "cohere"), 40 - 96);
}

// Each reads bf16 logits and writes fp32 under autocast, 6 bytes; the loss's own log_softmax does
// the same where eager PyTorch would cast first.
TEST(ModuleKernels, TrainMetricsReadTheLogitsAgain) {
  const auto logits = [](const Plan& plan) {
    std::int64_t sum = 0;
    for (const Kernel& kernel : block("gpt3", plan, Recompute::kNone, LayerRole::kLoss).forward.kernels) {
      if (kernel.function == Function::kLogSoftmax) sum += kernel.bytes.count();
    }
    return sum / (kTokens * 1000);
  };
  EXPECT_EQ(logits(plan_with({.train_metrics = 2}, true)), 3 * 6);
  EXPECT_EQ(logits(plan_with({}, false)), 8);  // of an fp32 copy
}

// Nothing is allocated or freed twice or for ever: what a phase leaves is what the next one frees.
TEST(ModuleKernels, EveryPhaseBalances) {
  using Norm = ModuleKernels::Norm;
  using Rope = ModuleKernels::Rope;
  using Residual = ModuleKernels::Residual;
  for (const char* family : {"gpt3", "llama", "qwen3", "internlm"}) {
    for (const Norm norm : {Norm::kCompute, Norm::kFp32, Norm::kEager}) {
      for (const Residual residual : {Residual::kCompute, Residual::kFp32}) {
        for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          const bool autocast = residual == Residual::kFp32;
          const Plan plan = plan_with(
              {.norm = norm, .rope = autocast ? Rope::kReal : Rope::kFused, .residual = residual, .unpads = autocast},
              autocast);
          const LayerProgram p = block(family, plan, recompute);
          std::vector<int> alive(p.slots.size() + 2, 0);
          alive[0] = 1;  // the input
          const auto play = [&](const LayerPhaseProgram& phase) {
            for (const std::int32_t action : phase.actions) {
              if (action >= LayerPhaseProgram::kStore) continue;
              int& count = alive[at(std::abs(action) - 1)];
              count += action > 0 ? 1 : -1;
              EXPECT_TRUE(count == 0 || count == 1);
            }
          };
          play(p.forward);
          play(p.recompute);
          alive[p.slots.size() + 1] = 1;  // the gradient that arrives
          play(p.backward);
          for (const auto* lists : {&p.free_gradients, &p.free_last_gradient}) {
            for (const LayerPhaseProgram& list : *lists) play(list);
          }
          EXPECT_EQ(alive[1], 1);  // the input's gradient goes on
          alive[1] = alive[p.slots.size()] = 0;
          for (const int count : alive) EXPECT_EQ(count, 0) << family;
        }
      }
    }
  }
}

// A rank of tp has a summand of a norm weight's gradient, whichever kernels the norm consists of:
// two weights a block and the final one.
TEST(ModuleKernels, WeightsOfEagerNormsAreSummedOverTensorParallelRanks) {
  for (const auto norm : {ModuleKernels::Norm::kCompute, ModuleKernels::Norm::kEager}) {
    Plan plan = tiny_plan();
    plan.runtime = {RuntimeKind::kFsdp2, "2.11"};
    plan.mesh = {4, 1};
    plan.mesh.tp = 2;
    plan.kernels.norm = norm;
    const EventGraph graph = build_training_step(with_variants(tiny_model(3), plan), plan);
    int sums = 0;
    for (std::size_t i = 0; i < graph.rows.size(); ++i) {
      const bool of_unit = graph.details[i].unit >= 0 && graph.details[i].layer < 0;
      if (graph.rows[i].kind != EventKind::kAllReduce || !of_unit) continue;
      EXPECT_EQ(graph.works[graph.rows[i].work].bytes, Bytes(512 * 2));
      ++sums;
    }
    EXPECT_EQ(sums, 2 * 3 + 1);
  }
}

}
}
