// Gathers (deepspeed/runtime/zero/partition_parameters.py).
//
// One parameter: gathered straight into its buffer. Several: their shards are concatenated in the
// own part of a flat buffer, which is gathered in place; when the first of them is waited for, all
// are copied out, and the flat buffer goes when the last one was waited for. With
// use_all_reduce_for_fetch_params shards are put into zeros that are summed; parameters are views.
//
// The host lets three gathers be outstanding: before it waits for a further one, it blocks on the event of the third
// last (__max_ongoing_fetch_events; query() first drops those that are done, which never lets it block less).
//
// A released parameter is freed by the host at once, with compute recorded (free_param), which
// keeps its memory from the next gather until compute has passed.
#include <algorithm>

#include "sim/base/lookup.h"
#include "sim/graph/zero/zero3_builder.h"

namespace foreshard {

std::int64_t Zero3::shard_numel(Parameters group, bool small_group) const {
  std::int64_t sum = 0;
  for (const std::int32_t p : group) sum += partition_of(p);
  return small_group ? sum * (plan_.mesh.fsdp() / small_group_) : sum;
}

void Zero3::gather(Parameters list) {
  catch_up();
  close_run();
  // Secondary shards where they exist, and one gather for each dtype.
  for (const bool small : {true, false}) {
    for (const bool wide : {false, true}) {
      fetched_now_.clear();
      for (const std::int32_t p : list) {
        const bool has_secondary = small_group_ > 1 && coordinator_->has_secondary(p);
        if (has_secondary == small && parameter(p).is_wide == wide) fetched_now_.push_back(p);
      }
      const bool coalesced = small_group_ > 1 ? fetched_now_.size() > 1 : list.size() > 1;
      if (!fetched_now_.empty()) gather_group(fetched_now_, small, coalesced);
    }
  }
  unit_.clear();
  note_.clear();
}

// Partitions that rest on the host are copied one by one, and the host waits for each (Tensor.to()).
void Zero3::fetch_from_host(Parameters group) {
  if (plan_.zero.offload_param == ZeroOffload::kNone) return;
  if (plan_.zero.offload_param == ZeroOffload::kNvme) read_from_drive(group);
  for (const std::int32_t p : group) {
    const std::int64_t bytes = partition_of(p) * element_size(p);
    host_awaits(add_bytes(EventKind::kHostToDevice, gather_copies_, bytes, unit_of(p)));
  }
}

// _ensure_availability_of_partitioned_params: what is not there is read, and whoever waits for a
// read waits for all that were asked for.
void Zero3::read_from_drive(Parameters group) {
  bool waits = false;
  for (const std::int32_t p : group) {
    if (!goes_to_nvme(partition_of(p) * element_size(p))) continue;
    waits = true;
    if (is_read_[static_cast<std::size_t>(p)]) {
      is_read_[static_cast<std::size_t>(p)] = false;
      continue;
    }
    add_bytes(EventKind::kStorageRead, kDrive, partition_of(p) * element_size(p), unit_of(p));
  }
  if (waits) host_awaits(tail(kDrive));
}

void Zero3::read_ahead(Parameters group) {
  if (group.empty()) return;
  catch_up();
  close_run();
  for (const std::int32_t p : group) {
    is_read_[static_cast<std::size_t>(p)] = true;
    add_bytes(EventKind::kStorageRead, kDrive, partition_of(p) * element_size(p), unit_of(p));
  }
}

void Zero3::gather_group(Parameters group, bool small_group, bool coalesced) {
  const std::int64_t ranks = group_size(small_group);
  const std::int64_t shard = shard_numel(group, small_group);
  const bool quantized = plan_.zero.zero_quantized_weights;
  const std::uint8_t communicator = small_group ? small_communicator_ : kShard;
  const std::int32_t unit = unit_of(group.front());
  const auto index = static_cast<std::int32_t>(handles_.size());
  Handle& handle = handles_.emplace_back(Handle{.coalesced = coalesced});
  handle.by_all_reduce =
      handle.coalesced && !quantized && !small_group && plan_.zero.stage3_use_all_reduce_for_fetch_params;
  handle.first_member = static_cast<std::uint32_t>(members_.size());
  handle.members = handle.registered = static_cast<std::int32_t>(group.size());
  append(members_, group);
  for (const std::int32_t p : group) at(handle_of_, p) = index;
  if (ranks == 1) {  // nothing to gather: the partition is the parameter
    handle.coalesced = handle.by_all_reduce = false;
    return;
  }
  const std::int64_t size = quantized ? 1 : element_size(group.front());
  const std::int64_t whole = shard * ranks * size;
  fetch_from_host(group);
  if (quantized) {
    // Cast to fp16 and quantised to int8 in groups of at most 16,000 (CUDAQuantizer).
    add_bytes(EventKind::kQuantize, gather_copies_, shard * (param_size() + 2 + 2 + 1), unit);
  } else if (handle.coalesced) {
    const std::int64_t moved = handle.by_all_reduce ? whole + 2 * shard * size : 2 * shard * size;
    add_bytes(EventKind::kAllGatherCopyIn, gather_copies_, moved, unit);
  }
  if (handle.coalesced || quantized) {
    handle.flat = allocate(handle.by_all_reduce ? MemoryCategory::kUnshardedParam : MemoryCategory::kAllGatherOutput,
        gather_copies_, unit, Bytes(whole));
  }
  const EventKind kind = handle.by_all_reduce ? EventKind::kAllReduce : EventKind::kAllGather;
  wait(Stream::kAllGather, tail(gather_copies_));
  handle.gathered = add(kind, Stream::kAllGather, work_of(kind, whole, communicator), unit);
  if (quantized) {
    const std::int64_t scales = std::max<std::int64_t>(1, shard / kQuantizedGroup) * ranks * 4;
    handle.gathered = add(kind, Stream::kAllGather, work_of(kind, scales, communicator), unit);
  }
  if (!handle.coalesced && !quantized)
    at(gathered_, group.front()) = allocate(MemoryCategory::kUnshardedParam, gather_copies_, unit, Bytes(whole));
  if (handle.by_all_reduce) handle.views = handle.members;
  if (logs()) {
    const std::string in_place = handle.by_all_reduce ? "op=SUM" : handle.coalesced ? "in_place" : "";
    log_collective(to_string(kind), handle.by_all_reduce ? whole : whole / ranks, whole, in_place);
    log_.back().group = group_of(small_group);
    if (handle.coalesced && !handle.by_all_reduce) handle.flat_bytes = whole;
    flat_bytes_ += handle.flat_bytes;
  }
}

// The module needs a parameter that is in flight.
void Zero3::await(std::int32_t p) {
  Handle& handle = handles_[static_cast<std::size_t>(at(handle_of_, p))];
  at(handle_of_, p) = handle.by_all_reduce ? at(handle_of_, p) : -1;
  --handle.registered;
  if (handle.gathered == kNoEvent) return;
  host_awaits(fetches_[0]);
  if (!handle.copied) copy_out(handle);
  const EventId done = std::max(handle.gathered, tail(gather_copies_));
  fetches_ = {fetches_[1], fetches_[2], done};
  if (handle.registered == 0 && !handle.by_all_reduce) {
    StepBuilder::free(handle.flat);
    flat_bytes_ -= handle.flat_bytes;
  }
}

void Zero3::copy_out(Handle& handle) {
  handle.copied = true;
  catch_up();
  close_run();
  wait(gather_copies_, handle.gathered);
  wait(Stream::kCompute, handle.gathered);
  const bool quantized = plan_.zero.zero_quantized_weights;
  if (handle.by_all_reduce || (!handle.coalesced && !quantized)) return;
  const Parameters group{members_.data() + handle.first_member, static_cast<std::size_t>(handle.members)};
  const std::int32_t unit = unit_of(group.front());
  std::int64_t elements = 0;
  for (const std::int32_t p : group) elements += parameter(p).numel;
  if (quantized) {
    // fp16, cast to the parameters' dtype.
    add_bytes(
        EventKind::kDequantize, gather_copies_, elements * (1 + 2 + (handle.coalesced ? 0 : 2 + param_size())), unit);
  }
  if (handle.coalesced)
    add_bytes(EventKind::kAllGatherCopyOut, gather_copies_, 2 * elements * element_size(group.front()), unit);
  for (const std::int32_t p : group) {
    at(gathered_, p) = allocate(
        MemoryCategory::kUnshardedParam, gather_copies_, unit_of(p), Bytes(parameter(p).numel * element_size(p)));
  }
}

void Zero3::see_gathers() {
  seen_copies_ = tail(gather_copies_);
  catch_up();
  close_run();
  wait(Stream::kCompute, seen_copies_);
}

void Zero3::let_go(Parameters list) {
  if (list.empty()) return;
  catch_up();
  for (const std::int32_t p : list) {
    if (small_group_ > 1 && at(secondary_, p) == kNoBuffer) keep_secondary(p);
    StepBuilder::free(at(gathered_, p), only(Stream::kCompute));
    std::int32_t& index = at(handle_of_, p);
    if (index < 0) continue;
    Handle& handle = handles_[static_cast<std::size_t>(index)];
    index = -1;
    if (--handle.views == 0) StepBuilder::free(handle.flat, only(Stream::kCompute));
  }
}

// hpZ: the first time that a parameter is let go of in a step, its shard inside the small group is
// copied, and the host waits for it.
void Zero3::keep_secondary(std::int32_t p) {
  close_run();
  const std::int64_t bytes = partition_of(p) * plan_.mesh.fsdp() / small_group_ * element_size(p);
  host_awaits(add_bytes(EventKind::kReshard, Stream::kCompute, 3 * bytes, unit_of(p)));
  at(secondary_, p) = allocate(MemoryCategory::kPostForwardShard, Stream::kCompute, unit_of(p), Bytes(bytes));
  graph().buffers.back().on_host = plan_.zero.offload_param != ZeroOffload::kNone;
}

// After the step: one gather each, all waited for, then the device. What the step began with is there again.
void Zero3::gather_persistent() {
  if (logs()) note_ = "_post_step";
  for (const std::int32_t p : script_->as_defined()) {
    if (!parameter(p).persists || plan_.mesh.fsdp() == 1) continue;
    const std::int64_t whole = partition_of(p) * plan_.mesh.fsdp() * element_size(p);
    fetch_from_host({&p, 1});
    wait(Stream::kAllGather, tail(Stream::kCompute));
    const EventId gathered =
        add(EventKind::kAllGather, Stream::kAllGather, work_of(EventKind::kAllGather, whole, kShard), unit_of(p));
    if (logs()) log_collective("all_gather", whole / plan_.mesh.fsdp(), whole, "");
    graph().final_host_wait = gathered;
    if (persistent_.empty()) allocate(MemoryCategory::kUnshardedParam, Stream::kCompute, unit_of(p), Bytes(whole));
    else graph().actions.push_back({MemoryAction::Kind::kAllocate, at(persistent_, p)});
  }
  if (coordinator_ != nullptr) coordinator_->after_step();
  note_.clear();
}

}
