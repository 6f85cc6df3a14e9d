// Option by option, in the order in which the recorder's run_ddp, run_fsdp1 and run_zero use them.
// What is left out has the library's default, which Plan's options have too. An option that no plan
// has is an error, so that nothing is compared that was not understood.
//
// Sharding strategies are meshes (sim/spec/runtime_options.h). Without no_sync() every micro-batch reduces; the
// recorder calls it for DDP always and for FSDP1 unless told otherwise; DeepSpeed has rules of its own.
#include "interop/recordings/library_recordings.h"

#include <fmt/format.h>

#include <optional>

#include "interop/recordings/recorded_job.h"
#include "interop/recordings/recorded_settings.h"
#include "models/recorded.h"
#include "sim/base/config.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"
#include "sim/graph/training_step.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/plan_config.h"
#include "sim/spec/plan_keys.h"

namespace foreshard {
namespace {

std::string cell(const RecordingFolder& folder, std::size_t row, std::string_view column) {
  const CsvFile& index = folder.index();
  return std::string(index.text(row, index.at(column)));
}

ConfigNode json_cell(const RecordingFolder& folder, std::size_t row, std::string_view column) {
  const std::string text = cell(folder, row, column);
  return parse_json(text.empty() ? "{}" : text, fmt::format("{} {} {}", folder.index().name(), folder.id(row), column));
}

// What configs.json says of a configuration, else its "defaults".
KeyWords words_of(const ConfigNode& root, const std::string& id) {
  std::vector<ConfigNode> nodes;
  const ConfigNode configs = root.at("configs");
  for (const ConfigNode& config : configs.elements())
    if (config.at("id").as_string() == id) nodes.push_back(config);
  if (const ConfigNode* defaults = root.find("defaults")) nodes.push_back(*defaults);
  return KeyWords(std::move(nodes));
}

LibraryModel model_of(const ConfigNode& node) {
  LibraryModel model;
  const KeyWords said({node});
  const auto number = [&](const char* key, std::int64_t& value) { value = said.number(key, value); };
  node.allow_only({"arch", "L", "d", "h", "kv", "f", "V", "P", "tied", "unused", "buffer"});
  model.arch = node.at("arch").as_string();
  number("L", model.layers);
  number("d", model.dim);
  number("h", model.heads);
  number("kv", model.kv_heads);
  number("f", model.ffn);
  number("V", model.vocab);
  number("P", model.positions);
  number("buffer", model.buffer);
  model.tied = said.flag("tied", false);
  model.unused = said.flag("unused", false);
  return model;
}

[[noreturn]] void unknown(const std::string& option, const ConfigNode& value) {
  throw Error(ExitCode::kMissingCapability, "{}: no plan has the option {}{}", value.location().file, option,
      value.is_scalar() ? " = " + std::string(value.text()) : "");
}

DType dtype_of(const std::string& option, const ConfigNode& value) {
  const std::string word = value.as_string();
  if (word == "float32") return DType::kFp32;
  if (word == "bfloat16") return DType::kBf16;
  if (word == "float16") return DType::kFp16;
  unknown(option, value);
}

// As the key of a plan that has the option's name.
bool read_as_key(std::string_view group, const ConfigItem& option, Plan& plan) {
  const PlanKey* key = find_plan_key(fmt::format("{}.{}", group, option.key));
  if (key == nullptr) return false;
  PlanDocument document = {.plan = plan};
  key->read(*key, option.value, document);
  plan = std::move(document.plan);
  return true;
}

void set_dtypes(Plan& plan, DType dtype) { plan.param_dtype = plan.reduce_dtype = plan.master_dtype = dtype; }

void apply_ddp(const ConfigNode& options, std::int64_t world, Plan& plan) {
  plan.runtime = {RuntimeKind::kDdp, newest_version(RuntimeKind::kDdp)};
  plan.mesh = {1, world};
  set_dtypes(plan, DType::kFp32);
  for (const ConfigItem& item : options.items()) {
    const ConfigNode& value = item.value;
    if (item.key == "model_dtype") set_dtypes(plan, dtype_of(item.key, value));
    else if (item.key == "membership" || (item.key == "bucket_cap_mb" && value.is_null()))
      continue;  // membership: of the recorder alone
    else if (!read_as_key("ddp", item, plan)) unknown(item.key, value);
  }
}

Mesh fsdp1_mesh(const ConfigNode& options, std::int64_t world, Plan& plan) {
  const ConfigNode strategy = options.at("strategy");
  const std::size_t choice =
      strategy.as_choice({"FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", "NO_SHARD"});
  plan.reshard_after_forward.value.kind = choice == 1 || choice == 3 ? Reshard::Kind::kNever : Reshard::Kind::kAlways;
  if (choice == 4) return {1, world};
  const ConfigNode* size = options.find("shard_size");
  if (choice < 2) return {world, 1};
  if (size == nullptr) unknown("strategy without shard_size", strategy);
  const std::int64_t shard = size->as_int(1, world);
  if (world % shard != 0) throw size->error("the ranks do not divide into such groups");
  plan.fsdp1.hybrid_shard = shard == 1 || shard == world;
  return {shard, world / shard};
}

void apply_fsdp1(const ConfigNode& options, std::int64_t world, Plan& plan) {
  plan.runtime = {RuntimeKind::kFsdp1, newest_version(RuntimeKind::kFsdp1)};
  plan.mesh = fsdp1_mesh(options, world, plan);
  set_dtypes(plan, DType::kFp32);
  for (const ConfigItem& item : options.items()) {
    const ConfigNode& value = item.value;
    if (item.key == "strategy" || item.key == "shard_size" || item.key == "wrap") {
      continue;
    } else if (item.key == "backward_prefetch") {
      if (value.is_null()) plan.prefetch.backward = 0;
      else if (value.as_choice({"BACKWARD_PRE", "BACKWARD_POST"}) == 1)
        plan.fsdp1.backward_prefetch = Fsdp1Options::BackwardPrefetch::kPost;
    } else if (item.key == "forward_prefetch") {
      plan.prefetch.forward = value.as_bool() ? 1 : Prefetch::kImplicit;
    } else if (item.key == "cpu_offload") {
      plan.offload = value.as_bool() ? Offload::kCpu : Offload::kNone;
    } else if (item.key == "mp") {
      value.allow_only({"param_dtype", "reduce_dtype", "buffer_dtype", "keep_low_precision_grads",
          "cast_forward_inputs", "cast_root_forward_inputs"});
      if (const ConfigNode* param = value.find("param_dtype"))
        plan.param_dtype = plan.reduce_dtype = dtype_of("mp.param_dtype", *param);
      if (const ConfigNode* reduce = value.find("reduce_dtype"))
        plan.reduce_dtype = dtype_of("mp.reduce_dtype", *reduce);
      if (const ConfigNode* keep = value.find("keep_low_precision_grads"))
        plan.fsdp1.keep_low_precision_grads = keep->as_bool();
    } else if (!read_as_key("fsdp1", item, plan)) {
      unknown(item.key, value);
    }
  }
}

ZeroOffload offload_of(const ConfigNode& value, Plan& plan) {
  if (value.is_null()) return ZeroOffload::kNone;
  if (const ConfigNode* pinned = value.find("pin_memory")) plan.zero.pin_memory = pinned->as_bool();
  constexpr std::array kPlaces = {ZeroOffload::kNone, ZeroOffload::kCpu, ZeroOffload::kNvme};
  return kPlaces[value.at("device").as_choice({"none", "cpu", "nvme"})];
}

// _REMOVED_ZERO_CONFIG_KEYS of deepspeed/runtime/config.py (0.19.8), with what comes nearest.
[[noreturn]] void refuse_removed(const ConfigItem& item) {
  const bool is_mics = item.key.starts_with("mics_");
  throw Error(ExitCode::kMissingCapability, "{}: zero.{}: {} has been removed from DeepSpeed; the nearest is {}",
      item.value.location().file, item.key, is_mics ? "MiCS" : "LoCo-Zero++",
      is_mics ? "zero_hpz_partition_size (ZeRO++ hpZ), whose gathers stay inside small groups"
              : "zero_quantized_gradients without error feedback");
}

void apply_zero_option(const ConfigItem& item, Plan& plan) {
  if (item.key.starts_with("mics_") || item.key == "zeropp_loco_param") refuse_removed(item);
  if (item.key == "offload_optimizer") plan.zero.offload_optimizer = offload_of(item.value, plan);
  else if (item.key == "offload_param") plan.zero.offload_param = offload_of(item.value, plan);
  else if (item.key != "stage" && !read_as_key("zero", item, plan)) unknown("zero." + item.key, item.value);
}

void apply_zero(const ConfigNode& options, std::int64_t world, Plan& plan) {
  const ConfigNode zero = options.at("zero");
  const std::int64_t stage = zero.at("stage").as_int(1, 3);
  constexpr std::array kStages = {RuntimeKind::kZero1, RuntimeKind::kZero2, RuntimeKind::kZero3};
  const RuntimeKind kind = kStages[at(stage - 1)];
  plan.runtime = {kind, newest_version(kind)};
  plan.mesh = {world, 1};
  plan.param_dtype = plan.reduce_dtype = DType::kBf16;
  plan.master_dtype = DType::kFp32;
  std::optional<ConfigNode> communication, accumulation;
  for (const ConfigItem& item : options.items()) {
    const ConfigNode& value = item.value;
    if (item.key == "zero") {
      for (const ConfigItem& option : value.items()) apply_zero_option(option, plan);
    } else if (item.key == "precision") {
      constexpr std::array kPrecisions = {DType::kBf16, DType::kFp16, DType::kFp32};
      plan.param_dtype = plan.reduce_dtype = kPrecisions[value.as_choice({"bf16", "fp16", "fp32"})];
    } else if (item.key == "clip") {
      const double norm = value.as_double(0);
      if (norm > 0) plan.optimizer.clip_norm = norm;
    } else if (item.key == "communication_data_type") {
      communication = value;
    } else if (item.key == "loss_scale") {
      continue;  // no event depends on it
    } else if (item.key == "leaf_blocks") {
      plan.zero.leaf_blocks = value.as_bool();
    } else if (item.key == "data_types") {
      value.allow_only({"grad_accum_dtype"});
      if (const ConfigNode* dtype = value.find("grad_accum_dtype"); dtype && !dtype->is_null()) {
        plan.zero.fp32_gradient_accumulation = dtype->as_string() == "fp32";
        accumulation = *dtype;
      }
    } else {
      unknown(item.key, value);
    }
  }
  const bool is_known =
      !accumulation || plan.zero.fp32_gradient_accumulation || accumulation->as_string() == to_string(plan.param_dtype);
  if (!is_known) unknown("data_types.grad_accum_dtype", *accumulation);
  if (!communication || communication->is_null()) return;
  constexpr std::array kDtypes = {DType::kBf16, DType::kFp16, DType::kFp32};
  plan.reduce_dtype = kDtypes[communication->as_choice({"bf16", "fp16", "fp32"})];
}

// {"a": {"b": 1}, "c": [1, 2]} to a.b, c.0, c.1.
void flatten(const ConfigNode& node, const std::string& path, LibraryRecording& recording) {
  const auto below = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
  if (node.is_mapping()) {
    for (const ConfigItem& item : node.items()) flatten(item.value, below(item.key), recording);
  } else if (node.is_sequence()) {
    std::size_t i = 0;
    for (const ConfigNode& element : node.elements()) flatten(element, below(std::to_string(i++)), recording);
  } else if (node.is_scalar()) {
    const std::string_view text = node.text();
    const auto value = parse_number<std::int64_t>(text);
    if (value && !node.is_quoted()) recording.facts[path] = *value;
    else recording.words[path] = std::string(text);
  }
}

Conformance conform_row(const RecordingFolder& folder, std::size_t row) {
  Conformance result = {.id = folder.id(row)};
  if (cell(folder, row, "status") != "ok") {
    const std::string error = cell(folder, row, "error");
    result.state = Conformance::State::kNotRecorded;
    result.counted = false;
    result.reason = error.empty() ? "status " + cell(folder, row, "status") : error;
    return result;
  }
  const LibraryRecording recording = read_library_recording(folder, row);
  try {
    const LibraryJob job = read_library_job(folder, row);
    check(job.plan, job.model, recorded_cluster(job.plan));
    const LayerPrograms programs(job.model, job.plan);
    LibraryRun run = record_library_run(job.model, job.plan, programs, job.watch);
    // DDP's membership of buckets is recorded on demand.
    const ConfigNode options = json_cell(folder, row, "options");
    const ConfigNode* membership = options.find("membership");
    if (membership != nullptr && !membership->as_bool()) run.buckets.clear();
    return conform(recording, run);
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    result.state = Conformance::State::kNotForecast;
    result.version = recording.version;
    result.reason = error.what();
    return result;
  }
}

}

bool has_library_recordings(const RecordingFolder& folder) {
  const auto lib = folder.index().find("lib");
  if (!lib || folder.size() == 0) return false;
  return folder.index().text(0, *lib) != "fsdp2" && folder.index().find("options").has_value();
}

LibraryJob read_library_job(const RecordingFolder& folder, std::size_t row) {
  const ConfigNode root = read_json_file(folder.configs_file());
  const KeyWords config = words_of(root, folder.id(row));
  const ConfigNode options = json_cell(folder, row, "options");
  const std::int64_t world = folder.index().integer(row, folder.index().at("world"));
  const std::string lib = cell(folder, row, "lib");
  LibraryJob job;
  LibraryModel model = model_of(root.at("models").at(cell(folder, row, "model")));
  Plan& plan = job.plan;
  plan.optimizer.kind = Optimizer::Kind::kSgd;
  plan.optimizer.clip_norm = std::nullopt;
  plan.accumulation = AccumulationMode::kKeepUnsharded;
  if (lib == "ddp") {
    apply_ddp(options, world, plan);
    if (model.arch != "gpt") plan.ddp.norms_fp32 = false;  // of nn.LayerNorm, not of RMSNorm
  } else if (lib == "fsdp1") {
    apply_fsdp1(options, world, plan);
    if (!config.flag("no_sync", true)) plan.accumulation = AccumulationMode::kReduceEach;
    if (const ConfigNode* wrap = options.find("wrap")) {
      wrap->as_choice({"blocks", "blocks+emb", "sub", "flat"});
      model.wrap = wrap->as_string();
    }
    plan.units.experts = model.wrap == "sub" ? UnitPlacement::kOwn : UnitPlacement::kRoot;
    plan.units.blocks = model.wrap == "flat" ? UnitPlacement::kRoot : UnitPlacement::kOwn;
    plan.units.embedding = model.wrap == "blocks+emb" ? UnitPlacement::kOwn : UnitPlacement::kRoot;
    plan.units.head = UnitPlacement::kRoot;
  } else if (lib == "zero") {
    apply_zero(options, world, plan);
    plan.accumulation = AccumulationMode::kReduceEach;
  } else {
    throw Error(ExitCode::kMissingCapability, "recordings of " + lib + " are not forecast");
  }
  if (lib != "fsdp1") plan.units.embedding = plan.units.head = UnitPlacement::kRoot;
  plan.batch.micro_batch = config.number("B", 1);
  plan.batch.sequence = config.number("S", 8);
  plan.batch.accumulation = folder.index().integer(row, folder.index().at("accum"));
  plan.named_rank = folder.index().integer(row, folder.index().at("rank"));
  plan.model = model.arch;
  job.model = build_library_model(model);
  job.watch.steps = static_cast<std::int32_t>(config.number("steps", 3));
  if (const ConfigNode* units = config.find("units"); units != nullptr && units->as_choice({"blocks", "modules"}) == 1)
    job.watch.modules = LibraryWatch::Modules::kOwners;
  return job;
}

LibraryRecording read_library_recording(const RecordingFolder& folder, std::size_t row) {
  LibraryRecording recording = {.id = folder.id(row)};
  const KeyWords config = words_of(read_json_file(folder.configs_file()), recording.id);
  const auto table = [&](const char* name) {
    const CsvFile* file = folder.table(name);
    if (file == nullptr) throw invalid_input("{}: has no {}.csv", folder.path().string(), name);
    return file;
  };
  const CsvFile& events = *table("events");
  recording.events_file = events.name();
  using Event = LibraryRecordedEvent;
  const CsvMembers<Event> of_event(
      events, {{"step", &Event::step}, {"micro", &Event::microbatch}, {"seq", &Event::seq}, {"kind", &Event::kind},
                  {"unit", &Event::unit}, {"bytes_in", &Event::bytes_in}, {"bytes_out", &Event::bytes_out},
                  {"dtype", &Event::dtype}, {"group", &Event::group}, {"note", &Event::note}});
  for (const std::size_t r : folder.rows("events", recording.id)) {
    LibraryRecordedEvent& event = recording.events.emplace_back();
    of_event.read(r, event);
  }
  if (const ConfigNode* whole = config.find("full_steps"))
    for (const ConfigNode& step : whole->elements()) recording.whole_steps.insert(step.as_int());
  else recording.whole_steps.insert(folder.index().integer(row, folder.index().at("steps")));
  const CsvFile& buckets = *table("buckets");
  recording.buckets_file = buckets.name();
  const CsvMembers<LibraryBucket> of_bucket(buckets,
      {{"phase", &LibraryBucket::phase}, {"index", &LibraryBucket::index}, {"kind", &LibraryBucket::kind},
          {"bytes", &LibraryBucket::bytes}, {"dtype", &LibraryBucket::dtype}, {"extra", &LibraryBucket::extra}});
  const std::size_t parameters = buckets.at("params");
  for (const std::size_t r : folder.rows("buckets", recording.id)) {
    LibraryBucket& bucket = recording.buckets.emplace_back();
    of_bucket.read(r, bucket);
    bucket.parameters = parts_of(buckets.text(r, parameters), ";");
  }
  flatten(json_cell(folder, row, "facts"), "", recording);
  return recording;
}

ConformanceFolder conform_library_folder(const RecordingFolder& folder, const std::vector<std::string>& only) {
  ConformanceFolder result = {.path = folder.path().string()};
  for (std::size_t row = 0; row < folder.size(); ++row) {
    const std::string id = folder.id(row);
    if (!only.empty() && !contains(only, id)) continue;
    result.rows.push_back(conform_row(folder, row));
  }
  return result;
}

}
