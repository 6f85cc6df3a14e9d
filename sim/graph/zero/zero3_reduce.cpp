// Gradients (deepspeed/runtime/zero/stage3.py): each is copied into the permanent bucket as soon as autograd has stored
// it, and let go of. The bucket is reduced before a gradient that would overflow it, in every micro-batch, and at the
// end of backward. A gradient larger than the bucket is reduced from where it is.
//
// A reduction divides by the number of ranks first and sums. Gradients are concatenated rank by
// rank with padding, in the order of ds_id, except for a single one whose elements the ranks
// divide. reduce_scatter: false sums the bucket as it is on all ranks.
//
// The host lets three reductions be outstanding (max_param_reduce_events).
#include <algorithm>

#include "sim/graph/zero/zero3_builder.h"

namespace foreshard {

std::int32_t Zero3::gradient_buffer(std::int32_t p) {
  const std::size_t before = static_cast<std::size_t>(pass()) * model_.order.size();
  const Zero3Parameter& each = parameter(p);
  const LayerExecution& execution = graph().executions[before + static_cast<std::size_t>(each.layer)];
  const std::int32_t slot = graph().program(execution).weight_gradients[static_cast<std::size_t>(each.index)];
  return slot < 0 ? kNoBuffer : execution.first_buffer + slot;
}

void Zero3::gradient(const Zero3Place& place) {
  if (logs()) log_gradient(place.id);
  if (!parameter(place.id).in_leaf) reduce(place.id);
}

void Zero3::reduce(std::int32_t p) {
  const std::int64_t numel = parameter(p).numel;
  const std::int64_t most = plan_.zero.reduce_bucket_size;
  if (bucket_elements_ + numel > most && bucket_elements_ > 0) flush();
  catch_up();
  std::int32_t buffer = gradient_buffer(p);
  if (plan_.zero.contiguous_gradients && bucket_elements_ + numel <= most) {
    uncopied_ += numel;
    StepBuilder::free(buffer, only(reduces_));
  } else {
    held_gradients_.push_back(buffer);
  }
  bucket_.push_back(p);
  bucket_elements_ += numel;
}

void Zero3::copy_gradients() {
  if (uncopied_ == 0) return;
  close_run();
  wait(reduces_, tail(Stream::kCompute));
  add_bytes(EventKind::kGradientCopyIn, reduces_, uncopied_ * (param_size() + comm_size()), unit_of(bucket_.front()));
  uncopied_ = 0;
}

void Zero3::flush() {
  if (bucket_.empty()) return;
  catch_up();
  close_run();
  copy_gradients();
  host_awaits(reductions_[0]);
  wait(reduces_, tail(Stream::kCompute));
  const std::int32_t unit = unit_of(bucket_.front());
  const bool all_reduces = plan_.zero.contiguous_gradients && !plan_.zero.reduce_scatter &&
                           bucket_elements_ <= plan_.zero.reduce_bucket_size;
  if (!all_reduces) std::ranges::sort(bucket_);
  if (logs()) log_bucket(bucket_);
  std::int64_t partitions = 0;
  for (const std::int32_t p : bucket_) partitions += partition_of(p);
  const std::int64_t size = comm_size();
  std::int32_t interleaved = kNoBuffer;
  if (all_reduces) {
    const std::int64_t bytes = bucket_elements_ * size;
    add_bytes(EventKind::kReduceScatterCopyIn, reduces_, 2 * bytes, unit);
    add(EventKind::kAllReduce, reduces_, work_of(EventKind::kAllReduce, bytes, kShard), unit);
    if (logs()) log_reduction("all_reduce", bytes, bytes, "op=SUM");
  } else if (plan_.zero.zero_quantized_gradients) {
    quantized_reduce(bucket_);
  } else {
    const std::int64_t bytes = partitions * plan_.mesh.fsdp() * size;
    const bool straight = bucket_.size() == 1 && parameter(bucket_.front()).numel % plan_.mesh.fsdp() == 0;
    // Concatenation, then the division in place.
    add_bytes(EventKind::kReduceScatterCopyIn, reduces_, (straight ? 2 : 4) * bytes, unit);
    if (!straight) interleaved = allocate(MemoryCategory::kReduceScatterInput, reduces_, unit, Bytes(bytes));
    add(EventKind::kReduceScatter, reduces_, work_of(EventKind::kReduceScatter, bytes, kShard), unit);
    if (logs()) log_reduction("reduce_scatter", bytes, partitions * size, "in_place");
  }
  store_partitions(partitions);
  StepBuilder::free(interleaved);
  for (std::int32_t& buffer : held_gradients_) StepBuilder::free(buffer, only(reduces_));
  held_gradients_.clear();
  reductions_ = {reductions_[1], reductions_[2], tail(reduces_)};
  bucket_.clear();
  bucket_elements_ = 0;
  unit_.clear();
  note_.clear();
}

// partition_grads: into this rank's gradient partitions, added from the second micro-batch on. Those on the host come
// back one by one, to be added to and, at the boundary, for their norms, which are taken in fp64 (get_norm_dtype), and
// their fp32 copies, which leave. A copy that came back goes when the next has.
void Zero3::store_partitions(std::int64_t elements) {
  const std::int32_t unit = unit_of(bucket_.front());
  const std::int64_t kept = size_of(accumulation_dtype());
  const bool adds = microbatch() > 0;
  const bool boundary = microbatch() + 1 == static_cast<std::int32_t>(plan_.batch.accumulation);
  const std::int64_t moved = elements * (comm_size() + (adds ? 2 : 1) * kept);
  if (!optimizes_on_host()) {
    add_bytes(EventKind::kAccumulate, reduces_, moved, unit);
    return;
  }
  std::int32_t back = kNoBuffer;
  const auto copy = [&](std::int64_t bytes) {
    return allocate(MemoryCategory::kCommTemp, reduces_, unit, Bytes(bytes));
  };
  for (const std::int32_t p : bucket_) {
    std::int32_t last = std::exchange(back, copy(partition_of(p) * kept));
    StepBuilder::free(last);
    for (const std::int64_t wide : {8, 4}) {
      if (!boundary || wide == kept) continue;
      std::int32_t widened = copy(partition_of(p) * wide);
      StepBuilder::free(widened);
    }
  }
  if (adds) {
    add_bytes(EventKind::kHostToDevice, reduces_, elements * kept, unit);
    add_bytes(EventKind::kAccumulate, reduces_, moved, unit);
    add_bytes(EventKind::kDeviceToHost, reduces_, elements * kept, unit);
  } else {
    add_bytes(EventKind::kDeviceToHost, reduces_, elements * kept, unit);
    add_bytes(EventKind::kHostToDevice, reduces_, elements * kept, unit);
  }
  StepBuilder::free(back);
  if (!boundary) return;
  add_bytes(EventKind::kDeviceToHost, reduces_, elements * 4, unit);
  if (plan_.zero.offload_optimizer == ZeroOffload::kNvme)
    add_bytes(EventKind::kStorageWrite, reduces_, elements * 4, unit);
}

// qgZ (all_to_all_quant_reduce): matrices that twice the ranks divide go as int4 through an all-to-all inside the node
// and one across nodes, a scale in fp32 for each group; the others are reduced as usual, one by one. The two hops are
// priced as reduce-scatters of their payloads: assumed, an all-to-all moves the same bytes over the same links.
void Zero3::quantized_reduce(std::span<const std::int32_t> bucket) {
  const std::int64_t world = plan_.mesh.fsdp();
  for (const std::int32_t p : bucket) {
    const Zero3Parameter& each = parameter(p);
    const auto& shape = spec_of(each.layer).parameters[static_cast<std::size_t>(each.index)].shape;
    const std::int32_t unit = unit_of(p);
    if (shape.size() == 1 || each.numel % (2 * world) != 0) {
      const std::int64_t bytes = partition_of(each) * world * comm_size();
      add_bytes(EventKind::kReduceScatterCopyIn, reduces_, 2 * bytes, unit);
      add(EventKind::kReduceScatter, reduces_, work_of(EventKind::kReduceScatter, bytes, kShard), unit);
      continue;
    }
    const std::int64_t groups = std::max({shape[0], shape[1], world});
    const std::int64_t payload = each.numel / 2 + groups * 4;
    add_bytes(EventKind::kQuantize, reduces_, each.numel * comm_size() + payload, unit);
    add(EventKind::kReduceScatter, reduces_, work_of(EventKind::kReduceScatter, payload, kShard), unit);
    add_bytes(EventKind::kDequantize, reduces_, (payload + each.numel / world * comm_size()), unit);
  }
}

}
