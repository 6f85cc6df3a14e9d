// Allocations of a block derived from its operations. Sizes in bytes for T tokens of width d, FFN
// f, h heads, key width dkv: a Llama block in bf16 with fused norms and flash attention keeps 12Td
// + 4T*dkv + 8Tf + 4Th + 8T for backward (recorded from PyTorch 2.11: tests/recordings), its input
// 2Td of that belonging to the layer before.
#include "sim/graph/layers/layer_program.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "models/recorded.h"
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

LayerProgram program(Recompute recompute, bool stacked = false) {
  ProgramOptions options = {.batch = kBatch, .sequence = kSequence, .recompute = recompute, .stacked = stacked};
  return build_layer_program(block_of(tiny_model(1)), options);
}

TEST(LayerProgram, ABlockKeepsWhatAutogradKeeps) {
  const std::int64_t all = 12 * T * d + 4 * T * dkv + 8 * T * f + 4 * T * h + 8 * T + kSeeds;
  const std::int64_t input = 2 * T * d;
  EXPECT_EQ(program(Recompute::kNone).saved_bytes(), Bytes(all - input));
}

TEST(LayerProgram, FullRecomputeKeepsTheInputAlone) { EXPECT_EQ(program(Recompute::kFull).saved_bytes(), Bytes(0)); }

TEST(LayerProgram, SelectiveRecomputeKeepsAttentionAndEverySecondProduct) {
  // q, v, w1, w2 and attention: 2T(d + dkv + f + d) + 2Td + 4Th, and the input 2Td.
  const std::int64_t all = 8 * T * d + 2 * T * dkv + 2 * T * f + 4 * T * h + kSeeds;
  EXPECT_EQ(program(Recompute::kSelective).saved_bytes(), Bytes(all - 2 * T * d));
}

// What is kept, the input included, is read and written once on its way into the stack and once on
// its way out, whose kernel comes first where the layer is needed again.
TEST(LayerProgram, AScanCopiesWhatItKeeps) {
  const auto bytes = [](const Kernel& kernel) {
    EXPECT_EQ(kernel.function, Function::kCopy);
    return kernel.bytes.count();
  };
  const std::int64_t input = 2 * T * d;
  for (const Recompute mode : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    const LayerProgram p = program(mode, true);
    const LayerProgram apart = program(mode);
    const std::int64_t kept = p.saved_bytes().count() + input;
    const LayerPhaseProgram& again = mode == Recompute::kNone ? p.backward : p.recompute;
    EXPECT_EQ(bytes(p.forward.kernels.back()), 2 * kept) << to_string(mode);
    EXPECT_EQ(bytes(again.kernels.front()), 2 * kept) << to_string(mode);
    const auto kernels = [](const LayerProgram& of) {
      return of.forward.kernels.size() + of.recompute.kernels.size() + of.backward.kernels.size();
    };
    EXPECT_EQ(kernels(p), kernels(apart) + 2) << to_string(mode);
    EXPECT_EQ(p.backward.swing.peak, apart.backward.swing.peak);
  }
}

TEST(LayerProgram, ForwardLeavesSavedTensorsAndTheOutput) {
  const LayerProgram p = program(Recompute::kNone);
  EXPECT_EQ(p.forward.swing.net, p.saved_bytes().count() + 2 * T * d);
}

TEST(LayerProgram, BackwardLeavesWeightGradientsAndTheInputsGradient) {
  for (Recompute mode : {Recompute::kNone, Recompute::kFull, Recompute::kSelective}) {
    for (const bool reentrant : {true, false}) {
      for (const bool casts : {false, true}) {
        ProgramOptions options = {.batch = kBatch,
            .sequence = kSequence,
            .recompute = mode,
            .early_stop = !reentrant,
            .reentrant = reentrant,
            .ends_unit = casts};
        if (casts) options.output_dtype = DType::kFp32;
        const LayerProgram p = build_layer_program(block_of(tiny_model(1)), options);
        // q and o d*d, k and v d*dkv, three FFN matrices, two norms, in bf16, each rounded up (only
        // the norms need it: 1024).
        const std::int64_t gradients = 2 * (2 * d * d + 2 * d * dkv + 3 * d * f) + 2 * 1024;
        const std::int64_t input = 2 * T * d, output = (casts ? 4 : 2) * T * d;
        // Gone: what was saved or recomputed, the input, and the gradient that came in; new:
        // gradients and the input's gradient.
        EXPECT_EQ(p.forward.swing.net + p.recompute.swing.net + p.backward.swing.net,
            output /* stays for the next layer */ + gradients + input - input - output)
            << to_string(mode) << reentrant << casts;
        EXPECT_EQ(p.free_gradients.front().swing.net + p.free_last_gradient.front().swing.net, -gradients);
      }
    }
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

TEST(LayerProgram, ModulesInsideCutThePhases) {
  RecordedSettings settings = {.model = "moe"};
  const ModelSpec model = build_recorded_model(settings);
  ProgramOptions options = {.batch = kBatch, .sequence = kSequence, .split_parts = true};
  const LayerProgram p = build_layer_program(block_of(model), options);
  const auto parts = [](const LayerPhaseProgram& phase) {
    std::vector<int> list;
    std::int64_t net = 0;
    for (const LayerSegment& segment : phase.segments) {
      list.push_back(segment.part);
      net += segment.swing.net;
    }
    EXPECT_EQ(net, phase.swing.net);
    EXPECT_EQ(phase.segments.back().actions_end, phase.actions.size());
    EXPECT_EQ(phase.segments.back().kernels_end, phase.kernels.size());
    return list;
  };
  EXPECT_EQ(parts(p.forward), (std::vector{0, 1, 0}));
  EXPECT_EQ(parts(p.backward), (std::vector{0, 1, 0}));
  // Three matrices of the experts; the last one's gradient by itself.
  EXPECT_EQ(p.free_gradients.at(1).actions.size(), 2U);
  EXPECT_EQ(p.free_last_gradient.at(1).actions.size(), 1U);
  options.split_parts = false;
  const LayerProgram whole = build_layer_program(block_of(model), options);
  EXPECT_EQ(parts(whole.forward), (std::vector{0}));
  EXPECT_EQ(whole.forward.swing.peak, p.forward.swing.peak);
}

TEST(LayerProgram, WhatIsFrozenAndFirstHasNoBackwardAndKeepsNothing) {
  ProgramOptions options = {.batch = kBatch, .sequence = kSequence, .input_needs_gradient = false};
  const LayerSpec block = block_of(tiny_model(1));
  options.frozen.assign(block.parameters.size(), true);
  const LayerProgram p = build_layer_program(block, options);
  EXPECT_TRUE(p.backward.actions.empty());
  EXPECT_EQ(p.saved_bytes(), Bytes(0));
  // The output stays; the caller lets go of the input once the module has returned.
  EXPECT_EQ(p.forward.segments.back().part, LayerSegment::kAfter);
  EXPECT_EQ(p.forward.swing.net, 0);
}

// What names hold beside a layer (module_model.cpp) is not made again with it.
TEST(LayerProgram, WhatOnlyNamesHoldIsNotRecomputed) {
  LayerSpec block = block_of(tiny_model(1));
  const auto held = static_cast<std::int16_t>(block.tensors.size());
  block.tensors.push_back({.name = "held", .per_token = 100 * d});
  Operation copy = {.name = "held", .function = Function::kCopy, .gradient = GradientRule::kNone};
  copy.outputs = block.operations.back().released = {held};
  block.operations.insert(block.operations.begin(), copy);
  const LayerProgram p =
      build_layer_program(block, {.batch = kBatch, .sequence = kSequence, .recompute = Recompute::kFull});
  EXPECT_GT(p.forward.swing.peak, 200 * T * d);
  EXPECT_EQ(p.recompute.swing.peak, program(Recompute::kFull).recompute.swing.peak);
}

// A gradient of what stands beside the input as a narrower view of it adds nothing as large.
TEST(LayerProgram, NarrowerViewsAreNotAddedUp) {
  LayerSpec block = block_of(tiny_model(1));
  const auto beside = static_cast<std::int16_t>(block.tensors.size());
  Operation look = {.name = "beside", .function = Function::kCopy, .view = true};
  look.inputs = {0};
  Operation scale = {.name = "scale", .function = Function::kScale};
  Operation both = look;
  for (const std::int64_t wide : {1, 2}) block.tensors.push_back({.name = "one", .per_token = wide});
  block.tensors.push_back({.name = "both", .per_token = d});
  look.outputs = scale.inputs = {beside};
  scale.outputs = {static_cast<std::int16_t>(beside + 1)};
  both.inputs = {block.output, scale.outputs.front()};
  both.outputs = {block.output = static_cast<std::int16_t>(beside + 2)};
  look.gradient = both.gradient = GradientRule::kAlias;
  block.operations.insert(block.operations.begin(), {look, scale});
  block.operations.push_back(both);
  const auto sums = [](const LayerProgram& p) {
    return std::ranges::count_if(p.slots, [](const Slot& slot) { return slot.name.ends_with("grad sum"); });
  };
  EXPECT_EQ(
      sums(build_layer_program(block, {.batch = kBatch, .sequence = kSequence})), sums(program(Recompute::kNone)));
}

TEST(LayerProgram, AFrozenConvolutionKeepsItsInput) {
  LayerSpec block = block_of(tiny_model(1));
  ProgramOptions options = {.batch = kBatch, .sequence = kSequence};
  options.frozen.assign(block.parameters.size(), true);
  const Bytes without = build_layer_program(block, options).saved_bytes();
  const auto q = std::ranges::find(block.operations, OperationKind::kGemm, &Operation::kind);
  ParameterSpec& weight = block.parameters[at(q->parameters.front())];
  weight.shape.insert(weight.shape.end(), {1, 1});
  EXPECT_GT(build_layer_program(block, options).saved_bytes(), without);
}

// A product with a frozen weight keeps what autocast made of that, for its input's gradient.
TEST(LayerProgram, AFrozenWeightsCopyIsKept) {
  LayerSpec block = block_of(tiny_model(1));
  ProgramOptions options = {.batch = kBatch, .sequence = kSequence};
  options.frozen.assign(block.parameters.size(), true);
  const Bytes without = build_layer_program(block, options).saved_bytes();
  const auto q = std::ranges::find(block.operations, OperationKind::kGemm, &Operation::kind);
  const auto copy = static_cast<std::int16_t>(block.tensors.size());
  block.tensors.push_back({.name = "weight_cast", .fixed = d * d});
  q->casts_weight = true;
  for (auto* list : {&q->outputs, &q->saved, &q->released}) list->push_back(copy);
  EXPECT_EQ(build_layer_program(block, options).saved_bytes(), without + Bytes(2 * d * d));
}

TEST(LayerProgram, FlatGradientsAllocateNoTensors) {
  ProgramOptions options = {.batch = kBatch, .sequence = kSequence, .gradients = GradientStorage::kFlat};
  const LayerProgram p = build_layer_program(block_of(tiny_model(1)), options);
  EXPECT_TRUE(p.free_gradients.front().actions.empty());
  for (const Slot& slot : p.slots) EXPECT_NE(slot.stored, MemoryCategory::kUnshardedGrad);
}

// A product's kernels ask for memory of their own in each phase, also where only its weight is
// trained; nothing of it stays.
// Every product of the block takes one behind its result and gives it back; nothing else moves.
TEST(LayerProgram, ProductsTakeALibrarysWorkspace) {
  const LayerSpec block = block_of(tiny_model(1));
  ProgramOptions options = {.batch = kBatch, .sequence = kSequence};
  const LayerProgram without = build_layer_program(block, options);
  options.workspaces = {.cublas = 32 << 20, .lt = 1 << 20, .kept = false};
  const LayerProgram with = build_layer_program(block, options);
  const auto expect = [&](const LayerPhaseProgram& phase, const LayerPhaseProgram& plain) {
    const auto products = std::ranges::count(phase.kernels, KernelKind::kGemm, &Kernel::kind);
    ASSERT_EQ(phase.actions.size(), plain.actions.size() + 2 * static_cast<std::size_t>(products));
    std::int64_t taken = 0;
    for (std::size_t a = 2; a < phase.actions.size(); ++a) {
      const std::int32_t taken_now = phase.actions[a - 1];
      if (taken_now <= 0 || phase.actions[a] != -taken_now) continue;
      const auto slot = static_cast<std::size_t>(taken_now - 1);
      if (slot >= with.slots.size() || with.slots[slot].bytes != Bytes(32 << 20)) continue;
      EXPECT_GT(phase.actions[a - 2], 0);
      ++taken;
    }
    EXPECT_EQ(taken, products);
    EXPECT_EQ(phase.swing.net, plain.swing.net);
    EXPECT_GT(phase.swing.peak, 32 << 20);
  };
  expect(with.forward, without.forward);
  expect(with.backward, without.backward);
}

TEST(LayerProgram, WorkspacesLiveWhileTheirOperationRuns) {
  const LayerSpec plain = block_of(tiny_model(1));
  LayerSpec block = plain;
  const auto q =
      std::ranges::find_if(block.operations, [](const Operation& op) { return op.kind == OperationKind::kGemm; });
  constexpr std::int64_t kWorkspace = 100 * d;  // elements per token: more than the rest together
  for (std::vector<std::int16_t>* list : {&q->forward_workspace, &q->backward_workspace}) {
    list->push_back(static_cast<std::int16_t>(block.tensors.size()));
    block.tensors.push_back({.name = "workspace", .per_token = kWorkspace});
  }
  for (const bool trains_input : {true, false}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      ProgramOptions options = {
          .batch = kBatch, .sequence = kSequence, .recompute = recompute, .input_needs_gradient = trains_input};
      options.frozen.assign(block.parameters.size(), false);
      options.frozen.front() = !trains_input;  // the norm's: no gradient for what q reads
      const LayerProgram p = build_layer_program(block, options);
      const LayerProgram without = build_layer_program(plain, options);
      const auto uses = [&](const LayerPhaseProgram& phase) {
        std::int64_t count = 0;
        for (std::size_t a = 0; a < phase.actions.size(); ++a) {
          const std::int32_t action = phase.actions[a];
          if (action <= 0 || action > static_cast<std::int32_t>(p.slots.size())) continue;
          if (p.slots[at(action - 1)].name != "workspace") continue;
          EXPECT_EQ(phase.actions.at(a + 1), -action);
          ++count;
        }
        return count;
      };
      EXPECT_EQ(uses(p.forward), 1);
      EXPECT_EQ(uses(p.recompute), recompute == Recompute::kFull ? 1 : 0);
      EXPECT_EQ(uses(p.backward), 1);
      EXPECT_EQ(p.forward.swing.net, without.forward.swing.net);
      EXPECT_EQ(p.backward.swing.net, without.backward.swing.net);
      // The norm's output, its statistic where it is saved, and q.
      const bool saves = trains_input && recompute == Recompute::kNone;
      EXPECT_EQ(p.forward.swing.peak, 2 * T * kWorkspace + 2 * 2 * T * d + (saves ? 4 * T : 0));
    }
  }
}

}
}
