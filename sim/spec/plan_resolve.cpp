// Defaults that follow from something (the cluster's GPUs, the model's positions, another key) note
// why; the list of assumed values is then every key of the table that nobody wrote.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "sim/base/lookup.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/fsdp2_version.h"
#include "sim/spec/gpu_generation.h"
#include "sim/spec/plan_config.h"
#include "sim/spec/plan_keys.h"
#include "sim/spec/preset.h"
#include "sim/spec/size_units.h"

namespace foreshard {
namespace {

constexpr std::int64_t kDefaultSequence = 8192;

Location location_of(const GivenKeys& given, std::string_view key) {
  const auto found = given.find(key);
  return found == given.end() ? Location{"", 0, 0, std::string(key)} : found->second.location;
}

using Reasons = std::map<std::string_view, std::string>;

// CPU ranks compute in fp32, and their engine sums in micro-batch order. The engine has no fp16.
void resolve_dtypes(const PlanDocument& document, const Cluster& cluster, Plan& plan, Reasons& reasons) {
  const bool is_native = plan.runtime.kind == RuntimeKind::kNative;
  if (generation_of(cluster.gpu).is_before_ampere() && !is_native && !document.has("dtype.param")) {
    plan.param_dtype = DType::kFp16;
    reasons["dtype.param"] = fmt::format("{} has no bf16", cluster.gpu.name);
  }
  if (!cluster.host_computes) return;
  if (!document.has("dtype.param")) {
    plan.param_dtype = DType::kFp32;
    reasons["dtype.param"] = "CPU ranks";
  }
  if (is_native && !document.has("reduction_order")) {
    plan.reduction_order = ReductionOrder::kMicrobatch;
    reasons["reduction_order"] = "the engine on CPU ranks";
  }
}

void resolve_mesh(const PlanDocument& document, const Cluster& cluster, Plan& plan, Reasons& reasons) {
  const std::int64_t others = checked_multiply(checked_multiply(plan.mesh.cp, plan.mesh.tp), plan.mesh.pp);
  if (plan.mesh.pp > 1 && cluster.gpus % others != 0) {
    const std::int64_t left = cluster.gpus / std::gcd(cluster.gpus, plan.mesh.cp * plan.mesh.tp);
    throw ConfigError(location_of(document.given, "mesh.pp"),
        fmt::format("cp {} x tp {} x pp {} does not divide the {} GPUs of the cluster", plan.mesh.cp, plan.mesh.tp,
            plan.mesh.pp, cluster.gpus),
        fmt::format("a divisor of {}, for example {}", left, fmt::join(nearest_divisors(left, plan.mesh.pp), " or ")));
  }
  if (cluster.gpus % others != 0) {
    // Tensor parallel divides what context parallel leaves.
    const bool cp_divides = cluster.gpus % plan.mesh.cp == 0;
    const std::int64_t left = cp_divides ? cluster.gpus / plan.mesh.cp : cluster.gpus;
    throw ConfigError(location_of(document.given, cp_divides ? "mesh.tp" : "mesh.cp"),
        fmt::format(
            "cp {} x tp {} does not divide the {} GPUs of the cluster", plan.mesh.cp, plan.mesh.tp, cluster.gpus),
        fmt::format("a divisor of {}, for example {}", left,
            fmt::join(nearest_divisors(left, cp_divides ? plan.mesh.tp : plan.mesh.cp), " or ")));
  }
  const std::int64_t gpus = cluster.gpus / others;
  const std::string left = others == 1 ? ""
                                       : fmt::format(" that cp {} x tp {}{} leave", plan.mesh.cp, plan.mesh.tp,
                                             plan.mesh.pp > 1 ? fmt::format(" x pp {}", plan.mesh.pp) : "");
  const bool has_shard = document.has("mesh.shard");
  const bool has_replicate = document.has("mesh.replicate");
  if (has_shard && has_replicate) return;
  if (!has_shard && !has_replicate && plan.runtime.kind == RuntimeKind::kDdp) {
    plan.mesh.shard = 1;
    plan.mesh.replicate = gpus;
    reasons["mesh.replicate"] = fmt::format("all {} GPUs of the cluster{}", gpus, left);
    reasons["mesh.shard"] = "ddp shards nothing";
    return;
  }
  if (!has_shard && !has_replicate) {
    plan.mesh.shard = gpus;
    plan.mesh.replicate = 1;
    reasons["mesh.shard"] = fmt::format("all {} GPUs of the cluster{}", gpus, left);
    reasons["mesh.replicate"] = reasons["mesh.shard"] + " shard";
    return;
  }
  const char* key = has_shard ? "mesh.shard" : "mesh.replicate";
  const std::int64_t given = has_shard ? plan.mesh.shard : plan.mesh.replicate;
  if (gpus % given != 0) {
    throw ConfigError(location_of(document.given, key),
        fmt::format("{} does not divide the {} GPUs of the cluster{}", given, gpus, left),
        fmt::format("a divisor of {}, for example {}", gpus, fmt::join(nearest_divisors(gpus, given), " or ")));
  }
  (has_shard ? plan.mesh.replicate : plan.mesh.shard) = gpus / given;
  reasons[has_shard ? "mesh.replicate" : "mesh.shard"] = fmt::format("{} GPUs / {} {}", gpus, key, given);
}

void resolve_batch(const PlanDocument& document, const ModelSpec& model, Plan& plan, Reasons& reasons) {
  if (model.image_tokens > 0 && !document.has("batch.images")) {
    plan.batch.images = 1;
    reasons["batch.images"] = fmt::format("one image of {} positions", model.image_tokens);
  }
  if (!document.has("batch.sequence") && model.fixed_sequence > 0) {
    plan.batch.sequence = model.fixed_sequence;
    reasons["batch.sequence"] = fmt::format("the {} positions of an image", model.fixed_sequence);
  } else if (!document.has("batch.sequence")) {
    const bool is_short = model.max_positions > 0 && model.max_positions < kDefaultSequence;
    plan.batch.sequence = is_short ? model.max_positions : kDefaultSequence;
    reasons["batch.sequence"] =
        fmt::format("min({} positions of the model, {})", model.max_positions, kDefaultSequence);
  }
  if (!document.global_batch) {
    if (plan.mesh.pp == 1 || document.has("batch.accumulation")) return;
    const bool has_two = plan.pipeline.schedule == PipelineSchedule::kDualPipeV;
    plan.batch.accumulation = checked_multiply(plan.mesh.pp, has_two ? 2 : 1);
    reasons["batch.accumulation"] = "as many as fill the stages of mesh.pp";
    return;
  }
  const std::int64_t global = *document.global_batch;
  const std::int64_t world = checked_multiply(plan.mesh.shard, plan.mesh.replicate);
  const std::int64_t round = checked_multiply(world, plan.batch.micro_batch);
  const Location location = location_of(document.given, "batch.global");
  const std::string rounds = fmt::format("{} ranks x micro_batch {} = {}", world, plan.batch.micro_batch, round);
  if (global % round != 0) {
    const std::int64_t below = global / round * round;
    const std::string nearest = below == 0 ? std::to_string(round) : fmt::format("{} or {}", below, below + round);
    throw ConfigError(location, fmt::format("{} is no multiple of {}", global, rounds), nearest);
  }
  const std::int64_t accumulation = global / round;
  if (accumulation > plan_limits::kAccumulation) {
    throw ConfigError(location, fmt::format("{} needs {} micro-batches of {}", global, accumulation, rounds),
        fmt::format("at most {} micro-batches", plan_limits::kAccumulation));
  }
  if (document.has("batch.accumulation") && plan.batch.accumulation != accumulation) {
    throw ConfigError(location,
        fmt::format("{} contradicts batch.accumulation {}: {}", global, plan.batch.accumulation, rounds),
        fmt::format("{} or batch.accumulation {}", round * plan.batch.accumulation, accumulation));
  }
  plan.batch.accumulation = accumulation;
  reasons["batch.accumulation"] = fmt::format("batch.global {} / ({})", global, rounds);
}

// Experts that ranks share are a unit of their own mesh, and torchtitan lists what to prefetch
// (llama4/infra/parallelize.py).
void resolve_experts(const PlanDocument& document, Plan& plan, Reasons& reasons) {
  if (plan.mesh.ep == 1 || plan.runtime.kind == RuntimeKind::kMegatron) return;
  const auto set = [&](const char* key, auto& value, auto to) {
    if (document.has(key) || reasons.count(key) > 0) return;
    value = to;
    reasons[key] = "experts are spread over mesh.ep";
  };
  set("units.experts", plan.units.experts, UnitPlacement::kOwn);
  set("units.shard_dim", plan.units.shard_dim, Units::kExpertsDim);
  set("prefetch.forward", plan.prefetch.forward, std::int64_t{1});
  set("prefetch.backward_lists", plan.prefetch.backward_lists, true);
}

void resolve_transposes(const PlanDocument& document, const Cluster& cluster, Plan& plan, Reasons& reasons) {
  constexpr const char* kKey = "megatron.fp8_transposes";
  const bool is_asked = plan.runtime.kind == RuntimeKind::kMegatron && plan.float8 != Float8::kNone;
  if (!is_asked || document.has(kKey) || !generation_of(cluster.gpu).is_blackwell_or_later()) return;
  plan.megatron.fp8_transposes = false;
  reasons[kKey] = "products in fp8 take any layout from Blackwell on";
}

// What torchtitan does with the stages of a pipeline, Megatron-Core's even split and DeepSpeed's by parameters.
void resolve_stages(const PlanDocument& document, Plan& plan, Reasons& reasons) {
  if (plan.mesh.pp == 1) return;
  constexpr std::string_view kReason = "in stages of a pipeline";
  const auto take = [&](const char* key, auto& member, const auto& value) {
    const auto known = reasons.find(key);
    if (document.has(key) || (known != reasons.end() && known->second != kReason)) return;
    member = value;
    reasons[key] = kReason;
  };
  if (is_zero(plan.runtime.kind)) take("pipeline.partition", plan.pipeline.partition, PipelinePartition::kParameters);
  if (plan.runtime.kind != RuntimeKind::kFsdp2) {
    take("pipeline.first_stage_less_layers", plan.pipeline.first_less, 0);
    take("pipeline.last_stage_less_layers", plan.pipeline.last_less, 0);
  } else {
    take("units.head", plan.units.head, UnitPlacement::kWithNorm);
    take("reshard_after_forward", plan.reshard_after_forward, RangedPolicy<Reshard>{{Reshard::Kind::kNever, 0}, {}});
  }
}

void resolve_units(const PlanDocument& document, const ModelSpec& model, Plan& plan, Reasons& reasons) {
  if (plan.units.embedding == UnitPlacement::kWithHead) {
    if (document.has("units.head") || reasons.count("units.head") > 0) return;
    plan.units.head = UnitPlacement::kWithNorm;
    reasons["units.head"] = "in the unit of the embedding";
    return;
  }
  if (!model.tied_embeddings && !is_of_modules(model)) return;
  const bool by_trainer = reasons.count("units.embedding") > 0 && reasons.count("units.head") > 0;
  const bool is_sharded = plan.runtime.kind == RuntimeKind::kFsdp2;
  if (by_trainer && (flattens_twice(plan) || (is_sharded && parts_tied(plan.units)))) return;
  const auto tie = [&](const char* key, UnitPlacement& placement) {
    if (document.has(key)) return;
    placement = UnitPlacement::kRoot;
    reasons[key] = model.tied_embeddings ? "embedding and head are one parameter (tied)"
                                         : "what stands beside a program's blocks is no module";
  };
  tie("units.embedding", plan.units.embedding);
  tie("units.head", plan.units.head);
}

// What is wrapped for its size; the rest is the root's.
void resolve_size_units(const ModelSpec& model, Plan& plan, Reasons& reasons) {
  if (plan.units.min_parameters == 0 || plan.runtime.kind != RuntimeKind::kFsdp1) return;
  bool blocks = true, table = false, head = false;
  for (const LayerSpec& layer : model.kinds) {
    const SizeUnits units = units_by_size(layer, plan.units.min_parameters);
    if (layer.role == LayerRole::kBlock) blocks &= units.whole;
    if (layer.role == LayerRole::kEmbedding) table |= !units.modules.empty();
    if (layer.role == LayerRole::kHead) head |= !units.modules.empty();
  }
  const auto place = [&](const char* key, UnitPlacement& placement, bool is_own) {
    placement = is_own ? UnitPlacement::kOwn : UnitPlacement::kRoot;
    reasons[key] = fmt::format("by size: {} parameters", plan.units.min_parameters);
  };
  place("units.blocks", plan.units.blocks, blocks);
  place("units.embedding", plan.units.embedding, table);
  place("units.head", plan.units.head, head);
}

// MixedPrecisionPolicy(reduce_dtype=None): gradients are reduced as they come, from 2.15 on in the stored dtype.
void resolve_reduce_dtype(const PlanDocument& document, Plan& plan, Reasons& reasons) {
  if (!document.reduce_dtype_is_none) return;
  const auto minor = fsdp2_minor(plan.runtime.version);
  const bool as_stored =
      plan.runtime.kind == RuntimeKind::kFsdp2 && minor && fsdp2_version(*minor).reduces_in_stored_dtype;
  plan.reduce_dtype = as_stored ? plan.master_dtype : plan.param_dtype;
  reasons["dtype.reduce"] = as_stored ? "none: in the stored dtype from PyTorch 2.15 on" : "none: as gradients come";
}

// Trainers wrap a model that runs on several ranks (accelerate/accelerator.py, prepare_model).
void resolve_buckets(const PlanDocument& document, Plan& plan, Reasons& reasons) {
  if (plan.runtime.kind != RuntimeKind::kDdp || plan.mesh.world() > 1) return;
  if (document.has("ddp.bucket_cap_mb") || plan.ddp.zero_redundancy_optimizer) return;
  plan.ddp.bucket_cap_mb = 0;
  reasons["ddp.bucket_cap_mb"] = "one rank: the model is not wrapped";
}

// What would cut a captured program on more ranks wraps nothing on one: ddp on one rank.
void resolve_alone(const PlanDocument& document, const ModelSpec& model, Plan& plan, Reasons& reasons) {
  const bool is_alone = is_of_modules(model) && plan.mesh.world() == 1 && plan.runtime.kind == RuntimeKind::kFsdp2 &&
                        !document.has("units.blocks");
  if (!is_alone) return;
  plan.runtime = {RuntimeKind::kDdp, newest_version(RuntimeKind::kDdp)};
  reasons["runtime"] = "one rank: the model is not wrapped";
}

// Around what DistributedDataParallel stores in dtype.master it is ddp.mixed_precision's.
void resolve_autocast(Plan& plan, Reasons& reasons) {
  if (plan.runtime.kind != RuntimeKind::kDdp || !plan.autocast) return;
  plan.param_dtype = *std::exchange(plan.autocast, std::nullopt);
  reasons["dtype.param"] = "dtype.autocast, over parameters in dtype.master";
}

// torch.optim.AdamW makes its states like the parameters (zeros_like). DeepSpeed's and the engine's are fp32.
void resolve_states(const PlanDocument& document, Plan& plan, Reasons& reasons) {
  const RuntimeKind kind = plan.runtime.kind;
  const bool is_torch = kind == RuntimeKind::kFsdp2 || kind == RuntimeKind::kFsdp1 || kind == RuntimeKind::kDdp;
  if (!is_torch || document.has("optimizer.state")) return;
  plan.optimizer.state = plan.master_dtype;
  if (plan.master_dtype != DType::kFp32) reasons["optimizer.state"] = "made like the parameters";
}

void resolve_trainer(const PlanDocument& document, const ModelSpec& model, Plan& plan, Reasons& reasons) {
  const Preset* trainer = find_preset(PresetKind::kTrainer, document.trainer);
  if (trainer == nullptr) return;
  const std::vector<RuntimeKind>& runtimes = trainer->runtimes;
  if (!contains(runtimes, plan.runtime.kind)) {
    const ConfigError error(
        document.given.at("trainer").location, fmt::format("{0} trains with {1}; nearest plan: runtime: {1}, or "
                                                           "trainer: none",
                                                   trainer->name, to_string(runtimes.front())));
    throw Error(ExitCode::kMissingCapability, error.what());
  }
  PlanDocument filled = document;
  filled.plan = plan;
  filled = with_preset(*trainer, std::move(filled), model);
  plan = std::move(filled.plan);
  for (const auto& [key, given] : filled.given) {
    if (document.has(key)) continue;
    reasons[find_plan_key(key)->path] = fmt::format("{}'s default", trainer->name);
  }
}

}

ResolvedPlan resolve(const PlanDocument& written, const ModelSpec& model, const Cluster& cluster) {
  FORESHARD_CHECK(cluster.gpus > 0, "a cluster without GPUs");
  const Preset* stack = find_stack(written.stack);
  const PlanDocument document = stack ? with_preset(*stack, written, model) : written;
  ResolvedPlan resolved{document.plan, {}, document.given};
  Plan& plan = resolved.plan;
  if (written.has("stack")) plan.stack = written.stack;
  Reasons reasons;
  const bool is_version_assumed =
      plan.runtime.kind == RuntimeKind::kFsdp2 && (plan.runtime.version.empty() || !document.has("runtime"));
  if (is_version_assumed) reasons["runtime"] = "the newest version that is modelled";
  if (plan.runtime.version.empty()) plan.runtime.version = newest_version(plan.runtime.kind);
  if (document.recompute_every) plan.recompute = recompute_every(*document.recompute_every, model.block_count());
  if (!document.has("batch.accumulation")) plan.batch.accumulation = 1;
  plan.host = cluster.host_computes ? HostKind::kComputes : HostKind::kFeedsDevice;
  plan.compute_capability = cluster.host_computes ? 0 : generation_of(cluster.gpu).compute_capability;
  resolve_dtypes(document, cluster, plan, reasons);
  resolve_mesh(document, cluster, plan, reasons);
  resolve_alone(document, model, plan, reasons);
  resolve_autocast(plan, reasons);
  resolve_batch(document, model, plan, reasons);
  resolve_buckets(document, plan, reasons);
  resolve_reduce_dtype(document, plan, reasons);
  resolve_states(document, plan, reasons);
  resolve_experts(document, plan, reasons);
  resolve_transposes(document, cluster, plan, reasons);  // units of their own, which a trainer's words count
  const Plan untrained = plan;
  resolve_trainer(document, model, plan, reasons);
  const Units asked = plan.units;
  resolve_stages(document, plan, reasons);
  resolve_units(document, model, plan, reasons);
  resolve_size_units(model, plan, reasons);
  if (plan.units != asked) {
    // What the trainer says by a unit's number ("the last one") is of the units that there are.
    PlanDocument others = document;
    for (const char* key : {"units.embedding", "units.head", "units.blocks"}) others.given.emplace(key, GivenKey{});
    Plan again = untrained;
    again.units = plan.units;
    resolve_trainer(others, model, again, reasons);
    resolve_stages(document, again, reasons);
    plan = std::move(again);
  }
  // communication_data_type: the compute dtype unless told otherwise.
  if (is_zero(plan.runtime.kind) && !document.has("dtype.reduce")) {
    const bool shares_sequences = plan.mesh.cp > 1;
    plan.reduce_dtype = shares_sequences ? DType::kFp32 : plan.param_dtype;
    reasons["dtype.reduce"] = shares_sequences ? "DeepSpeed's seq_parallel_communication_data_type"
                                               : "DeepSpeed's communication_data_type follows the compute dtype";
  }
  if (is_zero(plan.runtime.kind) && !plan.zero.overlap_comm)
    plan.zero.overlap_comm = plan.runtime.kind == RuntimeKind::kZero3;
  for (const PlanKey& key : plan_key_table()) {
    if (!key.belongs_to(plan.runtime.kind)) continue;
    const bool is_partly_given =
        (key.path == "runtime" && is_version_assumed) || (key.path == "dtype.reduce" && document.reduce_dtype_is_none);
    const auto given = document.given.find(key.path);
    const bool is_given = given != document.given.end();
    if (is_given && given->second.layer != PlanLayer::kPreset && !is_partly_given) continue;
    const Json value = key.write(plan);
    if (value.is_null()) continue;
    if (is_given && !is_partly_given) reasons[key.path] = fmt::format("stack {}", document.stack);
    const auto reason = reasons.find(key.path);
    resolved.assumed.push_back(
        {std::string(key.path), yaml_value(value), reason == reasons.end() ? "default" : reason->second});
  }
  return resolved;
}

namespace {

// Options of another library would be ignored silently.
void refuse_foreign_keys(const ResolvedPlan& resolved) {
  const RuntimeKind kind = resolved.plan.runtime.kind;
  for (const PlanKey& key : library_keys()) {
    const auto given = resolved.given.find(key.path);
    if (key.belongs_to(kind) || given == resolved.given.end()) continue;
    throw ConfigError(given->second.location, fmt::format("the runtime {} has no {}", to_string(kind), key.path),
        "no such key, or the runtime that has it");
  }
}

}

void check(const ResolvedPlan& resolved, const ModelSpec& model, const Cluster& cluster) {
  refuse_foreign_keys(resolved);
  const std::optional<PlanProblem> problem = find_problem(resolved.plan, model, cluster);
  if (problem) throw_problem(*problem, location_of(resolved.given, problem->key));
}

}
