// torch/distributed/fsdp/_runtime_utils.py and FlatParamHandle of _flat_param.py: unshard, reshard,
// prefetch, and the hooks that call them.
//
// An unshard writes the low precision copy of the shard, or its copy from the host, on the pre-unshard stream, and
// gathers behind it on the unshard stream, in whose pool the unsharded flat parameter lies. The compute stream waits
// for all that the unshard stream was given so far. Every call of unshard takes one event off the limiter's queue once
// two are queued, whether it gathers or not; every free puts one on.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sim/graph/fsdp1/fsdp1_builder.h"
#include "sim/graph/fsdp1/fsdp1_log.h"

namespace foreshard {

EventId Fsdp1::row(EventKind kind, Stream stream, std::int32_t unit, std::int32_t variant) {
  return dry_ ? kNoEvent : add_unit_row(kind, stream, unit, variant);
}

std::int32_t Fsdp1::hold(MemoryCategory category, Stream pool, std::int32_t unit, std::int64_t bytes) {
  return dry_ ? kNoBuffer : allocate(category, pool, unit, Bytes(bytes));
}

void Fsdp1::drop(std::int32_t& buffer, StreamSet recorded) {
  if (!dry_) StepBuilder::free(buffer, recorded);
  buffer = kNoBuffer;
}

void Fsdp1::wait_tail(Stream stream, Stream source) {
  if (!dry_) wait(stream, tail(source));
}

// --- forward ---

void Fsdp1::root_pre_forward() {
  if (plan_.prefetch.forward > 0) {
    for (Handle& h : handles_) {
      h.needs_pre_forward_unshard = true;
      h.prefetched = false;
    }
  }
  wait_tail(Stream::kAllGather, Stream::kCompute);
  wait_tail(Stream::kCopyIn, Stream::kCompute);
}

void Fsdp1::pre_forward(std::int32_t unit) {
  if (!dry_) hook();
  Handle& h = handle(unit);
  if (h.state == Training::kBackwardPre) return;  // a recomputed forward
  if (first_iteration_ && h.pre_forward_index < 0) {
    h.pre_forward_index = static_cast<std::int32_t>(carried_.pre_forward_order.size());
    carried_.pre_forward_order.push_back(unit);
  }
  h.state = Training::kForward;
  if (!h.prefetched) unshard(unit);
  h.needs_pre_forward_unshard = false;
  wait_for_unshard();
  prefetch(unit, Training::kForward);
}

void Fsdp1::post_forward(std::int32_t unit, bool output_needs_gradient) {
  if (!dry_) hook();
  Handle& h = handle(unit);
  if (h.state == Training::kBackwardPre) return;
  if (h.post_forward_index <= 0)  // index 0 counts as none there
    h.post_forward_index = static_cast<std::int32_t>(post_forward_order_.size());
  post_forward_order_.push_back(unit);
  // The root's backward is next.
  reshard(unit, (unit != root() || root_is_inner_) && h.reshards_after_forward);
  h.needs_pre_backward_unshard = output_needs_gradient;
  h.ran_pre_backward_hook = false;
  h.state = Training::kIdle;
}

// --- backward ---

void Fsdp1::pre_backward(std::int32_t unit) {
  Handle& h = handle(unit);
  if (h.ran_pre_backward_hook) return;
  if (log_) log_->add_unit("pre_backward", unit);
  if (!dry_) hook();
  h.state = Training::kBackwardPre;
  if (h.needs_pre_backward_unshard) {
    if (!h.prefetched) unshard(unit);
    wait_for_unshard();
  }
  h.needs_pre_backward_unshard = false;
  prefetch(unit, Training::kBackwardPre);
  h.ran_pre_backward_hook = true;
}

// --- unshard and reshard ---

void Fsdp1::unshard(std::int32_t unit) {
  Handle& h = handle(unit);
  const bool ran = pre_unshard(unit);
  if (ran) wait_tail(Stream::kAllGather, Stream::kCopyIn);
  if (plan_.fsdp1.limit_all_gathers) dequeue_if_needed();
  if (sharded() && !h.unsharded) all_gather(unit);
  h.in_use = true;
  if (h.state == Training::kForward && !recomputing_ && !is_reentrant(layers_of(unit))) make_views(unit);
  // _free_low_precision_sharded_param, and what came from the host.
  if (sharded()) drop(h.shard_copy, only(Stream::kAllGather));
}

// What a forward computes with; a recomputed one takes them up again, but for a reentrant one's, which makes its own
// and runs their gradient's hook inside of its backward, wherever a forward prefetch had made the first.
void Fsdp1::make_views(std::int32_t unit) {
  tape_.push_back({.unit = unit});
  ++handle(unit).open_views;
}

bool Fsdp1::is_reentrant(std::span<const std::int32_t> layers) const {
  return plan_.recompute_reentrant && !layers.empty() &&
         std::ranges::all_of(
             layers, [&](std::int32_t layer) { return recompute_of(layer) == Recompute::kFull; });
}

bool Fsdp1::pre_unshard(std::int32_t unit) {
  Handle& h = handle(unit);
  if (sharded() && !offloads() && h.unsharded) return false;
  if (!lowers_parameters() && (!offloads() || h.shard_copy != kNoBuffer)) return false;
  std::int32_t arrived = kNoBuffer;
  if (offloads()) {
    row(EventKind::kHostToDevice, Stream::kCopyIn, unit);
    arrived = hold(MemoryCategory::kCastTemp, Stream::kCopyIn, unit, h.size.shard * master_size());
  }
  if (lowers_parameters()) {
    row(EventKind::kAllGatherCopyIn, Stream::kCopyIn, unit, kLowPrecision);
    const MemoryCategory category = sharded() ? MemoryCategory::kCastTemp : MemoryCategory::kUnshardedParam;
    if (h.shard_copy == kNoBuffer) h.shard_copy = hold(category, Stream::kCopyIn, unit, h.size.shard * param_size());
    drop(arrived);
  } else {
    h.shard_copy = arrived;
  }
  return true;
}

void Fsdp1::all_gather(std::int32_t unit) {
  Handle& h = handle(unit);
  row(EventKind::kAllGather, Stream::kAllGather, unit);
  h.unsharded = true;
  h.parameters = hold(MemoryCategory::kUnshardedParam, Stream::kAllGather, unit, h.size.padded * param_size());
  if (!log_) return;
  const std::string_view dtype = torch_word(plan_.param_dtype);
  const std::int64_t bytes = h.size.padded * param_size();
  log_->add_unit("unshard_alloc", unit, {.bytes_out = bytes, .dtype = dtype});
  log_->add_unit("all_gather", unit,
      {.bytes_in = h.size.shard * param_size(),
          .bytes_out = bytes,
          .dtype = dtype,
          .group = log_->shard_group(),
          .note = "list"});
}

// The unshard stream may have nothing of its own behind what it waits for.
void Fsdp1::wait_for_unshard() {
  if (dry_) return;
  wait(Stream::kCompute, tail(Stream::kAllGather));
  if (tail(Stream::kCopyIn) > tail(Stream::kAllGather)) wait(Stream::kCompute, tail(Stream::kCopyIn));
}

void Fsdp1::reshard(std::int32_t unit, bool frees) {
  Handle& h = handle(unit);
  h.in_use = false;
  if (frees) {
    if (log_) {
      log_->add_unit("unshard_free", unit,
          {.bytes_in = h.unsharded ? h.size.padded * param_size() : 0, .dtype = torch_word(plan_.param_dtype)});
    }
    drop(h.parameters, only(Stream::kCompute));  // _free_unsharded_flat_param
    h.unsharded = false;
    if (plan_.fsdp1.limit_all_gathers) {
      carried_.free_events.push_back(
          {dry_ ? kNoEvent : tail(Stream::kCompute), unit, h.state == Training::kForward, carried_.step, microbatch()});
    }
  }
  if (!sharded()) drop(h.shard_copy, only(Stream::kCompute));
  h.prefetched = false;
}

// _FreeEventQueue: at most two units that were freed on the host may not be so on the device.
void Fsdp1::dequeue_if_needed() {
  constexpr std::size_t kMostInFlight = 2;
  if (carried_.free_events.size() - queue_head_ < kMostInFlight) return;
  const FreeEvent& event = carried_.free_events[queue_head_];
  if (queue_head_ < inherited_) late_free_ = static_cast<std::int32_t>(queue_head_);
  else if (!dry_) host_wait(event.row);
  ++queue_head_;
  if (!log_) return;
  log_->add({.kind = "rate_limiter_wait",
      .note = fmt::format("for_free={}@{}{}.{} left_in_queue={}", log_->name_of(event.unit),
          event.in_forward ? "fwd" : "bwd", event.step, event.microbatch, carried_.free_events.size() - queue_head_)});
}

// --- prefetch ---

std::int32_t Fsdp1::target_of_prefetch(std::int32_t unit) const {
  using BackwardPrefetch = Fsdp1Options::BackwardPrefetch;
  const Handle& h = handle(unit);
  if (h.state == Training::kForward) {
    const auto next = at(std::int64_t{h.pre_forward_index} + 1);
    if (plan_.prefetch.forward <= 0 || h.pre_forward_index < 0) return -1;
    if (next >= carried_.pre_forward_order.size()) return -1;
    const std::int32_t target = carried_.pre_forward_order[next];
    return handle(target).needs_pre_forward_unshard && !handle(target).prefetched ? target : -1;
  }
  const Training when =
      plan_.fsdp1.backward_prefetch == BackwardPrefetch::kPre ? Training::kBackwardPre : Training::kBackwardPost;
  if (plan_.prefetch.backward == 0 || h.state != when || h.post_forward_index <= 0) return -1;
  const std::int32_t target = post_forward_order_[at(h.post_forward_index - 1)];
  return handle(target).needs_pre_backward_unshard && !handle(target).prefetched ? target : -1;
}

void Fsdp1::prefetch(std::int32_t unit, Training pass) {
  const std::int32_t target = target_of_prefetch(unit);
  if (target < 0) return;
  Handle& h = handle(target);
  const Training before = std::exchange(h.state, pass);
  unshard(target);
  h.state = before;
  h.prefetched = true;
}

}
