// Settings of trainers, both ways. What a format holds is written down here key by key; that
// everything else is told in the ledger holds for random plans.
#include "interop/frameworks/foreign_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "interop/frameworks/frameworks.h"
#include "interop/frameworks/toml_config.h"
#include "sim/base/lookup.h"
#include "sim/spec/plan_keys.h"
#include "tests/support/generators.h"

namespace foreshard::foreign_plan_test {
namespace {

using Strings = std::vector<std::string>;

Cluster cluster_of(const Plan& plan) {
  Cluster cluster = {.spec = "test", .gpus = plan.mesh.world()};
  cluster.node.gpus = 8;
  return cluster;
}

bool is_listed(const ImportLedger& ledger, Mapping mapping, const std::string& what) {
  return std::ranges::any_of(
      ledger, [&](const ImportEntry& e) { return e.mapping == mapping && e.what.starts_with(what); });
}

const ImportEntry& entry(const ImportLedger& ledger, const std::string& what) {
  static const ImportEntry kNone{};
  for (const ImportEntry& e : ledger) {
    if (e.what.starts_with(what)) return e;
  }
  ADD_FAILURE() << "no entry " << what << " in\n" << ledger_text(ledger);
  return kNone;
}

using Read = ForeignPlan (*)(const std::string&);
ForeignPlan titan(const std::string& text) { return read_torchtitan(parse_toml(text, "titan.toml")); }
// The settings in a module of torchtitan's registry.
ForeignPlan registry(const std::string& text) {
  const std::string begins = "json.loads(r\"\"\"", ends = "\"\"\")";
  const std::size_t begin = text.find(begins) + begins.size();
  return read_torchtitan(parse_json(text.substr(begin, text.find(ends, begin) - begin), "saved.json"));
}
ForeignPlan accelerate(const std::string& text) { return read_accelerate(parse_yaml(text, "accelerate.yaml")); }
ForeignPlan deepspeed(const std::string& text) { return read_deepspeed(parse_json(text, "deepspeed.json")); }

// import(export(plan)) is the plan, or the ledger says which key is not. `holds`: keys (or
// prefixes) that the format must bring back.
void expect_round_trip(
    const Plan& plan, const ModelSpec& model, const Exported& file, Read read, const Strings& holds) {
  PlanDocument base;
  base.plan.model = plan.model;
  base.given["model"] = {PlanLayer::kSet, {}};
  const Plan back = resolve(document_of(base, read(file.text)), model, cluster_of(plan)).plan;
  for (const PlanKey& key : plan_key_table()) {
    if (key.path == "model" || key.path == "cluster") continue;
    if (!key.belongs_to(plan.runtime.kind)) continue;
    const std::string is = yaml_value(key.write(plan)), was = yaml_value(key.write(back));
    const bool told = is_listed(file.ledger, Mapping::kUnsupported, std::string(key.path) + ": ");
    RC_ASSERT((is == was) != told);
    const bool held = std::ranges::any_of(holds, [&](const auto& prefix) { return key.path.starts_with(prefix); });
    if (held) RC_ASSERT(is == was);
  }
}

Plan fsdp2_of(RandomStep& step) {
  Plan plan = step.plan;
  plan.runtime = {};
  plan.reduction_order = ReductionOrder::kLibrary;
  plan.optimizer.implementation = *rc::gen::element(
      Optimizer::Implementation::kForeach, Optimizer::Implementation::kFused, Optimizer::Implementation::kLoop);
  plan.optimizer.learning_rate = *rc::gen::element(1e-3, 3e-4, 2.5e-5);
  plan.optimizer.warmup_steps = *rc::gen::inRange<std::int64_t>(0, 5);
  plan.offload = *rc::gen::element(Offload::kNone, Offload::kCpu);
  plan.compile = *rc::gen::element(Compile::kNone, Compile::kBlocks);
  plan.float8 = *rc::gen::element(Float8::kNone, Float8::kTensorwise, Float8::kRowwise);
  plan.float8_all_gather = plan.float8 == Float8::kTensorwise && *rc::gen::element(true, false);
  return plan;
}

RC_GTEST_PROP(ForeignPlanProperty, TorchTitanBringsBackWhatItHolds, ()) {
  RandomStep step = random_step();
  const Plan plan = fsdp2_of(step);
  const Cluster cluster = cluster_of(plan);
  const Exported file = export_torchtitan({plan, step.model, cluster});
  Strings holds = {"runtime", "batch.sequence", "batch.micro_batch", "batch.accumulation", "mesh.shard",
      "mesh.replicate", "dtype.param", "dtype.reduce", "dtype.master", "offload", "optimizer.learning_rate",
      "optimizer.beta", "optimizer.warmup_steps", "optimizer.implementation", "compile", "float8", "float8_all_gather"};
  if (plan.optimizer.clip_norm) holds.push_back("optimizer.clip_norm");
  expect_round_trip(plan, step.model, file, titan, holds);
  std::erase_if(holds, [](const auto& key) { return std::string_view(key).starts_with("float8"); });
  if (plan.float8 == Float8::kRowwise) holds.push_back("float8");
  expect_round_trip(plan, step.model, export_torchtitan_registry({plan, step.model, cluster}), registry, holds);
}

// Axes go with FSDP2 of 2.11 and later, in the compute dtype and on the GPU.
RC_GTEST_PROP(ForeignPlanProperty, TorchTitanBringsBackEveryDegree, ()) {
  RandomStep step = random_step();
  Plan plan = fsdp2_of(step);
  plan.offload = Offload::kNone;
  plan.float8 = Float8::kNone;
  plan.float8_all_gather = false;
  plan.mesh.cp = *rc::gen::element<std::int64_t>(1, 2, 4);
  plan.mesh.tp = *rc::gen::element<std::int64_t>(1, 2, 8);
  plan.mesh.ep = *rc::gen::element<std::int64_t>(1, 2, 16);
  plan.mesh.etp = plan.mesh.ep > 1 ? *rc::gen::element<std::int64_t>(1, plan.mesh.tp) : 1;
  plan.tensor_parallel.loss = *rc::gen::element(true, false);
  plan.mesh.pp = *rc::gen::element<std::int64_t>(1, 2, 4);
  if (plan.mesh.pp > 1) {
    plan.pipeline.schedule =
        *rc::gen::element(PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved1F1B, PipelineSchedule::kDualPipeV);
    const bool is_single = plan.pipeline.schedule == PipelineSchedule::k1F1B;
    plan.pipeline.stages_per_rank = is_single ? 1 : 2;
    plan.pipeline.microbatches = *rc::gen::element<std::int64_t>(1, 3);
    plan.batch.accumulation = plan.pipeline.microbatches * *rc::gen::element<std::int64_t>(1, 2);
    plan.pipeline.first_less = *rc::gen::element<std::int64_t>(0, 1);
  }
  const Exported file = export_torchtitan({plan, step.model, cluster_of(plan)});
  Strings holds = {"mesh.shard", "mesh.replicate", "batch.micro_batch", "tensor_parallel.loss"};
  if (plan.mesh.pp > 1) {
    for (const char* key : {"mesh.pp", "batch.accumulation", "pipeline.schedule", "pipeline.stages_per_rank",
             "pipeline.microbatches", "pipeline.first_stage_less_layers"}) {
      holds.push_back(key);
    }
  }
  const std::pair<const char*, std::int64_t> axes[] = {
      {"mesh.cp", plan.mesh.cp}, {"mesh.tp", plan.mesh.tp}, {"mesh.ep", plan.mesh.ep}, {"mesh.etp", plan.mesh.etp}};
  for (const auto& [key, size] : axes) {
    if (size > 1) holds.push_back(key);
  }
  expect_round_trip(plan, step.model, file, titan, holds);
  std::erase_if(holds, [](const auto& key) {  // gone since April and June 2026
    return key == std::string_view("mesh.etp") || key == std::string_view("tensor_parallel.loss");
  });
  expect_round_trip(
      plan, step.model, export_torchtitan_registry({plan, step.model, cluster_of(plan)}), registry, holds);
}

RC_GTEST_PROP(ForeignPlanProperty, AccelerateBringsBackWhatItHolds, ()) {
  RandomStep step = random_step();
  Plan plan = fsdp2_of(step);
  const int runtime = *rc::gen::inRange(0, 3);
  if (runtime == 1) {
    plan.runtime = {RuntimeKind::kFsdp1, "2.11"};
    plan.mesh.inner = MeshInner::kShard;
  }
  if (runtime == 2) {
    plan.runtime = {RuntimeKind::kZero3, "0.19"};
    plan.mesh = {plan.mesh.world(), 1};
  }
  const Cluster cluster = cluster_of(plan);
  const Exported file = export_accelerate({plan, step.model, cluster});
  Strings holds = {"dtype.param"};
  if (runtime == 0) append(holds, {"mesh.shard", "mesh.replicate", "units.blocks", "offload"});
  if (runtime == 2) append(holds, {"mesh.", "batch.accumulation"});
  expect_round_trip(plan, step.model, file, accelerate, holds);
}

RC_GTEST_PROP(ForeignPlanProperty, DeepSpeedBringsBackWhatItHolds, ()) {
  RandomStep step = random_step();
  Plan plan = fsdp2_of(step);
  plan.offload = Offload::kNone;
  plan.runtime = {*rc::gen::element(RuntimeKind::kZero1, RuntimeKind::kZero2, RuntimeKind::kZero3), "0.19"};
  plan.mesh = {plan.mesh.world(), 1};
  ZeroOptions& zero = plan.zero;
  zero.overlap_comm = *rc::gen::arbitrary<bool>();
  zero.contiguous_gradients = *rc::gen::arbitrary<bool>();
  zero.reduce_bucket_size = *rc::gen::inRange<std::int64_t>(1, 1 << 20);
  zero.sub_group_size = *rc::gen::inRange<std::int64_t>(1, 1 << 20);
  if (plan.runtime.kind == RuntimeKind::kZero3) {
    zero.stage3_prefetch_bucket_size = *rc::gen::inRange<std::int64_t>(0, 1 << 20);
    zero.offload_optimizer = *rc::gen::element(ZeroOffload::kNone, ZeroOffload::kCpu);
    zero.offload_param = *rc::gen::element(ZeroOffload::kNone, ZeroOffload::kCpu);
  }
  const Cluster cluster = cluster_of(plan);
  const Exported file = export_deepspeed({plan, step.model, cluster});
  expect_round_trip(plan, step.model, file, deepspeed,
      {"runtime", "batch.micro_batch", "batch.accumulation", "dtype.param", "dtype.reduce", "optimizer.clip_norm",
          "zero.overlap_comm", "zero.reduce_bucket_size", "zero.stage3_prefetch_bucket_size", "zero.offload",
          "optimizer.learning_rate"});
}

// --- reading ---

constexpr const char* kTitan = R"([job]
dump_folder = "./outputs"

[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 2
seq_len = 8192
max_nrm = 1.0
mixed_precision_param = "bfloat16"

[parallelism]
data_parallel_replicate_degree = 4
data_parallel_shard_degree = -1
tensor_parallel_degree = 8

[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"
)";

TEST(TorchTitan, TellsOfEveryKeyWithItsLine) {
  const ForeignPlan plan = titan(kTitan);
  EXPECT_EQ(plan.value("model"), "llama-3.1-8b");
  EXPECT_EQ(plan.value("batch.micro_batch"), "2");
  EXPECT_EQ(plan.value("batch.sequence"), "8192");
  EXPECT_EQ(plan.value("mesh.replicate"), "4");
  EXPECT_FALSE(plan.has("mesh.shard"));
  EXPECT_EQ(plan.value("recompute"), "every-2");
  EXPECT_EQ(plan.value("trainer"), "torchtitan");
  EXPECT_EQ(entry(plan.ledger, "training.seq_len").line, 10);
  const ImportEntry& unknown = entry(plan.ledger, "training.max_nrm");
  EXPECT_EQ(unknown.mapping, Mapping::kIgnored);
  EXPECT_EQ(unknown.line, 11);
  EXPECT_EQ(unknown.why, "unknown key; did you mean training.max_norm?");
  EXPECT_EQ(plan.value("mesh.tp"), "8");
  EXPECT_EQ(entry(plan.ledger, "job").why, "says nothing of a step's time or memory");
}

TEST(TorchTitan, ReadsHowAxesExchange) {
  const ForeignPlan plan = titan(R"(
[training]
seq_len = 4096
[parallelism]
context_parallel_degree = 2
context_parallel_load_balancer = "headtail"
expert_parallel_degree = 8
expert_parallel_comm_backend = "deepep"
)");
  EXPECT_EQ(plan.value("context_parallel.balance"), "headtail");
  EXPECT_EQ(plan.value("expert_parallel.dispatcher"), "deepep");
}

// Of 8 sequences each call of the schedule has 4 micro-batches of 2.
TEST(TorchTitan, ReadsStages) {
  const ForeignPlan plan = titan(R"(
[training]
local_batch_size = 8
seq_len = 4096
[parallelism]
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_microbatch_size = 2
pipeline_parallel_first_stage_less_layers = 0
)");
  EXPECT_EQ(plan.value("mesh.pp"), "4");
  EXPECT_EQ(plan.value("batch.micro_batch"), "2");
  EXPECT_EQ(plan.value("batch.accumulation"), "4");
  EXPECT_EQ(plan.value("pipeline.microbatches"), "4");
  EXPECT_EQ(plan.value("pipeline.schedule"), "Interleaved1F1B");
  EXPECT_EQ(plan.value("pipeline.stages_per_rank"), "2");
  EXPECT_EQ(plan.value("pipeline.first_stage_less_layers"), "0");
  const ForeignPlan deep = titan(R"(
[training]
local_batch_size = 8
global_batch_size = 512
seq_len = 4096
[parallelism]
pipeline_parallel_degree = 4
pipeline_parallel_layers_per_stage = 3
)");
  EXPECT_EQ(deep.value("batch.micro_batch"), "1");
  EXPECT_EQ(deep.value("batch.global"), "512");
  EXPECT_FALSE(deep.has("batch.accumulation"));
  EXPECT_FALSE(deep.has("pipeline.stages_per_rank"));
  EXPECT_EQ(entry(deep.ledger, "parallelism.pipeline_parallel_layers_per_stage").mapping, Mapping::kUnsupported);
}

// The scales of fp8 gathers: once a step, or with an all-reduce for each weight before its gather.
TEST(TorchTitan, ReadsFp8GathersOfBothTables) {
  const ForeignPlan once = titan(R"([training]
seq_len = 1024

[quantize.linear.float8]
recipe_name = "tensorwise"
enable_fsdp_float8_all_gather = true
precompute_float8_dynamic_scale_for_fsdp = true
)");
  EXPECT_EQ(once.value("float8"), "tensorwise");
  EXPECT_EQ(once.value("float8_all_gather"), "true");
  const ForeignPlan each = titan("[training]\nseq_len = 1024\n[float8]\nenable_fsdp_float8_all_gather = true\n");
  EXPECT_EQ(each.value("float8"), "tensorwise");
  EXPECT_EQ(each.value("float8_all_gather"), "true");
  EXPECT_EQ(entry(each.ledger, "float8.enable_fsdp_float8_all_gather").mapping, Mapping::kUnsupported);
  EXPECT_FALSE(
      titan("[training]\nseq_len = 1024\n[float8]\nenable_fsdp_float8_all_gather = false\n").has("float8_all_gather"));
}

TEST(TorchTitan, ReadsTheSavedJsonOfTokens) {
  const ForeignPlan plan = read_torchtitan(parse_json(
      R"({"training": {"max_context_length": 4096, "num_tokens_per_microbatch_per_dp_rank": 16384,
          "num_tokens_per_train_step": 1048576}, "parallelism": {"data_parallel_shard_degree": 8}})",
      "saved.json"));
  EXPECT_EQ(plan.value("batch.sequence"), "4096");
  EXPECT_EQ(plan.value("batch.micro_batch"), "4");
  EXPECT_EQ(plan.value("batch.global"), "256");
  EXPECT_EQ(plan.value("mesh.shard"), "8");
}

// As debug.save_config_file of August 2026 has them (b5bcd76c): a policy that is not named, one
// group of parameters, a batch that is cut for the pipeline.
TEST(TorchTitan, ReadsTheSavedJsonOfPolicies) {
  const auto saved = [](const std::string& policy) {
    return read_torchtitan(parse_json(
        R"({"training": {"max_context_length": 4096, "num_tokens_per_microbatch_per_dp_rank": 8192,
            "num_tokens_per_train_step": -1, "disable_cuda_graphs": false},
            "parallelism": {"pipeline_parallel_degree": 2, "num_pp_microbatches": 6,
                            "enable_sequence_parallel": false},
            "compile": {"enable": true, "enable_async_tensor_parallel": true, "components": ["model"]},
            "loss": {"num_chunks": 8, "loss_fn": {"global_vocab_size": 128256}},
            "optimizer": {"implementation": "foreach", "param_groups": [{"pattern": ".*",
                "optimizer_name": "AdamW", "optimizer_kwargs": {"lr": 0.001, "betas": [0.9, 0.99],
                "eps": 1e-06, "weight_decay": 0.2}}]},
            "activation_checkpoint": )" +
            policy + "}",
        "saved.json"));
  };
  const std::string common = R"("preserve_rng_state": true, "determinism_check": "default")";
  const ForeignPlan plan = saved("{" + common + "}");
  EXPECT_EQ(plan.value("recompute"), "full");
  EXPECT_EQ(plan.value("batch.micro_batch"), "2");
  EXPECT_EQ(plan.value("pipeline.microbatches"), "6");
  EXPECT_EQ(plan.value("batch.accumulation"), "6");
  EXPECT_EQ(plan.value("tensor_parallel.async"), "true");
  EXPECT_EQ(plan.value("tensor_parallel.sequence"), "false");
  EXPECT_EQ(plan.value("loss"), "chunked-head-8");
  EXPECT_EQ(plan.value("optimizer.learning_rate"), "0.001");
  EXPECT_EQ(plan.value("optimizer.beta2"), "0.99");
  EXPECT_EQ(plan.value("optimizer.weight_decay"), "0.2");
  EXPECT_EQ(plan.value("optimizer.implementation"), "foreach");
  EXPECT_EQ(entry(plan.ledger, "training.disable_cuda_graphs").mapping, Mapping::kUnsupported);
  EXPECT_EQ(saved("{" + common + R"(, "force_recompute_mm_shapes_by_fqns": []})").value("recompute"), "selective");
  EXPECT_EQ(saved("null").value("recompute"), "none");
  const ForeignPlan budget = saved("{" + common + R"(, "memory_budget": 0.5})");
  EXPECT_FALSE(budget.has("recompute"));
  EXPECT_EQ(entry(budget.ledger, "activation_checkpoint").mapping, Mapping::kUnsupported);
}

TEST(Accelerate, ReadsFsdp2) {
  const ForeignPlan plan = accelerate(R"(compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_activation_checkpointing: true
  fsdp_backward_prefetch: BACKWARD_PRE
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 8
)");
  EXPECT_EQ(plan.value("runtime"), "fsdp2");
  EXPECT_EQ(plan.value("mesh.shard"), "8");
  EXPECT_EQ(plan.value("mesh.replicate"), "2");
  EXPECT_EQ(plan.value("reshard_after_forward"), "never");
  EXPECT_EQ(plan.value("recompute"), "full");
  EXPECT_EQ(plan.value("dtype.reduce"), "bf16");
  EXPECT_EQ(entry(plan.ledger, "fsdp_config.fsdp_backward_prefetch").mapping, Mapping::kIgnored);
}

TEST(Accelerate, AHybridShardOfFsdp1StaysInsideANode) {
  const ForeignPlan plan = accelerate(
      "distributed_type: FSDP\nnum_machines: 4\nnum_processes: 32\nfsdp_config:\n"
      "  fsdp_sharding_strategy: HYBRID_SHARD\n  fsdp_backward_prefetch: BACKWARD_POST\n");
  EXPECT_EQ(plan.value("runtime"), "fsdp1");
  EXPECT_EQ(plan.value("mesh.shard"), "8");
  EXPECT_EQ(plan.value("mesh.replicate"), "4");
  EXPECT_EQ(plan.value("fsdp1.backward_prefetch"), "post");
}

TEST(DeepSpeed, TakesFloatsAndLeavesAutoToTheTrainer) {
  const ForeignPlan plan = deepspeed(R"({
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": 4,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8, "overlap_com": true,
    "offload_optimizer": {"device": "cpu", "pin_memory": true}},
  "gradient_clipping": 0.5
})");
  EXPECT_EQ(plan.value("runtime"), "zero3");
  EXPECT_EQ(plan.value("zero.reduce_bucket_size"), "500000000");
  EXPECT_EQ(plan.value("zero.offload_optimizer"), "cpu");
  EXPECT_EQ(plan.value("zero.pin_memory"), "true");
  EXPECT_EQ(plan.value("optimizer.clip_norm"), "0.5");
  EXPECT_FALSE(plan.has("batch.micro_batch"));
  EXPECT_EQ(entry(plan.ledger, "train_micro_batch_size_per_gpu").mapping, Mapping::kDefaulted);
  EXPECT_EQ(entry(plan.ledger, "zero_optimization.overlap_com").why,
      "unknown key; did you mean zero_optimization.overlap_comm?");
  EXPECT_EQ(entry(plan.ledger, "gradient_clipping").line, 7);
}

TEST(ForeignPlan, AFileCutAnywhereIsReadOrRefusedWithItsPlace) {
  const Plan plan;
  const std::string text = kTitan;
  for (std::size_t end = 0; end < text.size(); ++end) {
    try {
      titan(text.substr(0, end));
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.location().file, "titan.toml") << end;
    }
  }
  const std::string json = R"({"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}})";
  for (std::size_t end = 0; end < json.size(); ++end) EXPECT_THROW(deepspeed(json.substr(0, end)), ConfigError) << end;
}

TEST(ForeignPlan, WrongValuesAreRefusedWhereTheyStand) {
  const auto fails = [](Read read, const std::string& text, const std::string& words) {
    try {
      read(text);
      ADD_FAILURE() << text;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  fails(titan, "[training]\nseq_len = \"long\"\n", "titan.toml:2:");
  fails(titan, "[parallelism]\nfsdp_reshard_after_forward = \"alwys\"\n", "did you mean always?");
  fails(titan, "[training]\nseq_len = 1\nseq_len = 2\n", "titan.toml:3:");
  fails(accelerate, "distributed_type: FSDB\n", "did you mean FSDP?");
  fails(deepspeed, R"({"zero_optimization": {"stage": 4}})", "deepspeed.json:1:");
  // A bomb: nine levels of nine aliases each are 9^9 nodes.
  std::string bomb = "distributed_type: FSDP\na0: &a0 [x]\n";
  for (int i = 1; i < 10; ++i) {
    bomb += fmt::format("a{0}: &a{0} [*a{1},*a{1},*a{1},*a{1},*a{1},*a{1},*a{1},*a{1},*a{1}]\n", i, i - 1);
  }
  fails(accelerate, bomb, "accelerate.yaml");
}

}
}
