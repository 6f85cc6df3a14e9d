#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "interop/frameworks/frameworks.h"
#include "sim/base/letters.h"
#include "sim/base/parse.h"
#include "sim/spec/plan_keys.h"

namespace foreshard {
namespace {

constexpr const char* kZero = "zero_optimization";

std::string in_zero(std::string_view key) { return fmt::format("{}.{}", kZero, key); }

std::vector<std::string> same_names() { return parts_of(settings_of("deepspeed").at("same").as_string(), " "); }

bool is_on(ForeignReader& reader, const char* path) {
  const ConfigNode* node = reader.find(path);
  return node != nullptr && node->as_bool();
}

void read_half_precision(ForeignReader& reader) {
  const bool bf16 = is_on(reader, "bf16.enabled"), fp16 = is_on(reader, "fp16.enabled");
  const bool is_open = !bf16 && !fp16 && (reader.is_auto("bf16.enabled") || reader.is_auto("fp16.enabled"));
  std::string compute = "fp32";
  if (bf16 || fp16) {
    compute = bf16 ? "bf16" : "fp16";
    reader.map(bf16 ? "bf16.enabled" : "fp16.enabled", "dtype.param", compute);
  } else if (!is_open) {
    reader.assume("dtype.param", compute, "neither bf16 nor fp16 is enabled");
  }
  reader.take("communication");
  if (reader.find("communication_data_type") == nullptr && !is_open)
    reader.assume("dtype.reduce", compute, "no communication_data_type: that of the gradients");
}

void read_batch_sizes(ForeignReader& reader) {
  reader.integer("train_micro_batch_size_per_gpu", "batch.micro_batch");
  const bool steps = reader.find("gradient_accumulation_steps") != nullptr;
  reader.integer("gradient_accumulation_steps", "batch.accumulation");
  if (reader.find("train_batch_size") == nullptr) return;
  if (steps) reader.ignore("train_batch_size", "follows from the others and the number of ranks");
  else reader.integer("train_batch_size", "batch.global");
}

void read_optimizer_section(ForeignReader& reader) {
  const ConfigNode* type = reader.find("optimizer.type");
  if (type == nullptr) return;
  const std::string name = lower(type->as_string());
  if (name == "adam" || name == "adamw" || name == "fusedadam") {
    reader.map("optimizer.type", "optimizer.kind", "adamw");
    reader.take("adamw");
    if (const ConfigNode* betas = reader.find("optimizer.params.betas");
        betas != nullptr && betas->is_sequence() && betas->elements().size() == 2) {
      const auto of = [&](std::size_t i) { return yaml_value(Json(betas->elements()[i].as_double())); };
      reader.map("optimizer.params.betas", "optimizer.beta1", of(0));
      reader.map("optimizer.params.betas", "optimizer.beta2", of(1));
    }
  } else if (name == "sgd") {
    reader.map("optimizer.type", "optimizer.kind", "sgd");
    reader.take("sgd");
  } else {
    reader.unsupported("optimizer.type", "only AdamW and SGD are modelled");
  }
}

}

ForeignPlan read_deepspeed(const ConfigNode& root) {
  ForeignPlan plan;
  plan.format = "DeepSpeed";
  if (!root.is_mapping()) throw root.error("this is not a JSON object", "the object of a DeepSpeed configuration");
  ForeignReader reader(root, plan, "deepspeed");
  const std::string stage_path = in_zero("stage");
  const ConfigNode* stage = reader.find(stage_path);
  const std::int64_t number = stage == nullptr ? 0 : stage->as_int(0, 3);
  reader.take("pipeline");
  if (plan.has("mesh.pp") && number == 0 && is_on(reader, "bf16.enabled")) {
    reader.assume("runtime", "zero1", "stage 0 of a pipeline in bf16 partitions the optimizer's states, too");
    reader.assume("zero.bf16_optimizer", "true", "runtime/engine.py, _do_optimizer_sanity_check");
  } else if (stage == nullptr) {
    reader.assume("runtime", "ddp", "no zero_optimization.stage: everything is replicated");
  } else {
    reader.map(stage_path, "runtime", number == 0 ? "ddp" : fmt::format("zero{}", number));
  }
  read_batch_sizes(reader);
  read_half_precision(reader);
  // In DeepSpeed 0 switches clipping off, and is the default.
  if (!reader.clipping("gradient_clipping") && !reader.is_auto("gradient_clipping"))
    reader.assume("optimizer.clip_norm", "none", "no gradient_clipping");
  if (number > 0) {
    for (const std::string& name : same_names()) reader.take_key(in_zero(name), "zero." + name);
    reader.take("zero");
    reader.take("offload");
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
  if (number == 0)
    for (const std::string& name : same_names()) reader.ignore(in_zero(name), "stage 0 partitions nothing");
  if (const ConfigNode* group = reader.find(in_zero("mics_shard_size"));
      group != nullptr && number == 3 && group->as_int(-1) > 0)
    reader.map(in_zero("mics_shard_size"), "mesh.shard", fmt::format("{}", group->as_int()));
  // deepspeed/runtime/sequence_parallel/ulysses_sp.py
  if (const ConfigNode* ranks = reader.find("sequence_parallel_size"); ranks != nullptr && ranks->as_int(1) > 1) {
    reader.integer("sequence_parallel_size", "mesh.cp");
    reader.assume("context_parallel.rotate", "ulysses", "DeepSpeed's sequence parallelism");
  }
  read_optimizer_section(reader);
  reader.take("missing");
  reader.finish();
  return plan;
}

// transformers 5.17, integrations/deepspeed.py, trainer_config_finalize; Accelerate does the same.
void fill_buckets(std::int64_t hidden, ForeignPlan& plan) {
  const auto square = as_double(hidden) * as_double(hidden);
  const std::pair<const char*, double> kBySize[] = {{"reduce_bucket_size", square},
      {"stage3_prefetch_bucket_size", 0.9 * square}, {"stage3_param_persistence_threshold", 10 * as_double(hidden)}};
  for (const auto& [name, elements] : kBySize) {
    const auto entry = std::ranges::find_if(
        plan.ledger, [&, name = name](const ImportEntry& each) { return each.what == in_zero(name) + ": auto"; });
    const bool is_stage3 = std::string_view(name).starts_with("stage3_");
    if (entry == plan.ledger.end() || (is_stage3 && plan.value("runtime") != "zero3")) continue;
    const std::string value = fmt::format("{}", static_cast<std::int64_t>(elements));
    plan.set(fmt::format("zero.{}", name), value);
    entry->to = fmt::format("zero.{}: {}", name, value);
    entry->why = fmt::format("\"auto\": of a hidden size of {}", hidden);
  }
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
  if (plan.reduce_dtype != plan.param_dtype)
    root["communication_data_type"] = plan.reduce_dtype == DType::kBf16 ? "bfp16" : to_string(plan.reduce_dtype);
  if (plan.zero.fp32_gradient_accumulation) root["data_types"] = {{"grad_accum_dtype", "fp32"}};
  Json zero;
  zero["stage"] = zero_stage(plan.runtime.kind);
  const auto is_of_stage = [&](std::string_view key) {
    return plan.runtime.kind == RuntimeKind::kZero3 || (!key.starts_with("stage3_") && !key.starts_with("zero_"));
  };
  for (const std::string& name : same_names())
    if (is_of_stage(name)) zero[name] = find_plan_key("zero." + name)->write(plan);
  const auto offload = [&](const char* name, ZeroOffload where) {
    if (where == ZeroOffload::kNone) return;
    zero[name] = {{"device", to_string(where)}, {"pin_memory", plan.zero.pin_memory}};
    if (where == ZeroOffload::kNvme) zero[name]["nvme_path"] = "/local_nvme";
  };
  offload("offload_optimizer", plan.zero.offload_optimizer);
  if (plan.runtime.kind == RuntimeKind::kZero3) offload("offload_param", plan.zero.offload_param);
  if (plan.runtime.kind == RuntimeKind::kZero3 && plan.mesh.replicate > 1) zero["mics_shard_size"] = plan.mesh.shard;
  root[kZero] = std::move(zero);
  const Optimizer& o = plan.optimizer;
  root["optimizer"] = {
      {"type", o.kind == Optimizer::Kind::kAdamW ? "AdamW" : "SGD"}, {"params", {{"lr", o.learning_rate}}}};
  if (o.kind == Optimizer::Kind::kAdamW) {
    root["optimizer"]["params"]["betas"] = {o.beta1, o.beta2};
    root["optimizer"]["params"]["eps"] = o.epsilon;
    root["optimizer"]["params"]["weight_decay"] = o.weight_decay;
  }
  const auto read = [](const std::string& text) { return read_deepspeed(parse_json(text, "deepspeed.json")); };
  return exported_as(job, {to_text(root)}, read);
}

}
