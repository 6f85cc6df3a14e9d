// BF16_Optimizer (deepspeed/runtime/bf16_optimizer.py): what stage 1 becomes with parameters in
// bf16 and gradients accumulated in fp32.
//
// Every rank holds a flat fp32 gradient of the whole model. Each micro-batch's gradients are added to it when backward
// is done; at the boundary it is all-reduced as one tensor, in the communication dtype, before the step. Nothing is
// bucketed and nothing overlaps; the norm is of the whole gradient, so that no rank asks another.
#include <algorithm>

#include "sim/graph/zero/zero12_builder.h"

namespace foreshard {

void Zero12::add_to_flat_gradient() {
  add_copy(EventKind::kAccumulate, Stream::kCompute,
      total(&ZeroPartition::numel) * (param_size() + 2 * gradient_size()),
      static_cast<std::int64_t>(ready_order().size()));
  if (gradient_size() != param_size() && is_pipeline()) {  // of one after the other, wide
    std::int64_t largest = 0;
    for (const Parameter& p : parameters()) largest = std::max(largest, p.numel);
    std::int32_t wide = allocate(MemoryCategory::kBackwardTemp, Stream::kCompute, -1, Bytes(largest * gradient_size()));
    StepBuilder::free(wide);
  }
  if (is_pipeline()) return;  // zeros, until the step's end
  for (std::size_t p = 0; p < parameters().size(); ++p) {
    if (!alive_[p]) continue;
    alive_[p] = false;
    std::int32_t gradient = gradient_buffer(static_cast<std::int32_t>(p), pass());
    StepBuilder::free(gradient);
  }
}

void Zero12::reduce_flat_gradient() {
  const std::int64_t held = gradient_size(), wire = size_of(wire_dtype());
  for (const ZeroPartition& group : groups_) {
    const std::int64_t numel = group.flat_numel;
    std::int32_t cast = kNoBuffer;
    if (wire != held) {
      add_copy(EventKind::kQuantize, Stream::kCompute, numel * (held + wire), 1);
      cast = allocate(MemoryCategory::kCommTemp, Stream::kCompute, -1, Bytes(numel * wire));
    }
    collective(EventKind::kAllReduce, numel * wire, Stream::kCompute);
    log_collective("all_reduce", numel * wire, torch_word(wire_dtype()), "op=SUM");
    add_copy(EventKind::kGradScale, Stream::kCompute, 2 * numel * wire, 1);
    if (wire != held) add_copy(EventKind::kDequantize, Stream::kCompute, numel * (held + wire), 1);
    StepBuilder::free(cast);
  }
}

void Zero12::step_of_bf16(bool stepped) {
  const std::int64_t numel = total(&ZeroPartition::flat_numel), held = gradient_size();
  add_copy(EventKind::kGradNorm, Stream::kCompute, numel * held, static_cast<std::int64_t>(ready_order().size()));
  if (is_pipeline()) all_reduce(communicator_of(MeshDim::kPp), 4);
  host_wait(std::max(tail(Stream::kCompute), tail(Stream::kAllReduce)));
  if (plan_.optimizer.clip_norm) add_copy(EventKind::kGradScale, Stream::kCompute, 2 * numel * held, 1);
  for (const ZeroPartition& group : groups_) {
    std::int32_t wide = kNoBuffer;
    if (held != 4)
      wide = allocate(MemoryCategory::kOptimizerTemp, Stream::kCompute, -1, Bytes(group.partition_numel * 4));
    step_partition(group, stepped);
    StepBuilder::free(wide);
  }
  add_copy(EventKind::kAccumulate, Stream::kCompute, numel * held, 1);  // zero_
  gather();
  for (std::size_t p = 0; p < parameters().size(); ++p) free_gradient(static_cast<std::int32_t>(p));
}

}
