// Stages of a pipeline as Megatron-Core runs them (0.20, core/pipeline_parallel/schedules.py).
//
// With one stage a rank: forward_backward_pipelining_without_interleaving, which exchanges like PyTorch's 1F1B, a batch
// with one neighbour at a time, awaited at once. With several (interleaving, overlap_p2p_comm): what the next action
// reads is asked for before this one computes, and who sends does not wait. Tensors are made when they arrive and freed
// with their backward; an output goes when it has been sent (deallocate_pipeline_outputs).
#include <utility>

#include "sim/base/error.h"
#include "sim/graph/megatron/megatron_builder.h"

namespace foreshard {

using Kind = PipelineAction::Kind;

void Megatron::run_pipeline() {
  const StagePipeline pipeline = stage_pipeline(plan_);
  boundary_ = boundary_bytes(model_, plan_);
  if (pipeline.stages_per_rank > 1) return run_interleaved(pipeline);
  for (const PipelineRow& row : pipeline_rows()) {
    switch (row.kind) {
      case PipelineRow::Kind::kBatch: exchange(row); break;
      case PipelineRow::Kind::kWait: wait(Stream::kCompute, batches_sent_[at(row.batch)]); break;
      case PipelineRow::Kind::kAction: act(row.action); break;
      case PipelineRow::Kind::kLocal: break;
    }
  }
}

void Megatron::run_interleaved(const StagePipeline& pipeline) {
  const auto rank = static_cast<int>(plan_.mesh.pp_index(plan_.rank()));
  const std::vector<int> ranks = stage_ranks(pipeline);
  const PipelineOrder order = pipeline_orders(pipeline)[at(rank)];
  // Where an action's input comes from, or its result goes; -1: nowhere.
  const auto other_rank = [&](const PipelineAction& action, bool result) {
    const bool up = (action.kind == Kind::kForward) == result;
    const int stage = action.stage + (up ? 1 : -1);
    return stage < 0 || stage >= pipeline.stages() ? -1 : ranks[at(stage)];
  };
  const auto transfer_of = [&](const PipelineAction& action, bool result) {
    return PipelineTransfer{
        result, action.stage, action.kind == Kind::kForward, action.microbatch, other_rank(action, result)};
  };
  const auto ask_for = [&](const PipelineAction& action) {
    const PipelineTransfer transfer = transfer_of(action, false);
    if (transfer.peer < 0) return kNoEvent;
    const EventId row = add_exchange(transfer.peer, boundary_, Exchange::Side::kReceive);
    receive(transfer);
    return row;
  };
  EventId arrives = ask_for(order.front());
  for (std::size_t i = 0; i < order.size(); ++i) {
    const EventId next = i + 1 < order.size() ? ask_for(order[i + 1]) : kNoEvent;
    wait(Stream::kCompute, std::exchange(arrives, next));
    act(order[i]);
    const PipelineTransfer result = transfer_of(order[i], true);
    if (result.peer < 0) continue;
    add_exchange(result.peer, boundary_, Exchange::Side::kSend);
    sent(result);
  }
}

void Megatron::exchange(const PipelineRow& row) {
  batches_sent_.resize(std::max(batches_sent_.size(), at(row.batch) + 1), kNoEvent);
  batches_sent_[at(row.batch)] = add_exchange(row.transfers.front().peer, boundary_, Exchange::Side::kBoth);
  for (const PipelineTransfer& transfer : row.transfers) transfer.sends ? sent(transfer) : receive(transfer);
}

void Megatron::begin_action(std::int32_t stage, std::int32_t microbatch) {
  const auto layers = std::ranges::find(stages(), stage, &StageLayers::stage);
  FORESHARD_CHECK(layers != stages().end(), "an action of another rank's stage");
  set_layers(layers->begin, layers->end);
  begin_pass(microbatch, microbatch);
  first_ = microbatch == 0;
  last_ = microbatch + 1 == static_cast<std::int32_t>(plan_.batch.accumulation);
}

void Megatron::receive(const PipelineTransfer& transfer) {
  begin_action(transfer.stage, transfer.microbatch);
  const std::int32_t made = transfer.forward ? input_buffer(begin_layer()) : output_buffer(end_layer() - 1) + 1;
  graph().actions.push_back({MemoryAction::Kind::kAllocate, made});
}

void Megatron::sent(const PipelineTransfer& transfer) {
  begin_action(transfer.stage, transfer.microbatch);
  std::int32_t gone = transfer.forward ? output_buffer(end_layer() - 1) : input_gradient(begin_layer());
  StepBuilder::free(gone);
}

void Megatron::act(const PipelineAction& action) {
  if (action.kind == Kind::kReduceGrad) return;  // finalize_gradients
  begin_action(action.stage, action.microbatch);
  if (action.kind == Kind::kForward) return run_forward();
  FORESHARD_CHECK(action.kind == Kind::kBackward, "an action that no plan has");
  run_backward();
  if (!fuses()) add_gradients();
  const std::int32_t last = end_layer() - 1;
  if (spec_of(last).role != LayerRole::kLoss) {
    std::int32_t held = output_buffer(last) + 1;
    StepBuilder::free(held);
  }
  if (!model_.order[at(begin_layer())].begins_stage) return;
  std::int32_t input = input_buffer(begin_layer());
  StepBuilder::free(input);
}

}
