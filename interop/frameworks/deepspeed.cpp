#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "interop/frameworks/frameworks.h"
#include "sim/base/letters.h"
#include "sim/base/parse.h"
#include "sim/spec/plan_keys.h"

namespace foreshard {
namespace {

constexpr const char* kZero = "zero_optimization";

// Keys of "zero_optimization" that are keys of the plan under the same name.
constexpr std::string_view kFlags =
    "overlap_comm contiguous_gradients reduce_scatter round_robin_gradients "
    "use_multi_rank_bucket_allreduce stage3_use_all_reduce_for_fetch_params zero_quantized_weights "
    "zero_quantized_gradients";
constexpr std::string_view kCounts =
    "reduce_bucket_size allgather_bucket_size stage3_prefetch_bucket_size "
    "stage3_max_live_parameters stage3_max_reuse_distance stage3_param_persistence_threshold "
    "stage3_model_persistence_threshold sub_group_size zero_hpz_partition_size";

std::string in_zero(std::string_view key) { return fmt::format("{}.{}", kZero, key); }
std::string of_plan(std::string_view key) { return fmt::format("zero.{}", key); }

bool is_on(ForeignReader& reader, const char* path) {
  const ConfigNode* node = reader.find(path);
  return node != nullptr && node->as_bool();
}

void read_half_precision(ForeignReader& reader) {
  const bool bf16 = is_on(reader, "bf16.enabled"), fp16 = is_on(reader, "fp16.enabled");
  std::string compute = "fp32";
  if (bf16 || fp16) {
    compute = bf16 ? "bf16" : "fp16";
    reader.map(bf16 ? "bf16.enabled" : "fp16.enabled", "dtype.param", compute);
  } else {
    reader.assume("dtype.param", compute, "neither bf16 nor fp16 is enabled");
  }
  if (!reader.choice("communication_data_type", "dtype.reduce",
                     {{"fp32", "fp32"},
                      {"fp16", "fp16"},
                      {"bfp16", "bf16"},
                      {"float32", "fp32"},
                      {"float16", "fp16"},
                      {"bf16", "bf16"}})) {
    reader.assume("dtype.reduce", compute, "no communication_data_type: that of the gradients");
  }
}

void read_batch_sizes(ForeignReader& reader) {
  reader.integer("train_micro_batch_size_per_gpu", "batch.micro_batch");
  const bool steps = reader.find("gradient_accumulation_steps") != nullptr;
  reader.integer("gradient_accumulation_steps", "batch.accumulation");
  if (reader.find("train_batch_size") == nullptr) return;
  if (steps) {
    reader.ignore("train_batch_size", "follows from the others and the number of ranks");
  } else {
    reader.integer("train_batch_size", "batch.global");
  }
}

void read_offload(ForeignReader& reader, const char* name) {
  reader.choice(in_zero(name) + ".device", of_plan(name),
                {{"none", "none"}, {"cpu", "cpu"}, {"nvme", "nvme"}});
}

void read_optimizer_section(ForeignReader& reader) {
  const ConfigNode* type = reader.find("optimizer.type");
  if (type == nullptr) return;
  const std::string name = lower(type->as_string());
  if (name == "adam" || name == "adamw" || name == "fusedadam") {
    reader.map("optimizer.type", "optimizer.kind", "adamw");
    reader.number("optimizer.params.lr", "optimizer.learning_rate");
    reader.number("optimizer.params.eps", "optimizer.epsilon");
    reader.number("optimizer.params.weight_decay", "optimizer.weight_decay");
    if (const ConfigNode* betas = reader.find("optimizer.params.betas");
        betas != nullptr && betas->is_sequence() && betas->elements().size() == 2) {
      const auto of = [&](std::size_t i) {
        return yaml_value(Json(betas->elements()[i].as_double()));
      };
      reader.map("optimizer.params.betas", "optimizer.beta1", of(0));
      reader.map("optimizer.params.betas", "optimizer.beta2", of(1));
    }
  } else if (name == "sgd") {
    reader.map("optimizer.type", "optimizer.kind", "sgd");
    reader.number("optimizer.params.lr", "optimizer.learning_rate");
  } else {
    reader.unsupported("optimizer.type", "only AdamW and SGD are modelled");
  }
}

}  // namespace

ForeignPlan read_deepspeed(const ConfigNode& root) {
  ForeignPlan plan;
  plan.format = "DeepSpeed";
  if (!root.is_mapping()) {
    throw root.error("this is not a JSON object", "the object of a DeepSpeed configuration");
  }
  ForeignReader reader(root, plan);
  const std::string stage_path = in_zero("stage");
  const ConfigNode* stage = reader.find(stage_path);
  const std::int64_t number = stage == nullptr ? 0 : stage->as_int(0, 3);
  if (stage == nullptr) {
    reader.assume("runtime", "ddp", "no zero_optimization.stage: everything is replicated");
  } else {
    reader.map(stage_path, "runtime", number == 0 ? "ddp" : fmt::format("zero{}", number));
  }
  read_batch_sizes(reader);
  read_half_precision(reader);
  // In DeepSpeed 0 switches clipping off, and is the default.
  if (!reader.clipping("gradient_clipping")) {
    reader.assume("optimizer.clip_norm", "none", "no gradient_clipping");
  }
  if (number > 0) {
    for (const std::string& key : parts_of(kFlags, " ")) reader.flag(in_zero(key), of_plan(key));
    for (const std::string& key : parts_of(kCounts, " "))
      reader.integer(in_zero(key), of_plan(key), 0);
    read_offload(reader, "offload_optimizer");
    read_offload(reader, "offload_param");
    bool pinned = false;
    for (const char* name : {"offload_optimizer", "offload_param"}) {
      const std::string path = in_zero(name) + ".pin_memory";
      if (reader.find(path) == nullptr) continue;
      if (pinned) {
        reader.ignore(path, "one zero.pin_memory stands for both");
      } else {
        reader.flag(path, "zero.pin_memory");
        pinned = true;
      }
    }
    if (const ConfigNode* dtype = reader.find("data_types.grad_accum_dtype")) {
      reader.map("data_types.grad_accum_dtype", "zero.fp32_gradient_accumulation",
                 dtype->as_string() == "fp32" ? "true" : "false");
    }
  }
  if (const ConfigNode* group = reader.find(in_zero("mics_shard_size"));
      group != nullptr && number == 3 && group->as_int(-1) > 0) {
    reader.map(in_zero("mics_shard_size"), "mesh.shard", fmt::format("{}", group->as_int()));
  }
  read_optimizer_section(reader);
  for (const char* path : {"tensor_parallel", "pipeline", "sequence_parallel_size"}) {
    reader.unsupported(path, "tensor, sequence and pipeline parallelism are not modelled");
  }
  reader.finish(
      "steps_per_print wall_clock_breakdown scheduler tensorboard wandb csv_monitor comet "
      "flops_profiler comms_logger checkpoint fp16 bf16 amp dump_state "
      "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer activation_checkpointing "
      "aio prescale_gradients gradient_predivide_factor optimizer.params "
      "zero_optimization.stage3_gather_16bit_weights_on_model_save "
      "zero_optimization.allgather_partitions zero_optimization.load_from_fp32_weights "
      "zero_optimization.elastic_checkpoint zero_optimization.offload_optimizer "
      "zero_optimization.offload_param zero_optimization.ignore_unused_parameters "
      "zero_optimization.mics_hierarchical_params_gather autotuning elasticity");
  return plan;
}

Exported export_deepspeed(const ExportJob& job) {
  const Plan& plan = job.plan;
  FORESHARD_CHECK(is_zero(plan.runtime.kind), "a plan of ZeRO");
  Json root;
  root["train_batch_size"] = plan.batch.micro_batch * plan.batch.accumulation * plan.mesh.world();
  root["train_micro_batch_size_per_gpu"] = plan.batch.micro_batch;
  root["gradient_accumulation_steps"] = plan.batch.accumulation;
  root["gradient_clipping"] = plan.optimizer.clip_norm.value_or(0.0);
  root["bf16"] = {{"enabled", plan.param_dtype == DType::kBf16}};
  root["fp16"] = {{"enabled", plan.param_dtype == DType::kFp16}};
  if (plan.reduce_dtype != plan.param_dtype) {
    root["communication_data_type"] =
        plan.reduce_dtype == DType::kBf16 ? "bfp16" : to_string(plan.reduce_dtype);
  }
  if (plan.zero.fp32_gradient_accumulation) root["data_types"] = {{"grad_accum_dtype", "fp32"}};
  Json zero;
  zero["stage"] = zero_stage(plan.runtime.kind);
  const auto is_of_stage = [&](std::string_view key) {
    return plan.runtime.kind == RuntimeKind::kZero3 ||
           (!key.starts_with("stage3_") && !key.starts_with("zero_"));
  };
  const std::vector<std::string> known = parts_of(fmt::format("{} {}", kFlags, kCounts), " ");
  for (const PlanKey& key : library_keys()) {
    if (!key.path.starts_with("zero.")) continue;
    const std::string name(key.path.substr(5));
    if (std::ranges::find(known, name) == known.end()) continue;
    if (is_of_stage(name)) zero[name] = key.write(plan);
  }
  const auto offload = [&](const char* name, ZeroOffload where) {
    if (where == ZeroOffload::kNone) return;
    zero[name] = {{"device", to_string(where)}, {"pin_memory", plan.zero.pin_memory}};
    if (where == ZeroOffload::kNvme) zero[name]["nvme_path"] = "/local_nvme";
  };
  offload("offload_optimizer", plan.zero.offload_optimizer);
  if (plan.runtime.kind == RuntimeKind::kZero3) offload("offload_param", plan.zero.offload_param);
  if (plan.runtime.kind == RuntimeKind::kZero3 && plan.mesh.replicate > 1) {
    zero["mics_shard_size"] = plan.mesh.shard;
  }
  root[kZero] = std::move(zero);
  const Optimizer& o = plan.optimizer;
  root["optimizer"] = {{"type", o.kind == Optimizer::Kind::kAdamW ? "AdamW" : "SGD"},
                       {"params", {{"lr", o.learning_rate}}}};
  if (o.kind == Optimizer::Kind::kAdamW) {
    root["optimizer"]["params"]["betas"] = {o.beta1, o.beta2};
    root["optimizer"]["params"]["eps"] = o.epsilon;
    root["optimizer"]["params"]["weight_decay"] = o.weight_decay;
  }
  const auto read = [](const std::string& text) {
    return read_deepspeed(parse_json(text, "deepspeed.json"));
  };
  return exported_as(job, {to_text(root)}, read);
}

}  // namespace foreshard
