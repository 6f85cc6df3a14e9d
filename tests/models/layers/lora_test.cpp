// Adapters by hand, for Llama-3-8B: d = 4096, 8 heads of keys (dkv = 1024), f = 14336, 32 layers.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "models/layers/variants.h"
#include "models/zoo.h"
#include "sim/base/error.h"
#include "sim/graph/layers/layer_program.h"
#include "sim/graph/training_step.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/plan_config.h"

namespace foreshard::lora_test {
namespace {

constexpr std::int64_t kTokens = 1024;
constexpr std::int64_t d = 4096, dkv = 1024, f = 14336;

Cluster cluster_of_8() { return Cluster{.gpus = 8}; }

Plan plan_with(std::int64_t rank, std::vector<std::string> targets, Lora::Base base = Lora::Base::kParam) {
  Plan plan;
  plan.batch.sequence = kTokens;
  plan.lora = {.rank = rank, .targets = std::move(targets), .dropout = 0, .base = base};
  return plan;
}

ModelSpec adapted(const Plan& plan, const char* name = "llama-3-8b") {
  return with_variants(load_zoo_model(name), plan);
}

LayerSpec block_of(const ModelSpec& model) {
  for (const LayerSpec& kind : model.kinds) {
    if (kind.role == LayerRole::kBlock) return kind;
  }
  throw std::logic_error("no block");
}

LayerProgram program(const LayerSpec& layer) {
  ProgramOptions options = {.sequence = kTokens};
  return build_layer_program(layer, options);
}

// rank * (in + out) for every target, as PEFT's print_trainable_parameters counts.
TEST(LoraTest, TrainableParameters) {
  const std::int64_t q = d + d, k = d + dkv, o = d + d, mlp = 3 * (d + f);
  EXPECT_EQ(adapted(plan_with(16, {"q_proj", "v_proj"})).trainable_parameters(), 32 * 16 * (q + k));
  EXPECT_EQ(adapted(plan_with(8, {Lora::kAllLinear})).trainable_parameters(), 32 * 8 * (q + 2 * k + o + mlp));
  // PEFT on Meta-Llama-3-8B, r = 8, q_proj and v_proj: "trainable params: 3,407,872".
  EXPECT_EQ(adapted(plan_with(8, {"q_proj", "v_proj"})).trainable_parameters(), 3'407'872);
  const ModelSpec model = adapted(plan_with(8, {"q_proj", "v_proj"}));
  EXPECT_EQ(model.parameters(), 8'030'261'248 + 3'407'872);
}

// PEFT's ModulesToSaveWrapper: a copy that is trained beside the original, which is kept frozen.
TEST(LoraTest, SavedModulesAreTrainedWholeBesideTheirOriginals) {
  Plan plan = plan_with(8, {"q_proj"});
  const ModelSpec before = adapted(plan);
  const std::int64_t table = std::int64_t{128256} * d;
  plan.lora.trains_embedding = true;
  const ModelSpec one = adapted(plan);
  EXPECT_EQ(one.trainable_parameters(), before.trainable_parameters() + table);
  EXPECT_EQ(one.parameters(), before.parameters() + table);
  plan.lora.trains_head = true;
  const ModelSpec both = adapted(plan);
  EXPECT_EQ(both.trainable_parameters(), before.trainable_parameters() + 2 * table);
  const LayerSpec& head =
      *std::ranges::find_if(both.kinds, [](const LayerSpec& layer) { return layer.role == LayerRole::kHead; });
  ASSERT_EQ(head.parameters.size(), 2U);
  EXPECT_EQ(head.parameters[0].name, "lm_head.original_module.weight");
  EXPECT_EQ(head.parameters[1].name, "lm_head.modules_to_save.default.weight");
  EXPECT_EQ(head.operations.front().parameters, std::vector<std::int16_t>{1});
}

TEST(LoraTest, NamesAreThoseOfPeft) {
  const LayerSpec block = block_of(adapted(plan_with(16, {"q_proj"})));
  std::vector<std::string> names;
  for (const ParameterSpec& p : block.parameters) names.push_back(p.name);
  ASSERT_GE(names.size(), 5U);
  EXPECT_EQ(names[1], "self_attn.q_proj.base_layer.weight");
  EXPECT_EQ(names[2], "self_attn.q_proj.lora_A.default.weight");
  EXPECT_EQ(names[3], "self_attn.q_proj.lora_B.default.weight");
  EXPECT_EQ(names[4], "self_attn.k_proj.weight");
  EXPECT_EQ(block.parameters[2].shape, (std::vector<std::int64_t>{16, d}));
  EXPECT_EQ(block.parameters[3].shape, (std::vector<std::int64_t>{d, 16}));
  EXPECT_FALSE(block.parameters[1].trainable);
  EXPECT_TRUE(block.parameters[2].trainable);
}

// Backward of the block computes no gradient of a frozen weight.
TEST(LoraTest, GradientsOfAdaptersOnly) {
  const LayerSpec block = block_of(adapted(plan_with(16, {"q_proj", "v_proj"})));
  const LayerProgram p = program(block);
  for (std::size_t i = 0; i < block.parameters.size(); ++i) {
    EXPECT_EQ(p.weight_gradients[i] >= 0, block.parameters[i].trainable) << block.parameters[i].name;
  }
  std::int64_t products = 0;
  for (const Kernel& k : p.backward.kernels) products += k.kind == KernelKind::kGemm;
  // The input's gradient of seven frozen products, two of each of the four adapters' products.
  EXPECT_EQ(products, 7 + 4 * 2);
}

// Forward and the input's gradient of a frozen weight: 4 FLOPs per weight and token instead of 6.
TEST(LoraTest, FrozenWeightsCostTwoThirds) {
  const Plan plan = plan_with(16, {"q_proj"});
  const double block = 2.0 * d * d + 2.0 * d * dkv + 3.0 * d * f;
  const double weights = 32 * block + 4096.0 * 128256;
  const double adapters = 32 * 16.0 * (d + d);
  const double attention = 32 * 2.0 * d * kTokens;
  EXPECT_DOUBLE_EQ(adapted(plan).training_flops_per_sequence(kTokens).count(),
      kTokens * (4 * weights + 6 * adapters + 3 * attention));
}

// 4 bits per weight in elements of bf16; per 64 weights one byte, per 256 of those 4, and tables of
// 256 + 16 + 1 fp32 for each matrix, whole on every rank.
TEST(QloraTest, BaseInBlocks) {
  const ModelSpec model = adapted(plan_with(16, {"q_proj"}, Lora::Base::kNf4));
  const LayerSpec& block = block_of(model);
  const std::int64_t matrices = 2 * d * d + 2 * d * dkv + 3 * d * f;
  std::int64_t packed = 0, resident = 0;
  for (const ParameterSpec& p : block.parameters) {
    if (p.unpacked == 0) continue;
    EXPECT_EQ(p.numel() * 4, p.unpacked) << p.name;
    packed += p.unpacked;
  }
  EXPECT_EQ(packed, matrices);
  for (const std::int64_t n : {d * d, d * d, d * dkv, d * dkv, d * f, d * f, d * f}) {
    resident += n / 64 + 4 * (n / 64 / 256) + 4 * 273;
  }
  EXPECT_EQ(block.resident_bytes, resident);
  EXPECT_EQ(model.parameters(), 8'030'261'248 + 32 * 16 * (d + d));
  // The head stays whole.
  for (const LayerSpec& kind : model.kinds) {
    if (kind.role != LayerRole::kHead) continue;
    EXPECT_EQ(kind.parameters.front().unpacked, 0);
    EXPECT_TRUE(kind.parameters.front().stored_as_computed);
  }
}

// Each of seven products writes its matrix out before forward and before the input's gradient.
TEST(QloraTest, DequantizesBeforeEveryProduct) {
  const LayerSpec& block = block_of(adapted(plan_with(16, {"q_proj"}, Lora::Base::kNf4)));
  const LayerProgram p = program(block);
  const auto dequantized = [](const LayerPhaseProgram& phase) {
    std::int64_t bytes = 0;
    for (const Kernel& k : phase.kernels) {
      if (k.function == Function::kDequantize) bytes += k.bytes.count();
    }
    return bytes;
  };
  const std::int64_t matrices = 2 * d * d + 2 * d * dkv + 3 * d * f;
  EXPECT_EQ(dequantized(p.forward), matrices / 2 + 2 * matrices);
  EXPECT_EQ(dequantized(p.backward), matrices / 2 + 2 * matrices);
  // The largest matrix in bf16 exists for a moment.
  EXPECT_GE(p.forward.swing.peak, 2 * d * f);
}

// Bytes that the plan's rank holds between steps.
std::int64_t persistent(const Plan& plan, MemoryCategory category) {
  const ModelSpec model = adapted(plan);
  const EventGraph graph = build_training_step(model, plan, LayerPrograms(model, plan));
  std::int64_t bytes = 0;
  for (const std::int32_t id : graph.persistent) {
    const Buffer buffer = graph.buffer(id);
    if (buffer.category == category && !buffer.on_host) bytes += buffer.bytes.count();
  }
  return bytes;
}

// Two fp32 moments of the adapters; the frozen weights in bf16, the adapters in fp32.
TEST(LoraTest, MemoryBetweenSteps) {
  Plan plan = plan_with(16, {"q_proj", "v_proj"});
  plan.mesh = {8, 1};
  plan.runtime.version = "2.11";
  const std::int64_t adapters = 32 * 16 * (d + d + d + dkv);
  EXPECT_EQ(persistent(plan, MemoryCategory::kOptimizerState), 2 * 4 * adapters / 8);
  EXPECT_EQ(persistent(plan, MemoryCategory::kShardedParam), (2 * 8'030'261'248 + 4 * adapters) / 8);
  plan.lora.base = Lora::Base::kMaster;
  EXPECT_EQ(persistent(plan, MemoryCategory::kShardedParam), 4 * (8'030'261'248 + adapters) / 8);
  plan.lora.base = Lora::Base::kNf4;
  // Embedding, head and 65 norms stay in bf16; 4 bits for the rest; scales whole on every rank.
  const std::int64_t whole = 2LL * 128256 * d + 65 * d;
  const std::int64_t packed = (8'030'261'248 - whole) / 2;
  const std::int64_t resident = block_of(adapted(plan)).resident_bytes;
  const std::int64_t rounded = (resident + 511) / 512 * 512;
  EXPECT_EQ(persistent(plan, MemoryCategory::kShardedParam), (2 * whole + packed + 4 * adapters) / 8 + 32 * rounded);
}

// With use_orig_params a block is one flat parameter of base and adapters, whose views all need
// gradients: seen in PyTorch 2.11, where a frozen Linear's weight inside a wrapped module has
// requires_grad and receives a gradient, which is dropped behind the reduction. So base and norms
// have gradients and are reduced; the optimizer steps the adapters' pieces of each rank's shard.
TEST(LoraTest, Fsdp1ComputesAndReducesGradientsOfTheBaseToo) {
  Plan plan = plan_with(16, {"q_proj", "v_proj"}, Lora::Base::kMaster);
  plan.mesh = {8, 1};
  plan.runtime = {RuntimeKind::kFsdp1, newest_version(RuntimeKind::kFsdp1)};
  plan.units.embedding = plan.units.head = UnitPlacement::kRoot;
  plan.fsdp1.use_orig_params = true;
  const ModelSpec model = adapted(plan);
  ASSERT_FALSE(find_problem(plan, load_zoo_model("llama-3-8b"), cluster_of_8()));
  const LayerPrograms programs(model, plan);
  for (const std::int32_t slot : programs.at(1, Recompute::kNone)->weight_gradients) EXPECT_GE(slot, 0);
  const std::int64_t adapters = 16 * (d + d + d + dkv);
  const std::int64_t block = 2 * d * d + 2 * d * dkv + 3 * d * f + 2 * d + adapters;
  ASSERT_EQ(block % (8 * 128), 0);  // neither padding nor rounding
  const EventGraph graph = build_training_step(model, plan, programs);
  std::int64_t reductions = 0;
  for (const Row& row : graph.rows) {
    if (row.kind != EventKind::kReduceScatter) continue;
    ++reductions;
    EXPECT_EQ(graph.works[row.work].bytes.count(), block * size_of(plan.reduce_dtype));
  }
  EXPECT_EQ(reductions, 32);  // the root is frozen as a whole
  std::int64_t states = 0;
  for (plan.named_rank = 0; plan.rank() < 8; ++*plan.named_rank)
    states += persistent(plan, MemoryCategory::kOptimizerState);
  EXPECT_EQ(states, 2 * 4 * 32 * adapters);
}

// A root with frozen and trained parameters is one flat parameter just as well: the table's
// gradient arises, though it is frozen.
TEST(LoraTest, Fsdp1ComputesGradientsOfAFrozenTableBesideATrainedHead) {
  Plan plan;
  plan.batch.sequence = kTokens;
  plan.mesh = {8, 1};
  plan.runtime = {RuntimeKind::kFsdp1, newest_version(RuntimeKind::kFsdp1)};
  plan.units.embedding = plan.units.head = UnitPlacement::kRoot;
  plan.fsdp1.use_orig_params = true;
  plan.frozen.embedding = true;
  const ModelSpec model = load_zoo_model("llama-3-8b");
  EXPECT_GE(LayerPrograms(model, plan).at(0, Recompute::kNone)->weight_gradients.front(), 0);
  plan.frozen.norm = plan.frozen.head = true;  // then nothing in the root needs any
  EXPECT_LT(LayerPrograms(model, plan).at(0, Recompute::kNone)->weight_gradients.front(), 0);
}

TEST(LoraTest, TargetsMustExist) {
  const ModelSpec model = load_zoo_model("llama-3-8b");
  const Cluster cluster = cluster_of_8();
  Plan plan = plan_with(16, {"q_proj", "v_prj"});
  plan.mesh = {8, 1};
  const auto problem = find_problem(plan, model, cluster);
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->key, "lora.targets");
  EXPECT_EQ(problem->what_is_wrong, "llama-3-8b has no linear module \"v_prj\"");
  EXPECT_EQ(problem->did_you_mean, "v_proj");
  plan.lora.targets = {"q_proj", "mlp.down_proj", "lm_head"};
  EXPECT_FALSE(find_problem(plan, model, cluster));
  plan.float8 = Float8::kTensorwise;
  EXPECT_EQ(find_problem(plan, model, cluster)->key, "float8");
}

// Blocks of 64 elements have a scale each, in fp32 beside 16 values of four bits; or in eight bits
// in blocks of 256, whose scales and 257 values are in fp32.
TEST(LoraTest, ABaseOfFourBitsHasItsScalesWhole) {
  const std::int64_t weights[] = {d * d, d * dkv, d * dkv, d * d, d * f, d * f, d * f};
  std::int64_t once = 0, twice = 0;
  for (const std::int64_t numel : weights) {
    once += numel / 64 * 4 + 16 * 4;
    twice += numel / 64 + numel / 64 / 256 * 4 + (257 + 16) * 4;
  }
  Plan plan = plan_with(16, {"q_proj"}, Lora::Base::kNf4);
  EXPECT_EQ(block_of(adapted(plan)).resident_bytes, twice);
  plan.lora.double_quant = false;
  EXPECT_EQ(block_of(adapted(plan)).resident_bytes, once);
  // What is stored in the dtype that computes: adapters and products', or all but the adapters.
  const auto narrow = [&](Lora::Base base) {
    plan.lora.base = base;
    std::string names;
    for (const ParameterSpec& each : block_of(adapted(plan)).parameters) {
      if (each.stored_as_computed) names += each.is_norm ? "n" : each.trainable ? "a" : "w";
    }
    return names;
  };
  EXPECT_EQ(narrow(Lora::Base::kNf4), "nwwwwnwww");
  EXPECT_EQ(narrow(Lora::Base::kNf4Master), "waawwwwww");
}

// silu(gate) * up is made again where all three have adapters, what lora_A hands to lora_B always.
TEST(LoraTest, FusedKernelsKeepLess) {
  const auto saved = [](std::vector<std::string> targets, bool fused) {
    Plan plan = plan_with(16, std::move(targets));
    plan.lora.fused = fused;
    return program(block_of(adapted(plan))).saved_bytes().count();
  };
  const std::int64_t wide = kTokens * f * 2, low = kTokens * 16 * 2;
  EXPECT_EQ(saved({Lora::kAllLinear}, false) - saved({Lora::kAllLinear}, true), 2 * wide + 7 * low);
  EXPECT_EQ(saved({"up_proj"}, false) - saved({"up_proj"}, true), low);

  // Dropped inputs: of q, k and v one, of o, of gate and up one.
  Plan plan = plan_with(16, {Lora::kAllLinear});
  plan.lora.dropout = 0.1;
  const auto dropped = [&] {
    const LayerSpec block = block_of(adapted(plan));
    return std::ranges::count(block.operations, Function::kDropout, &Operation::function);
  };
  EXPECT_EQ(dropped(), 7);
  plan.lora.fused = true;
  EXPECT_EQ(dropped(), 3);
}

// Attention within each of N documents of S / N tokens: S^2 / N instead of S^2.
TEST(PackingTest, AttentionIsASumOverDocuments) {
  Plan plan;
  plan.batch.sequence = kTokens;
  plan.batch.documents = 4;
  const ModelSpec packed = adapted(plan);
  const double weights = 32 * (2.0 * d * d + 2.0 * d * dkv + 3.0 * d * f) + 4096.0 * 128256;
  EXPECT_DOUBLE_EQ(
      packed.training_flops_per_sequence(kTokens).count(), kTokens * (6 * weights + 3 * 32 * 2.0 * d * kTokens / 4));
  const LayerProgram p = program(block_of(packed));
  const auto attention =
      std::ranges::find_if(p.forward.kernels, [](const Kernel& k) { return k.kind == KernelKind::kAttention; });
  ASSERT_NE(attention, p.forward.kernels.end());
  EXPECT_EQ(attention->m, 4);
  EXPECT_EQ(attention->n, kTokens / 4);
  plan.batch.documents = 3;
  plan.mesh = {8, 1};
  const auto problem = find_problem(plan, load_zoo_model("llama-3-8b"), cluster_of_8());
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->key, "batch.documents");
}

TEST(LoraTest, KeysGoThereAndBack) {
  const ModelSpec model = load_zoo_model("llama-3-8b");
  const Cluster cluster = cluster_of_8();
  PlanDocument document;
  document = apply_set(std::move(document), "model=llama-3-8b");
  document = apply_set(std::move(document), "cluster=8xh100");
  document = apply_set(std::move(document), "lora={rank: 16, targets: [q_proj, v_proj], dropout: 0.1, base: nf4}");
  document = apply_set(std::move(document), "batch.documents=8");
  const ResolvedPlan resolved = resolve(document, model, cluster);
  EXPECT_EQ(resolved.plan.lora,
      (Lora{.rank = 16, .targets = {"q_proj", "v_proj"}, .dropout = 0.1, .base = Lora::Base::kNf4}));
  EXPECT_EQ(resolved.plan.batch.documents, 8);
  const ConfigNode root = parse_yaml(to_yaml(resolved.plan), "plan.yaml");
  const PlanDocument again = read_plan(root);
  EXPECT_EQ(resolve(again, model, cluster).plan, resolved.plan);
  EXPECT_THROW(apply_set(document, "lora.targets=q_proj"), ConfigError);
  EXPECT_THROW(apply_set(document, "lora.targets=[]"), ConfigError);
  EXPECT_THROW(apply_set(document, "lora.base=int8"), ConfigError);
  EXPECT_THROW(apply_set(document, "lora.rank=-1"), ConfigError);
}

}
}
