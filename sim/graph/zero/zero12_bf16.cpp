// BF16_Optimizer (deepspeed/runtime/bf16_optimizer.py): what stage 1 becomes with parameters in
// bf16 and gradients accumulated in fp32.
//
// Every rank holds a flat fp32 gradient of the whole model. Each micro-batch's gradients are added
// to it when backward is done; at the boundary it is all-reduced as one tensor, in the
// communication dtype, before the step. Nothing is bucketed and nothing overlaps; the norm is of
// the whole gradient, so that no rank asks another.
#include "sim/graph/zero/zero12_builder.h"

namespace foreshard {

void Zero12::add_to_flat_gradient() {
  add_copy(EventKind::kAccumulate, Stream::kCompute, total(&ZeroPartition::numel) * (param_size() + 8),
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
  host_wait(
      add_copy(EventKind::kGradNorm, Stream::kCompute, numel * 4, static_cast<std::int64_t>(ready_order().size())));
  if (plan_.optimizer.clip_norm) add_copy(EventKind::kGradScale, Stream::kCompute, 2 * numel * 4, 1);
  for (const ZeroPartition& group : groups_) step_partition(group, stepped);
  add_copy(EventKind::kAccumulate, Stream::kCompute, numel * 4, 1);  // zero_
  gather();
}

}
