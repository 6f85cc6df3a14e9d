#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "interop/frameworks/frameworks.h"
#include "interop/frameworks/toml_config.h"
#include "sim/base/parse.h"
#include "sim/base/spelling.h"
#include "sim/spec/plan_keys.h"

namespace foreshard {
namespace {

void read_model(ForeignReader& reader) {
  std::string model, flavor, path = "model.name";
  for (const char* key : {"model.name", "model_spec.name"}) {
    if (const ConfigNode* node = reader.find(key)) {
      model = node->as_string();
      path = key;
    }
  }
  for (const char* key : {"model.flavor", "model_spec.flavor", "model_spec.size"}) {
    if (const ConfigNode* node = reader.find(key)) flavor = node->as_string();
  }
  if (model.empty()) return;
  const ConfigNode flavors = settings_of("torchtitan").at("flavors");
  const ConfigNode* known = flavors.find(model);
  const ConfigNode* zoo = known == nullptr ? nullptr : known->find(flavor);
  if (zoo != nullptr) return reader.map(path, "model", zoo->as_string());
  reader.unsupported(path, fmt::format("flavor {} of {} is no model that is known by name: give "
                                       "--model",
                                       flavor.empty() ? "?" : flavor, model));
}

std::int64_t stages_of(ForeignReader& reader) {
  const ConfigNode* const node = reader.find("parallelism.pipeline_parallel_degree");
  return node == nullptr ? 1 : node->as_int(1);
}

// A pipeline cuts what is a micro-batch without one (build_pipeline_schedule), whose gradients
// further ones may be added to.
void read_microbatches(ForeignReader& reader, const char* path, std::int64_t local) {
  static constexpr const char* kSize = "parallelism.pipeline_parallel_microbatch_size";
  const ConfigNode* const node = reader.find(kSize);
  const std::int64_t size = node == nullptr ? 1 : node->as_int(1);
  if (local % size != 0) {
    return reader.unsupported(kSize, fmt::format("{} does not divide {} of {}", size, path, local));
  }
  const std::string count = fmt::format("{}", local / size);
  if (node == nullptr) {
    reader.assume("batch.micro_batch", "1", "as torchtitan cuts the batch for a pipeline");
  } else {
    reader.integer(kSize, "batch.micro_batch");
  }
  reader.map(path, "pipeline.microbatches", count);
  const ConfigNode* const global = reader.find("training.global_batch_size");
  if (global == nullptr || global->as_int(-1) < 1) {
    reader.assume("batch.accumulation", count, "one call of the schedule each step");
  }
}

void read_stages(ForeignReader& reader) {
  if (stages_of(reader) == 1) return;
  const auto key = [](const char* name) {
    return fmt::format("parallelism.pipeline_parallel_{}", name);
  };
  reader.take("stages");
  const ConfigNode* const schedule = reader.find(key("schedule"));
  const bool is_single =
      schedule == nullptr || schedule->as_string() == "1F1B" || schedule->as_string() == "GPipe";
  if (reader.find(key("layers_per_stage")) != nullptr) {
    reader.unsupported(key("layers_per_stage"),
                       "how many stages that makes depends on the model's layers: give "
                       "pipeline.stages_per_rank");
  } else if (!is_single) {
    reader.assume("pipeline.stages_per_rank", "2", "as torchtitan makes of schedules of several");
  }
  reader.take("stage_ends");
  if (const ConfigNode* csv = reader.find(key("schedule_csv"));
      csv != nullptr && !csv->as_string().empty()) {
    reader.unsupported(key("schedule_csv"), "its rows are pipeline.orders of schedule custom");
  }
}

void read_batch(ForeignReader& reader) {
  std::optional<std::int64_t> sequence;
  for (const char* key : {"training.seq_len", "training.max_context_length"}) {
    if (const ConfigNode* node = reader.find(key)) {
      sequence = node->as_int(1);
      reader.integer(key, "batch.sequence");
    }
  }
  const bool has_stages = stages_of(reader) > 1;
  for (const char* key : {"training.local_batch_size", "training.batch_size"}) {
    if (const ConfigNode* node = reader.find(key); node != nullptr && has_stages) {
      read_microbatches(reader, key, node->as_int(1));
    } else {
      reader.integer(key, "batch.micro_batch");
    }
  }
  const auto tokens = [&](const char* path, const char* key) {
    const ConfigNode* node = reader.find(path);
    if (node == nullptr || node->as_int(-1) < 1) return;
    if (!sequence || node->as_int() % *sequence != 0) {
      return reader.unsupported(path, "tokens that are no whole sequences of max_context_length");
    }
    reader.map(path, key, fmt::format("{}", node->as_int() / *sequence));
  };
  tokens("training.num_tokens_per_microbatch_per_dp_rank", "batch.micro_batch");
  tokens("training.num_tokens_per_train_step", "batch.global");
  if (const ConfigNode* node = reader.find("training.global_batch_size");
      node != nullptr && node->as_int(-1) > 0) {
    reader.integer("training.global_batch_size", "batch.global");
  }
}

void read_parallelism(ForeignReader& reader) {
  const auto key = [](const char* name) { return fmt::format("parallelism.{}", name); };
  reader.integer(key("data_parallel_replicate_degree"), "mesh.replicate");
  if (const ConfigNode* node = reader.find(key("data_parallel_shard_degree"))) {
    if (node->as_int(-1) > 0) {
      reader.integer(key("data_parallel_shard_degree"), "mesh.shard");
    } else {
      reader.ignore(key("data_parallel_shard_degree"), "the rest of the ranks, as by default");
    }
  }
  reader.take("axes");
  if (const ConfigNode* node = reader.find(key("context_parallel_load_balancer"))) {
    if (node->as_string() == "headtail") {
      reader.map(key("context_parallel_load_balancer"), "context_parallel.balance", "headtail");
    } else if (node->as_string().empty()) {  // TOML has no null
      reader.map(key("context_parallel_load_balancer"), "context_parallel.balance", "none");
    } else {
      reader.unsupported(key("context_parallel_load_balancer"),
                         "only halves from both ends are modelled (headtail)");
    }
  }
  reader.take("experts");
  read_stages(reader);
  reader.take("sharding");
}

void read_checkpointing(ForeignReader& reader) {
  const ConfigNode* mode = reader.find("activation_checkpoint.mode");
  const ConfigNode* option = reader.find("activation_checkpoint.selective_ac_option");
  if (mode == nullptr) return;
  static constexpr std::string_view kWords[] = {"none", "full", "selective"};
  const std::size_t which = mode->as_choice(kWords);
  if (which < 2 || option == nullptr || option->text() == "op") {
    return reader.map("activation_checkpoint.mode", "recompute", std::string(kWords[which]));
  }
  const auto every = parse_number<std::int64_t>(option->text()).value_or(0);
  if (every < 1) {
    throw option->error(quote(option->text()) + " is neither op nor a number of layers", "op or 2");
  }
  reader.map("activation_checkpoint.selective_ac_option", "recompute",
             every == 1 ? "full" : fmt::format("every-{}", every));
}

void read_float8(ForeignReader& reader, const std::string& table) {
  const std::string recipe = table + ".recipe_name";
  reader.choice(recipe, "float8",
                {{"tensorwise", "tensorwise"},
                 {"rowwise", "rowwise"},
                 {"rowwise_with_gw_hp", "rowwise_gw_hp"}});
  const std::string gather = table + ".enable_fsdp_float8_all_gather";
  const ConfigNode* gathers = reader.find(gather);
  if (gathers == nullptr || !gathers->as_bool()) return;
  if (reader.find(recipe) == nullptr)
    reader.assume("float8", "tensorwise", "torchao's default recipe");
  const std::string scales = table + ".precompute_float8_dynamic_scale_for_fsdp";
  const ConfigNode* precomputed = reader.find(scales);
  if (precomputed != nullptr && precomputed->as_bool()) {
    reader.map(gather, "float8_all_gather", "true");
    reader.ignore(scales, "as the forecast computes them");
    return;
  }
  reader.unsupported(gather, "an all-reduce of each weight's scale before its gather");
  reader.assume("float8_all_gather", "true", "all scales once, behind the optimizer's step");
}

void read_precision(ForeignReader& reader) {
  reader.take("precision");
  for (const std::string table : {"float8", "quantize.linear.float8"}) read_float8(reader, table);
}

void read_optimizer(ForeignReader& reader) {
  if (const ConfigNode* name = reader.find("optimizer.name")) {
    if (name->as_string() == "AdamW" || name->as_string() == "Adam") {
      reader.map("optimizer.name", "optimizer.kind", "adamw");
    } else {
      reader.unsupported("optimizer.name", "only AdamW is modelled for this trainer");
    }
  }
  reader.take("optimizer");
}

}  // namespace

bool looks_like_torchtitan(const ConfigNode& root) {
  return root.is_mapping() && (root.has("parallelism") || root.has("training"));
}

ForeignPlan read_torchtitan(const ConfigNode& root) {
  ForeignPlan plan;
  plan.format = "TorchTitan";
  if (!looks_like_torchtitan(root)) {
    throw root.error("this has neither [training] nor [parallelism]",
                     "TorchTitan's TOML, or the JSON that it saves");
  }
  ForeignReader reader(root, plan, "torchtitan");
  reader.assume("runtime", "fsdp2", "TorchTitan shards with fully_shard");
  reader.assume("trainer", "torchtitan", "the file is TorchTitan's");
  read_model(reader);
  read_batch(reader);
  read_parallelism(reader);
  read_precision(reader);
  read_checkpointing(reader);
  if (const ConfigNode* node = reader.find("compile.enable")) {
    reader.map("compile.enable", "compile", node->as_bool() ? "blocks" : "none");
    const ConfigNode* parts = reader.find("compile.components");
    bool of_loss = node->as_bool() && parts == nullptr;
    if (parts != nullptr && parts->is_sequence()) {
      for (const ConfigNode& part : parts->elements()) {
        of_loss = of_loss || (node->as_bool() && part.text() == "loss");
      }
    }
    if (parts != nullptr) {
      reader.map("compile.components", "loss", of_loss ? "compiled" : "eager");
    } else if (of_loss) {
      reader.assume("loss", "compiled", "compile.components: model and loss by default");
    }
  }
  read_optimizer(reader);
  reader.finish();
  return plan;
}

// --- the way back ---

namespace {

const char* torch_name(DType dtype) {
  return dtype == DType::kBf16 ? "bfloat16" : dtype == DType::kFp16 ? "float16" : "float32";
}

std::string recompute_lines(const Plan& plan) {
  const Json written = find_plan_key("recompute")->write(plan);
  std::string mode = "none", option = "op";
  if (written.is_string()) {
    mode = written.get<std::string>();
    if (mode.starts_with("every-")) {
      option = mode.substr(6);
      mode = "selective";
    }
  }
  return fmt::format("[activation_checkpoint]\nmode = \"{}\"\nselective_ac_option = \"{}\"\n", mode,
                     option);
}

std::int64_t local_batch(const Plan& plan) {
  if (plan.mesh.pp == 1) return plan.batch.micro_batch;
  const std::int64_t each = plan.pipeline.microbatches;
  return plan.batch.micro_batch * (each > 0 ? each : plan.batch.accumulation);
}

std::string pipeline_lines(const ExportJob& job) {
  const Plan& plan = job.plan;
  std::string text = fmt::format("pipeline_parallel_degree = {}\n", plan.mesh.pp);
  if (plan.mesh.pp == 1) return text;
  const PipelineParallel& pipeline = plan.pipeline;
  text += fmt::format(R"(pipeline_parallel_schedule = "{}"
pipeline_parallel_microbatch_size = {}
pipeline_parallel_first_stage_less_layers = {}
pipeline_parallel_last_stage_less_layers = {}
)",
                      to_string(pipeline.schedule), plan.batch.micro_batch, pipeline.first_less,
                      pipeline.last_less);
  if (pipeline.stages_per_rank > 2) {  // else as by default
    const std::int64_t stages = plan.mesh.pp * pipeline.stages_per_rank;
    const std::int64_t layers = job.model.block_count() + pipeline.first_less + pipeline.last_less;
    text +=
        fmt::format("pipeline_parallel_layers_per_stage = {}\n", (layers + stages - 1) / stages);
  }
  return text;
}

// As TOML and Python write it.
std::string number(double value) {
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string text_of(const ExportJob& job, const char* reshard) {
  const Plan& plan = job.plan;
  const Optimizer& o = plan.optimizer;
  std::string model = "# model: none of TorchTitan's flavors; name yours\n";
  const ConfigNode flavors = settings_of("torchtitan").at("flavors");
  for (const ConfigItem& name : flavors.items()) {
    for (const ConfigItem& flavor : name.value.items()) {
      if (flavor.value.text() != plan.model) continue;
      model = fmt::format("[model]\nname = \"{}\"\nflavor = \"{}\"\n", name.key, flavor.key);
    }
  }
  const char* implementation = o.implementation == Optimizer::Implementation::kFused ? "fused"
                               : o.implementation == Optimizer::Implementation::kForeach
                                   ? "foreach"
                                   : "for-loop";
  std::string text = fmt::format(
      R"({}
[training]
local_batch_size = {}
global_batch_size = {}
seq_len = {}
max_norm = {}
dtype = "{}"
mixed_precision_param = "{}"
mixed_precision_reduce = "{}"
enable_cpu_offload = {}
seed = {}

[parallelism]
data_parallel_replicate_degree = {}
data_parallel_shard_degree = {}
fsdp_reshard_after_forward = "{}"
tensor_parallel_degree = {}
disable_loss_parallel = {}
{}context_parallel_degree = {}
expert_parallel_degree = {}
expert_tensor_parallel_degree = {}

{}
[compile]
enable = {}
)",
      model, local_batch(plan),
      plan.batch.micro_batch * plan.batch.accumulation * plan.mesh.data_parallel(),
      plan.batch.sequence, number(o.clip_norm.value_or(1e9)), torch_name(plan.master_dtype),
      torch_name(plan.param_dtype), torch_name(plan.reduce_dtype), plan.offload == Offload::kCpu,
      plan.seed, plan.mesh.replicate, plan.mesh.shard, reshard, plan.mesh.tp,
      !plan.tensor_parallel.loss, pipeline_lines(job), plan.mesh.cp, plan.mesh.ep, plan.mesh.etp,
      recompute_lines(plan), plan.compile == Compile::kBlocks);
  if (plan.compile == Compile::kBlocks) {
    text += fmt::format("components = [\"model\"{}]\n",
                        plan.loss.kind == Loss::Kind::kCompiled ? ", \"loss\"" : "");
  }
  text += fmt::format(R"(
[optimizer]
name = "AdamW"
lr = {}
beta1 = {}
beta2 = {}
eps = {}
weight_decay = {}
implementation = "{}"

[lr_scheduler]
warmup_steps = {}
)",
                      number(o.learning_rate), number(o.beta1), number(o.beta2), number(o.epsilon),
                      number(o.weight_decay), implementation, o.warmup_steps);
  if (plan.float8 != Float8::kNone && plan.float8 < Float8::kDelayed) {
    const char* recipe = plan.float8 == Float8::kTensorwise ? "tensorwise"
                         : plan.float8 == Float8::kRowwise  ? "rowwise"
                                                            : "rowwise_with_gw_hp";
    text += fmt::format("\n[float8]\nrecipe_name = \"{}\"\n", recipe);
    if (plan.float8_all_gather) {
      text +=
          "enable_fsdp_float8_all_gather = true\n"
          "precompute_float8_dynamic_scale_for_fsdp = true\n";
    }
  }
  return text;
}

}  // namespace

Exported export_torchtitan(const ExportJob& job) {
  FORESHARD_CHECK(job.plan.runtime.kind == RuntimeKind::kFsdp2, "a plan of FSDP2");
  std::vector<std::string> texts;
  for (const char* reshard : {"default", "always", "never"}) texts.push_back(text_of(job, reshard));
  const auto read = [](const std::string& text) {
    return read_torchtitan(parse_toml(text, "torchtitan.toml"));
  };
  return exported_as(job, texts, read);
}

}  // namespace foreshard
