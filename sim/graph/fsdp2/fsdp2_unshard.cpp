// FSDPParamGroup from unshard to reshard, and foreach_all_gather.
//
// unshard: copy-in on its own stream (cast to the compute dtype, copy into the rank's slot of the gather buffer),
// all-gather on the all-gather stream behind it. wait_for_unshard: copy-out on the compute stream. In forward the
// gather buffer of the unit before is held until then, because its copy-out must have ended before another copy-in may
// reuse it; a local name keeps it a little longer (until 2.14). In backward the buffer is freed at once.
#include <algorithm>
#include <utility>

#include "sim/graph/fsdp2/fsdp2_builder.h"
#include "sim/graph/fsdp2/fsdp2_scope.h"

namespace foreshard {

void Fsdp2::unshard(std::int32_t unit) {
  Group& g = group(unit);
  see_state(unit);
  if (g.gather.pending || g.unsharded) return;
  if (g.state == Training::kPreBackward && !plan_.unshard_in_backward.at(unit)) return;
  Scope scope(*this, "unshard", unit);
  if (logging_) log_here("unshard_begin", {.cause = log_cause_.empty() ? "demand" : log_cause_});
  if (g.reshard.recorded) {
    wait_gather_streams(g.reshard);
    g.reshard = {};
  }
  g.gather = {};
  g.gather.pending = true;
  if (!alone(unit) || version_.gathers_alone) all_gather(unit);
}

void Fsdp2::all_gather(std::int32_t unit) {
  Group& g = group(unit);
  const UnitShape& s = shape(unit);
  const bool async = unshards_now_ || (is_async(unit) && g.state != Training::kIdle);
  const Stream copies = async ? Stream::kCompute : Stream::kCopyIn;
  const bool small = !g.slices.empty();
  const std::int64_t shards = s.shards;
  const std::int64_t ranks = small ? s.reshard_group : shards;
  const std::int64_t bytes = small ? s.gather_bytes * shards / ranks : s.gather_bytes;
  const bool offloaded = plan_.offload != Offload::kNone && !small;

  std::vector<std::int32_t>& temporaries = temporaries_;
  if (offloaded) {
    add_unit_row(EventKind::kHostToDevice, copies, unit);
    for (const UnitParameter& p : s.list) {
      if (logging_) {
        log_here("host_to_device", {.stream = name(copies),
                                       .bytes_in = p.shard_numel * p.stored_size,
                                       .dtype = to_string(plan_.master_dtype),
                                       .on = "non_blocking"});
      }
      std::int32_t arrived = allocate(MemoryCategory::kCastTemp, copies, unit, Bytes(p.shard_numel * p.stored_size));
      log_operator("clone", copies, p.shard_numel * p.stored_size, plan_.master_dtype);
      if (!p.casts) {
        temporaries.push_back(arrived);
        continue;
      }
      temporaries.push_back(allocate(MemoryCategory::kCastTemp, copies, unit, Bytes(p.shard_numel * p.gathered_size)));
      log_operator("_to_copy", copies, p.shard_numel * master_size(), plan_.master_dtype);
      StepBuilder::free(arrived);
    }
  }
  const EventId copy_in = add_unit_row(EventKind::kAllGatherCopyIn, copies, unit, small ? kSmallGroup : kWholeGroup);
  if (!offloaded && casts_parameters() && version_.casts_one_by_one && !small) {
    for (const UnitParameter& p : s.list) {
      if (!p.casts) continue;
      temporaries.push_back(allocate(MemoryCategory::kCastTemp, copies, unit, Bytes(p.shard_numel * p.gathered_size)));
      log_operator("_to_copy", copies, p.shard_numel * master_size(), plan_.master_dtype);
    }
  } else if (!offloaded && casts_parameters() && !version_.casts_one_by_one) {
    temporaries.push_back(allocate(MemoryCategory::kCastTemp, copies, unit, Bytes(bytes)));
    log_operator("_foreach_copy_", copies, bytes, plan_.param_dtype);
  }
  g.gather.buffer = allocate(MemoryCategory::kAllGatherOutput, copies, unit, Bytes(bytes * ranks));
  const std::string_view dtype = s.fp8_shard_numel > 0 ? "uint8" : to_string(plan_.param_dtype);
  if (logging_) {
    log_here(
        "all_gather_copy_in", {.stream = name(copies), .bytes_in = bytes, .bytes_out = bytes * ranks, .dtype = dtype});
  }
  const Stream shown = async ? Stream::kCompute : Stream::kAllGather;
  wait(Stream::kAllGather, copy_in);
  if (logging_) log_here("wait", {.stream = name(shown), .on = async ? "stream D" : "stream CI"});
  add_unit_row(EventKind::kAllGather, Stream::kAllGather, unit, small ? kSmallGroup : kWholeGroup);
  if (logging_) {
    log_here("all_gather", {.stream = name(shown),
                               .bytes_in = bytes,
                               .bytes_out = bytes * ranks,
                               .dtype = dtype,
                               .group = small ? "post_forward" : shard_group(unit),
                               .group_size = ranks,
                               .cause = log_cause_.empty() ? "demand" : log_cause_,
                               .communicator = gathers_on(s),
                               .issue = "c10d"});
  }
  g.gather.event = record(Stream::kAllGather, "all_gather", unit);
  g.gather.async = async;
  g.gather.bytes = bytes * ranks;
  free_all(temporaries);
}

void Fsdp2::wait_for_unshard(std::int32_t unit) {
  Group& g = group(unit);
  see_state(unit);
  if (!g.gather.pending) return;
  Scope scope(*this, "wait_for_unshard", unit);
  HeldGather previous;
  if (g.state == Training::kForward && held_gather_.gather.buffer != kNoBuffer) {
    wait_gather_streams(held_gather_.copy_out);
    previous = std::exchange(held_gather_, {});
    if (version_.frees_gather_before_copy_out) free_gather(previous.unit, previous.gather);
  }
  const bool gathered = !alone(unit) || version_.gathers_alone;
  std::int32_t temporary = kNoBuffer;
  if (gathered) copy_out(unit);
  else temporary = copy_out_alone(unit);
  free_all(g.slices);
  g.unsharded = true;
  const DeviceEvent copied = record(Stream::kCompute, "all_gather_copy_out", unit);
  if (!g.gather.async && g.state == Training::kForward && gathered) {
    held_gather_ = {std::exchange(g.gather, {}), unit, copied};
  } else {
    wait_gather_streams(copied);
    free_gather(unit, g.gather);
  }
  g.gather = {};
  free_gather(previous.unit, previous.gather);
  StepBuilder::free(temporary);
}

void Fsdp2::copy_out(std::int32_t unit) {
  Group& g = group(unit);
  const UnitShape& s = shape(unit);
  if (g.gather.async && logging_) log_here("wait", {.on = "work all_gather", .on_unit = unit});
  wait_event(Stream::kCompute, g.gather.event);
  add_unit_row(EventKind::kAllGatherCopyOut, Stream::kCompute, unit);
  if (s.reshard_group == 0 && s.cut_numel == 0) {
    g.parameters = allocate_parts(MemoryCategory::kUnshardedParam, unit, s.unsharded_parts);
  } else {
    std::vector<std::int32_t> temporaries;
    for (const UnitParameter& p : s.list) {
      const Bytes bytes(p.shard_numel * s.shards * p.gathered_size);
      g.single_parameters.push_back(allocate(MemoryCategory::kUnshardedParam, Stream::kCompute, unit, bytes));
      // Sharded along another dimension: a contiguous copy first, put together from there.
      if (p.shard_dim > 0) temporaries.push_back(allocate(MemoryCategory::kCommTemp, Stream::kCompute, unit, bytes));
    }
    for (const UnitParameter& p : s.list) {
      if (p.shard_dim == 0) continue;
      log_operator("cat", Stream::kCompute, p.shard_numel * s.shards * param_size(), plan_.param_dtype);
    }
    for (std::int32_t& temporary : temporaries) StepBuilder::free(temporary);
  }
  if (logging_) {
    log_here("all_gather_copy_out",
        {.bytes_in = g.gather.bytes, .bytes_out = s.gather_bytes * s.shards, .dtype = to_string(plan_.param_dtype)});
  }
}

// A shard group of one rank (from 2.9): parameters are cast and copied one by one. Returns the last
// cast, which a local name keeps until the unshard is over.
std::int32_t Fsdp2::copy_out_alone(std::int32_t unit) {
  Group& g = group(unit);
  add_unit_row(EventKind::kAllGatherCopyOut, Stream::kCompute, unit, kSingleRank);
  std::int32_t last = kNoBuffer;
  for (const UnitParameter& p : shape(unit).list) {
    if (p.casts) {
      const std::int32_t cast =
          allocate(MemoryCategory::kCommTemp, Stream::kCompute, unit, Bytes(p.shard_numel * p.gathered_size));
      log_operator("_to_copy", Stream::kCompute, p.shard_numel * master_size(), plan_.master_dtype);
      StepBuilder::free(last);
      last = cast;
    }
    g.single_parameters.push_back(
        allocate(MemoryCategory::kUnshardedParam, Stream::kCompute, unit, Bytes(p.numel * p.gathered_size)));
    log_operator("copy_", Stream::kCompute, p.numel * p.gathered_size, plan_.param_dtype);
  }
  return last;
}

void Fsdp2::reshard(std::int32_t unit) {
  Group& g = group(unit);
  see_state(unit);
  Scope scope(*this, "reshard", unit);
  if (g.state == Training::kForward) {
    const Reshard& after = this->unit(unit).reshard;
    if (after.kind == Reshard::Kind::kNever) return;
    if (after.kind == Reshard::Kind::kGroup) {
      if (g.slices.empty()) keep_slices(unit);
      g.reshard = record(Stream::kCompute, "reshard", unit);
      return;
    }
  }
  if (!g.unsharded && g.slices.empty()) return;
  StepBuilder::free(g.parameters);
  free_all(g.single_parameters);
  free_all(g.slices);
  g.unsharded = false;
  if (logging_) log_here("reshard");
}

// to_sharded_post_forward: clone the own slice of each parameter, then free the parameter.
void Fsdp2::keep_slices(std::int32_t unit) {
  Group& g = group(unit);
  const UnitShape& s = shape(unit);
  add_unit_row(EventKind::kReshard, Stream::kCompute, unit);
  for (std::size_t i = 0; i < s.list.size(); ++i) {
    const std::int64_t bytes = s.list[i].shard_numel * s.shards / s.reshard_group * param_size();
    g.slices.push_back(allocate(MemoryCategory::kPostForwardShard, Stream::kCompute, unit, Bytes(bytes)));
    log_operator("clone", Stream::kCompute, bytes, plan_.param_dtype);
    StepBuilder::free(g.single_parameters[i]);
  }
  g.single_parameters.clear();
  g.unsharded = false;
  if (logging_) log_here("reshard", {.on = "post_forward_shard"});
}

// As Python drops a list.
void Fsdp2::free_from_end(std::vector<std::int32_t>& buffers) {
  std::ranges::reverse(buffers);
  free_all(buffers);
}

void Fsdp2::pre_forward(std::int32_t unit) {
  hook();
  Scope scope(*this, "pre_forward", unit);
  group(unit).state = Training::kForward;
  unshard(unit);
  wait_for_unshard(unit);
  see_state(unit);
  if (logging_) log_here("forward_begin");
}

void Fsdp2::post_forward(std::int32_t unit, bool in_backward) {
  hook();
  Scope scope(*this, "post_forward", unit);
  see_state(unit);
  if (logging_) log_here("forward_end");
  Group& g = group(unit);
  if (!in_backward || version_.recompute_reshards) {
    reshard(unit);
    const auto position = static_cast<std::int32_t>(post_forward_order_.size());
    post_forward_order_.push_back({unit, std::exchange(g.post_forward, position)});
  }
  g.state = Training::kIdle;
}

void Fsdp2::pre_backward(std::int32_t unit, bool default_prefetch) {
  Group& g = group(unit);
  if (g.state == Training::kPreBackward) return;
  hook();
  Scope scope(*this, "pre_backward", unit);
  g.state = Training::kPreBackward;
  unshard(unit);
  wait_for_unshard(unit);
  if (default_prefetch && g.post_forward >= 0) {
    const auto position = at(g.post_forward);
    g.post_forward = post_forward_order_[position].before;
    if (position > 0) prefetch(post_forward_order_[position - 1].unit, Training::kPreBackward, "implicit_backward");
  }
  see_state(unit);
  if (logging_) log_here("backward_begin");
}

void Fsdp2::prefetch(std::int32_t unit, Training pass, std::string_view cause) {
  Group& g = group(unit);
  const Training before = std::exchange(g.state, pass);
  const std::string_view outer = std::exchange(log_cause_, cause);
  unshard(unit);
  log_cause_ = outer;
  g.state = before;
}

void Fsdp2::free_gather(std::int32_t unit, Gather& gather) {
  if (gather.buffer == kNoBuffer) return;
  StepBuilder::free(gather.buffer);
  if (logging_) log("free_all_gather_output", {.unit = unit, .bytes_in = gather.bytes, .cause = log_where_});
}

}
