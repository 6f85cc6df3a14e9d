// Allocations of a block derived from its operations. Sizes in bytes for T tokens of width d, FFN
// f, h heads, key width dkv: a Llama block in bf16 with fused norms and flash attention keeps 12Td
// + 4T*dkv + 8Tf + 4Th + 8T for backward (recorded from PyTorch 2.11: tests/recordings), its input
// 2Td of that belonging to the layer before.
#include "sim/graph/layer_program.h"

#include <gtest/gtest.h>

#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

constexpr std::int64_t kBatch = 2, kSequence = 128;
constexpr std::int64_t T = kBatch * kSequence, d = 512, dkv = 256, f = 1536, h = 8;
// Two scalar seeds of flash attention, each rounded up to 512.
constexpr std::int64_t kSeeds = 1024;

const LayerSpec& block_of(const ModelSpec& model) {
  for (const LayerSpec& kind : model.kinds) {
    if (kind.role == LayerRole::kBlock) return kind;
  }
  throw std::logic_error("no block");
}

LayerProgram program(Recompute recompute) {
  ProgramOptions options;
  options.batch = kBatch;
  options.sequence = kSequence;
  options.recompute = recompute;
  return build_layer_program(block_of(tiny_model(1)), options);
}

TEST(LayerProgram, ABlockKeepsWhatAutogradKeeps) {
  const std::int64_t all = 12 * T * d + 4 * T * dkv + 8 * T * f + 4 * T * h + 8 * T + kSeeds;
  const std::int64_t input = 2 * T * d;
  EXPECT_EQ(program(Recompute::kNone).saved_bytes(), Bytes(all - input));
}

TEST(LayerProgram, FullRecomputeKeepsTheInputAlone) {
  EXPECT_EQ(program(Recompute::kFull).saved_bytes(), Bytes(0));
}

TEST(LayerProgram, SelectiveRecomputeKeepsAttentionAndEverySecondProduct) {
  // q, v, w1, w2 and attention: 2T(d + dkv + f + d) + 2Td + 4Th, and the input 2Td.
  const std::int64_t all = 8 * T * d + 2 * T * dkv + 2 * T * f + 4 * T * h + kSeeds;
  EXPECT_EQ(program(Recompute::kSelective).saved_bytes(), Bytes(all - 2 * T * d));
}

TEST(LayerProgram, ForwardLeavesSavedTensorsAndTheOutput) {
  const LayerProgram p = program(Recompute::kNone);
  EXPECT_EQ(p.forward.swing.net, p.saved_bytes().count() + 2 * T * d);
}

TEST(LayerProgram, BackwardLeavesWeightGradientsAndTheInputsGradient) {
  for (Recompute mode : {Recompute::kNone, Recompute::kFull, Recompute::kSelective}) {
    const LayerProgram p = program(mode);
    // q and o d*d, k and v d*dkv, three FFN matrices, two norms, in bf16, each rounded up (only the
    // norms need it: 1024).
    const std::int64_t gradients = 2 * (2 * d * d + 2 * d * dkv + 3 * d * f) + 2 * 1024;
    const std::int64_t border = 2 * T * d;
    // Gone: what was saved or recomputed, the input, and the gradient that came in; new: gradients
    // and the input's gradient.
    EXPECT_EQ(p.forward.swing.net + p.recompute.swing.net + p.backward.swing.net,
              border /* output stays for the next layer */ + gradients + border - border - border)
        << to_string(mode);
    EXPECT_EQ(p.free_gradients.swing.net + p.free_last_gradient.swing.net, -gradients);
  }
}

TEST(LayerProgram, FullRecomputeRunsEveryProductAgainButTheLast) {
  const LayerProgram p = program(Recompute::kFull);
  auto products = [](const LayerPhaseProgram& phase) {
    std::int64_t count = 0;
    for (const Kernel& k : phase.kernels) count += k.kind == KernelKind::kGemm;
    return count;
  };
  EXPECT_EQ(products(p.forward), 7);    // q, k, v, o, w1, w3, w2
  EXPECT_EQ(products(p.recompute), 6);  // PyTorch stops before w2: nothing needs its output
  EXPECT_EQ(products(p.backward), 14);
  EXPECT_EQ(products(program(Recompute::kSelective).recompute), 3);  // k, o, w3
}

TEST(LayerProgram, FlopsAreTwoPerMultiplyAndAttentionHalfWhenCausal) {
  const LayerProgram p = program(Recompute::kNone);
  const double products = 2.0 * T * (2 * d * d + 2 * d * dkv + 3 * d * f);
  const double attention = 4.0 * kBatch * kSequence * kSequence * d / 2;
  EXPECT_DOUBLE_EQ(p.forward.flops.count(), products + attention);
  // Backward: two products for each, and five of attention's products for its two.
  EXPECT_DOUBLE_EQ(p.backward.flops.count(), 2 * products + 2.5 * attention);
}

TEST(LayerProgram, FlatGradientsAllocateNoTensors) {
  ProgramOptions options;
  options.batch = kBatch;
  options.sequence = kSequence;
  options.gradients = GradientStorage::kFlat;
  const LayerProgram p = build_layer_program(block_of(tiny_model(1)), options);
  EXPECT_TRUE(p.free_gradients.actions.empty());
  for (const Slot& slot : p.slots) EXPECT_NE(slot.category, MemoryCategory::kUnshardedGrad);
}

}  // namespace
}  // namespace foreshard
