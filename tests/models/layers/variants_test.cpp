// Saved bytes by hand for a Llama block, per token: d = 4096 (32 heads of 128), 8 heads of keys: dkv = 1024, f = 14336,
// bf16. Eager saves n1, q, k, v, attention, h, n2 (six of 2d, two of 2dkv), four of 2f (gate, silu, up, product),
// logsumexp 4 x 32, two 1/rms of 4: the input is the layer before's.
#include "models/layers/variants.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "models/families.h"
#include "models/layers/compiled.h"
#include "models/zoo.h"
#include "sim/base/lookup.h"
#include "sim/graph/layers/column_sums.h"
#include "sim/graph/layers/layer_program.h"

namespace foreshard::variants_test {
namespace {

constexpr std::int64_t kTokens = 1024;
constexpr std::int64_t kWide = 2 * 4096, kNarrow = 2 * 1024, kFfn = 2 * 14336;
constexpr std::int64_t kStatistics = 4 * 32 + 2 * 4;
constexpr std::int64_t kEager = 5 * kWide + 2 * kNarrow + 4 * kFfn + kStatistics;

ModelSpec variant(const Plan& plan) { return with_variants(load_zoo_model("llama-3-8b", Stack::kEager), plan); }

Plan plan_with(Compile compile) {
  Plan plan;
  plan.batch.sequence = kTokens;
  plan.compile = compile;
  return plan;
}

LayerProgram program(const ModelSpec& model, LayerRole role, Recompute recompute = Recompute::kNone) {
  for (const LayerSpec& layer : model.kinds) {
    if (layer.role != role) continue;
    ProgramOptions options = {.sequence = kTokens, .recompute = recompute};
    return build_layer_program(layer, options);
  }
  return {};
}

std::int64_t saved(const Plan& plan, Recompute recompute = Recompute::kNone) {
  const LayerProgram p = program(variant(plan), LayerRole::kBlock, recompute);
  std::int64_t per_token = 0;
  for (std::int32_t slot : p.saved) {
    // The seeds are there whatever the number of tokens.
    const std::int64_t bytes = p.slots[at(slot)].bytes.count();
    if (bytes > 512) per_token += bytes;
  }
  return per_token / kTokens;
}

// Rows that the gradient of a product's bias is summed over.
std::int64_t rows_summed(TensorSpec product, std::int64_t batch, std::int64_t sequence) {
  LayerSpec layer = {.role = LayerRole::kBlock,
      .tensors = {product, product},
      .parameters = {{.name = "weight", .shape = {8, 8}}, {.name = "bias", .shape = {8}}}};
  Operation op = {.kind = OperationKind::kGemm, .inputs = {0}, .outputs = {1}, .parameters = {0, 1}};
  layer.operations = {op};
  ModelSpec model = {.kinds = {layer}};
  model = with_variants(model, plan_with(Compile::kNone));
  TensorSpec sums = model.kinds[0].tensors.back();
  EXPECT_EQ(sums.name, kColumnSums);
  EXPECT_EQ(sums.fixed, 8);
  sums.fixed = 0;
  return elements(sums, batch, sequence);
}

TEST(Variants, ABiasIsSummedOverTheRowsOfItsProduct) {
  EXPECT_EQ(rows_summed({.name = "", .per_token = 8}, 2, 16), 2 * 16);
  EXPECT_EQ(rows_summed({.name = "", .per_token = 24}, 2, 16), 3 * 2 * 16);
  EXPECT_EQ(rows_summed({.name = "", .per_token = 8, .by_pairs = true}, 2, 16), 2 * 16 * 16);
  EXPECT_EQ(rows_summed({.name = "", .per_sequence = 8}, 2, 16), 2);
  // Of every fourth position one, less half a one of each sequence.
  EXPECT_EQ(rows_summed({.name = "", .per_token = 2, .per_sequence = -4}, 2, 16), 2 * 16 / 4 - 1);
}

TEST(Variants, EagerSavesWhatAutogradDoes) { EXPECT_EQ(saved(plan_with(Compile::kNone)), kEager); }

// Products and norms that backward's products read stay; silu(gate) is computed again.
TEST(Variants, CompiledBlocksDropWhatFusesIntoBackward) {
  EXPECT_EQ(saved(plan_with(Compile::kBlocks)), kEager - kFfn);
  EXPECT_EQ(saved(plan_with(Compile::kModel)), kEager - kFfn);
}

// In fp8 backward reads the products' inputs through a cast: n1, n2 and the product of gate and up
// go too. The attention's output is read by the attention itself.
TEST(Variants, CompiledFloat8DropsTheInputsOfProducts) {
  Plan plan = plan_with(Compile::kBlocks);
  plan.float8 = Float8::kTensorwise;
  EXPECT_EQ(saved(plan), kEager - kFfn - 2 * kWide - kFfn);
  plan.compile = Compile::kNone;
  EXPECT_EQ(saved(plan), kEager);
}

// Bytes of the kernels that quantise, by hand per product of T tokens, n outputs and k inputs. Two
// bytes read and one written for each cast:
//   tensorwise  forward: amax (2) and cast (3) of input and weight; backward: the output's gradient
//               amax and cast, again for the weight's product, the input again, the weight again
//   rowwise     the same casts without amax; gw_hp would leave out those of the weight's product
//   delayed     each operand once, and its transpose with it (4); current: behind an amax
TEST(Variants, Float8QuantisesInKernelsOfItsOwn) {
  const auto kernels = [](Float8 recipe) {
    Plan plan = plan_with(Compile::kNone);
    plan.float8 = recipe;
    const LayerProgram p = program(variant(plan), LayerRole::kBlock);
    std::vector<Kernel> all = p.forward.kernels;
    append(all, p.backward.kernels);
    return all;
  };
  // n x k of a block's products; the casts of an eager block without fp8 are none.
  constexpr std::int64_t kShapes[][2] = {
      {4096, 4096}, {1024, 4096}, {1024, 4096}, {4096, 4096}, {14336, 4096}, {14336, 4096}, {4096, 14336}};
  for (const Float8 recipe : {Float8::kTensorwise, Float8::kRowwise, Float8::kDelayed, Float8::kCurrent}) {
    const bool keeps = recipe == Float8::kDelayed || recipe == Float8::kCurrent;
    const bool has_amax = recipe == Float8::kTensorwise || recipe == Float8::kCurrent;
    std::int64_t expected = 0;
    for (const auto& [n, k] : kShapes) {
      const std::int64_t input = kTokens * k, weight = n * k, gradient = kTokens * n;
      expected += (keeps ? 4 : 6) * (input + weight + gradient);
      if (has_amax) expected += 2 * (input + weight + gradient);
    }
    std::int64_t cast = 0, products = 0;
    for (const Kernel& kernel : kernels(recipe)) {
      if (kernel.function == Function::kCast) cast += kernel.bytes.count();
      products += kernel.kind == KernelKind::kGemm && kernel.fp8;
    }
    for (const Kernel& kernel : kernels(Float8::kNone)) {
      EXPECT_FALSE(kernel.fp8);
      if (kernel.function == Function::kCast) cast -= kernel.bytes.count();
    }
    EXPECT_EQ(cast, expected);
    EXPECT_EQ(products, 21);  // each forward, for the input and for the weight
  }
}

// torchtitan's list keeps q, v, gate and down, the attention and its logsumexp. Compiled, down,
// which backward does not read, is not kept.
TEST(Variants, SelectiveRecomputeUnderCompileKeepsOnlyWhatBackwardNeeds) {
  const std::int64_t kept = 3 * kWide + kNarrow + kFfn + 4 * 32;
  EXPECT_EQ(saved(plan_with(Compile::kNone), Recompute::kSelective), kept);
  EXPECT_EQ(saved(plan_with(Compile::kBlocks), Recompute::kSelective), kept - kWide);
}

// What scaled_dot_product_attention picks on a V100 (a capture there has it): its math for bf16
// and, as these are, for groups of heads, which the memory-efficient kernel does not take.
TEST(Variants, GpusWithoutFlashAttentionFallBack) {
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    Plan plan = plan_with(Compile::kNone);
    plan.param_dtype = dtype;
    const std::int64_t flash = saved(plan, Recompute::kNone);
    plan.compute_capability = 7;
    const std::int64_t fallen = saved(plan, Recompute::kNone);
    plan.attention = AttentionKernel::kMath;
    EXPECT_EQ(fallen, saved(plan, Recompute::kNone));
    EXPECT_GT(fallen, flash);
  }
}

// Every product but down, which backward does not read, and attention stay: q, k, v, attention and
// its logsumexp, output, gate, up. What runs again is bound by memory.
TEST(Variants, DotsKeepEveryProductThatBackwardNeeds) {
  Plan plan = plan_with(Compile::kNone);
  plan.recompute_keeps = SelectivePolicy::kDots;
  EXPECT_EQ(saved(plan, Recompute::kSelective), 3 * kWide + 2 * kNarrow + 2 * kFfn + 4 * 32);
  const LayerProgram p = program(variant(plan), LayerRole::kBlock, Recompute::kSelective);
  EXPECT_FALSE(p.recompute.kernels.empty());
  for (const Kernel& kernel : p.recompute.kernels) EXPECT_EQ(kernel.kind, KernelKind::kMemory);
}

// MaxText's save_dot_except_mlp: the products in front of attention and the one behind it stay;
// attention, gate and up run again, down does not, for backward reads none of it.
TEST(Variants, DotsExceptMlpKeepTheProductsAroundAttention) {
  Plan plan = plan_with(Compile::kNone);
  plan.recompute_keeps = SelectivePolicy::kDotsExceptMlp;
  EXPECT_EQ(saved(plan, Recompute::kSelective), 2 * kWide + 2 * kNarrow);  // q, k, v, output
  const LayerProgram p = program(variant(plan), LayerRole::kBlock, Recompute::kSelective);
  int products = 0, attentions = 0;
  for (const Kernel& kernel : p.recompute.kernels) {
    products += kernel.kind == KernelKind::kGemm;
    attentions += kernel.kind == KernelKind::kAttention;
  }
  EXPECT_EQ(products, 2);
  EXPECT_EQ(attentions, 1);
}

// Nothing is allocated or freed twice or for ever: what a phase leaves is what the next one frees.
TEST(Variants, EveryPhaseBalances) {
  for (const AttentionKernel attention :
      {AttentionKernel::kFlash, AttentionKernel::kCudnn, AttentionKernel::kEfficient, AttentionKernel::kMath}) {
    for (const Compile compile : {Compile::kNone, Compile::kBlocks}) {
      for (const Float8 float8 : {Float8::kNone, Float8::kRowwise}) {
        for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          Plan plan = plan_with(compile);
          plan.attention = attention;
          plan.float8 = float8;
          const LayerProgram p = program(variant(plan), LayerRole::kBlock, recompute);
          std::vector<int> alive(p.slots.size() + 2, 0);
          alive[0] = 1;  // the input
          alive[p.slots.size() + 1] = 0;
          for (const LayerPhaseProgram* phase : {&p.forward, &p.recompute}) {
            for (const std::int32_t action : phase->actions) alive[at(std::abs(action) - 1)] += action > 0 ? 1 : -1;
          }
          alive[p.slots.size() + 1] = 1;  // the gradient that arrives
          std::vector<const LayerPhaseProgram*> later = {&p.backward};
          for (const auto* lists : {&p.free_gradients, &p.free_last_gradient}) {
            for (const LayerPhaseProgram& list : *lists) later.push_back(&list);
          }
          for (const LayerPhaseProgram* phase : later) {
            for (const std::int32_t action : phase->actions) {
              if (action >= LayerPhaseProgram::kStore) continue;
              int& count = alive[at(std::abs(action) - 1)];
              count += action > 0 ? 1 : -1;
              EXPECT_TRUE(count == 0 || count == 1);
            }
          }
          EXPECT_EQ(alive[1], 1);  // the input's gradient goes on
          alive[1] = 0;
          alive[p.slots.size()] = 0;  // the output is the next layer's
          for (const int count : alive) EXPECT_EQ(count, 0);
        }
      }
    }
  }
}

// Flash attention's backward: dq in fp32 for 32 heads of 128, sum(dout * out), dk and dv of all heads.
TEST(Variants, FlashAttentionNeedsMemoryOfItsOwnInBackward) {
  const ModelSpec plain = load_zoo_model("llama-3-8b", Stack::kEager);
  Plan plan = plan_with(Compile::kNone);
  const auto slots = [](const ModelSpec& model) {
    std::int64_t bytes = 0;
    for (const Slot& slot : program(model, LayerRole::kBlock).slots) bytes += slot.bytes.count();
    return bytes;
  };
  EXPECT_EQ(slots(variant(plan)) - slots(plain), kTokens * (4 * 4096 + 4 * 32 + 2 * 2 * 4096));
  plan.runtime.kind = RuntimeKind::kNative;
  EXPECT_EQ(variant(plan), plain);
  plan.runtime.kind = RuntimeKind::kFsdp2;
  plan.host = HostKind::kComputes;
  EXPECT_EQ(variant(plan), plain);
}

// Highest point of the loss, in bytes per logit, the 2 of the logits included, and what is left for the head: 2.
struct LossCase {
  Loss loss;
  Logits logits;
  double bytes;
};
TEST(Variants, LossPeaks) {
  constexpr double kVocabulary = 128256;
  const LossCase cases[] = {
      {{Loss::Kind::kEager, 0}, Logits::kReleased, 12},        // log-probabilities, two gradients
      {{Loss::Kind::kEager, 0}, Logits::kHeld, 16},            // and the fp32 copy
      {{Loss::Kind::kEagerCompute, 0}, Logits::kReleased, 6},  // log-probabilities, two gradients
      {{Loss::Kind::kEagerCompute, 0}, Logits::kHeld, 16},     // fp32 logits, three gradients
      {{Loss::Kind::kCompiled, 0}, Logits::kReleased, 4},      // logits and their gradient
      {{Loss::Kind::kFused, 0}, Logits::kReleased, 2},         // one in the other's place
      {{Loss::Kind::kChunked, 8}, Logits::kReleased, 6.5},     // 2 + 4 + 4/8 before backward
      // Log-probabilities, negated ones, the gradients of their sum and of the gathered.
      {{Loss::Kind::kSmoothed, 0}, Logits::kReleased, 8},
  };
  for (const LossCase& c : cases) {
    Plan plan = plan_with(Compile::kNone);
    plan.loss = c.loss;
    plan.logits = c.logits;
    const LayerProgram p = program(variant(plan), LayerRole::kLoss);
    const std::int64_t peak = std::max(p.forward.swing.peak, p.forward.swing.net + p.backward.swing.peak);
    const double logits = 2 * kVocabulary * kTokens;
    EXPECT_NEAR((logits + static_cast<double>(peak)) / (kVocabulary * kTokens), c.bytes, 0.001);
    EXPECT_EQ(p.forward.swing.net + p.backward.swing.net, 0);  // logits go, their gradient stays
  }
}

// What a traced loss is given (a target) stands before what reads the logits, which the loop holds.
TEST(Variants, ALossMayBeginWithWhatItIsGiven) {
  ModelSpec model = load_zoo_model("llama-3-8b", Stack::kEager);
  LayerSpec& loss = *std::ranges::find(model.kinds, LayerRole::kLoss, &LayerSpec::role);
  Operation given = {.name = "given", .function = Function::kCopy, .gradient = GradientRule::kNone};
  given.outputs = {static_cast<Index>(loss.tensors.size())};
  loss.tensors.push_back({.name = "given", .fixed = 1});
  loss.operations.insert(loss.operations.begin(), given);
  Plan plan = plan_with(Compile::kNone);
  plan.logits = Logits::kHeld;
  const ModelSpec held = with_variants(model, plan);
  const LayerSpec& with = *std::ranges::find(held.kinds, LayerRole::kLoss, &LayerSpec::role);
  EXPECT_TRUE(with.operations[0].saved.empty());
  EXPECT_FALSE(with.operations[1].saved.empty());
  // A traced loss that casts nothing holds what it was given.
  EXPECT_FALSE(contains(with.operations[1].saved, Index{0}));
  loss.operations[1].function = Function::kScale;
  model.source = "modules.json";
  const ModelSpec bare = with_variants(model, plan);
  const LayerSpec& given_it = *std::ranges::find(bare.kinds, LayerRole::kLoss, &LayerSpec::role);
  EXPECT_TRUE(contains(given_it.operations[1].saved, Index{0}));
  // Autocast casts nothing more of a log_softmax in 16 bits.
  std::erase_if(loss.operations, [](const Operation& op) { return op.inputs.empty(); });
  Operation& softmax = loss.operations.front();
  softmax.function = Function::kLogSoftmax;
  loss.tensors[at(softmax.outputs.front())].type = ElementType::kCompute;
  plan.param_dtype = DType::kFp32;
  plan.autocast = DType::kBf16;
  const ModelSpec cast = with_variants(model, plan);
  EXPECT_EQ(
      std::ranges::find(cast.kinds, LayerRole::kLoss, &LayerSpec::role)->operations.size(), loss.operations.size());
}

// 128,256 words, 4,096 features: 32 tiles of 32 of the 1,024 tokens. Where head and loss meet stand
// the gradients of both operands, one tile and, in fp32, the losses of the tokens.
TEST(Variants, ALossWithTheHeadsProductKeepsNoLogits) {
  constexpr std::int64_t kVocabulary = 128256, kTile = 32;
  Plan plan = plan_with(Compile::kNone);
  plan.loss = {Loss::Kind::kFusedLinear, 0};
  const LayerProgram head = program(variant(plan), LayerRole::kHead);
  const LayerProgram loss = program(variant(plan), LayerRole::kLoss);
  constexpr std::int64_t kGradients = kVocabulary * kWide + kTokens * kWide;
  EXPECT_EQ(head.forward.swing.peak, 4 * kTokens + kGradients + 2 * kVocabulary * kTile);
  EXPECT_EQ(head.backward.swing.peak, kGradients + 2 * kVocabulary * kTile);
  EXPECT_LE(loss.forward.swing.peak + loss.backward.swing.peak, 4 * kTokens + 2 * 512);
  const LayerProgram eager = program(variant(plan_with(Compile::kNone)), LayerRole::kHead);
  EXPECT_EQ(head.forward.flops.count(), eager.forward.flops.count());
  EXPECT_EQ(head.backward.flops.count(), eager.backward.flops.count());

  // Each of 32 tiles reads the weight for its logits and for the input's gradient, and writes the
  // weight's gradient, which is cast (2 to 4 bytes) and added to the sum (4 and 2 to 2).
  constexpr std::int64_t kTiles = kTokens / kTile, kWeights = kVocabulary * kWide / 2;
  const auto count = [](const LayerPhaseProgram& phase, KernelKind kind) {
    return std::ranges::count(phase.kernels, kind, &Kernel::kind);
  };
  EXPECT_EQ(count(head.forward, KernelKind::kGemm), kTiles);
  EXPECT_EQ(count(head.backward, KernelKind::kGemm), 2 * kTiles);
  std::int64_t added = 0;
  for (const Kernel& kernel : head.backward.kernels) {
    if (kernel.kind == KernelKind::kMemory) added += kernel.bytes.count();
    if (kernel.kind == KernelKind::kGemm) {
      EXPECT_EQ(kernel.n == kVocabulary ? kernel.k : kernel.m, kTile);
      EXPECT_GT(kernel.bytes.count(), 2 * kWeights);
    }
  }
  EXPECT_EQ(added, kTiles * kWeights * ((2 + 4) + (4 + 2 + 2)));
}

// self_attn, mlp, then the norms, as modeling_llama.py has them.
TEST(Variants, TransformersDefinesNormsLast) {
  Plan plan = plan_with(Compile::kNone);
  plan.experts = ExpertKernels::kTransformers;
  plan.runtime = {RuntimeKind::kZero1, "0.19"};
  for (const LayerSpec& layer : variant(plan).kinds) {
    if (layer.role != LayerRole::kBlock) continue;
    EXPECT_EQ(layer.parameters.front().name, "self_attn.q_proj.weight");
    EXPECT_EQ(layer.parameters[7].name, "input_layernorm.weight");
    EXPECT_EQ(layer.operations.front().parameters, std::vector<std::int16_t>{7});
  }
}

ModelSpec small(std::string_view family, std::int64_t experts = 0) {
  ModelDims dims = family_dims(family).value();
  dims.name = "small";
  dims.layers = 2;
  dims.hidden = dims.ffn = dims.moe.ffn = 256;
  dims.heads = dims.kv_heads = 4;
  dims.head_dim = 64;
  dims.vocabulary = 512;
  dims.max_positions = dims.position_rows = kTokens;
  dims.moe.experts = experts;
  dims.moe.top_k = experts / 2;
  return build_model(dims, Stack::kEager);
}

// One tensor of gate and up takes the place of two: what stands behind the mixture has moved.
TEST(Variants, ANormBehindAMixtureReadsItsOwnWeight) {
  Plan plan = plan_with(Compile::kNone);
  plan.experts = ExpertKernels::kTransformers;
  for (const LayerSpec& layer : with_variants(small("flex_olmo", 4), plan).kinds) {
    if (layer.role != LayerRole::kBlock) continue;
    const auto reads = [&](std::string_view name) {
      return std::ranges::any_of(layer.operations, [&](const Operation& op) {
        return op.parameters.size() == 1 && layer.parameters[at(op.parameters[0])].name == name;
      });
    };
    EXPECT_TRUE(reads("post_feedforward_layernorm.weight"));
    EXPECT_TRUE(reads("mlp.experts.down_proj"));
  }
}

// A byte for each pair of positions, of each block's attention or of the model.
TEST(Variants, MasksThatModulesMakeThemselvesStay) {
  Plan plan = plan_with(Compile::kNone);
  plan.experts = ExpertKernels::kTransformers;
  for (const auto& [family, role] : {std::pair{"gpt_neo", LayerRole::kBlock}, {"gpt_bigcode", LayerRole::kEmbedding}}) {
    for (const LayerSpec& layer : with_variants(small(family), plan).kinds) {
      EXPECT_EQ(layer.resident_bytes, layer.role == role ? kTokens * kTokens : 0) << family;
    }
  }
}

// A head that PEFT's wrapper leaves in a unit of its own is gathered by TRL's loss, as it is
// stored: in fp32, all ranks' rows, which live until backward.
TEST(Variants, ALossGathersAHeadThatNobodyCalls) {
  Plan plan = plan_with(Compile::kNone);
  plan.mesh = {.shard = 7};
  plan.loss.kind = Loss::Kind::kTiledLinear;
  plan.lora = {.rank = 8, .base = Lora::Base::kMaster};
  const auto gathered = [&] {
    for (const LayerSpec& layer : variant(plan).kinds) {
      for (const Operation& op : layer.operations) {
        if (op.collective.kind != CollectiveKind::kAllGather) continue;
        EXPECT_EQ(layer.role, LayerRole::kHead);
        return layer.tensors[at(op.outputs.front())];
      }
    }
    return TensorSpec{};
  };
  EXPECT_EQ(gathered().fixed, std::int64_t{(128256 + 6) / 7 * 7} * 4096);
  EXPECT_EQ(gathered().type, ElementType::kFp32);
  plan.lora.base = Lora::Base::kParam;
  EXPECT_EQ(gathered().type, ElementType::kCompute);
  plan.units.head = UnitPlacement::kWithNorm;
  EXPECT_EQ(gathered().fixed, 0);
}

}
}
