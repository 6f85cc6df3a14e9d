// _post_backward_hook and _post_backward_final_callback of _runtime_utils.py.
//
// Autograd concatenates the gradients of the views to the flat gradient. Behind it, on the post-backward stream: cast
// to the reduce dtype, padding where the flat parameter is not padded itself, division by about the root of the ranks,
// reduce-scatter, with replicas all-reduce on a stream of its own, division by the rest, cast to the stored dtype,
// addition to the shard of earlier micro-batches. NO_SHARD all-reduces the flat gradient in place.
//
// The gradient as autograd made it is a local name of the hook: it lives until all of that was issued.
#include <utility>

#include "sim/graph/fsdp1/fsdp1_builder.h"
#include "sim/graph/fsdp1/fsdp1_log.h"

namespace foreshard {

// SplitWithSizesBackward and AccumulateGrad.
void Fsdp1::accumulate_grad(std::int32_t unit) {
  Handle& h = handle(unit);
  if (in_place()) return accumulate_in_place(unit);
  row(EventKind::kGradientCopyIn, Stream::kCompute, unit);
  std::int32_t made = hold(MemoryCategory::kUnshardedGrad, Stream::kAllGather, unit, h.size.flat * param_size());
  if (!dry_) {
    free_gradients(unit, pass());
    free_last_gradient(unit, pass());
  }
  if (h.has_flat_gradient) {
    row(EventKind::kAccumulate, Stream::kCompute, unit, kAdd);
    drop(made);
    return;
  }
  h.flat_gradient = made;
  h.has_flat_gradient = true;
  h.gradient_is_stored_dtype = false;
}

// Products wrote, or added, into what is reduced.
void Fsdp1::accumulate_in_place(std::int32_t unit) {
  Handle& h = handle(unit);
  if (!dry_) {
    free_gradients(unit, pass());
    free_last_gradient(unit, pass());
  }
  if (h.has_flat_gradient) return;
  h.flat_gradient = hold(MemoryCategory::kUnshardedGrad, Stream::kCompute, unit, h.size.flat * reduce_size());
  h.has_flat_gradient = true;
  h.gradient_is_stored_dtype = false;
}

bool Fsdp1::frees_in_backward(std::int32_t unit) const {
  return sharded() && (syncs_gradients_ || handle(unit).reshards_after_forward);
}

void Fsdp1::post_backward(std::int32_t unit) {
  Handle& h = handle(unit);
  if (log_) {
    const DType dtype = gradient_dtype(h);
    log_->add_unit("post_backward", unit, {.bytes_in = h.size.flat * size_of(dtype), .dtype = torch_word(dtype)});
  }
  if (!dry_) hook();
  h.state = Training::kBackwardPost;
  reshard(unit, frees_in_backward(unit));
  prefetch(unit, Training::kBackwardPre);
  if (syncs_gradients_ && !dry_) reduce_grad(unit);
}

void Fsdp1::reshard_only(std::int32_t unit) {
  Handle& h = handle(unit);
  if (!dry_) hook();
  h.state = Training::kBackwardPost;
  reshard(unit, frees_in_backward(unit));
  prefetch(unit, Training::kBackwardPre);
}

void Fsdp1::reduce_grad(std::int32_t unit) {
  Handle& h = handle(unit);
  const FlatSize& size = h.size;
  constexpr Stream kPost = Stream::kReduceScatter;
  const std::string_view dtype = torch_word(plan_.reduce_dtype);
  wait_tail(kPost, Stream::kCompute);
  const bool casts = gradient_dtype(h) != plan_.reduce_dtype;
  const bool pads = !in_place() && sharded() && size.padded > size.flat;
  std::int32_t computed = std::exchange(h.flat_gradient, kNoBuffer);
  h.has_flat_gradient = false;
  std::int32_t cast = kNoBuffer, padded = kNoBuffer;
  if (casts || pads || pre_divide() > 1) {
    row(EventKind::kReduceScatterCopyIn, kPost, unit, h.gradient_is_stored_dtype ? kPrepareKept : kPrepare);
    if (casts) cast = hold(MemoryCategory::kReduceScatterInput, kPost, unit, size.flat * reduce_size());
    if (pads) padded = hold(MemoryCategory::kReduceScatterInput, kPost, unit, size.padded * reduce_size());
  }
  Stream stream = kPost;
  std::int32_t output = kNoBuffer;  // kNoBuffer: the input, in place
  if (sharded()) {
    row(EventKind::kReduceScatter, kPost, unit);
    output = hold(MemoryCategory::kReduceScatterOutput, kPost, unit, size.shard * reduce_size());
    if (log_) {
      log_->add_unit("reduce_scatter", unit,
          {.bytes_in = size.padded * reduce_size(),
              .bytes_out = size.shard * reduce_size(),
              .dtype = dtype,
              .group = log_->shard_group()});
    }
  } else {
    output = std::exchange(casts ? cast : computed, kNoBuffer);
  }
  if (hybrid() || !sharded()) {
    if (hybrid()) {
      stream = Stream::kAllReduce;
      wait_tail(stream, kPost);
    }
    row(EventKind::kAllReduce, stream, unit);
    if (log_) {
      log_->add_unit("all_reduce", unit,
          {.bytes_in = size.shard * reduce_size(),
              .bytes_out = size.shard * reduce_size(),
              .dtype = dtype,
              .group = hybrid() ? log_->replicate_group() : log_->shard_group(),
              .note = "op=SUM"});
    }
  }
  const bool keeps_dtype = !sharded() && plan_.fsdp1.keep_low_precision_grads;
  const bool casts_back = plan_.reduce_dtype != plan_.master_dtype && !keeps_dtype;
  if (post_divide() > 1 || casts_back || h.has_gradient)
    row(EventKind::kAccumulate, stream, unit, h.has_gradient ? kFinishAdd : kFinish);
  if (casts_back) {
    const std::int32_t wide = hold(MemoryCategory::kShardedGrad, stream, unit, size.shard * master_size());
    drop(output, only(stream));
    output = wide;
  } else if (output != kNoBuffer) {
    graph().actions.push_back({MemoryAction::Kind::kStore, output});
  }
  offload_grad(unit, stream);
  if (!sharded()) {
    h.flat_gradient = output;
    h.has_flat_gradient = true;
    h.gradient_is_stored_dtype = !keeps_dtype;
  } else if (h.has_gradient) {
    drop(output, gradient_streams());
  } else {
    h.gradient = output;
    h.has_gradient = true;
  }
  drop(padded);
  drop(cast);
  drop(computed, only(kPost));
}

// Without shards the host waits for the copy (non_blocking=False).
void Fsdp1::offload_grad(std::int32_t unit, Stream stream) {
  if (!offloads()) return;
  const EventId copied = row(EventKind::kDeviceToHost, stream, unit);
  if (!sharded()) host_wait(copied);
}

void Fsdp1::final_callback() {
  if (log_) log_->add({.kind = "final_callback"});
  if (!dry_) hook();
  if (syncs_gradients_) {
    wait_tail(Stream::kCompute, Stream::kReduceScatter);
    if (hybrid()) wait_tail(Stream::kCompute, Stream::kAllReduce);
    if (offloads() && !dry_) host_wait(tail(hybrid() ? Stream::kAllReduce : Stream::kReduceScatter));
  }
  first_iteration_ = false;
  post_forward_order_.clear();
  for (std::int32_t u = 0; u < count(); ++u) {
    Handle& h = handle(u);
    // What no post-backward has met.
    if (h.in_use && (sharded() || lowers_parameters() || offloads())) reshard(u, frees_in_backward(u));
    // prepare_gradient_for_optim.
    if (syncs_gradients_ && h.has_gradient) {
      if (offloads()) drop(h.gradient, only(Stream::kReduceScatter));
      if (plan_.fsdp1.keep_low_precision_grads && lowers_parameters() && !h.lowered_gradient) {
        row(EventKind::kAccumulate, Stream::kCompute, u, kLowerAgain);
        const std::int32_t low =
            offloads() ? kNoBuffer
                       : hold(MemoryCategory::kShardedGrad, Stream::kCompute, u, h.size.shard * param_size());
        drop(h.gradient, gradient_streams());
        h.gradient = low;
        h.lowered_gradient = true;
      }
    }
    h.open_views = 0;
    h.ran_pre_backward_hook = false;
    h.needs_pre_backward_unshard = false;
    h.post_forward_index = -1;
    h.state = Training::kIdle;
    h.prefetched = false;
  }
}

}
