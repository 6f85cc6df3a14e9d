// Stages as DeepSpeed's PipelineEngine runs them (0.19.8, runtime/pipe/engine.py). Compute waits for each transfer. All
// arrive in one buffer and are copied twice: for the gradient, which is sent back, and to compute with. What was
// returned goes with its backward; the last stage's, with what it received, when the next but one is there.
#include "sim/graph/zero/zero12_builder.h"

namespace foreshard {

using Kind = PipelineAction::Kind;

void Zero12::hold_pipe_buffers() {
  boundary_bytes_ = boundary_bytes(model_, plan_);
  allocate_persistent(MemoryCategory::kInput, -1, boundary_bytes_);
  const std::int64_t buffers = std::min<std::int64_t>(2, plan_.batch.accumulation);
  for (std::int64_t i = 0; i < buffers && has_loss(); ++i) {
    begin_pass(0, 0);
    const Bytes bytes = graph().buffer(input_buffer(end_layer() - 1)).bytes;
    std::vector<std::int32_t>& held = returned_.emplace_back();
    for (const Bytes each : {bytes, boundary_bytes_, boundary_bytes_})
      held.push_back(allocate_persistent(MemoryCategory::kActivation, -1, each));
  }
}

void Zero12::run_pipeline() {
  boundary_ = false;
  for (const PipelineRow& row : pipeline_rows()) {
    if (row.kind == PipelineRow::Kind::kBatch) exchange(row.transfers.front());
    if (row.kind == PipelineRow::Kind::kAction) act(row.action);
  }
}

void Zero12::exchange(const PipelineTransfer& transfer) {
  begin_pass(transfer.microbatch, transfer.microbatch);
  wait(Stream::kCompute, add_exchange(transfer.peer, boundary_bytes_, Exchange::Side::kBoth));
  if (transfer.forward == transfer.sends) return;
  if (transfer.sends) {
    if (has_loss()) return;  // it goes with the logits, whose graph has it
    std::int32_t gradient = input_gradient(begin_layer());
    StepBuilder::free(gradient);
    StepBuilder::free(received_.at(transfer.microbatch));
  } else {
    copy_boundary();
    received_[transfer.microbatch] = allocate(MemoryCategory::kInput, Stream::kCompute, -1, boundary_bytes_);
  }
}

void Zero12::act(const PipelineAction& action) {
  if (action.kind == Kind::kReduceGrad) return reduce_pipeline();
  begin_pass(action.microbatch, action.microbatch);
  if (action.kind == Kind::kForward) {
    if (received_.contains(action.microbatch)) {
      copy_boundary();
      graph().actions.push_back({MemoryAction::Kind::kAllocate, input_buffer(begin_layer())});
    }
    return run_forward();
  }
  const std::int32_t last = end_layer() - 1;
  run_backward();
  if (is_bf16_optimizer()) add_to_flat_gradient();
  if (has_loss())
    return returned_.push_back({input_buffer(last), received_.at(action.microbatch), input_gradient(begin_layer())});
  std::int32_t output = output_buffer(last);
  StepBuilder::free(output);
}

void Zero12::loss_begins() {
  if (!is_pipeline()) return;
  free_all(returned_.front());
  returned_.pop_front();
}

void Zero12::reduce_pipeline() {
  sum_table_gradients(gradient_size());
  boundary_ = true;
  if (is_bf16_optimizer()) return reduce_flat_gradient();
  ready_for_gradients_ = false;  // a second bucket
  set_up_buckets();
  epilogue();
}

// _aggregate_total_loss, of the step before; what the stages are then told is too small to count.
void Zero12::sum_losses() {
  if (has_loss() && plan_.mesh.stage_ranks() > 1) collective(EventKind::kAllReduce, 4, Stream::kCompute);
}

}
