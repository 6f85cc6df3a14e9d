// Megatron-Core's distributed optimizer (core/distributed/param_and_grad_buffer.py,
// core/optimizer/distrib_optimizer.py): stage 1 with one flat gradient of the whole model.
//
// Backward's products add to the flat gradient themselves (gradient_accumulation_fusion), in the
// dtype of the reduction: they read and write it, where a product alone would write a gradient in
// the compute dtype. Norms and biases, which are added to it one by one, count with them. In the
// last micro-batch a bucket is scaled and reduce-scattered in place as soon as it is full, with
// overlap_comm beside backward (overlap_grad_reduce). Each rank steps its shard, from a copy in
// fp32 where the gradient is not, and gathers the parameters.
#include "sim/graph/zero/zero12_builder.h"

namespace foreshard {

// A layer's gradients are part of the buffer once its backward has run.
void Zero12::give_to_buffer() {
  cut();
  std::int64_t elements = 0;
  for (const std::int32_t p : to_copy_) elements += parameter(p).numel;
  if (elements > 0) {
    const std::int64_t more = 2 * size_of(wire_dtype()) - param_size();
    add_copy(EventKind::kAccumulate, Stream::kCompute, elements * more, 0);
  }
  for (const std::int32_t p : to_copy_) {
    std::int32_t gradient = gradient_buffer(p, pass());
    StepBuilder::free(gradient);
    alive_[at(p)] = false;
    bucket_.elements += parameter(p).numel;
  }
  to_copy_.clear();
  if (boundary_ && overlaps() && bucket_.elements >= options().reduce_bucket_size) reduce_shard();
}

void Zero12::reduce_shard() {
  if (bucket_.elements == 0) return;
  const std::int64_t bytes = bucket_.elements * size_of(wire_dtype());
  bucket_.elements = 0;
  add_copy(EventKind::kGradScale, Stream::kCompute, 2 * bytes, 1);
  if (overlaps()) wait(reducing(), tail(Stream::kCompute));
  const bool whole = plan_.mesh.replicate > 1;  // over all groups; each keeps its part
  collective(whole ? EventKind::kAllReduce : EventKind::kReduceScatter, bytes, reducing());
  log_collective(whole ? "all_reduce" : "reduce_scatter", bytes, torch_word(wire_dtype()),
                 "op=SUM");
}

void Zero12::end_of_buffer_pass() {
  give_to_buffer();
  if (boundary_) reduce_shard();
  bucket_.elements = 0;
}

void Zero12::step_of_buffer(bool stepped) {
  wait(Stream::kCompute, tail(reducing()));
  const std::int64_t own = groups_.front().partition_numel, held = size_of(wire_dtype());
  add_copy(EventKind::kGradNorm, Stream::kCompute, own * held, 1);
  all_reduce_result(4, "float32", "grad_norm op=SUM");
  std::int32_t wide = kNoBuffer;
  if (held != 4) {
    add_copy(EventKind::kAccumulate, Stream::kCompute, own * (held + 4), 1);
    wide = allocate(MemoryCategory::kOptimizerTemp, Stream::kCompute, -1, Bytes(own * 4));
  }
  if (plan_.optimizer.clip_norm) step_row(EventKind::kGradScale, groups_.front());
  step_partition(groups_.front(), stepped);
  StepBuilder::free(wide);
  add_copy(EventKind::kAccumulate, Stream::kCompute, groups_.front().flat_numel * held,
           1);  // zero_
  gather();
}

// BF16_Optimizer (deepspeed/runtime/bf16_optimizer.py): what stage 1 becomes with parameters in
// bf16 and gradients accumulated in fp32.
//
// Every rank holds a flat fp32 gradient of the whole model. Each micro-batch's gradients are added
// to it when backward is done; at the boundary it is all-reduced as one tensor, in the
// communication dtype, before the step. Nothing is bucketed and nothing overlaps; the norm is of
// the whole gradient, so that no rank asks another.

void Zero12::add_to_flat_gradient() {
  add_copy(EventKind::kAccumulate, Stream::kCompute,
           total(&ZeroPartition::numel) * (param_size() + 8),
           static_cast<std::int64_t>(ready_order().size()));
  for (std::size_t p = 0; p < parameters().size(); ++p) {
    if (!alive_[p]) continue;
    alive_[p] = false;
    std::int32_t gradient = gradient_buffer(static_cast<std::int32_t>(p), pass());
    StepBuilder::free(gradient);
  }
}

void Zero12::reduce_flat_gradient() {
  const std::int64_t wire = size_of(wire_dtype());
  for (const ZeroPartition& group : groups_) {
    const std::int64_t numel = group.flat_numel;
    std::int32_t cast = kNoBuffer;
    if (wire != 4) {
      add_copy(EventKind::kQuantize, Stream::kCompute, numel * (4 + wire), 1);
      cast = allocate(MemoryCategory::kCommTemp, Stream::kCompute, -1, Bytes(numel * wire));
    }
    collective(EventKind::kAllReduce, numel * wire, Stream::kCompute);
    log_collective("all_reduce", numel * wire, torch_word(wire_dtype()), "op=SUM");
    add_copy(EventKind::kGradScale, Stream::kCompute, 2 * numel * wire, 1);
    if (wire != 4) add_copy(EventKind::kDequantize, Stream::kCompute, numel * (4 + wire), 1);
    StepBuilder::free(cast);
  }
}

void Zero12::step_of_bf16(bool stepped) {
  const std::int64_t numel = total(&ZeroPartition::flat_numel);
  host_wait(add_copy(EventKind::kGradNorm, Stream::kCompute, numel * 4,
                     static_cast<std::int64_t>(ready_order().size())));
  if (plan_.optimizer.clip_norm) {
    add_copy(EventKind::kGradScale, Stream::kCompute, 2 * numel * 4, 1);
  }
  for (const ZeroPartition& group : groups_) step_partition(group, stepped);
  add_copy(EventKind::kAccumulate, Stream::kCompute, numel * 4, 1);  // zero_
  gather();
}

}  // namespace foreshard
