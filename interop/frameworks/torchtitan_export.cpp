// Settings of exactly the plan for TorchTitan: TOML (until February 2026), and a module of its
// configuration registry (since).
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "interop/frameworks/frameworks.h"
#include "interop/frameworks/toml_config.h"
#include "sim/spec/plan_keys.h"

namespace foreshard {
namespace {

const char* torch_name(DType dtype) {
  return dtype == DType::kBf16 ? "bfloat16" : dtype == DType::kFp16 ? "float16" : "float32";
}

struct Flavor {
  std::string model, name;
};
std::optional<Flavor> flavor_of(const std::string& model) {
  const ConfigNode flavors = settings_of("torchtitan").at("flavors");
  for (const ConfigItem& name : flavors.items()) {
    for (const ConfigItem& flavor : name.value.items())
      if (flavor.value.text() == model) return Flavor{name.key, flavor.key};
  }
  return std::nullopt;
}

const char* implementation_of(const Optimizer& optimizer) {
  return optimizer.implementation == Optimizer::Implementation::kFused     ? "fused"
         : optimizer.implementation == Optimizer::Implementation::kForeach ? "foreach"
                                                                           : "for-loop";
}

const char* recipe_of(const Plan& plan) {
  return plan.float8 == Float8::kTensorwise ? "tensorwise"
         : plan.float8 == Float8::kRowwise  ? "rowwise"
                                            : "rowwise_with_gw_hp";
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
  return fmt::format("[activation_checkpoint]\nmode = \"{}\"\nselective_ac_option = \"{}\"\n", mode, option);
}

// Of a call of the pipeline's schedule.
std::int64_t microbatches_of(const Plan& plan) {
  if (plan.mesh.pp == 1) return 1;
  const std::int64_t each = plan.pipeline.microbatches;
  return each > 0 ? each : plan.batch.accumulation;
}

std::int64_t layers_of_stage(const ExportJob& job) {
  const PipelineParallel& pipeline = job.plan.pipeline;
  const std::int64_t stages = job.plan.mesh.pp * pipeline.stages_per_rank;
  const std::int64_t layers = job.model.block_count() + pipeline.first_less + pipeline.last_less;
  return (layers + stages - 1) / stages;
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
      to_string(pipeline.schedule), plan.batch.micro_batch, pipeline.first_less, pipeline.last_less);
  if (pipeline.stages_per_rank > 2)  // else as by default
    text += fmt::format("pipeline_parallel_layers_per_stage = {}\n", layers_of_stage(job));
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
  const std::optional<Flavor> flavor = flavor_of(plan.model);
  const std::string model = flavor
                                ? fmt::format("[model]\nname = \"{}\"\nflavor = \"{}\"\n", flavor->model, flavor->name)
                                : "# model: none of TorchTitan's flavors; name yours\n";
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
      model, plan.batch.micro_batch * microbatches_of(plan),
      plan.batch.micro_batch * plan.batch.accumulation * plan.mesh.data_parallel(), plan.batch.sequence,
      number(o.clip_norm.value_or(1e9)), torch_name(plan.master_dtype), torch_name(plan.param_dtype),
      torch_name(plan.reduce_dtype), plan.offload == Offload::kCpu, plan.seed, plan.mesh.replicate, plan.mesh.shard,
      reshard, plan.mesh.tp, !plan.tensor_parallel.loss, pipeline_lines(job), plan.mesh.cp, plan.mesh.ep, plan.mesh.etp,
      recompute_lines(plan), plan.compile == Compile::kBlocks);
  if (plan.compile == Compile::kBlocks)
    text += fmt::format("components = [\"model\"{}]\n", plan.loss.kind == Loss::Kind::kCompiled ? ", \"loss\"" : "");
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
      number(o.learning_rate), number(o.beta1), number(o.beta2), number(o.epsilon), number(o.weight_decay),
      implementation_of(o), o.warmup_steps);
  if (plan.float8 != Float8::kNone && plan.float8 < Float8::kDelayed) {
    text += fmt::format("\n[float8]\nrecipe_name = \"{}\"\n", recipe_of(plan));
    if (plan.float8_all_gather) {
      text +=
          "enable_fsdp_float8_all_gather = true\n"
          "precompute_float8_dynamic_scale_for_fsdp = true\n";
    }
  }
  return text;
}

// --- the registry ---

Json parallelism_json(const ExportJob& job, const char* reshard) {
  const Plan& plan = job.plan;
  Json json = {{"data_parallel_replicate_degree", plan.mesh.replicate}, {"data_parallel_shard_degree", plan.mesh.shard},
      {"fsdp_reshard_after_forward", reshard}, {"tensor_parallel_degree", plan.mesh.tp},
      {"enable_sequence_parallel", plan.tensor_parallel.sequence}, {"pipeline_parallel_degree", plan.mesh.pp},
      {"context_parallel_degree", plan.mesh.cp}, {"expert_parallel_degree", plan.mesh.ep}};
  if (plan.mesh.pp == 1) return json;
  const PipelineParallel& pipeline = plan.pipeline;
  json["pipeline_parallel_schedule"] = to_string(pipeline.schedule);
  json["num_pp_microbatches"] = microbatches_of(plan);
  json["pipeline_parallel_microbatch_size"] = plan.batch.micro_batch;
  json["pipeline_parallel_first_stage_less_layers"] = pipeline.first_less;
  json["pipeline_parallel_last_stage_less_layers"] = pipeline.last_less;
  if (pipeline.stages_per_rank > 2) json["pipeline_parallel_layers_per_stage"] = layers_of_stage(job);
  return json;
}

// Keys and shapes of the JSON that torchtitan saves (debug.save_config_file).
Json settings_json(const ExportJob& job, const char* reshard) {
  const Plan& plan = job.plan;
  const Optimizer& o = plan.optimizer;
  const Json recompute = find_plan_key("recompute")->write(plan);
  Json policy = {{"preserve_rng_state", true}, {"determinism_check", "default"}};
  if (recompute == "selective") policy["force_recompute_mm_shapes_by_fqns"] = Json::array();
  if (recompute == "none") policy = nullptr;
  std::vector<std::string> compiled = {"model"};
  if (plan.loss.kind == Loss::Kind::kCompiled) compiled.emplace_back("loss");
  const std::int64_t tokens = plan.batch.micro_batch * plan.batch.sequence;
  Json json = {
      {"training",
          {{"local_batch_size", plan.batch.micro_batch * microbatches_of(plan)},
              {"global_batch_size", plan.batch.micro_batch * plan.batch.accumulation * plan.mesh.data_parallel()},
              {"seq_len", plan.batch.sequence}, {"num_tokens_per_microbatch_per_dp_rank", tokens},
              {"num_tokens_per_train_step", tokens * plan.batch.accumulation * plan.mesh.data_parallel()},
              {"max_context_length", plan.batch.sequence}, {"max_norm", o.clip_norm.value_or(1e9)},
              {"dtype", torch_name(plan.master_dtype)}, {"mixed_precision_param", torch_name(plan.param_dtype)},
              {"mixed_precision_reduce", torch_name(plan.reduce_dtype)},
              {"enable_cpu_offload", plan.offload == Offload::kCpu}, {"disable_cuda_graphs", true}}},
      {"parallelism", parallelism_json(job, reshard)}, {"activation_checkpoint", policy},
      {"compile", {{"enable", plan.compile == Compile::kBlocks},
                      {"enable_async_tensor_parallel", plan.tensor_parallel.async}, {"components", compiled}}},
      {"optimizer",
          {{"implementation", implementation_of(o)},
              {"param_groups", {{{"pattern", ".*"}, {"optimizer_name", "AdamW"},
                                   {"optimizer_kwargs", {{"lr", o.learning_rate}, {"betas", {o.beta1, o.beta2}},
                                                            {"eps", o.epsilon}, {"weight_decay", o.weight_decay}}}}}}}},
      {"lr_scheduler", {{"warmup_steps", o.warmup_steps}}}, {"debug", {{"seed", plan.seed}}}};
  json["attn_backend"] = plan.attention == AttentionKernel::kFlex ? "flex" : "varlen";
  if (const std::optional<Flavor> flavor = flavor_of(plan.model))
    json["model_spec"] = {{"name", flavor->model}, {"flavor", flavor->name}};
  if (plan.loss.kind == Loss::Kind::kFusedLinear) json["loss"] = {{"num_chunks", 8}};
  if (plan.loss.kind == Loss::Kind::kChunkedHead) json["loss"] = {{"num_chunks", plan.loss.chunks}};
  if (plan.float8 == Float8::kRowwise || plan.float8 == Float8::kRowwiseGwHp)
    json["float8"] = {{"recipe_name", recipe_of(plan)}};
  return json;
}

constexpr const char* kSettings = "SETTINGS = json.loads(r\"\"\"";

std::string module_of(const ExportJob& job, const char* reshard) {
  const std::optional<Flavor> flavor = flavor_of(job.plan.model);
  return fmt::format(
      R"PY("""A plan of Foreshard for torchtitan since August 2026 (torchtitan/config/README.md); add the data:

    torchrun --nproc-per-node 8 -m torchtitan.train --module {{this file's name}} --config plan
"""
import json

from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.components.quantization import Float8LinearConverter
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.{} import model_registry
from torchtitan.trainer import Trainer

{}{}
""")


def plan():
    converters = []
    if "float8" in SETTINGS:
        compiled = SETTINGS["compile"]["enable"]
        converters.append(Float8LinearConverter.Config(model_compile_enabled=compiled, **SETTINGS["float8"]))
    spec = model_registry("{}", attn_backend=SETTINGS["attn_backend"], converters=converters)
    loss = CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec))
    if "loss" in SETTINGS:
        loss = ChunkedLossWrapper.Config(loss_fn=loss, **SETTINGS["loss"])
    policy = SETTINGS["activation_checkpoint"]
    kind = SelectiveAC if policy and "force_recompute_mm_shapes_by_fqns" in policy else FullAC
    config = Trainer.Config(
        model_spec=spec,
        loss=loss,
        activation_checkpoint=kind.Config(**policy) if policy else None,
        optimizer=OptimizersContainer.Config(
            implementation=SETTINGS["optimizer"]["implementation"],
            param_groups=[ParamGroupConfig(**group) for group in SETTINGS["optimizer"]["param_groups"]]))
    for section in ("training", "parallelism", "compile", "lr_scheduler", "debug"):
        for key, value in SETTINGS[section].items():
            if hasattr(getattr(config, section), key):  # 0.3 counts sequences, later ones tokens
                setattr(getattr(config, section), key, value)
    return config
)PY",
      flavor ? flavor->model : "YOURS", kSettings, settings_json(job, reshard).dump(1),
      flavor ? flavor->name : "YOURS");
}

std::string settings_in(const std::string& module) {
  const std::size_t begin = module.find(kSettings) + std::string_view(kSettings).size();
  return module.substr(begin, module.find("\"\"\")", begin) - begin);
}

}

Exported export_torchtitan_registry(const ExportJob& job) {
  FORESHARD_CHECK(job.plan.runtime.kind == RuntimeKind::kFsdp2, "a plan of FSDP2");
  std::vector<std::string> texts;
  for (const char* reshard : {"default", "always", "never"}) texts.push_back(module_of(job, reshard));
  return exported_as(job, texts,
      [](const std::string& text) { return read_torchtitan(parse_json(settings_in(text), "torchtitan.json")); });
}

Exported export_torchtitan(const ExportJob& job) {
  FORESHARD_CHECK(job.plan.runtime.kind == RuntimeKind::kFsdp2, "a plan of FSDP2");
  std::vector<std::string> texts;
  for (const char* reshard : {"default", "always", "never"}) texts.push_back(text_of(job, reshard));
  const auto read = [](const std::string& text) { return read_torchtitan(parse_toml(text, "torchtitan.toml")); };
  return exported_as(job, texts, read);
}

}
