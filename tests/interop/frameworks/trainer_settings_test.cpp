// Settings of transformers' Trainer as TRL, LLaMA-Factory and Axolotl have them; what they say was
// held against captures of LLaMA-Factory 0.9.5 (docs/interop.md).
#include <gtest/gtest.h>

#include <string>

#include "interop/frameworks/frameworks.h"

namespace foreshard::trainer_settings_test {
namespace {

ForeignPlan trainer(const std::string& text, const ForeignPlan* sharding = nullptr) {
  const ConfigNode root = parse_yaml(text, "train.yaml");
  EXPECT_TRUE(looks_like_trainer(root)) << text;
  return read_trainer(root, sharding);
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
  EXPECT_EQ(plan.value("model"), "Qwen/Qwen3-8B");
  EXPECT_EQ(plan.value("stack"), "hf_trainer");
  EXPECT_EQ(plan.value("trainer"), "transformers");
  EXPECT_EQ(plan.value("runtime"), "ddp");
  EXPECT_EQ(plan.value("dtype.param"), "bf16");
  EXPECT_FALSE(plan.has("dtype.master"));
  EXPECT_EQ(plan.value("batch.sequence"), "4096");
  EXPECT_EQ(plan.value("batch.micro_batch"), "2");
  EXPECT_EQ(plan.value("batch.accumulation"), "8");
  EXPECT_EQ(plan.value("batch.padded"), "true");
  EXPECT_EQ(plan.value("recompute"), "full");
  EXPECT_EQ(plan.value("recompute_reentrant"), "true");
  EXPECT_FALSE(plan.has("lora.rank"));
  document_of(PlanDocument{}, plan);

  const ForeignPlan pure = trainer(std::string(kFactory) +
                                   "pure_bf16: true\ndisable_gradient_checkpointing: true\n"
                                   "packing: true\n");
  EXPECT_EQ(pure.value("dtype.master"), "bf16");
  EXPECT_EQ(pure.value("recompute"), "none");
  EXPECT_FALSE(pure.has("recompute_reentrant"));
  EXPECT_FALSE(pure.has("batch.padded"));
}

TEST(TrainerSettings, WhatDeepSpeedLeavesToTheTrainerIsTheTrainers) {
  const ForeignPlan zero = read_deepspeed(parse_json(
      R"({"bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto",
          "gradient_accumulation_steps": 4, "gradient_clipping": "auto",
          "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto", "max_live_parameters": 7}})",
      "zero.json"));
  EXPECT_FALSE(zero.has("dtype.param"));
  EXPECT_FALSE(zero.has("optimizer.clip_norm"));
  EXPECT_EQ(zero.value("zero.stage3_max_live_parameters"), "7");
  ForeignPlan plan = trainer(kFactory, &zero);
  EXPECT_EQ(plan.value("runtime"), "zero3");
  EXPECT_EQ(plan.value("trainer"), "transformers");
  EXPECT_EQ(plan.value("dtype.param"), "bf16");
  EXPECT_EQ(plan.value("batch.micro_batch"), "2");
  // Both say it: the ledger names the other.
  EXPECT_EQ(plan.value("batch.accumulation"), "8");
  EXPECT_EQ(why(plan, "gradient_accumulation_steps: 4"), "LLaMA-Factory's settings say 8");
  fill_buckets(1000, plan);
  EXPECT_EQ(plan.value("zero.reduce_bucket_size"), "1000000");
  EXPECT_EQ(plan.value("zero.stage3_prefetch_bucket_size"), "900000");
  EXPECT_FALSE(plan.has("zero.stage3_param_persistence_threshold"));
  document_of(PlanDocument{}, plan);
}

TEST(TrainerSettings, StageZeroHasNoPartitions) {
  const ForeignPlan plan = read_deepspeed(
      parse_json(R"({"zero_optimization": {"stage": 0, "overlap_comm": true}})", "zero.json"));
  EXPECT_EQ(plan.value("runtime"), "ddp");
  EXPECT_EQ(why(plan, "zero_optimization.overlap_comm"), "stage 0 partitions nothing");
}

TEST(TrainerSettings, AccelerateSaysTheRuntimeBesideThem) {
  const ForeignPlan sharding = read_accelerate(
      parse_yaml("distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 2\n"
                 "fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP,\n"
                 "  fsdp_reshard_after_forward: true}\n",
                 "accelerate.yaml"));
  // Accelerate keeps the head whole, which "always" would not.
  EXPECT_FALSE(sharding.has("reshard_after_forward"));
  const ForeignPlan plan = trainer(kFactory, &sharding);
  EXPECT_EQ(plan.value("runtime"), "fsdp2");
  EXPECT_EQ(plan.value("trainer"), "accelerate");
  EXPECT_EQ(plan.value("recompute"), "full");
  EXPECT_FALSE(plan.has("recompute_reentrant"));  // LLaMA-Factory switches it off under FSDP2
  EXPECT_EQ(plan.value("dtype.reduce"), "bf16");
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
  EXPECT_EQ(plan.value("batch.sequence"), "8192");
  EXPECT_FALSE(plan.has("dtype.master"));  // adapters are fp32
  EXPECT_EQ(plan.value("attention"), "fa2");
  EXPECT_EQ(plan.value("optimizer.kind"), "adamw-8bit");
  EXPECT_EQ(plan.value("lora.rank"), "32");
  EXPECT_EQ(plan.value("lora.targets"), "all-linear");
  EXPECT_EQ(plan.value("lora.base"), "nf4");
  EXPECT_EQ(plan.value("recompute_reentrant"), "true");
  document_of(PlanDocument{}, plan);

  EXPECT_EQ(trainer("base_model: a/b\nmicro_batch_size: 1\nbf16: true\n").value("dtype.master"),
            "bf16");

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
  EXPECT_EQ(fsdp.value("runtime"), "fsdp2");
  EXPECT_EQ(fsdp.value("reshard_after_forward"), "never");
  EXPECT_EQ(fsdp.value("units.blocks"), "own");
  EXPECT_EQ(fsdp.value("mesh.shard"), "4");
  EXPECT_EQ(fsdp.value("mesh.replicate"), "2");
  EXPECT_FALSE(fsdp.has("dtype.master"));  // Accelerate stores in fp32 what it shards
  EXPECT_EQ(why(fsdp, "optimizer: muon"), "another optimizer, taken as AdamW");
  document_of(PlanDocument{}, fsdp);
}

TEST(TrainerSettings, TrlsDefaultsAreNotTransformers) {
  const ForeignPlan trl = trainer(
      "model_name_or_path: Qwen/Qwen2.5-0.5B\nlearning_rate: 0.0001\nuse_peft: true\n"
      "max_length: 2048\nlora_target_modules: [q_proj, v_proj]\n");
  EXPECT_EQ(trl.format, "TRL");
  EXPECT_EQ(trl.value("dtype.param"), "bf16");
  EXPECT_EQ(trl.value("recompute"), "full");
  EXPECT_EQ(trl.value("loss"), "tiled-linear");
  EXPECT_EQ(trl.value("batch.micro_batch"), "8");
  EXPECT_EQ(trl.value("lora.rank"), "16");
  EXPECT_EQ(trl.value("lora.targets"), "[q_proj, v_proj]");
  EXPECT_EQ(trl.value("lora.base"), "master");
  EXPECT_FALSE(trl.has("dtype.master"));  // PEFT's adapters are fp32, whatever was loaded
  document_of(PlanDocument{}, trl);

  const ForeignPlan plain = trainer(
      "per_device_train_batch_size: 4\nuse_liger_kernel: true\nfsdp: full_shard auto_wrap\n"
      "label_smoothing_factor: 0.1\nworkers: 3\n");
  EXPECT_EQ(plain.format, "transformers' Trainer");
  EXPECT_EQ(plain.value("runtime"), "fsdp1");
  EXPECT_EQ(plain.value("dtype.param"), "fp32");
  EXPECT_EQ(plain.value("recompute"), "none");
  EXPECT_EQ(plain.value("loss"), "smoothed");
  EXPECT_TRUE(why(plain, "workers").starts_with("unknown key"));

  const ForeignPlan off = trainer(
      "per_device_train_batch_size: 4\nfsdp: ''\ndeepspeed: ''\nbf16: false\nfp16: true\n"
      "lora_r: 8\n");
  EXPECT_EQ(off.value("runtime"), "ddp");
  EXPECT_EQ(off.value("dtype.param"), "fp16");
  EXPECT_FALSE(off.has("lora.rank"));
  EXPECT_EQ(why(off, "lora_r"), "no adapters");
}

}  // namespace
}  // namespace foreshard::trainer_settings_test
