// What DeepSpeed does in host order, in the words of the recordings (host_log.h).
//
// `live` is elements that are gathered or in flight; `gather_buffers` bytes of flat buffers beside them; both are told
// of the moment before the event. `release` counts 2 bytes per element whatever the dtype, as the recorder does.
#include <fmt/format.h>

#include <utility>

#include "sim/graph/torch_words.h"
#include "sim/graph/zero/zero3_builder.h"

namespace foreshard {
namespace {

void append_words(std::string& note, std::string_view more) {
  if (!note.empty() && !more.empty()) note += ' ';
  note += more;
}

}

LibraryEvent& Zero3::log(std::string_view kind, std::string unit, std::string note) {
  append_words(note, fmt::format("live={} gather_buffers={}", coordinator_->live(), flat_bytes_));
  LibraryEvent& event = log_.emplace_back();
  event.microbatch = microbatch();
  event.kind = kind;
  event.unit = std::move(unit);
  event.note = std::move(note);
  event.actions = static_cast<std::uint32_t>(graph().actions.size());
  return event;
}

void Zero3::log_collective(
    std::string_view kind, std::int64_t bytes_in, std::int64_t bytes_out, const std::string& note) {
  std::string whole = note_;
  append_words(whole, note);
  LibraryEvent& event = log(kind, unit_, std::move(whole));
  event.bytes_in = bytes_in;
  event.bytes_out = bytes_out;
  event.dtype = torch_word(plan_.param_dtype);
  event.group = "world";
}

void Zero3::log_boundary(std::string_view kind, std::int32_t module, std::string_view note) {
  if (script_->modules[static_cast<std::size_t>(module)].is_container) return;
  log(kind, run_->modules[static_cast<std::size_t>(module)], std::string(note));
}

void Zero3::log_gradient(std::int32_t p) {
  LibraryEvent& event = log("grad_ready", run_->parameters[static_cast<std::size_t>(p)], "");
  event.bytes_in = parameter(p).numel * param_size();
  event.dtype = torch_word(plan_.param_dtype);
}

void Zero3::log_release(std::string unit, Parameters list) {
  std::string names = "names=";
  std::int64_t bytes = 0;
  for (const std::int32_t p : list) {
    const std::string& name = run_->parameters[static_cast<std::size_t>(p)];
    const bool inside = name.compare(0, unit.size() + 1, unit + ".") == 0;
    if (p != list.front()) names += ';';
    names += inside ? name.substr(unit.size() + 1) : name;
    bytes += parameter(p).numel * 2;
  }
  LibraryEvent& event = log("release", std::move(unit), std::move(names));
  event.bytes_in = bytes;
  event.dtype = torch_word(plan_.param_dtype);
}

// Ranks compare their traces until one is complete: the length of each list, then the list.
void Zero3::log_trace_reset() {
  using Trace = Zero3Coordinator::Trace;
  const Trace trace = coordinator_->trace();
  log("trace_reset", "",
      trace == Trace::kComplete ? "mode_before=COMPLETE"
      : trace == Trace::kRecord ? "mode_before=RECORD"
                                : "mode_before=INVALID");
  if (trace == Trace::kComplete) return;
  const auto compare = [&](std::size_t elements) {
    for (const std::size_t count : {std::size_t{1}, elements}) {
      const auto bytes = static_cast<std::int64_t>(count * 8);
      log_collective("broadcast", bytes, bytes, "root=0");
      log_.back().dtype = "int64";
    }
  };
  if (trace == Trace::kInvalid) return compare(0);
  compare(coordinator_->modules_in_trace());
  compare(coordinator_->parameters_in_trace());
  compare(coordinator_->parameters_in_trace());
}

std::string Zero3::span_of(Parameters list) const {
  const auto& names = run_->parameters;
  return foreshard::span_of(
      names[static_cast<std::size_t>(list.front())], names[static_cast<std::size_t>(list.back())], list.size());
}

std::string Zero3::group_of(bool small_group) const {
  const std::int64_t size = small_group ? small_group_ : plan_.mesh.fsdp();
  return group_word(plan_.rank() / size * size, size, 1, plan_.mesh.fsdp());
}

void Zero3::log_gather(Parameters list, Cause cause, std::int32_t module, Pass pass) {
  const std::string& at_module = run_->modules[static_cast<std::size_t>(module)];
  const std::string_view word = cause == Cause::kFetch ? "fetch" : "prefetch";
  unit_ = span_of(list);
  note_ = fmt::format("{} n={} at={}", word, list.size(), at_module);
  add_bucket(list, cause == Cause::kFetch ? "zero3_fetch" : "zero3_prefetch", plan_.param_dtype, 2,
      fmt::format("at={} pass={} micro={}", at_module, pass == Pass::kForward ? "fwd" : "bwd", microbatch()));
}

void Zero3::add_bucket(
    std::span<const std::int32_t> list, std::string_view kind, DType dtype, std::int64_t element, std::string extra) {
  if (step_ != run_->steps) return;
  LibraryBucket& bucket = run_->record->buckets.emplace_back();
  bucket.phase = fmt::format("step{}", step_);
  bucket.index = buckets_++;
  bucket.kind = kind;
  bucket.dtype = torch_word(dtype);
  bucket.extra = std::move(extra);
  for (const std::int32_t p : list) {
    bucket.bytes += parameter(p).numel * element;
    bucket.parameters.push_back(run_->parameters[static_cast<std::size_t>(p)]);
  }
}

void Zero3::log_reduction(std::string_view kind, std::int64_t bytes_in, std::int64_t bytes_out, std::string note) {
  log_collective(kind, bytes_in, bytes_out, std::move(note));
  log_.back().dtype = torch_word(plan_.reduce_dtype);
}

void Zero3::log_bucket(std::span<const std::int32_t> list) {
  unit_ = span_of(list);
  note_ = fmt::format("n={}", list.size());
  // Copied into the bucket they are of its dtype.
  const DType dtype = held_gradients_.empty() ? plan_.reduce_dtype : plan_.param_dtype;
  add_bucket(list, "zero3_reduce_bucket", dtype, size_of(dtype), fmt::format("micro={}", microbatch()));
}

// Before the first step: each parameter is broadcast when it is partitioned and once more by the
// engine, and gathered once so that its gradient can be hooked. (Barriers are not recorded.)
void Zero3::record_construction(Zero3Run& run, const Plan& plan) {
  const Zero3Script& script = *run.script;
  const std::int64_t size = size_of(plan.param_dtype);
  LibraryRun& record = *run.record;
  const auto add = [&](std::string_view kind, std::int64_t in, std::int64_t out, std::string_view dtype,
                       std::string note) {
    LibraryEvent& event = record.construction.emplace_back();
    event.kind = kind;
    event.bytes_in = in;
    event.bytes_out = out;
    event.dtype = dtype;
    event.group = "world";
    event.note = std::move(note);
  };
  for (int time = 0; time < 2; ++time)
    for (const Zero3Parameter& each : script.parameters)
      add("broadcast", each.numel * size, each.numel * size, "uint8", "root=0");
  std::int64_t partitions = 0, persistent = 0, count = 0;
  for (std::int32_t p = 0; p < script.parameter_count(); ++p) {
    const Zero3Parameter& each = script.parameter(p);
    const std::int64_t partition = foreshard::partition_of(each.numel, plan.mesh.fsdp());
    add("all_gather", partition * size, partition * plan.mesh.fsdp() * size, torch_word(plan.param_dtype), "");
    LibraryBucket& bucket = record.buckets.emplace_back();
    bucket.phase = "init";
    bucket.index = p;
    bucket.kind = "zero3_partition";
    bucket.bytes = partition * size;
    bucket.dtype = torch_word(plan.param_dtype);
    bucket.extra = fmt::format("numel={} partition_numel={} padded_numel={} persist={}", each.numel, partition,
        partition * plan.mesh.fsdp(), each.persists ? 1 : 0);
    bucket.parameters = {run.parameters[static_cast<std::size_t>(p)]};
    partitions += partition;
    persistent += each.persists ? each.numel : 0;
    count += each.persists ? 1 : 0;
  }
  const bool wide = plan.zero.fp32_gradient_accumulation;
  record.facts["n_persist"] = count;
  record.facts["persist_numel"] = persistent;
  record.facts["partition_bytes_16"] = partitions * size;
  record.facts["partition_numel_sum"] = partitions;
  record.facts["fp32_bytes"] = partitions * 4;
  record.facts["grad_partition_bytes"] = partitions * (wide ? 4 : size);
  record.facts["n_sub_groups"] = 0;
  std::int64_t open = 0;
  for (const Zero3Parameter& each : script.parameters) {
    if (open == 0) ++record.facts["n_sub_groups"];
    open += foreshard::partition_of(each.numel, plan.mesh.fsdp());
    if (open >= plan.zero.sub_group_size) open = 0;
  }
  record.facts["ipg_buffer_bytes"] =
      plan.zero.contiguous_gradients ? plan.zero.reduce_bucket_size * size_of(plan.reduce_dtype) : 0;
  record.facts["skipped_steps"] = 0;
  record.words["optimizer_class"] = "DeepSpeedZeroOptimizer_Stage3";
  record.words["grad_accum_dtype"] = "torch." + std::string(torch_word(wide ? DType::kFp32 : plan.param_dtype));
}

}
