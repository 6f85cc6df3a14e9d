#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sim/spec/checks/plan_check.h"
#include "sim/spec/plan_config.h"
#include "tests/sim/spec/plan_fixtures.h"

namespace foreshard {
namespace {

ResolvedPlan resolved(const PlanDocument& document, std::int64_t gpus = 64, const SmallModel& model = {}) {
  return resolve(document, small_model(model), cluster_of_gpus(gpus));
}
ResolvedPlan resolved(std::string_view yaml, std::int64_t gpus = 64) { return resolved(document_of(yaml), gpus); }
const AssumedValue* assumed(const ResolvedPlan& plan, std::string_view key) {
  const auto found = std::ranges::find_if(plan.assumed, [&](const AssumedValue& value) { return value.key == key; });
  return found == plan.assumed.end() ? nullptr : &*found;
}

TEST(PlanResolve, FillsTheDefaultsAndNamesThem) {
  const ResolvedPlan plan = resolved("model: small\ncluster: 64xh100\n");
  const std::string newest = std::string("fsdp2@") + newest_version(RuntimeKind::kFsdp2);
  EXPECT_EQ(to_yaml(plan.plan), R"(model: small
cluster: 64xh100
runtime: )" + newest + R"(
batch: {sequence: 8192, micro_batch: 1, accumulation: 1, documents: 1}
mesh: {shard: 64, replicate: 1}
units: {layers_per_unit: 1, embedding: own, head: own, blocks: own, experts: block, shard_dim: 0}
reshard_after_forward: always
unshard_in_backward: true
prefetch: {forward: implicit, backward: 1, backward_lists: false, async_unshard: false}
recompute: none
compile: none
attention: flash
kernels: {norm: compute, rope: complex, residual: compute, activation: fused, unpads: false, train_metrics: 0}
loss: eager
logits: released
float8: none
float8_all_gather: false
experts: grouped
recompute_wraps: module
recompute_early_stop: true
recompute_reentrant: false
dtype: {param: bf16, autocast: none, reduce: fp32, master: fp32, output: none}
accumulation: {mode: reduce_each, all_reduce: each, reshard_after_backward: each, is_last_backward: each}
frozen: none
lora: {rank: 0, targets: all-linear, dropout: 0.0, base: param}
ignored: none
optimizer: {kind: adamw, implementation: foreach, state: fp32, clip_norm: 1.0, learning_rate: 0.0003, beta1: 0.9, beta2: 0.95, epsilon: 1e-08, weight_decay: 0.1, warmup_steps: 0, decay_steps: none, min_learning_rate: 0.0}
offload: none
buffers: {reduce_scatter: 1}
communicators: shared
collectives: {kernels: default, max_ctas: 0}
reduction: {divide_factor: none, force_sum: false}
allocator: default
host_sync: none
reduction_order: library
evaluation: {every: none, sequences: 16, held_back: 0.05, in_step: false}
seed: 1
rank: fullest
)");
  EXPECT_EQ(plan.assumed.size(), 79U);  // all but model and cluster
  ASSERT_NE(assumed(plan, "mesh.shard"), nullptr);
  EXPECT_EQ(assumed(plan, "mesh.shard")->value, "64");
  EXPECT_EQ(assumed(plan, "mesh.shard")->why, "all 64 GPUs of the cluster");
  EXPECT_EQ(assumed(plan, "batch.sequence")->why, "min(131072 positions of the model, 8192)");
  EXPECT_EQ(assumed(plan, "runtime")->value, newest);
  EXPECT_EQ(assumed(plan, "optimizer.clip_norm")->why, "default");
  EXPECT_EQ(assumed(plan, "model"), nullptr);
}

TEST(PlanResolve, AssumesTheVersionOnly) {
  const ResolvedPlan plan = resolved("runtime: fsdp2");
  EXPECT_EQ(plan.plan.runtime.version, newest_version(RuntimeKind::kFsdp2));
  ASSERT_NE(assumed(plan, "runtime"), nullptr);
  EXPECT_EQ(assumed(resolved("runtime: fsdp2@2.11"), "runtime"), nullptr);
  EXPECT_EQ(resolved("runtime: native").plan.runtime.version, "1");
}

TEST(PlanResolve, TakesShortModelsAtTheirLength) {
  EXPECT_EQ(resolved(document_of("model: m"), 8, {.positions = 2048}).plan.batch.sequence, 2048);
}

TEST(PlanResolve, CompletesTheMesh) {
  EXPECT_EQ(resolved("mesh: {shard: 8}").plan.mesh, (Mesh{8, 8}));
  EXPECT_EQ(resolved("mesh: {replicate: 2}").plan.mesh, (Mesh{32, 2}));
  EXPECT_EQ(assumed(resolved("mesh: {shard: 8}"), "mesh.replicate")->why, "64 GPUs / mesh.shard 8");
  const Refusal refused = refusal_of([] { resolved("model: m\nmesh: {shard: 7}"); });
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_EQ(refused.text,
      "plan.yaml:2:15: mesh.shard: 7 does not divide the 64 GPUs of the cluster; expected a "
      "divisor of 64, for example 4 or 8");
  // Of the GPUs that the other axis leaves.
  EXPECT_EQ(refusal_of([] { resolved("model: m\nmesh: {cp: 16, tp: 8}"); }).text,
      "plan.yaml:2:20: mesh.tp: cp 16 x tp 8 does not divide the 64 GPUs of the cluster; "
      "expected a divisor of 4, for example 4");
}

// A V100 has no bf16 and no FlashAttention; the engine has no fp16.
TEST(PlanResolve, GpusBeforeAmpereComputeInFp16) {
  const auto on = [](const char* architecture, std::string_view yaml) {
    Cluster cluster = cluster_of_gpus(64);
    cluster.gpu.architecture = architecture;
    return resolve(document_of(yaml), small_model(), cluster);
  };
  const ResolvedPlan volta = on("volta", "model: m");
  EXPECT_EQ(volta.plan.param_dtype, DType::kFp16);
  EXPECT_FALSE(volta.plan.has_flash());
  ASSERT_NE(assumed(volta, "dtype.param"), nullptr);
  EXPECT_TRUE(assumed(volta, "dtype.param")->why.ends_with("has no bf16"));
  EXPECT_EQ(on("turing", "dtype: {param: bf16}").plan.param_dtype, DType::kBf16);
  EXPECT_EQ(on("turing", "runtime: native").plan.param_dtype, DType::kBf16);
  for (const char* later : {"ampere", "hopper", "cdna2", ""}) {
    EXPECT_EQ(on(later, "model: m").plan.param_dtype, DType::kBf16) << later;
    EXPECT_TRUE(on(later, "model: m").plan.has_flash()) << later;
  }
}

// torchtitan's fsdp.py: reshard_after_forward is False with stages, whatever else is changed for
// them (the head is with its norm).
TEST(PlanResolve, NothingWrapsACapturedProgramOnOneRank) {
  const auto of = [](std::int64_t gpus, const char* units, const char* source) {
    ModelSpec model = small_model({});
    model.source = source;
    const std::string text = fmt::format(
        "model: small\nruntime: fsdp2@2.11\ncluster: {}xh100\n"
        "dtype: {{param: fp32, master: fp32, autocast: bf16}}\n{}",
        gpus, units);
    return resolve(document_of(text), model, cluster_of_gpus(gpus)).plan;
  };
  const char* const captured = "modules.json of a capture";
  const Plan alone = of(1, "", captured);
  EXPECT_EQ(alone.runtime.kind, RuntimeKind::kDdp);
  EXPECT_EQ(alone.ddp.bucket_cap_mb, 0);
  EXPECT_EQ(alone.param_dtype, DType::kBf16);  // autocast's
  EXPECT_EQ(alone.autocast, std::nullopt);
  for (const Plan& wrapped :
      {of(2, "", captured), of(1, "units: {blocks: own}\n", captured), of(1, "", "config.json")}) {
    EXPECT_EQ(wrapped.runtime.kind, RuntimeKind::kFsdp2);
    EXPECT_EQ(wrapped.autocast, DType::kBf16);
  }
}

TEST(PlanResolve, KeepsStagesUnsharded) {
  const ResolvedPlan plan = resolved("model: small\nruntime: fsdp2\nmesh: {pp: 2}\n");
  EXPECT_EQ(plan.plan.units.head, UnitPlacement::kWithNorm);
  EXPECT_EQ(plan.plan.reshard_after_forward.value.kind, Reshard::Kind::kNever);
  ASSERT_NE(assumed(plan, "reshard_after_forward"), nullptr);
  const ResolvedPlan given = resolved("model: small\nruntime: fsdp2\nmesh: {pp: 2}\nreshard_after_forward: always\n");
  EXPECT_EQ(given.plan.reshard_after_forward.value.kind, Reshard::Kind::kAlways);
}

TEST(PlanResolve, DerivesAccumulationFromTheGlobalBatch) {
  const ResolvedPlan plan = resolved("batch: {global: 512, micro_batch: 2}");
  EXPECT_EQ(plan.plan.batch.accumulation, 4);
  EXPECT_EQ(global_batch(plan.plan), 512);
  EXPECT_EQ(assumed(plan, "batch.accumulation")->why, "batch.global 512 / (64 ranks x micro_batch 2 = 128)");
  const auto refused = [](std::string_view yaml) {
    const Refusal refusal = refusal_of([&] { resolved(yaml); });
    EXPECT_EQ(refusal.exit_code, 3);
    return refusal.text;
  };
  EXPECT_EQ(refused("batch: {global: 500}"),
      "plan.yaml:1:17: batch.global: 500 is no multiple of 64 ranks x micro_batch 1 = 64; expected 448 or 512");
  EXPECT_NE(refused("batch: {global: 8}").find("expected 64"), std::string::npos);
  EXPECT_NE(refused("batch: {global: 128, accumulation: 4}").find("contradicts"), std::string::npos);
  EXPECT_EQ(resolved("batch: {global: 128, accumulation: 2}").plan.batch.accumulation, 2);
  EXPECT_NE(refused("batch: {global: 1099511627776}").find("at most 1048576"), std::string::npos);
}

TEST(PlanResolve, LaterLayersSpellTheBatchAnew) {
  PlanDocument document = document_of("batch: {accumulation: 4}");
  document = apply_set(document, "batch.global=128");
  EXPECT_EQ(resolved(document).plan.batch.accumulation, 2);
  document = document_of("batch: {global: 128}");
  document = apply_flag(document, "--accumulation", "batch.accumulation", "4");
  EXPECT_EQ(resolved(document).plan.batch.accumulation, 4);
}

TEST(PlanResolve, PutsTiedEmbeddingsInTheRoot) {
  const ResolvedPlan plan = resolved(document_of("model: m"), 64, {.is_tied = true});
  EXPECT_EQ(plan.plan.units.embedding, UnitPlacement::kRoot);
  EXPECT_EQ(plan.plan.units.head, UnitPlacement::kRoot);
  ASSERT_NE(assumed(plan, "units.head"), nullptr);
  EXPECT_NE(assumed(plan, "units.head")->why.find("tied"), std::string::npos);
  check(plan, small_model({.is_tied = true}), cluster_of_gpus(64));
}

TEST(PlanResolve, PutsTheHeadWhereTheEmbeddingTakesIt) {
  for (const bool is_tied : {false, true}) {
    const SmallModel model{.is_tied = is_tied};
    const ResolvedPlan plan = resolved(document_of("units: {embedding: with_head}"), 64, model);
    EXPECT_EQ(plan.plan.units.head, UnitPlacement::kWithNorm);
    EXPECT_EQ(assumed(plan, "units.head")->why, "in the unit of the embedding");
    check(plan, small_model(model), cluster_of_gpus(64));
  }
}

TEST(PlanResolve, ReducesAsTheVersionDoesWhereNoDtypeIsGiven) {
  const auto reduce = [](const std::string& runtime) {
    return resolved("runtime: " + runtime + "\ndtype: {param: fp16, reduce: none, master: bf16}");
  };
  EXPECT_EQ(reduce("fsdp2@2.14").plan.reduce_dtype, DType::kFp16);
  EXPECT_EQ(reduce("fsdp2@2.15").plan.reduce_dtype, DType::kBf16);
  EXPECT_EQ(reduce("native").plan.reduce_dtype, DType::kFp16);
  ASSERT_NE(assumed(reduce("fsdp2"), "dtype.reduce"), nullptr);
  EXPECT_EQ(assumed(reduce("fsdp2"), "dtype.reduce")->value, "bf16");
  // A later layer takes it back.
  const PlanDocument again = apply_set(document_of("dtype: {reduce: none}"), "dtype.reduce=fp32");
  EXPECT_EQ(resolved(again).plan.reduce_dtype, DType::kFp32);
  EXPECT_EQ(assumed(resolved(again), "dtype.reduce"), nullptr);
}

// zeros_like(parameter); DeepSpeed's optimizer works on fp32 partitions.
TEST(PlanResolve, MakesOptimizerStatesLikeTheParameters) {
  const auto state = [](const std::string& yaml) { return resolved(yaml).plan.optimizer.state; };
  EXPECT_EQ(state("runtime: fsdp2@2.11"), DType::kFp32);
  for (const std::string runtime : {"fsdp2@2.11", "fsdp1@2.11", "ddp"}) {
    EXPECT_EQ(state("runtime: " + runtime + "\ndtype: {master: bf16}"), DType::kBf16) << runtime;
    EXPECT_EQ(state("runtime: " + runtime + "\ndtype: {master: bf16}\noptimizer: {state: fp32}"), DType::kFp32);
  }
  EXPECT_EQ(state("runtime: zero2"), DType::kFp32);
}

TEST(PlanResolve, SpreadsEveryK) {
  const ResolvedPlan plan = resolved("recompute: every-3");
  for (std::int64_t block = 0; block < 32; ++block) {
    EXPECT_EQ(plan.plan.recompute.at(block), block % 3 == 0 ? Recompute::kFull : Recompute::kNone);
  }
  EXPECT_NE(to_yaml(plan.plan).find("recompute: every-3\n"), std::string::npos);
  EXPECT_EQ(resolved("recompute: every-1").plan.recompute, (RangedPolicy<Recompute>{Recompute::kFull, {}}));
  EXPECT_EQ(to_json(plan.plan)["recompute"], "every-3");
}

TEST(PlanResolve, CheckSaysWhereTheWrongKeyStands) {
  const auto refused = [](std::string_view yaml) {
    return refusal_of([&] { check(resolved(yaml), small_model(), cluster_of_gpus(64)); });
  };
  const Refusal mesh = refused("model: m\nmesh:\n  shard: 16\n  replicate: 8\n");
  EXPECT_EQ(mesh.exit_code, 3);
  EXPECT_EQ(mesh.text.find("plan.yaml:3:10: mesh.shard: shard 16 x replicate 8 = 128"), 0U) << mesh.text;
  const Refusal prefetch = refused("prefetch: {forward: 0}");
  EXPECT_EQ(prefetch.exit_code, 6);
  EXPECT_EQ(prefetch.text.find("plan.yaml:1:21: prefetch.forward: "), 0U) << prefetch.text;
}

}
}
