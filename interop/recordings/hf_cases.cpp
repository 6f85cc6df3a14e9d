// The words of a case become assignments of a plan's keys, as a user would type them; the rest is
// resolve(), the builder's host log and the replay of its allocations.
#include "interop/recordings/hf_cases.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "calibration/machines.h"
#include "interop/hf/hf_config.h"
#include "interop/recordings/recorded_settings.h"
#include "models/layers/variants.h"
#include "sim/base/config.h"
#include "sim/base/lookup.h"
#include "sim/graph/host_log.h"
#include "sim/memory/memory_profile.h"
#include "sim/memory/outside_allocator.h"
#include "sim/spec/plan_config.h"

namespace foreshard {
namespace {

constexpr std::int64_t kNorms = std::int64_t{1} << 16;  // sums of norms have fewer bytes

// --- what ran ---

class SetKeys {
 public:
  explicit SetKeys(const std::string& runtime) {
    add("runtime", runtime);
    add("stack", "hf_trainer");
  }
  void add(const char* key, const auto& value) {
    document_ = apply_set(std::move(document_), fmt::format("{}={}", key, value));
  }
  PlanDocument take() { return std::move(document_); }

 private:
  PlanDocument document_;
};

void add_fsdp(const ConfigNode& options, SetKeys& plan) {
  for (const ConfigItem& item : options.items()) {
    if (item.key == "cpu_offload") {
      if (item.value.as_bool()) plan.add("offload", "cpu");
    } else if (item.key == "reshard_after_forward") {
      if (!item.value.as_bool()) plan.add("reshard_after_forward", "never");
    } else if (item.key == "transformer_cls_names_to_wrap") {
      plan.add("units.blocks", "own");
    } else if (item.key != "cpu_ram_efficient_loading") {
      throw Error(ExitCode::kMissingCapability, item.value.error("no plan has this option of the plugin").what());
    }
  }
}

void add_adapters(const ConfigNode& lora, bool stored_as_computed, SetKeys& plan) {
  plan.add("lora.rank", lora.at("r").as_int(1));
  const ConfigNode targets = lora.at("target_modules");
  std::vector<std::string> names;
  if (targets.is_sequence()) {
    for (const ConfigNode& name : targets.elements()) names.push_back(name.as_string());
    plan.add("lora.targets", fmt::format("[{}]", fmt::join(names, ", ")));
  } else {
    plan.add("lora.targets", targets.as_string());
  }
  if (const ConfigNode* dropout = lora.find("lora_dropout")) plan.add("lora.dropout", dropout->as_double(0, 1));
  plan.add("lora.base", stored_as_computed ? "param" : "master");
}

// A case of any training code: the keys that somebody would type of it.
PlanDocument typed_document(const ConfigNode& set) {
  PlanDocument document;
  for (const ConfigItem& item : set.items())
    document = apply_set(std::move(document), fmt::format("{}={}", item.key, item.value.text()));
  return document;
}

PlanDocument document_of(const ConfigNode& node, const ConfigNode& versions) {
  if (const ConfigNode* set = node.find("set")) return typed_document(*set);
  static constexpr std::string_view kKnown[] = {"config", "world", "rank", "seq", "batch", "accum", "precision", "attn",
      "gc", "loop", "clip", "opt", "mask", "fsdp", "hsdp", "dtype", "steps", "cudnn", "task", "hold", "lora", "history",
      "use_cache", "gc_reentrant", "runtime", "mixers"};
  for (const ConfigItem& item : node.items()) {
    if (item.value.is_null() || contains(kKnown, item.key)) continue;
    throw Error(ExitCode::kMissingCapability, item.value.error("no plan has this word of a case").what());
  }
  const KeyWords words({node});
  const auto minor_of = [](const std::string& version) {
    return version.substr(0, version.find('.', version.find('.') + 1));
  };
  const std::string torch = versions.at("torch").as_string();
  const std::string runtime = words.word("runtime", "fsdp2");
  SetKeys plan(runtime + "@" + minor_of(torch));
  const bool titan = words.word("loop", "accelerate") == "titan";
  const std::string accelerate = minor_of(versions.at("accelerate").as_string());
  if (runtime != "ddp") plan.add("trainer", titan ? "torchtitan" : "accelerate@" + accelerate);
  plan.add("batch.micro_batch", words.number("batch", 2));
  if (words.word("task", "clm") == "vit") plan.add("batch.prefetched", "false");  // the loop makes batches one by one
  else plan.add("batch.sequence", words.number("seq", 1024));
  plan.add("batch.accumulation", words.number("accum", 1));
  if (words.word("mask", "") == "padded") plan.add("batch.padded", "true");
  if (words.word("precision", "bf16") == "no") plan.add("dtype.param", "fp32");
  if (words.word("attn", "sdpa") == "eager") plan.add("attention", "eager");
  if (words.word("opt", "adamw") != "fused") plan.add("optimizer.implementation", "foreach");
  if (!words.flag("clip", true)) plan.add("optimizer.clip_norm", "none");
  if (words.flag("gc", false)) plan.add("recompute", "full");
  else if (titan) plan.add("recompute", "none");
  if (words.flag("gc_reentrant", false)) plan.add("recompute_reentrant", "true");
  const bool holds = words.word("loop", "accelerate") == "accelerate" && words.flag("hold", true);
  if (holds) plan.add("logits", "held");
  if (words.flag("use_cache", false)) plan.add("kernels.keeps_cache", "true");
  if (words.word("mixers", "") == "torch") plan.add("kernels.torch_mixers", "true");
  if (const ConfigNode* mesh = words.find("hsdp")) {
    const auto sides = mesh->elements();
    if (sides.size() != 2) throw mesh->error("no mesh stands here", "[replicate, shard]");
    plan.add("mesh.replicate", sides[0].as_int(1));
    plan.add("mesh.shard", sides[1].as_int(1));
  }
  if (const ConfigNode* options = words.find("fsdp")) add_fsdp(*options, plan);
  if (const ConfigNode* lora = words.find("lora")) add_adapters(*lora, words.find("dtype") != nullptr, plan);
  plan.add("rank", words.number("rank", 0));
  return plan.take();
}

HfConfig model_of_case(const std::filesystem::path& file, const ConfigNode& root) {
  const ConfigNode* config = root.find("config");
  HfConfig model = config != nullptr
                       ? parse_hf_config(*config, file.stem().string())
                       : read_hf_config(file.parent_path() / root.at("case").at("config").as_string() / "config.json");
  // transformers 5, models/t5/configuration_t5.py: T5's head is tied whatever the file says, unless a checkpoint has
  // one.
  constexpr std::string_view kTied[] = {"t5", "mt5", "umt5"};
  const ConfigNode* transformers = root.at("result").at("versions").find("transformers");
  const bool is_5 = transformers != nullptr && transformers->as_string().starts_with("5.");
  model.dims.tied |= is_5 && contains(kTied, model.dims.family);
  return model;
}

// --- comparison ---

struct Call {
  std::string kind, dtype;
  std::int64_t group = 0;  // 0: not told
  std::int64_t bytes_in = 0, bytes_out = 0;
  bool is_like(const Call& other) const {
    return kind == other.kind && dtype == other.dtype && (group == 0 || other.group == 0 || group == other.group);
  }
};

std::string text(const Call& call) {
  return fmt::format("{} {} {} -> {} of {}", call.kind, call.dtype, call.bytes_in, call.bytes_out, call.group);
}

std::vector<Call> recorded_calls(const ConfigNode& list) {
  std::vector<Call> calls;
  for (const ConfigNode& row : list.elements()) {
    const auto cells = row.elements();
    constexpr std::size_t kCells = 6;
    if (cells.size() < kCells)
      throw row.error("no collective stands here", "[kind, unit, bytes, bytes, dtype, ranks, ...]");
    Call call = {.kind = cells[0].as_string()};
    constexpr std::string_view kFunctional = "functional_";
    if (call.kind.starts_with(kFunctional)) call.kind.erase(0, kFunctional.size());
    call.bytes_in = cells[2].as_int(0);
    call.bytes_out = cells[3].as_int(0);
    call.dtype = cells[4].as_string();
    call.group = cells[5].as_int(0);
    calls.push_back(std::move(call));
  }
  return calls;
}

std::vector<Call> forecast_calls(const RecordedStep& step, const Plan& plan) {
  std::vector<Call> calls;
  for (const HostEvent& event : step.log) {
    if (event.kind != "all_gather" && event.kind != "reduce_scatter" && event.kind != "all_reduce") continue;
    Call call{std::string(event.kind), std::string(event.dtype), event.group_size, event.bytes_in, event.bytes_out};
    if (event.group == "clip") call.group = 0;
    if (event.group == "replicate") call.group = plan.mesh.replicate;
    calls.push_back(std::move(call));
  }
  return calls;
}

// Of the other runtimes' libraries: kinds and the bytes of the larger side, all that a step's rows say of them.
std::vector<Call> by_size(std::vector<Call> calls) {
  for (Call& call : calls) {
    call.bytes_in = call.bytes_out = std::max(call.bytes_in, call.bytes_out);
    call.dtype.clear();
    call.group = 0;
    if (call.kind == "all_reduce" && call.bytes_in < kNorms) call.bytes_in = call.bytes_out = 0;
  }
  return calls;
}

std::vector<Call> row_calls(const EventGraph& graph) {
  std::vector<Call> calls;
  for (const Row& row : graph.rows) {
    if (!is_collective(row.kind)) continue;
    const std::int64_t bytes = graph.works[row.work].bytes.count();
    calls.push_back({to_string(row.kind), "", 0, bytes, bytes});
  }
  return by_size(std::move(calls));
}

void compare_calls(
    const std::string& file, const std::vector<Call>& seen, const std::vector<Call>& told, Conformance& row) {
  row.rows = std::ssize(seen);
  row.schedule_identical = row.bytes_identical = seen.size() == told.size();
  const auto differ = [&](Difference::What what, std::size_t i) {
    const std::string ours = i < told.size() ? text(told[i]) : "nothing";
    const std::string theirs = i < seen.size() ? text(seen[i]) : "nothing";
    row.differences.push_back(
        {what, fmt::format("{}: collective {}: recorded {}, forecast {}", file, i, theirs, ours)});
  };
  for (std::size_t i = 0; i < std::max(seen.size(), told.size()); ++i) {
    const bool both = i < seen.size() && i < told.size();
    if (both && seen[i].is_like(told[i])) continue;
    row.schedule_identical = false;
    differ(Difference::What::kSchedule, i);
    break;
  }
  for (std::size_t i = 0; i < std::min(seen.size(), told.size()); ++i) {
    if (seen[i].bytes_in == told[i].bytes_in && seen[i].bytes_out == told[i].bytes_out) continue;
    row.bytes_identical = false;
    differ(Difference::What::kBytes, i);
    break;
  }
}

void compare_peaks(const std::string& file, std::int64_t seen, std::int64_t told, Conformance& row) {
  row.peak_measured_bytes = seen;
  row.peak_predicted_bytes = told;
  row.worst_peak_error = std::abs(as_double(told) / as_double(seen) - 1);
  row.worst_peak = "last step";
  row.memory_identical = seen == told;
  row.memory_within_tolerance = row.worst_peak_error <= Conformance::kMemoryTolerance;
  if (row.memory_within_tolerance) return;
  row.differences.push_back(
      {Difference::What::kMemory, fmt::format("{}: peak of {} bytes recorded, {} forecast ({:+.2f} %)", file, seen,
                                      told, 100.0 * as_double(told - seen) / as_double(seen))});
}

Conformance conform_case(const std::filesystem::path& file) {
  const ConfigNode root = read_json_file(file);
  const ConfigNode said = root.at("case"), result = root.at("result");
  Conformance row = {.id = file.stem().string(), .version = result.at("versions").at("torch").as_string()};
  try {
    const PlanDocument document = document_of(said, result.at("versions"));
    const ModelSpec plain = build_hf_model(model_of_case(file, root));
    const std::int64_t world = KeyWords({said}).number("world", 8);
    const Cluster cluster = load_cluster(fmt::format("{}xh100", world));
    const ResolvedPlan resolved = resolve(document, plain, cluster);
    check(resolved, plain, cluster);
    const Plan& plan = resolved.plan;
    const ModelSpec model = with_variants(plain, plan);
    const EventGraph graph = build_training_step(model, plan);
    const std::vector<Call> seen_calls = recorded_calls(result.at("collectives"));
    if (plan.runtime.kind == RuntimeKind::kFsdp2) {
      const LayerPrograms programs(model, plan);
      const RecordedStep step = record_training_step(model, plan, programs, StepNumber::kSteady);
      compare_calls(file.string(), seen_calls, forecast_calls(step, plan), row);
    } else {
      compare_calls(file.string(), by_size(seen_calls), row_calls(graph), row);
    }
    const ConfigNode listed = result.at("steps");
    const auto steps = listed.elements();
    if (steps.empty()) throw listed.error("no step stands here", "the peaks of the last step");
    const LibraryBuffers kept = library_buffers(graph, cluster, plan.runtime);
    const std::int64_t seen =
        steps.back().at("requested").as_int(0) - sum_of<Bytes>(kept, &LibraryBuffer::bytes).count();
    compare_peaks(file.string(), seen, peak_allocated(graph).count(), row);
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    if (error.exit_code() == ExitCode::kInvalidInput) throw;
    row.state = Conformance::State::kNotForecast;
    row.reason = error.what();
  }
  return row;
}

bool is_case(const std::filesystem::path& file) {
  if (file.extension() != ".json") return false;
  const ConfigNode root = read_json_file(file);
  return root.is_mapping() && root.has("case") && root.has("result");
}

std::vector<std::filesystem::path> files_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.is_regular_file() && entry.path().extension() == ".json") files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

}

std::vector<std::filesystem::path> find_hf_cases(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> folders;
  if (!std::filesystem::is_directory(path)) return folders;
  const auto holds = [](const std::filesystem::path& folder) {
    const auto files = files_of(folder);
    return !files.empty() && is_case(files.front());
  };
  if (holds(path)) return {path};
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path))
    if (entry.is_directory() && holds(entry.path())) folders.push_back(entry.path());
  std::ranges::sort(folders);
  return folders;
}

ConformanceFolder conform_hf_cases(const std::filesystem::path& folder, const std::vector<std::string>& only) {
  ConformanceFolder result = {.path = folder.string()};
  for (const std::filesystem::path& file : files_of(folder)) {
    const std::string id = file.stem().string();
    if (!only.empty() && !contains(only, id)) continue;
    if (is_case(file)) result.rows.push_back(conform_case(file));
  }
  return result;
}

}
