// Settings of transformers' Trainer as TRL, LLaMA-Factory and Axolotl have them; what they say was
// held against captures of LLaMA-Factory 0.9.5 (docs/interop.md).
#include <gtest/gtest.h>

#include <string>

#include "interop/frameworks/frameworks.h"
#include "models/zoo.h"
#include "sim/base/parse.h"

namespace foreshard::trainer_settings_test {
namespace {

ForeignPlan trainer(const std::string& text, const ForeignPlan* sharding = nullptr, const std::string& stage = "") {
  const ConfigNode root = parse_yaml(text, "train.yaml");
  EXPECT_TRUE(looks_like_trainer(root)) << text;
  return read_trainer(root, sharding, stage);
}

// "key value; key value"; without a value: the key is not there.
void expect(const ForeignPlan& plan, const std::string& said) {
  for (const std::string& each : parts_of(said, "; ")) {
    const std::size_t end = each.find(' ');
    EXPECT_EQ(plan.value(each.substr(0, end)), end == std::string::npos ? "" : each.substr(end + 1));
  }
}

std::string why(const ForeignPlan& plan, const std::string& what) {
  for (const ImportEntry& entry : plan.ledger) {
    if (entry.what.starts_with(what)) return entry.why;
  }
  return "no entry";
}

constexpr const char* kFactory = R"(model_name_or_path: Qwen/Qwen3-8B
finetuning_type: full
cutoff_len: 4096
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
bf16: true
)";

TEST(TrainerSettings, LlamaFactoryCheckpointsByItselfAndRunsUnderDdp) {
  const ForeignPlan plan = trainer(kFactory);
  EXPECT_EQ(plan.format, "LLaMA-Factory");
  expect(plan,
      "model Qwen/Qwen3-8B; stack hf_trainer; trainer transformers; runtime ddp; dtype.param bf16; dtype.master; "
      "batch.sequence 4096; batch.micro_batch 2; batch.accumulation 8; batch.padded true; recompute full; "
      "recompute_reentrant true; lora.rank");
  document_of(PlanDocument{}, plan);

  const ForeignPlan pure = trainer(std::string(kFactory) +
                                   "pure_bf16: true\ndisable_gradient_checkpointing: true\n"
                                   "packing: true\n");
  expect(pure, "dtype.master bf16; recompute none; recompute_reentrant; batch.padded");
}

TEST(TrainerSettings, WhatDeepSpeedLeavesToTheTrainerIsTheTrainers) {
  const ForeignPlan zero = read_deepspeed(parse_json(
      R"({"bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto",
          "gradient_accumulation_steps": 4, "gradient_clipping": "auto",
          "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto", "max_live_parameters": 7}})",
      "zero.json"));
  expect(zero, "dtype.param; optimizer.clip_norm; zero.stage3_max_live_parameters 7");
  ForeignPlan plan = trainer(kFactory, &zero);
  expect(plan, "runtime zero3; trainer transformers; dtype.param bf16; batch.micro_batch 2");
  // Both say it: the ledger names the other.
  EXPECT_EQ(plan.value("batch.accumulation"), "8");
  EXPECT_EQ(why(plan, "gradient_accumulation_steps: 4"), "LLaMA-Factory's settings say 8");
  fill_buckets(1000, plan);
  expect(plan,
      "zero.reduce_bucket_size 1000000; zero.stage3_prefetch_bucket_size 900000; "
      "zero.stage3_param_persistence_threshold");
  document_of(PlanDocument{}, plan);
}

TEST(TrainerSettings, StageZeroHasNoPartitions) {
  const ForeignPlan plan =
      read_deepspeed(parse_json(R"({"zero_optimization": {"stage": 0, "overlap_comm": true}})", "zero.json"));
  EXPECT_EQ(plan.value("runtime"), "ddp");
  EXPECT_EQ(why(plan, "zero_optimization.overlap_comm"), "stage 0 partitions nothing");
}

TEST(TrainerSettings, AccelerateSaysTheRuntimeBesideThem) {
  const ForeignPlan sharding =
      read_accelerate(parse_yaml("distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 2\n"
                                 "fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP,\n"
                                 "  fsdp_reshard_after_forward: true}\n",
          "accelerate.yaml"));
  // Accelerate keeps the head whole, which "always" would not.
  EXPECT_FALSE(sharding.has("reshard_after_forward"));
  const ForeignPlan plan = trainer(kFactory, &sharding);
  // which LLaMA-Factory asks for; LLaMA-Factory switches it off under FSDP2.
  expect(plan, "runtime fsdp2; trainer accelerate@1.13; recompute full; recompute_reentrant; dtype.reduce bf16");
  document_of(PlanDocument{}, plan);
}

TEST(TrainerSettings, AxolotlLoadsInBf16AndHasItsOwnWords) {
  const ForeignPlan plan = trainer(R"(base_model: NousResearch/Llama-3.2-1B
sequence_len: 8_192
micro_batch_size: 1
gradient_accumulation_steps: 2
adapter: qlora
load_in_4bit: true
lora_r: 32
lora_target_linear: true
optimizer: adamw_bnb_8bit
bf16: auto
flash_attention: True
gradient_checkpointing: true
sample_packing: true
)");
  EXPECT_EQ(plan.format, "Axolotl");
  // adapters are fp32.
  expect(plan,
      "batch.sequence 8192; dtype.master; attention fa2; optimizer.kind adamw-8bit; "
      "lora.rank 32; lora.targets all-linear; lora.base nf4; recompute_reentrant true");
  document_of(PlanDocument{}, plan);

  // Tables and norms are fp32, unless flash attention needs them cast.
  const std::string plain = "base_model: a/b\nmicro_batch_size: 1\nbf16: true\n";
  EXPECT_EQ(trainer(plain + "sample_packing: true\nsdp_attention: true\n").value("attention"), "flash-all-heads");
  EXPECT_EQ(trainer(plain).value("ddp.blocks_narrow"), "true");
  EXPECT_FALSE(trainer(plain).has("dtype.master"));
  EXPECT_EQ(trainer(plain + "flash_attention: true\n").value("dtype.master"), "bf16");

  const ForeignPlan fsdp = trainer(R"(base_model: Qwen/Qwen3-8B
micro_batch_size: 1
bf16: true
fsdp_version: 2
fsdp_config:
  offload_params: false
  reshard_after_forward: false
  transformer_layer_cls_to_wrap: Qwen3DecoderLayer
dp_shard_size: 4
dp_replicate_size: 2
optimizer: muon
)");
  expect(fsdp,
      "runtime fsdp2; reshard_after_forward never; units.blocks own; mesh.shard 4; "
      "mesh.replicate 2; dtype.master bf16");
  EXPECT_EQ(why(fsdp, "optimizer: muon"), "another optimizer, taken as AdamW");
  document_of(PlanDocument{}, fsdp);
}

TEST(TrainerSettings, TrlsDefaultsAreNotTransformers) {
  const ForeignPlan trl = trainer(
      "model_name_or_path: Qwen/Qwen2.5-0.5B\nlearning_rate: 0.0001\nuse_peft: true\n"
      "max_length: 2048\nlora_target_modules: [q_proj, v_proj]\n");
  EXPECT_EQ(trl.format, "TRL");
  expect(trl, "dtype.param bf16; recompute full; loss tiled-linear; batch.micro_batch 8; lora.rank 16");
  EXPECT_EQ(trl.value("lora.targets"), R"(["q_proj","v_proj"])");
  // PEFT's adapters are fp32, whatever was loaded.
  expect(trl, "lora.base master; dtype.master");
  document_of(PlanDocument{}, trl);

  const ForeignPlan plain = trainer(
      "per_device_train_batch_size: 4\nuse_liger_kernel: true\nfsdp: full_shard auto_wrap\n"
      "label_smoothing_factor: 0.1\nworkers: 3\n");
  EXPECT_EQ(plain.format, "transformers' Trainer");
  expect(plain, "runtime fsdp1; dtype.param fp32; recompute none; loss smoothed");
  EXPECT_TRUE(why(plain, "workers").starts_with("unknown key"));

  const ForeignPlan off = trainer(
      "per_device_train_batch_size: 4\nfsdp: ''\ndeepspeed: ''\nbf16: false\nfp16: true\n"
      "lora_r: 8\n");
  expect(off, "runtime ddp; dtype.param fp16; lora.rank");
  EXPECT_EQ(why(off, "lora_r"), "no adapters");
}

// `gradient_checkpointing` is the trainer's, whatever the plugin leaves alone.
TEST(TrainerSettings, ThePluginsCheckpointsAreOthers) {
  const auto plugin = [](const char* checkpoints) {
    return read_accelerate(
        parse_yaml("distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config: {fsdp_version: 2,\n"
                   "  fsdp_activation_checkpointing: " +
                       std::string(checkpoints) + "}\n",
            "accelerate.yaml"));
  };
  const ForeignPlan off = plugin("false"), on = plugin("true");
  EXPECT_EQ(trainer(kFactory, &off).value("recompute"), "full");
  const std::string without = std::string(kFactory) + "disable_gradient_checkpointing: true\n";
  EXPECT_EQ(trainer(without, &off).value("recompute"), "none");
  EXPECT_EQ(trainer(without, &on).value("recompute"), "full");
}

TEST(TrainerSettings, DdpReducesGradientsAsTheyAreStored) {
  const ForeignPlan ddp = read_accelerate(
      parse_yaml("distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 4\n", "accelerate.yaml"));
  EXPECT_FALSE(ddp.has("dtype.reduce"));
  EXPECT_EQ(ddp.ranks, 4);
}

TEST(TrainerSettings, AdaptersUnderFullyShardAreEachCodesOwn) {
  const ForeignPlan sharding =
      read_accelerate(parse_yaml("distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config: {fsdp_version: 2}\n"
                                 "parallelism_config: {parallelism_config_dp_shard_size: 4,\n"
                                 "  parallelism_config_cp_size: 2, parallelism_config_tp_size: 2}\n",
          "accelerate.yaml"));
  const std::string trl =
      "model_name_or_path: a/b\nlearning_rate: 0.1\nmax_length: 512\n"
      "use_peft: true\nload_in_4bit: true\n";
  expect(trainer(trl, &sharding),
      "lora.base nf4-master; ignored packed; units.adapters_alone; mesh.shard 4; "
      "mesh.cp 2; mesh.replicate 2; batch.sequence 512");
  expect(trainer(trl + "dtype: bfloat16\nbnb_4bit_quant_storage: bfloat16\n", &sharding),
      "lora.base nf4; ignored; dtype.master bf16");
  const std::string axolotl = "base_model: a/b\nmicro_batch_size: 1\nadapter: lora\n";
  expect(trainer(axolotl, &sharding), "lora.fused true; units.adapters_alone true; lora.base");
  expect(trainer(axolotl + "lora_mlp_kernel: false\n", &sharding), "lora.fused false");
  expect(trainer(axolotl + "lora_o_kernel: true\n"), "lora.fused; units.adapters_alone");
  std::string factory(kFactory);
  factory.replace(factory.find("full"), 4, "lora");
  expect(trainer(factory, &sharding), "lora.base master; lora.fused");
  EXPECT_EQ(trainer(trl + "fsdp: full_shard auto_wrap\n").value("runtime"), "fsdp1");
  EXPECT_NE(why(trainer(trl + "fsdp: full_shard\n"), "load_in_4bit"), "no entry");
}

TEST(TrainerSettings, AxolotlMakesTheModelBeforeDeepSpeedsAutoIsFilledIn) {
  const auto dtype = [](const char* enabled) {
    const ForeignPlan zero = read_deepspeed(parse_json(
        std::string(R"({"zero_optimization": {"stage": 3}, "bf16": {"enabled": )") + enabled + "}}", "zero.json"));
    return trainer("base_model: a/b\nmicro_batch_size: 1\nbf16: true\n", &zero).value("dtype.param");
  };
  EXPECT_EQ(dtype("true"), "bf16");
  EXPECT_EQ(dtype("\"auto\""), "fp32");
}

TEST(TrainerSettings, PreferencesAreTwoAnswersBesideAReference) {
  const ForeignPlan full = trainer(std::string(kFactory) + "stage: dpo\n");
  // 2 prompts.
  expect(full,
      "batch.micro_batch 4; reference whole; dtype.reference bf16; loss log-probabilities; loss_in_forward false");
  document_of(PlanDocument{}, full);

  std::string adapters(kFactory);
  adapters.replace(adapters.find("full"), 4, "lora");
  EXPECT_EQ(trainer(adapters + "stage: dpo\n").value("reference"), "base");
  const ForeignPlan orpo = trainer(std::string(kFactory) + "stage: dpo\npref_loss: orpo\n");
  expect(orpo, "batch.micro_batch 4; reference");
  const ForeignPlan kto = trainer(std::string(kFactory) + "stage: kto\n");
  EXPECT_EQ(kto.value("batch.micro_batch"), "2");
  EXPECT_EQ(why(kto, "stage: kto"), "kto is forecast as fine-tuning on the same sequences");

  const std::string trl = "model_name_or_path: a/b\nlearning_rate: 0.1\nmax_length: 512\n";
  EXPECT_FALSE(trainer(trl).has("reference"));
  const ForeignPlan dpo = trainer(trl, nullptr, "dpo");
  // 8 by default.
  expect(dpo, "batch.micro_batch 16; reference whole; loss tiled-linear");
  // Prompts have no labels.
  EXPECT_FALSE(dpo.has("batch.labelled"));
  expect(trainer(trl + "max_prompt_length: 200\n", nullptr, "dpo"), "batch.labelled 312");
  expect(trainer(trl + "max_prompt_length: 512\nmax_completion_length: 128\n", nullptr, "dpo"), "batch.labelled 128");
  const ForeignPlan before = trainer(trl + "precompute_ref_log_probs: true\n", nullptr, "dpo");
  EXPECT_FALSE(before.has("reference"));
  expect(trainer(trl, nullptr, "kto"), "batch.micro_batch 8; reference whole");
  // Of rewards the head is another; beside TRL's of values that of words has no gradient.
  expect(trainer(trl, nullptr, "reward"), "batch.micro_batch 16; head scores; reference");
  expect(trainer(std::string(kFactory) + "stage: rm\n"),
      "head values; ddp.find_unused_parameters true; batch.micro_batch 4");
  expect(trainer("model: a/b\ntask_type: seq_cls\ntuner_type: full\nnum_labels: 3\n"), "head scores; head.scores 3");
}

TEST(TrainerSettings, SwiftHasSettingsOfRuntimesByName) {
  const std::string text = "model: a/b\nrlhf_type: dpo\nmax_length: 512\nmodules_to_save: [embed_tokens]\n";
  const auto on = [&](const std::string& more, std::int64_t gpus) {
    const ConfigNode root = parse_yaml(text + more, "train.yaml");
    EXPECT_TRUE(looks_like_trainer(root));
    EXPECT_EQ(deepspeed_file_of(root), "");
    ForeignPlan plan = read_trainer(root, nullptr, "", gpus);
    document_of(PlanDocument{}, plan);
    return plan;
  };
  // Adapters by default, without dropout beside a reference; 16 sequences a step; outputs are fp32.
  expect(on("", 4),
      "runtime ddp; dtype.param bf16; batch.micro_batch 2; batch.accumulation 4; lora.rank 8; "
      "lora.targets all-linear; lora.dropout 0; lora.modules_to_save [embedding]; reference "
      "base; recompute full; recompute_reentrant; loss eager-compute; logits held");
  expect(on("", 1), "ddp.bucket_cap_mb 0; recompute_reentrant true");
  expect(on("deepspeed: zero2\ntuner_type: full\n", 4),
      "runtime zero2; zero.reduce_bucket_size 200000000; dtype.master; lora.rank; logits; "
      "recompute_reentrant true; reference whole");
  expect(on("fsdp: fsdp2\ngradient_checkpointing: false\n", 4), "runtime fsdp2; recompute full; recompute_reentrant");
  expect(on("tuner_type: full\ntorch_dtype: float16\n", 4), "dtype.param fp16; dtype.master fp16");
}

TEST(TrainerSettings, AScriptsArgumentsAreAFile) {
  const ConfigNode root = read_trainer_script(R"(# swift sft --model no
export CUDA_VISIBLE_DEVICES=0,1  # GPUs
swift rollout --model no
NPROC_PER_NODE=2 \
swift rlhf \
    --model 'Qwen/Qwen3-8B' --dataset 'a b#500' \
              other \
    --target_modules q_proj v_proj \
    --gradient-checkpointing-kwargs '{"use_reentrant": true}' \
    --gradient_accumulation_steps $(expr 16 / $n) \
    --learning_rate=1e-4 --packing
swift export --packing no
)",
      "train.sh");
  EXPECT_EQ(root.at("target_modules").elements().size(), 2U);
  EXPECT_EQ(root.at("target_modules").key_location().line, 8);
  EXPECT_EQ(root.at("packing").text(), "true");
  const ForeignPlan plan = read_trainer(root, nullptr);
  expect(plan,
      "model Qwen/Qwen3-8B; recompute_reentrant true; batch.accumulation; lora.rank 8; "
      "optimizer.learning_rate 0.0001; reference base");
  EXPECT_TRUE(why(plan, "gradient_accumulation_steps: auto").starts_with("\"auto\""));
  const ConfigNode trl =
      read_trainer_script("accelerate launch --config_file a.yaml dpo.py --model_name_or_path a/b --max_length 8", "t");
  EXPECT_FALSE(trl.has("config_file"));
  EXPECT_EQ(trl.at("max_length").as_int(), 8);
  expect(read_trainer(read_trainer_script("trl dpo --use_peft --max_length 8", "t"), nullptr),
      "reference base; lora.rank 16");
}

TEST(TrainerSettings, SwitchesThatAreOffAreInTheLedger) {
  const ForeignPlan plan = trainer(std::string(kFactory) +
                                   "use_galore: false\nuse_badam: true\n"
                                   "tensor_parallel_size: 1\ncontext_parallel_size: 2\n");
  EXPECT_EQ(why(plan, "use_galore"), "not switched on");
  EXPECT_EQ(why(plan, "use_badam"), "taken as AdamW");
  EXPECT_EQ(why(plan, "tensor_parallel_size"), "not switched on");
  EXPECT_NE(why(plan, "context_parallel_size"), "not switched on");
}

TEST(TrainerSettings, TargetsAreThoseThatTheModelHas) {
  const ModelSpec model = load_zoo_model("llama-3.2-1b");
  const auto targets = [&](const char* said) {
    ForeignPlan plan = trainer(
        "base_model: a/b\nmicro_batch_size: 1\nadapter: lora\nlora_r: 4\n"
        "lora_target_modules: " +
        std::string(said) + "\n");
    fill_targets(&model, plan);
    return plan.value("lora.targets");
  };
  EXPECT_EQ(targets("[q_proj, x_proj]"), "[self_attn.q_proj]");
  EXPECT_EQ(
      targets(R"('model.language_model.layers.[\d]+.(mlp|self_attn).(up|q)_proj')"), "[mlp.up_proj, self_attn.q_proj]");
  EXPECT_EQ(targets("all-linear"), "all-linear");
  EXPECT_EQ(targets("'nothing.*'"), "");
}

ForeignPlan recipe(const std::string& text, std::int64_t gpus) {
  ForeignPlan plan = read_recipe(parse_yaml(text, "recipe.yaml"), gpus);
  document_of(PlanDocument{}, plan);
  return plan;
}

TEST(Recipes, TorchtunesBuilderSaysModelAndAdapters) {
  const std::string text = R"(model:
  _component_: torchtune.models.llama3_1.qlora_llama3_1_8b
  lora_attn_modules: [q_proj, output_proj]
  apply_lora_to_mlp: True
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: null}
optimizer: {_component_: bitsandbytes.optim.PagedAdamW}
optimizer_in_bwd: True
custom_sharded_layers: ['norm', 'output']
batch_size: 2
)";
  const ForeignPlan plan = recipe(text, 8);
  expect(plan,
      "model llama3_1_8b; trainer torchtune; runtime fsdp2; batch.micro_batch 2; optimizer.kind "
      "paged-adamw; optimizer.in_backward true; units.head own; units.embedding; lora.base nf4; "
      R"(lora.targets ["q_proj","o_proj","gate_proj","up_proj","down_proj"])");
  EXPECT_TRUE(why(plan, "custom_sharded_layers").starts_with("a part"));
  expect(recipe(text, 1), "runtime ddp; ddp.bucket_cap_mb 0");
}

TEST(Recipes, LitGptsKeysSayTheCommand) {
  const std::string full = R"(checkpoint_dir: checkpoints/meta-llama/Llama-2-7b-hf
precision: bf16-true
devices: 4
train: {global_batch_size: 64, max_norm: 0.5}
)";
  expect(recipe(full, 0),
      "model Llama-2-7b-hf; runtime fsdp1; recompute full; batch.global 64; dtype.master bf16; "
      "optimizer.clip_norm 0.5; fsdp1.hybrid_shard false; lora.rank; logits");
  expect(recipe(full, 1), "runtime ddp; recompute");  // the cluster's, not the file's
  expect(recipe(full + "lora_r: 8\nlora_query: true\nlora_key: false\n", 1),
      R"(logits kept; lora.rank 8; lora.targets ["q_proj"])");
  expect(recipe("model_name: pythia-14m\ndevices: auto\ntrain: {}\n", 0),
      "model pythia-14m; runtime fsdp1; compile model");
}

TEST(Recipes, NemosStrategyAndAdapters) {
  const std::string text = R"(step_scheduler: {local_batch_size: 2, global_batch_size: 64}
model: {pretrained_model_name_or_path: meta-llama/Llama-3.2-1B}
distributed: {strategy: fsdp2, activation_checkpointing: true, enable_fsdp2_prefetch: true, dp_replicate_size: none, tp_size: none}
clip_grad_norm: {max_norm: 0.5}
dataset: {seq_len: 4096}
)";
  expect(recipe(text, 8),
      "model meta-llama/Llama-3.2-1B; trainer nemo-automodel; runtime fsdp2; recompute selective; batch.global 64; "
      "batch.sequence 4096; prefetch.forward 1; prefetch.backward 2; optimizer.clip_norm 0.5; dtype.master bf16; "
      "lora.rank");
  expect(recipe(text + "peft: {dim: 16, target_modules: '*_proj'}\n", 8),
      R"(lora.rank 16; lora.targets ["q_proj","k_proj","v_proj","o_proj","gate_proj","up_proj","down_proj"])");
}

TEST(Recipes, VerlsOverridesAreItsSettings) {
  const ConfigNode root = read_trainer_script(
      "torchrun -m verl.trainer.sft_trainer data.train_files=$HOME/a.parquet data.micro_batch_size_per_gpu=2 \\\n"
      "  model.path=Qwen/Qwen3-8B engine.strategy=fsdp2 engine.reshard_after_forward=False \\\n"
      "  +model.override_config.attn_implementation=sdpa model.lora_rank=8 optim.clip_grad=0.5",
      "run.sh");
  EXPECT_EQ(recipe_format(root), "verl");
  const ForeignPlan plan = read_recipe(root, 8);
  document_of(PlanDocument{}, plan);
  expect(plan,
      "model Qwen/Qwen3-8B; trainer verl; runtime fsdp2; batch.micro_batch 2; batch.sequence 1024; recompute full; "
      "reshard_after_forward never; attention flash; lora.rank 8; optimizer.clip_norm 0.5");
}

TEST(Recipes, NanotronsDegreesAndGradients) {
  const std::string text = R"(model: {ddp_bucket_cap_mb: 25, dtype: bfloat16}
optimizer: {zero_stage: 1, accumulate_grad_in_fp32: true}
parallelism: {dp: 4, pp: 2, tp: 2, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER, tp_recompute_allgather: false}
tokens: {micro_batch_size: 2, batch_accumulation_per_replica: 8, sequence_length: 4096}
)";
  expect(recipe(text, 16),
      "runtime megatron@0.5; stack nanotron; mesh.shard 4; mesh.tp 2; mesh.pp 2; pipeline.schedule 1F1B; "
      "tensor_parallel.sequence true; tensor_parallel.keeps_gathered true; megatron.distributed_optimizer true; "
      "megatron.bucket_size 13107200; dtype.reduce fp32; optimizer.clip_norm none; batch.accumulation 8");
}

}
}
