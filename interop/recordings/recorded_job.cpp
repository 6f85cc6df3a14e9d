// Setting by setting, in the order in which record_fsdp2.py uses them. `reshard_after_forward` is given per unit in
// forward order: the root first where it holds parameters, the head last. A root that was not told (None) stays
// unnamed, which leaves PyTorch's own choice; an integer that equals the shard size is True and 1 is False
// (torch/distributed/fsdp/_fully_shard/_fsdp_init.py, _get_post_forward_mesh_info).
#include "interop/recordings/recorded_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "interop/recordings/library_recordings.h"
#include "interop/recordings/recorded_settings.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"
#include "sim/graph/training_step.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {
namespace {

using Settings = const SettingsReader&;

RecordedSettings model_settings(Settings s) {
  RecordedSettings m = s.model();
  m.model = s.text("model");
  m.batch = s.number("batch");
  m.experts = s.number("experts");
  m.top_k = s.number("top_k");
  m.repeat = s.number("repeat");
  m.tied = s.text("tied") == "root" || s.flag("tied");
  return m;
}

Units units_of(Settings s) {
  Units units;
  const std::string grouping = s.text("grouping");
  units.layers_per_unit = s.number("layers_per_unit");
  // One unit is all there is with grouping "root".
  units.experts = s.flag("expert_units") && grouping != "root" ? UnitPlacement::kOwn : UnitPlacement::kRoot;
  units.experts_every = units.layers_per_unit;  // the recorder takes the first of each group
  units.shard_dim = s.flag("shard_dim1") ? 1 : 0;
  if (grouping == "titan") {
    const std::string tied = s.text("tied");
    units.embedding = tied == "True" ? UnitPlacement::kWithHead : UnitPlacement::kOwn;
    units.head = tied == "root" ? UnitPlacement::kRoot : UnitPlacement::kWithNorm;
    return units;
  }
  if (grouping != "blocks" && grouping != "root") s.unknown("grouping");
  units.embedding = units.head = UnitPlacement::kRoot;
  if (grouping == "root") units.blocks = UnitPlacement::kRoot;
  return units;
}

// None where the setting is None.
std::optional<Reshard> reshard_of(Settings s, const char* name, std::int64_t shards) {
  const std::string word = s.text(name);
  if (word.empty()) return std::nullopt;
  if (word == "True") return Reshard{Reshard::Kind::kAlways, 0};
  if (word == "False") return Reshard{Reshard::Kind::kNever, 0};
  const std::int64_t group = s.number(name);
  if (group == 1) return Reshard{Reshard::Kind::kNever, 0};
  if (group == shards) return Reshard{Reshard::Kind::kAlways, 0};
  return Reshard{Reshard::Kind::kGroup, group};
}

// Whether the root unit, number 0, holds parameters. GPT-2's table of positions is in no other unit.
bool has_root(const RecordedSettings& model, const Plan& plan) {
  return plan.units.embedding == UnitPlacement::kRoot || plan.units.head == UnitPlacement::kRoot ||
         model.model == "gpt2";
}

void apply_reshard(Settings s, const RecordedJob& job, Plan& plan) {
  const Reshard always;
  auto& policy = plan.reshard_after_forward;
  policy.value = reshard_of(s, "reshard", plan.mesh.shard).value_or(always);
  if (plan.units.head == UnitPlacement::kWithNorm && plan.units.embedding != UnitPlacement::kWithHead) {
    const std::int64_t head = unit_count(plan, job.model) - 1;
    const Reshard value = reshard_of(s, "reshard_head", plan.mesh.shard).value_or(always);
    if (value != policy.value) policy.ranges.push_back({head, head, value});
  }
  const auto root = reshard_of(s, "reshard_root", plan.mesh.shard);
  if (root && has_root(job.settings, plan)) policy.ranges.push_back({0, 0, *root});
}

void apply_accumulation(Settings s, Plan& plan) {
  const std::string mode = s.text("accumulate_mode");
  AccumulationDetails& details = plan.accumulation_details;
  if (mode.starts_with("no_sync")) plan.accumulation = AccumulationMode::kKeepUnsharded;
  if (mode == "reduce" || mode == "no_sync") return;
  if (mode == "no_sync_no_reshard") details.reshard_after_backward = When::kLast;
  else if (mode == "no_sync_not_last_backward" || mode == "not_last_backward") details.is_last_backward = When::kLast;
  else if (mode == "no_all_reduce") details.all_reduce = When::kLast;
  else s.unknown("accumulate_mode");
}

// Blocks are numbered in the order in which they run; those that run again are called by their own number.
template <typename T, typename Chosen>
void apply_to_blocks(const RecordedSettings& model, RangedPolicy<T>& policy, T value, Chosen chosen) {
  for (std::int64_t i = 0; i < model.layers * model.repeat; ++i) {
    if (!chosen(i % model.layers)) continue;
    if (!policy.ranges.empty() && policy.ranges.back().last == i - 1) policy.ranges.back().last = i;
    else policy.ranges.push_back({i, i, value});
  }
}

void apply_recompute(Settings s, const RecordedSettings& model, Plan& plan) {
  const std::string word = s.text("recompute");
  if (word == "full") plan.recompute.value = Recompute::kFull;
  else if (word == "selective") plan.recompute.value = Recompute::kSelective;
  else if (word == "every2")
    apply_to_blocks(model, plan.recompute, Recompute::kFull, [](std::int64_t block) { return block % 2 == 0; });
  else if (word != "none") s.unknown("recompute");
  if (s.flag("recompute_outside")) plan.recompute_wraps = CheckpointWraps::kUnit;
}

void apply_frozen(Settings s, const RecordedSettings& model, Plan& plan) {
  const std::string word = s.text("frozen");
  if (word == "first_half") {
    plan.frozen.embedding = true;
    apply_to_blocks(model, plan.frozen.blocks, true, [&](std::int64_t block) { return block < model.layers / 2; });
  } else if (word == "alternate") {
    apply_to_blocks(
        model, plan.frozen.blocks, true, [](std::int64_t block) { return block % 2 == 1; });
  } else if (word == "embedding") {
    plan.frozen.embedding = true;
  } else if (word != "none") {
    s.unknown("frozen");
  }
}

void apply_optimizer(Settings s, Plan& plan) {
  const std::string word = s.text("optimizer");
  plan.optimizer.state = plan.master_dtype;  // zeros_like(parameter)
  plan.optimizer.clip_norm = s.flag("clip") ? std::optional<double>(1.0) : std::nullopt;
  if (word == "adamw_fused") plan.optimizer.implementation = Optimizer::Implementation::kFused;
  else if (word == "sgd") plan.optimizer.kind = Optimizer::Kind::kSgd;
  else if (word != "adamw_foreach") s.unknown("optimizer");
}

void apply_dtypes(Settings s, Plan& plan) {
  const auto stored = s.dtype("orig_dtype");
  if (!stored) s.fail("orig_dtype", "is empty", "for example fp32");
  plan.master_dtype = *stored;
  plan.param_dtype = s.dtype("param_dtype").value_or(*stored);
  // Without one, gradients are reduced as they come; from 2.15 in the stored dtype
  // (_fsdp_param.py, init_dtype_attrs).
  const std::string version = s.text_or("torch", "");
  const bool as_stored = parse_version(version).value_or(std::pair(0, 0)) >= std::pair(2, 15);
  plan.reduce_dtype = s.dtype("reduce_dtype").value_or(as_stored ? *stored : plan.param_dtype);
  plan.output_dtype = s.dtype("output_dtype");
}

}

Cluster recorded_cluster(const Plan& plan) {
  Cluster cluster = {.spec = "recorded", .gpus = plan.mesh.world()};
  cluster.node.gpus = 1;
  return cluster;
}

RecordedJob read_recorded_job(const RecordingFolder& folder, std::size_t row) {
  const SettingsReader s = SettingsReader::of_fsdp2(folder, row);
  RecordedJob job = {.settings = model_settings(s)};
  job.model = build_recorded_model(job.settings);
  if (job.settings.model != "gpt2")
    job.constant_bytes = rotary_table_bytes(job.settings.seq, job.settings.dim / job.settings.heads);

  Plan& plan = job.plan;
  plan.model = job.model.name;
  // record_fsdp2.py, which writes no version, was run with 2.11.
  const auto [major, minor] = parse_version(s.text_or("torch", "")).value_or(std::pair(0, 0));
  plan.runtime.version = major > 0 ? fmt::format("{}.{}", major, minor) : "2.11";
  plan.batch = {job.settings.seq, job.settings.batch, s.number("accumulate")};
  plan.mesh = s.mesh("mesh");
  plan.named_rank = s.number("rank");
  plan.units = units_of(s);
  apply_dtypes(s, plan);
  apply_reshard(s, job, plan);
  if (const std::int64_t ahead = s.number("forward_prefetch"); ahead > 0) plan.prefetch.forward = ahead;
  if (const std::int64_t ahead = s.number("backward_prefetch"); ahead > 0) {
    plan.prefetch.backward = ahead;
    plan.prefetch.backward_lists = true;
  }
  plan.prefetch.async_unshard = s.flag("async_unshard");
  apply_accumulation(s, plan);
  apply_recompute(s, job.settings, plan);
  apply_frozen(s, job.settings, plan);
  apply_optimizer(s, plan);
  plan.offload = s.flag("offload") ? Offload::kCpu : Offload::kNone;
  plan.ignored = s.flag("ignore_norms") ? Ignored::kNorms : Ignored::kNone;
  if (!s.flag("embed_unshard_in_backward")) {
    // The embedding is a unit of its own, after the root.
    if (plan.units.embedding == UnitPlacement::kRoot) s.unknown("embed_unshard_in_backward");
    const std::int64_t embedding = has_root(job.settings, plan) ? 1 : 0;
    plan.unshard_in_backward.ranges.push_back({embedding, embedding, false});
  }
  if (!s.text("divide_factor").empty()) plan.gradient_divide_factor = s.real("divide_factor");
  plan.force_sum_reduction = s.flag("force_sum");
  plan.evaluation.in_step = s.flag("eval_forward");
  plan.reduce_scatter_buffers = s.number("reduce_scatter_buffers");
  if (s.flag("separate_reduce_scatter_group")) plan.communicators = Communicators::kSeparate;
  return job;
}

std::string recorded_unit_name(const std::string& unit, const RecordedSettings& settings) {
  const bool gpt2 = settings.model == "gpt2";
  std::string result;
  for (std::size_t begin = 0; begin <= unit.size();) {
    const std::size_t end = std::min(unit.find('+', begin), unit.size());
    std::string module = unit.substr(begin, end - begin);
    begin = end + 1;
    if (module == "embedding") module = gpt2 ? "wte" : "tok_embeddings";
    if (module == "norm") module = gpt2 ? "ln_f" : "norm";
    if (module == "head") module = gpt2 ? "lm_head" : "output";
    if (const std::size_t mlp = module.find(".mlp.experts"); mlp != std::string::npos) module.replace(mlp, 4, ".moe");
    // "layers.4-7"
    const std::size_t dot = module.rfind('.');
    const std::size_t dash = module.find('-', dot == std::string::npos ? 0 : dot);
    if (dot != std::string::npos && dash != std::string::npos) {
      const std::int64_t first = std::stoll(module.substr(dot + 1, dash - dot - 1));
      const std::int64_t last = std::stoll(module.substr(dash + 1));
      const std::string prefix = module.substr(0, dot + 1);
      module.clear();
      for (std::int64_t i = first; i <= last; ++i) module += fmt::format("{}{}{}", i == first ? "" : "+", prefix, i);
    }
    result += (result.empty() ? "" : "+") + module;
  }
  return result;
}

ForecastSteps forecast_steps(const RecordedJob& job) {
  check(job.plan, job.model, recorded_cluster(job.plan));
  const LayerPrograms programs(job.model, job.plan);
  ForecastSteps steps = {.first = record_training_step(job.model, job.plan, programs, StepNumber::kFirst),
      .steady = record_training_step(job.model, job.plan, programs, StepNumber::kSteady)};
  for (const Unit& unit : steps.steady.graph.units)
    steps.unit_names.push_back(recorded_unit_name(unit.name, job.settings));
  steps.constant_bytes = job.constant_bytes;
  return steps;
}

namespace {

// What stands in the way of one configuration must not lose the others. A cell that is wrong is
// another matter: then the recording cannot be trusted.
Conformance conform_row(RecordingLibrary& library, const RecordingFolder& folder, std::size_t row) {
  Conformance result = {.id = folder.id(row), .version = folder.setting(row, "torch").value_or("")};
  if (const auto reason = folder.refusal(row)) {
    result.state = Conformance::State::kNotRecorded;
    result.counted = false;
    result.reason = *reason;
    return result;
  }
  const Recording recording = library.read(folder, row);
  const auto not_forecast = [&](const Error& error) {
    result.state = Conformance::State::kNotForecast;
    result.counted = !recording.events.empty();
    result.reason = error.what();
    result.peak_measured_bytes = recording.steps[1].total;
    return result;
  };
  RecordedJob job;
  try {
    job = has_axes(folder) ? read_axes_job(folder, row) : read_recorded_job(folder, row);
  } catch (const Error& error) {
    if (error.exit_code() == ExitCode::kInvalidInput) throw;
    return not_forecast(error);
  }
  try {
    return conform(recording, forecast_steps(job));
  } catch (const Error& error) {
    return not_forecast(error);
  }
}

}

ConformanceFolder conform_folder(
    RecordingLibrary& library, const RecordingFolder& folder, const std::vector<std::string>& only) {
  if (has_library_recordings(folder)) return conform_library_folder(folder, only);
  const auto wanted = [&](const std::string& id) { return only.empty() || contains(only, id); };
  ConformanceFolder result = {.path = folder.path().string()};
  for (std::size_t row = 0; row < folder.size(); ++row)
    if (wanted(folder.id(row))) result.rows.push_back(conform_row(library, folder, row));
  for (const SkippedRecording& skipped : folder.skipped()) {
    if (!wanted(skipped.id)) continue;
    result.rows.push_back(
        {.state = Conformance::State::kNotRecorded, .id = skipped.id, .reason = skipped.reason, .counted = false});
  }
  return result;
}

}
