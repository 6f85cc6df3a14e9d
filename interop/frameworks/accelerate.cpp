#include <fmt/format.h>

#include <vector>

#include "interop/frameworks/frameworks.h"
#include "sim/spec/plan_keys.h"

namespace foreshard {
namespace {

std::string fsdp(const char* key) { return fmt::format("fsdp_config.fsdp_{}", key); }
std::string mesh(const char* key) { return fmt::format("parallelism_config.parallelism_config_{}_size", key); }

struct Ranks {
  std::int64_t all = 0, machines = 1;
};

Ranks read_ranks(ForeignReader& reader) {
  Ranks ranks;
  if (const ConfigNode* n = reader.find("num_machines")) ranks.machines = n->as_int(1);
  if (const ConfigNode* n = reader.find("num_processes")) ranks.all = n->as_int(1);
  return ranks;
}

// mixed_precision of FSDP: parameters, reductions and outputs alike (set_mixed_precision); under
// DDP autocast's, which reduces gradients as they are stored.
void read_precision(ForeignReader& reader, bool of_outputs, bool of_reductions = true) {
  const ConfigNode* node = reader.find("mixed_precision");
  const std::string word = node == nullptr ? "no" : node->as_string();
  if (word == "no") {
    reader.assume("dtype.param", "fp32", "mixed_precision: no");
    if (of_reductions) reader.assume("dtype.reduce", "fp32", "mixed_precision: no");
    return;
  }
  static constexpr std::string_view kWords[] = {"bf16", "fp16", "fp8"};
  const std::size_t which = node->as_choice(kWords);
  const std::string dtype = which == 1 ? "fp16" : "bf16";
  reader.map("mixed_precision", "dtype.param", dtype);
  if (of_reductions) reader.assume("dtype.reduce", dtype, "Accelerate reduces in the dtype of mixed_precision");
  if (of_outputs) reader.assume("dtype.output", dtype, "Accelerate casts outputs to that of mixed_precision");
  if (which == 2) reader.unsupported("fp8_config", "which recipe of fp8 is not taken");
}

// What the plugin leaves alone the trainer's own checkpoints may do.
void read_recomputation(ForeignReader& reader) {
  const std::string path = fsdp("activation_checkpointing");
  const ConfigNode* node = reader.find(path);
  if (node != nullptr && node->as_bool()) return reader.map(path, "recompute", "full");
  reader.assume("recompute", "none", "no fsdp_activation_checkpointing");
}

// Which modules are units.
void read_wrapping(ForeignReader& reader) {
  const ConfigNode* policy = reader.find(fsdp("auto_wrap_policy"));
  const std::string word = policy == nullptr ? "NO_WRAP" : policy->as_string();
  if (word == "TRANSFORMER_BASED_WRAP") {
    reader.map(fsdp("auto_wrap_policy"), "units.blocks", "own");
    reader.ignore(fsdp("transformer_layer_cls_to_wrap"), "the class of the blocks");
  } else if (word == "SIZE_BASED_WRAP") {
    reader.unsupported(fsdp("auto_wrap_policy"), "units by size; taken as one unit per block");
    reader.unsupported(fsdp("min_num_params"), "units by size");
  } else if (policy != nullptr) {
    reader.map(fsdp("auto_wrap_policy"), "units.blocks", "root");
  } else {
    reader.assume("units.blocks", "root", "no fsdp_auto_wrap_policy: the model is one unit");
  }
}

// Ranks that share each sequence: `key` is cp or sp.
std::int64_t read_sequence_ranks(ForeignReader& reader, const char* key) {
  const ConfigNode* node = reader.find(mesh(key));
  const std::int64_t ranks = node == nullptr ? 1 : node->as_int(1);
  if (ranks > 1) reader.map(mesh(key), "mesh.cp", fmt::format("{}", ranks));
  return ranks;
}

// No trainer here loads a model in parts: ranks of tp are replicas whose gradients nobody adds up.
void read_mesh(ForeignReader& reader, const Ranks& ranks) {
  const auto degree = [&](const char* key, const char* why) {
    const ConfigNode* node = reader.find(mesh(key));
    const std::int64_t ranks_of = node == nullptr ? 1 : node->as_int(1);
    if (ranks_of > 1 && *why != '\0') reader.unsupported(mesh(key), why);
    return ranks_of;
  };
  degree("sp", "DeepSpeed's, without FSDP");
  const std::int64_t tp = degree("tp", "its ranks are taken as replicas");
  const std::int64_t cp = read_sequence_ranks(reader, "cp");
  const std::string strategy = "parallelism_config.parallelism_config_cp_comm_strategy";
  if (const ConfigNode* node = reader.find(strategy); node != nullptr && cp > 1) {
    static constexpr std::string_view kWords[] = {"allgather", "alltoall"};
    reader.map(strategy, "context_parallel.rotate", std::string(kWords[node->as_choice(kWords)]));
  }
  const std::int64_t shard = degree("dp_shard", "");
  const std::int64_t replicate = degree("dp_replicate", "") * tp;
  if (shard * replicate * cp > 1) {
    reader.map(mesh("dp_shard"), "mesh.shard", fmt::format("{}", shard));
    reader.map(mesh("dp_replicate"), "mesh.replicate", fmt::format("{}", replicate));
  } else if (ranks.all > 0) {
    reader.map("num_processes", "mesh.shard", fmt::format("{}", ranks.all));
    reader.assume("mesh.replicate", "1", "no parallelism_config: all ranks shard");
  }
}

void read_fsdp2(ForeignReader& reader, const Ranks& ranks) {
  reader.map(fsdp("version"), "runtime", "fsdp2");
  reader.assume("trainer", "accelerate", "the file is Accelerate's");
  read_mesh(reader, ranks);
  reader.take("fsdp2");
  read_precision(reader, true);
}

void read_fsdp1(ForeignReader& reader, const Ranks& ranks) {
  if (reader.find(fsdp("version")) != nullptr) reader.map(fsdp("version"), "runtime", "fsdp1");
  else reader.assume("runtime", "fsdp1", "no fsdp_version, which is 1 by default");
  reader.assume("trainer", "accelerate", "the file is Accelerate's");
  static constexpr std::string_view kWords[] = {
      "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"};
  const std::string path = fsdp("sharding_strategy");
  std::size_t which = 0;
  std::string used = path;
  for (const std::string& key : {path, fsdp("reshard_after_forward")}) {
    const ConfigNode* node = reader.find(key);
    if (node == nullptr) continue;
    used = key;
    const std::string text = node->as_string();
    if (text.size() == 1 && text[0] >= '1' && text[0] <= '5') which = at(text[0] - '1');
    else which = node->as_choice(kWords);
    break;
  }
  reader.map(used, "reshard_after_forward", which == 1 || which == 4 ? "never" : "always");
  if (ranks.all > 0) {
    const std::int64_t shard = which == 2 ? 1 : which >= 3 ? ranks.all / ranks.machines : ranks.all;
    reader.map("num_processes", "mesh.shard", fmt::format("{}", shard));
    reader.map(used, "mesh.replicate", fmt::format("{}", ranks.all / std::max<std::int64_t>(1, shard)));
  }
  reader.take("fsdp1");
  if (const ConfigNode* node = reader.find(fsdp("offload_params")); node != nullptr && node->as_bool())
    reader.unsupported(fsdp("offload_params"), "FSDP1's offload is not modelled");
  read_precision(reader, false);
}

void read_zero(ForeignReader& reader, const Ranks& ranks) {
  const auto key = [](const char* name) { return fmt::format("deepspeed_config.{}", name); };
  if (reader.find(key("deepspeed_config_file")) != nullptr)
    reader.unsupported(key("deepspeed_config_file"), "import that file itself");
  const ConfigNode* stage = reader.find(key("zero_stage"));
  const std::int64_t number = stage == nullptr ? 2 : stage->as_int(0, 3);
  const std::string runtime = number == 0 ? "ddp" : fmt::format("zero{}", number);
  if (stage != nullptr) reader.map(key("zero_stage"), "runtime", runtime);
  else reader.assume("runtime", runtime, "no zero_stage, which is 2 by default");
  reader.integer(key("gradient_accumulation_steps"), "batch.accumulation");
  reader.clipping(key("gradient_clipping"));
  if (number > 0) {
    reader.take("zero_offload");
    const std::int64_t sp = read_sequence_ranks(reader, "sp");
    if (sp > 1) reader.assume("context_parallel.rotate", "ulysses", "sp_backend: deepspeed");
    if (ranks.all > 0) {
      reader.map("num_processes", "mesh.shard", fmt::format("{}", ranks.all / sp));
      reader.assume("mesh.replicate", "1", "ZeRO partitions over all ranks");
    }
  }
  read_precision(reader, false);
  reader.take("zero_rest");
}

}

bool looks_like_accelerate(const ConfigNode& root) {
  return root.is_mapping() && (root.has("distributed_type") || root.has("compute_environment"));
}

ForeignPlan read_accelerate(const ConfigNode& root) {
  ForeignPlan plan;
  plan.format = "Accelerate";
  if (!looks_like_accelerate(root)) throw root.error("this has no distributed_type", "a file of accelerate config");
  ForeignReader reader(root, plan, "accelerate");
  static constexpr std::string_view kTypes[] = {"FSDP", "DEEPSPEED", "MULTI_GPU", "NO"};
  const std::size_t type = root.at("distributed_type").as_choice(kTypes);
  reader.find("distributed_type");
  const Ranks ranks = read_ranks(reader);
  plan.ranks = root.has("parallelism_config") ? 0 : ranks.all;
  if (type == 0) {
    const ConfigNode* version = reader.find(fsdp("version"));
    if (version != nullptr && version->as_int(1, 2) == 2) read_fsdp2(reader, ranks);
    else read_fsdp1(reader, ranks);
    read_wrapping(reader);
    read_recomputation(reader);
  } else if (type == 1) {
    read_zero(reader, ranks);
  } else {
    reader.map("distributed_type", "runtime", "ddp");
    if (ranks.all > 0) {
      reader.map("num_processes", "mesh.replicate", fmt::format("{}", ranks.all));
      reader.assume("mesh.shard", "1", "DDP shards nothing");
    }
    read_precision(reader, false, false);
  }
  if (const ConfigNode* backend = reader.find("dynamo_config.dynamo_backend")) {
    const bool off = backend->as_string() == "NO" || backend->as_string() == "no";
    reader.map("dynamo_config.dynamo_backend", "compile", off ? "none" : "model");
  }
  reader.finish();
  return plan;
}

// --- the way back ---

namespace {

// Keys in the alphabetical order in which Accelerate writes them.
std::string head(const char* type, const ExportJob& job, bool dynamo) {
  const Plan& plan = job.plan;
  const std::int64_t per_node = std::max<std::int64_t>(1, job.cluster.node.gpus);
  const std::int64_t world = plan.mesh.world();
  const std::int64_t machines = std::max<std::int64_t>(1, (world + per_node - 1) / per_node);
  const char* precision = plan.param_dtype == DType::kFp32   ? "'no'"
                          : plan.param_dtype == DType::kFp16 ? "fp16"
                                                             : "bf16";
  std::string text = fmt::format(R"(compute_environment: LOCAL_MACHINE
debug: false
distributed_type: {}
downcast_bf16: 'no'
enable_cpu_affinity: false
machine_rank: 0
main_training_function: main
mixed_precision: {}
num_machines: {}
num_processes: {}
rdzv_backend: {}
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: {}
)",
      type, precision, machines, world, machines > 1 ? "c10d" : "static", job.cluster.host_computes ? "true" : "false");
  if (dynamo) text += "dynamo_config:\n  dynamo_backend: INDUCTOR\n";
  return text;
}

std::string common_fsdp(const Plan& plan) {
  const bool full = plan.recompute.value == Recompute::kFull && plan.recompute.ranges.empty();
  return fmt::format(
      R"(  fsdp_activation_checkpointing: {}
  fsdp_auto_wrap_policy: {}
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: {}
  fsdp_state_dict_type: SHARDED_STATE_DICT
)",
      full, plan.units.blocks == UnitPlacement::kRoot ? "NO_WRAP" : "TRANSFORMER_BASED_WRAP",
      plan.offload == Offload::kCpu);
}

std::vector<std::string> fsdp2_texts(const ExportJob& job) {
  const Plan& plan = job.plan;
  std::vector<std::string> texts;
  for (const char* reshard : {"true", "false", ""}) {
    std::string text = head("FSDP", job, plan.compile == Compile::kModel);
    text += "fsdp_config:\n" + common_fsdp(plan);
    if (*reshard != '\0') text += fmt::format("  fsdp_reshard_after_forward: {}\n", reshard);
    text += "  fsdp_version: 2\n";
    if (plan.mesh.replicate > 1) {
      text += fmt::format(R"(parallelism_config:
  parallelism_config_cp_size: 1
  parallelism_config_dp_replicate_size: {}
  parallelism_config_dp_shard_size: {}
  parallelism_config_tp_size: 1
)",
          plan.mesh.replicate, plan.mesh.shard);
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

std::string fsdp1_text(const ExportJob& job) {
  const Plan& plan = job.plan;
  const bool keeps = plan.reshard_after_forward.value.kind == Reshard::Kind::kNever;
  const char* strategy = keeps ? "SHARD_GRAD_OP" : "FULL_SHARD";
  if (plan.mesh.replicate > 1) strategy = keeps ? "HYBRID_SHARD_ZERO2" : "HYBRID_SHARD";
  if (plan.mesh.shard == 1) strategy = "NO_SHARD";
  const char* prefetch = plan.prefetch.backward == 0                                            ? "NO_PREFETCH"
                         : plan.fsdp1.backward_prefetch == Fsdp1Options::BackwardPrefetch::kPre ? "BACKWARD_PRE"
                                                                                                : "BACKWARD_POST";
  return head("FSDP", job, plan.compile == Compile::kModel) +
         fmt::format(R"(fsdp_config:
  fsdp_backward_prefetch: {}
  fsdp_forward_prefetch: {}
  fsdp_sharding_strategy: {}
  fsdp_sync_module_states: true
  fsdp_use_orig_params: {}
  fsdp_version: 1
)",
             prefetch, plan.prefetch.forward == 1, strategy, plan.fsdp1.use_orig_params) +
         common_fsdp(plan);
}

std::string zero_text(const ExportJob& job) {
  const Plan& plan = job.plan;
  std::string text = head("DEEPSPEED", job, plan.compile == Compile::kModel);
  text += fmt::format(R"(deepspeed_config:
  gradient_accumulation_steps: {}
  gradient_clipping: {}
  offload_optimizer_device: {}
  offload_param_device: {}
  zero3_init_flag: {}
  zero_stage: {}
)",
      plan.batch.accumulation, plan.optimizer.clip_norm.value_or(0.0), to_string(plan.zero.offload_optimizer),
      to_string(plan.zero.offload_param), plan.runtime.kind == RuntimeKind::kZero3, zero_stage(plan.runtime.kind));
  return text;
}

}

Exported export_accelerate(const ExportJob& job) {
  const RuntimeKind kind = job.plan.runtime.kind;
  if (kind == RuntimeKind::kNative) {
    throw Error(ExitCode::kMissingCapability,
        "export --to accelerate: unsupported: Accelerate runs PyTorch's and DeepSpeed's "
        "runtimes, not native; nearest plan: runtime: fsdp2");
  }
  std::vector<std::string> texts;
  if (kind == RuntimeKind::kFsdp2) texts = fsdp2_texts(job);
  else if (kind == RuntimeKind::kFsdp1) texts = {fsdp1_text(job)};
  else if (is_zero(kind)) texts = {zero_text(job)};
  else texts = {head("MULTI_GPU", job, job.plan.compile == Compile::kModel)};
  const auto read = [](const std::string& text) { return read_accelerate(parse_yaml(text, "accelerate.yaml")); };
  return exported_as(job, texts, read);
}

}
