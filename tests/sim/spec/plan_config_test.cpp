#include "sim/spec/plan_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/sim/spec/plan_fixtures.h"
#include "tests/support/temporary_folder.h"

namespace foreshard::plan_config_test {
namespace {

std::string refusal(std::string_view yaml) {
  return refusal_of([&] { document_of(yaml); }).text;
}
std::string set_refusal(std::string_view assignment) {
  return refusal_of([&] { apply_set({}, assignment); }).text;
}

constexpr std::string_view kExample = R"(model: llama-3.1-8b
cluster: 64xh100
runtime: fsdp2@2.11
batch: {sequence: 8192, micro_batch: 1, accumulation: 1}       # or global: N
mesh: {shard: 8, replicate: 8}
units: {layers_per_unit: 1, embedding: own, head: own}         # own | root | with_norm ...
reshard_after_forward: [{units: 0-30, value: always}, {units: 31, value: never}]
prefetch: {forward: implicit, backward: 1}
recompute: none
dtype: {param: bf16, reduce: fp32}
accumulation: {mode: reduce_each}
optimizer: {kind: adamw, state: fp32, clip_norm: 1.0}
offload: none
)";

TEST(PlanConfig, ReadsTheExample) {
  const PlanDocument document = document_of(kExample);
  const Plan& plan = document.plan;
  EXPECT_EQ(model_of(document), "llama-3.1-8b");
  EXPECT_EQ(cluster_of(document), "64xh100");
  EXPECT_EQ(plan.runtime, (Runtime{RuntimeKind::kFsdp2, "2.11"}));
  EXPECT_EQ(plan.batch, (Batch{8192, 1, 1}));
  EXPECT_EQ(plan.mesh, (Mesh{8, 8}));
  EXPECT_EQ(plan.reshard_after_forward.ranges.size(), 2U);
  EXPECT_EQ(plan.reshard_after_forward.at(30).kind, Reshard::Kind::kAlways);
  EXPECT_EQ(plan.reshard_after_forward.at(31).kind, Reshard::Kind::kNever);
  EXPECT_EQ(plan.prefetch.forward, Prefetch::kImplicit);
  EXPECT_EQ(plan.optimizer.clip_norm, 1.0);
  EXPECT_FALSE(document.has("dtype.master"));
  EXPECT_EQ(document.given.at("mesh.replicate").location.line, 5);
}

TEST(PlanConfig, ReadsEveryForm) {
  EXPECT_EQ(document_of("runtime: fsdp2").plan.runtime.version, "");
  EXPECT_EQ(document_of("runtime: native").plan.runtime.kind, RuntimeKind::kNative);
  EXPECT_EQ(document_of("runtime: fsdp2@2.5.1").plan.runtime.version, "2.5.1");
  EXPECT_EQ(document_of("runtime: native@1").plan.runtime.version, "1");
  EXPECT_EQ(
      document_of("reshard_after_forward: 4").plan.reshard_after_forward.value, (Reshard{Reshard::Kind::kGroup, 4}));
  EXPECT_EQ(document_of("reshard_after_forward: never").plan.reshard_after_forward.value.kind, Reshard::Kind::kNever);
  EXPECT_EQ(document_of("prefetch: {forward: 3, backward: 0}").plan.prefetch.forward, 3);
  EXPECT_EQ(document_of("recompute: selective").plan.recompute.value, Recompute::kSelective);
  EXPECT_EQ(document_of("recompute: every-2").recompute_every, 2);
  const auto recompute =
      document_of("recompute: [{layers: all, value: full}, {layers: 0-3, value: none}]").plan.recompute;
  EXPECT_EQ(recompute.at(3), Recompute::kNone);
  EXPECT_EQ(recompute.at(4), Recompute::kFull);
  EXPECT_EQ(document_of("optimizer: {clip_norm: none}").plan.optimizer.clip_norm, std::nullopt);
  EXPECT_EQ(document_of("optimizer: {kind: sgd, implementation: fused}").plan.optimizer.kind, Optimizer::Kind::kSgd);
  EXPECT_EQ(document_of("buffers: {reduce_scatter: 2}").plan.reduce_scatter_buffers, 2);
  EXPECT_EQ(document_of("mesh: {inner: replicate}").plan.mesh.inner, MeshInner::kReplicate);
  EXPECT_EQ(document_of("communicators: separate").plan.communicators, Communicators::kSeparate);
  EXPECT_EQ(document_of("host_sync: step").plan.host_sync, HostSync::kStep);
  EXPECT_EQ(document_of("mesh: {pp: 1}").given.size(), 1U);
  EXPECT_EQ(document_of("batch: {global: 512}").global_batch, 512);
  const PlanDocument json = read_plan(parse_json(R"({"mesh": {"shard": 8}})", "plan.json"));
  EXPECT_EQ(json.plan.mesh.shard, 8);
}

TEST(PlanConfig, ReadsTheSwitchesOfFullyShard) {
  const Plan plan = document_of(R"(
units: {embedding: with_head, blocks: root, experts: own, shard_dim: 1}
unshard_in_backward: [{units: 0, value: false}]
prefetch: {backward_lists: true, async_unshard: true}
recompute_wraps: unit
recompute_early_stop: false
dtype: {output: fp32}
accumulation: {all_reduce: last, reshard_after_backward: last, is_last_backward: last}
frozen: [embedding, 0-15, 17, head]
ignored: norms
offload: cpu_unpinned
reduction: {divide_factor: 2.5, force_sum: true}
evaluation: {in_step: true}
rank: 7
)")
                        .plan;
  using enum UnitPlacement;
  EXPECT_EQ(plan.units.embedding, kWithHead);
  EXPECT_EQ(plan.units.blocks, kRoot);
  EXPECT_EQ(plan.units.experts, kOwn);
  EXPECT_EQ(plan.units.shard_dim, 1);
  EXPECT_FALSE(plan.unshard_in_backward.at(0));
  EXPECT_TRUE(plan.unshard_in_backward.at(1));  // what a list does not name stays true
  EXPECT_TRUE(plan.prefetch.backward_lists);
  EXPECT_TRUE(plan.prefetch.async_unshard);
  EXPECT_EQ(plan.recompute_wraps, CheckpointWraps::kUnit);
  EXPECT_FALSE(plan.recompute_early_stop);
  EXPECT_EQ(plan.output_dtype, DType::kFp32);
  EXPECT_EQ(plan.accumulation_details, (AccumulationDetails{When::kLast, When::kLast, When::kLast}));
  EXPECT_TRUE(plan.frozen.embedding && plan.frozen.head && !plan.frozen.norm);
  EXPECT_TRUE(plan.frozen.blocks.at(15) && !plan.frozen.blocks.at(16) && plan.frozen.blocks.at(17));
  EXPECT_EQ(plan.ignored, Ignored::kNorms);
  EXPECT_EQ(plan.offload, Offload::kCpuUnpinned);
  EXPECT_EQ(plan.gradient_divide_factor, 2.5);
  EXPECT_TRUE(plan.force_sum_reduction);
  EXPECT_TRUE(plan.evaluation.in_step);
  EXPECT_EQ(plan.rank(), 7);
  EXPECT_FALSE(document_of("unshard_in_backward: false").plan.unshard_in_backward.value);
  EXPECT_EQ(document_of("units: {experts: block}").plan.units.experts, kRoot);
  EXPECT_EQ(document_of("dtype: {output: none}").plan.output_dtype, std::nullopt);
  EXPECT_TRUE(document_of("dtype: {reduce: none}").reduce_dtype_is_none);
  EXPECT_FALSE(document_of("frozen: none").plan.frozen.any());
  EXPECT_EQ(document_of("trainer: llm-foundry").trainer, "llm-foundry");
}

TEST(PlanConfig, NamesPlaceAndNearestForMisspeltKeys) {
  EXPECT_EQ(refusal("model: a\nmesh: {shrad: 8}\n"),
      "plan.yaml:2:8: mesh.shrad: unknown key 'shrad'; expected one of shard, replicate, "
      "inner, cp, tp, ep, etp, pp; did you mean shard?");
  EXPECT_NE(refusal("prefetsh: {forward: 1}").find("did you mean prefetch?"), std::string::npos);
  EXPECT_NE(refusal("mesh: 8").find("plan.yaml:1:7: mesh: no mapping stands here; expected {shard: "
                                    "..., replicate: ..., inner: ..., cp: ..., tp: ..., ep: ..., etp: ..., pp: ...}"),
      std::string::npos);
  EXPECT_NE(refusal("- model").find("no plan stands here"), std::string::npos);
  EXPECT_NE(refusal("mesh: {shard: 8}\nmesh: {shard: 8}").find("again"), std::string::npos);
}

struct Bad {
  const char* yaml;
  const char* says;
};
class PlanConfigRefuses : public testing::TestWithParam<Bad> {};

TEST_P(PlanConfigRefuses, WithExitCodeAndReason) {
  const Refusal refused = refusal_of([] { document_of(GetParam().yaml); });
  EXPECT_EQ(refused.exit_code, 3) << GetParam().yaml;
  EXPECT_NE(refused.text.find(GetParam().says), std::string::npos) << refused.text;
  EXPECT_EQ(refused.text.find("plan.yaml:1:"), 0U) << refused.text;
}

INSTANTIATE_TEST_SUITE_P(PlanConfig, PlanConfigRefuses,
    testing::Values(Bad{"batch: {sequence: 0}", "batch.sequence: 0 is out of range; expected an integer from 1"},
        Bad{"batch: {sequence: 16777217}", "out of range"}, Bad{"batch: {sequence: 1e99}", "overflows"},
        Bad{"batch: {sequence: 1.5}", "not an integer"}, Bad{"batch: {sequence: '8192'}", "batch.sequence"},
        Bad{"batch: {sequence: [1]}", "batch.sequence"},
        Bad{"units: {embedding: with_norm}", "expected one of own, root"},
        Bad{"units: {head: with-norm}", "did you mean with_norm?"},
        Bad{"prefetch: {forward: implict}", "did you mean implicit?"},
        Bad{"reshard_after_forward: true", "did you mean always?"},
        Bad{"reshard_after_forward: False", "did you mean never?"},
        Bad{"reshard_after_forward: allways", "did you mean always?"},
        Bad{"reshard_after_forward: {units: 3}", "expected always, never or the size"},
        Bad{"reshard_after_forward: []", "the list is empty"},
        Bad{"reshard_after_forward: [always]", "no range with its value"},
        Bad{"reshard_after_forward: [{units: 3}]", "'value' is missing"},
        Bad{"reshard_after_forward: [{value: always}]", "'units' is missing"},
        Bad{"reshard_after_forward: [{layers: 3, value: always}]", "unknown key 'layers'"},
        Bad{"reshard_after_forward: [{units: 5-3, value: always}]", "runs backwards"},
        Bad{"reshard_after_forward: [{units: 3--5, value: always}]", "no range"},
        Bad{"reshard_after_forward: [{units: 1, value: never}, {units: all, value: always}]", "all as first entry"},
        Bad{"recompute: every-0", "every-K"}, Bad{"recompute: ful", "did you mean full?"},
        Bad{"recompute: 2", "expected none, full"}, Bad{"recompute: ", "expected none, full"},
        Bad{"recompute: [{layers: 1, value: every-2}]", "expected one of none, full, selective"},
        Bad{"dtype: {param: float16}", "expected one of bf16, fp16, fp32"},
        Bad{"dtype: {param: fp166}", "did you mean fp16?"}, Bad{"accumulation: {mode: reduce}", "reduce_each"},
        Bad{"accumulation: 4", "no mapping stands here"}, Bad{"optimizer: {clip_norm: 0}", "a number above 0"},
        Bad{"optimizer: {clip_norm: .inf}", "not a number"}, Bad{"optimizer: {clip_norm: off}", "or none"},
        Bad{"communicators: seperate", "did you mean separate?"}, Bad{"host_sync: yes", "expected one of none, step"},
        Bad{"runtime: fsdp3", "did you mean fsdp2?"}, Bad{"runtime: fsdp2@", "no version"},
        Bad{"runtime: [fsdp2]", "runtime"}, Bad{"model: ''", "nothing stands here"}, Bad{"model: {a: b}", "model"},
        Bad{"cluster: ", "nothing stands here"}, Bad{"units: {experts: root}", "expected one of own, block"},
        Bad{"unshard_in_backward: never", "not a boolean"}, Bad{"unshard_in_backward: 1", "did you mean true?"},
        Bad{"unshard_in_backward: [{layers: 0, value: false}]", "unknown key 'layers'"},
        Bad{"unshard_in_backward: [{units: 0, value: no}]", "did you mean false?"},
        Bad{"prefetch: {backward_lists: 2}", "not a boolean"},
        Bad{"prefetch: {async_unshard: 'true'}", "true or false"},
        Bad{"recompute_wraps: block", "expected one of module, unit"},
        Bad{"dtype: {output: all}", "expected one of bf16, fp16, fp32, none"},
        Bad{"dtype: {reduce: float32}", "expected one of bf16, fp16, fp32, none"},
        Bad{"accumulation: {all_reduce: never}", "expected one of each, last"},
        Bad{"accumulation: {is_last_backward: true}", "expected one of each, last"},
        Bad{"accumulation: {reshard_after_backward: lst}", "did you mean last?"},
        Bad{"frozen: embedding", "none or a list"}, Bad{"frozen: nne", "did you mean none?"},
        Bad{"frozen: [embeding]", "did you mean embedding?"}, Bad{"frozen: [5-3]", "runs backwards"},
        Bad{"frozen: [[1]]", "no such value"}, Bad{"frozen: [all]", "numbers of blocks"},
        Bad{"frozen: {layers: 0-3}", "none or a list"}, Bad{"lora: {targets: q_proj}", "all-linear or a list"},
        Bad{"lora: {targets: all-liner}", "did you mean all-linear?"},
        Bad{"lora: {targets: [q_proj, q_proj]}", "stands twice"},
        Bad{"lora: {targets: [all-linear]}", "this is no module"},
        Bad{"lora: {base: int4}", "expected one of master, param, nf4"}, Bad{"experts: loops", "did you mean loop?"},
        Bad{"ignored: embedding", "expected one of none, norms"},
        Bad{"offload: disk", "expected one of none, cpu, cpu_unpinned"}, Bad{"offload: {params: cpu}", "offload"},
        Bad{"reduction: {divide_factor: ranks}", "or none"}, Bad{"evaluation: {in_step: each}", "not a boolean"},
        Bad{"rank: last", "a rank, or fullest"}, Bad{"trainer: torchtian", "did you mean torchtitan?"}));

TEST(PlanConfig, ReadsEveryRuntime) {
  const auto runtime = [](std::string_view yaml) { return document_of(yaml).plan.runtime; };
  EXPECT_EQ(runtime("runtime: fsdp1"), (Runtime{RuntimeKind::kFsdp1, ""}));
  EXPECT_EQ(runtime("runtime: ddp@2.11"), (Runtime{RuntimeKind::kDdp, "2.11"}));
  EXPECT_EQ(runtime("runtime: zero3@0.19"), (Runtime{RuntimeKind::kZero3, "0.19"}));
  const Refusal refused = refusal_of([] { document_of("runtime: zero4"); });
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_NE(refused.text.find("did you mean zero"), std::string::npos) << refused.text;
}

TEST(PlanConfig, SetReachesEveryKey) {
  PlanDocument document = document_of(kExample);
  document = apply_set(document, "mesh.shard=16");
  document = apply_set(document, "mesh={replicate: 4}");
  document = apply_set(document, "recompute=every-2");
  document = apply_set(document, "reshard_after_forward=[{units: 0-30, value: 4}]");
  document = apply_set(document, "model=other");
  document = apply_set(document, "optimizer.clip_norm=none");
  EXPECT_EQ(document.plan.mesh, (Mesh{16, 4}));
  EXPECT_EQ(document.recompute_every, 2);
  EXPECT_EQ(document.plan.reshard_after_forward.at(3).group, 4);
  EXPECT_EQ(document.plan.reshard_after_forward.at(31).kind, Reshard::Kind::kAlways);
  EXPECT_EQ(model_of(document), "other");
  EXPECT_EQ(document.plan.optimizer.clip_norm, std::nullopt);
  document = apply_set(document, "recompute=none");
  EXPECT_EQ(document.recompute_every, std::nullopt);
  EXPECT_EQ(document.given.at("mesh.shard").layer, PlanLayer::kSet);
  EXPECT_EQ(document.given.at("batch.sequence").layer, PlanLayer::kFile);
}

TEST(PlanConfig, SetSaysWhereInItsText) {
  EXPECT_EQ(set_refusal("batch.sequence=0"),
      "--set:1:16: batch.sequence: 0 is out of range; expected an integer from 1 to 16,777,216, for example 8");
  EXPECT_EQ(set_refusal("mesh={shard: 8, replicat: 2}"),
      "--set:1:17: mesh.replicat: unknown key 'replicat'; expected one of shard, replicate, inner, "
      "cp, tp, ep, etp, pp; did you mean replicate?");
  EXPECT_EQ(set_refusal("mesh.shrad=8"),
      "--set:1:1: unknown key 'mesh.shrad'; expected a key of a plan such as mesh.shard; did you mean mesh.shard?");
  EXPECT_NE(set_refusal("shard=8").find("did you mean mesh.shard?"), std::string::npos);
  EXPECT_NE(set_refusal("adapters.rank=8").find("did you mean lora.rank?"), std::string::npos);
  EXPECT_NE(set_refusal("mesh.shard").find("expected key=value"), std::string::npos);
  EXPECT_NE(set_refusal("=8").find("expected key=value"), std::string::npos);
  EXPECT_NE(set_refusal("mesh.shard=").find("--set:1:12: mesh.shard"), std::string::npos);
  EXPECT_NE(set_refusal("mesh.shard=8\nmodel: x").find("more than one line"), std::string::npos);
  EXPECT_NE(set_refusal("mesh.shard=[8").find("--set:1:12: mesh.shard"), std::string::npos);
  EXPECT_NE(set_refusal("mesh.shard.x=8").find("unknown key"), std::string::npos);
  EXPECT_NE(set_refusal("mesh.=8").find("unknown key"), std::string::npos);
  EXPECT_EQ(refusal_of([] { apply_set({}, "mesh.shard=\xff"); }).exit_code, 3);
}

TEST(PlanConfig, FlagsStandBetweenFileAndSet) {
  PlanDocument document = document_of("batch: {sequence: 1024}");
  document = apply_flag(document, "--sequence", "batch.sequence", "4096");
  document = apply_flag(document, "--model", "model", "a folder/config: 1.json");
  EXPECT_EQ(document.plan.batch.sequence, 4096);
  EXPECT_EQ(model_of(document), "a folder/config: 1.json");
  const Refusal refused = refusal_of([&] { apply_flag(document, "--micro-batch", "batch.micro_batch", "two"); });
  EXPECT_EQ(refused.text.find("--micro-batch:1:1: batch.micro_batch: 'two' is not an integer"), 0U) << refused.text;
  EXPECT_EQ(refusal_of([&] { apply_flag(document, "--model", "model", ""); }).exit_code, 3);
}

TEST(PlanConfig, AsksForModelAndCluster) {
  const Refusal without_file = refusal_of([] { model_of({}); });
  EXPECT_EQ(without_file.exit_code, 2);
  EXPECT_EQ(without_file.text, "no model: add --model llama-3.1-8b, or --plan FILE");
  const Refusal with_file = refusal_of([] { cluster_of(document_of("model: a")); });
  EXPECT_EQ(with_file.exit_code, 3);
  EXPECT_EQ(with_file.text.find("plan.yaml: cluster: the key is missing"), 0U) << with_file.text;
}

TEST(PlanConfig, ReadsFiles) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.write("plan.yaml", kExample);
  EXPECT_EQ(read_plan_file(path).plan.mesh.shard, 8);
  EXPECT_EQ(refusal_of([] { read_plan_file("no-such-plan.yaml"); }).exit_code, 3);
  EXPECT_EQ(refusal_of([&] { read_plan_file(folder.path()); }).exit_code, 3);
}

}
}
