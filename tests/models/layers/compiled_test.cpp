// Bytes by hand for a Llama block, per token: d = 4096, f = 14336, two bytes each; a norm's 1/rms is one fp32.
#include "models/layers/compiled.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "models/layers/variants.h"
#include "models/zoo.h"
#include "sim/graph/layers/layer_program.h"

namespace foreshard::compiled_test {
namespace {

constexpr std::int64_t kTokens = 1024;
constexpr std::int64_t kWide = 8192, kFfn = 28672, kStatistic = 4;

LayerProgram block(const Plan& plan, const ModelSpec& eager) {
  const ModelSpec model = with_variants(eager, plan);
  const auto is_block = [](const LayerSpec& layer) { return layer.role == LayerRole::kBlock; };
  ProgramOptions options = {.sequence = kTokens};
  return build_layer_program(*std::ranges::find_if(model.kinds, is_block), options);
}
LayerProgram block(const Plan& plan) { return block(plan, load_zoo_model("llama-3-8b", Stack::kEager)); }

Plan plan_with(Compile compile, ModuleKernels::Norm norm = ModuleKernels::Norm::kCompute) {
  Plan plan;
  plan.batch.sequence = kTokens;
  plan.compile = compile;
  plan.kernels.norm = norm;
  return plan;
}

std::vector<Kernel> memory_kernels(const LayerPhaseProgram& phase) {
  std::vector<Kernel> out;
  std::ranges::copy_if(
      phase.kernels, std::back_inserter(out), [](const Kernel& kernel) { return kernel.kind == KernelKind::kMemory; });
  return out;
}

std::int64_t bytes_per_token(const LayerPhaseProgram& phase) {
  std::int64_t sum = 0;
  for (const Kernel& kernel : memory_kernels(phase)) sum += kernel.bytes.count();
  return sum / kTokens;
}

// silu(gate) is neither written nor read; the residual sum is in the second norm's kernel, which
// does not read it again.
TEST(Compiled, ForwardMovesWhatCrossesARegion) {
  const LayerProgram eager = block(plan_with(Compile::kNone));
  const LayerProgram compiled = block(plan_with(Compile::kBlocks));
  EXPECT_EQ(bytes_per_token(eager.forward) - bytes_per_token(compiled.forward), 2 * kFfn + kWide);
  EXPECT_EQ(memory_kernels(eager.forward).size() - memory_kernels(compiled.forward).size(), 2U);
}

// Eager: silu's product moves 6 f in two kernels and silu 3 f, where one kernel moves 5 f. Gradients that meet are
// added in kernels of 3 d: two of q, k and v, one of gate and up, one at each residual; a norm's derivative moves 3 d.
// Compiled, each norm's kernel reads the parts of its output's gradient (three and two), its input, its statistic, the
// residual's gradient, and writes one; a second one reads the gradient and the input for the weight's gradient.
TEST(Compiled, BackwardAddsGradientsWhereTheyAreRead) {
  const LayerProgram eager = block(plan_with(Compile::kNone));
  const LayerProgram compiled = block(plan_with(Compile::kBlocks));
  constexpr std::int64_t kFirstNorm = (2 * 3 + 3 + 3) * kWide - (3 + 1 + 2 + 2) * kWide - kStatistic;
  constexpr std::int64_t kSecondNorm = (3 + 3 + 3) * kWide - (2 + 1 + 2 + 2) * kWide - kStatistic;
  EXPECT_EQ(bytes_per_token(eager.backward) - bytes_per_token(compiled.backward),
      (6 + 3 - 5) * kFfn + kFirstNorm + kSecondNorm);
}

// The chain of an eager norm is one kernel then, as the fused norm is.
TEST(Compiled, AnEagerNormBecomesOneKernel) {
  const LayerProgram fused = block(plan_with(Compile::kBlocks));
  const LayerProgram eager = block(plan_with(Compile::kBlocks, ModuleKernels::Norm::kEager));
  EXPECT_EQ(eager.forward.kernels, fused.forward.kernels);
  EXPECT_EQ(eager.backward.kernels, fused.backward.kernels);
  EXPECT_EQ(eager.saved_bytes(), fused.saved_bytes());
  const auto is_norm = [](const Kernel& kernel) { return kernel.memory_class == MemoryClass::kGeneratedNorm; };
  const std::vector<Kernel> kernels = memory_kernels(eager.forward);
  EXPECT_EQ(std::ranges::count_if(kernels, is_norm), 2);
}

// Widths of 5461 run as 5464, a multiple of eight elements of two bytes; in front of each product
// that reads the weight, forward and for the input's gradient, that is copied.
TEST(Compiled, PadsOddProducts) {
  const std::vector<ZooEntry> all = zoo();
  ModelDims dims =
      std::ranges::find_if(all, [](const ZooEntry& entry) { return entry.dims.name == "llama-3-8b"; })->dims;
  dims.ffn = 5461;
  const ModelSpec model = build_model(dims, Stack::kEager);
  const auto widths = [](const LayerPhaseProgram& phase) {
    std::vector<std::int64_t> found;
    for (const Kernel& kernel : phase.kernels) {
      for (const std::int64_t width : {kernel.m, kernel.n, kernel.k}) {
        if (kernel.kind == KernelKind::kGemm && (width == 5461 || width == 5464)) found.push_back(width);
      }
    }
    return found;
  };
  const auto copies = [](const LayerPhaseProgram& phase) {
    return std::ranges::count_if(phase.kernels, [](const Kernel& kernel) {
      return kernel.function == Function::kCopy && kernel.bytes == Bytes(2L * 2 * 4096 * 5461);
    });
  };
  const LayerProgram eager = block(plan_with(Compile::kNone), model);
  const LayerProgram compiled = block(plan_with(Compile::kBlocks), model);
  EXPECT_EQ(widths(eager.forward), std::vector<std::int64_t>(3, 5461));
  EXPECT_EQ(copies(eager.forward), 0);
  EXPECT_EQ(widths(compiled.forward), std::vector<std::int64_t>(3, 5464));
  EXPECT_EQ(widths(compiled.backward), std::vector<std::int64_t>(6, 5464));
  EXPECT_EQ(copies(compiled.forward), 3);
  EXPECT_EQ(copies(compiled.backward), 3);
}

// What is saved is there when its operation runs and goes once, whatever chains stand in a block:
// norms of queries and keys, norms behind products, norms of latents, routed experts.
TEST(Compiled, BlocksOfEveryShapeBalance) {
  using Kernels = ModuleKernels;
  for (const char* name :
      {"llama-3-8b", "qwen3-8b", "gemma-2-2b", "deepseek-v2", "mixtral-8x7b", "gpt2", "falcon-7b", "bert-base"}) {
    for (const Kernels::Norm norm : {Kernels::Norm::kCompute, Kernels::Norm::kFp32, Kernels::Norm::kEager}) {
      for (const Kernels::Rope rope : {Kernels::Rope::kComplex, Kernels::Rope::kReal, Kernels::Rope::kFused}) {
        for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          Plan plan = plan_with(Compile::kBlocks, norm);
          plan.kernels.rope = rope;
          const ModelSpec model = with_variants(load_zoo_model(name, Stack::kEager), plan);
          for (const LayerSpec& layer : model.kinds) {
            if (layer.role != LayerRole::kBlock) continue;
            ProgramOptions options = {.sequence = 128, .recompute = recompute};
            const LayerProgram p = build_layer_program(layer, options);
            std::vector<int> alive(p.slots.size() + 2, 0);
            alive[0] = 1;
            const auto run = [&](const LayerPhaseProgram& phase) {
              for (const std::int32_t action : phase.actions) {
                if (action >= LayerPhaseProgram::kStore) continue;
                int& count = alive[at(std::abs(action) - 1)];
                count += action > 0 ? 1 : -1;
                ASSERT_TRUE(count == 0 || count == 1) << name << ", " << layer.name;
              }
            };
            run(p.forward);
            run(p.recompute);
            alive[p.slots.size() + 1] = 1;  // the gradient that arrives
            run(p.backward);
          }
        }
      }
    }
  }
}

// Tensorwise: of the inputs of a block's seven products four differ, all of which generated kernels make but the
// attention's output; each of them is cast once forward and once backward (3 bytes an element), which the compiler sees
// and eager torchao does not. Three greatest values are found where the input is made (2 bytes).
TEST(Compiled, QuantisesAnInputOnce) {
  const auto casts = [](Compile compile) {
    Plan plan = plan_with(compile);
    plan.float8 = Float8::kTensorwise;
    const LayerProgram program = block(plan);
    plan.float8 = Float8::kNone;
    const LayerProgram without = block(plan);
    std::int64_t sum = 0;
    for (const auto* phase : {&program.forward, &program.backward}) {
      for (const Kernel& kernel : phase->kernels) {
        if (kernel.function == Function::kCast) sum += kernel.bytes.count();
      }
    }
    for (const auto* phase : {&without.forward, &without.backward}) {
      for (const Kernel& kernel : phase->kernels) {
        if (kernel.function == Function::kCast) sum -= kernel.bytes.count();
      }
    }
    return sum / kTokens;
  };
  // Of q, k, v: twice; of gate and up: once. The amax of n1 (three products), of n2 (two) and of
  // the product of gate and up.
  constexpr std::int64_t kD = 4096, kF = 14336;
  EXPECT_EQ(casts(Compile::kNone) - casts(Compile::kBlocks), (3 + 3) * (2 * kD + kD) + 2 * (3 * kD + 2 * kD + kF));
}

}
}
