// Stages of a pipeline as torch.distributed.pipelining (2.11) drives FSDP2.
//
// Each stage is a root of its own. Backward only accumulates, unsharded: every backward first
// switches reductions off (stage.py, backward_maybe_with_nosync), and a row of its own reduces when
// the stage's last micro-batch is done: unit by unit in forward order, then waits for all
// (perform_reduce_grad). Schedules of several stages also gather by an action of its own, all units
// of a stage at once, whose copies out wait for the stage's first forward.
//
// A transfer joins the one stream of the pipeline's communicator behind everything that was issued
// on the compute stream. What arrives is received into buffers that are made once.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sim/base/error.h"
#include "sim/graph/fsdp2/fsdp2_builder.h"
#include "sim/graph/fsdp2/fsdp2_scope.h"

namespace foreshard {

using Kind = PipelineAction::Kind;

void Fsdp2::list_stages() {
  for (const StageLayers& layers : stages_of_part(model_, plan_)) {
    Stage& stage = stages_.emplace_back();
    stage.stage = layers.stage;
    stage.begin = layers.begin;
    stage.end = layers.end;
    for (const std::int32_t unit : std::exchange(visits_, {})) {
      const std::int32_t layer = modules_of(unit).front().layer;
      const bool is_inside = layer >= layers.begin && layer < layers.end;
      (is_inside ? stage.visits : visits_).push_back(unit);
    }
  }
  boundary_ = boundary_bytes(model_, plan_);
  swap_members(stages_[stage_]);
}

void Fsdp2::swap_members(Stage& stage) {
  std::swap(begin_, stage.begin);
  std::swap(end_, stage.end);
  std::swap(visits_, stage.visits);
  std::swap(post_forward_order_, stage.post_forward_order);
  std::swap(held_gather_, stage.held_gather);
  std::swap(held_inputs_, stage.held_inputs);
  std::swap(late_inputs_, stage.late_inputs);
  std::swap(last_reductions_, stage.last_reductions);
}

void Fsdp2::enter_stage(std::int32_t stage) {
  const auto found = std::ranges::find(stages_, stage, &Stage::stage);
  FORESHARD_CHECK(found != stages_.end(), "an action of another rank's stage");
  const auto index = at(found - stages_.begin());
  if (index == stage_) return;
  swap_members(stages_[stage_]);
  stage_ = index;
  swap_members(stages_[stage_]);
}

// A buffer for each micro-batch of every input and of every output's gradient that another rank
// sends.
void Fsdp2::hold_received() {
  const std::vector<int> ranks = stage_ranks(stage_pipeline(plan_));
  const auto is_remote = [&](std::int32_t stage, std::int32_t other) {
    return other >= 0 && other < static_cast<std::int32_t>(ranks.size()) &&
           ranks[at(stage)] != ranks[at(other)];
  };
  for (const Stage& each : stages_) {
    for (const std::int32_t other : {each.stage - 1, each.stage + 1}) {
      if (!is_remote(each.stage, other)) continue;
      for (std::int64_t m = 0; m < plan_.batch.accumulation; ++m) {
        allocate_persistent(MemoryCategory::kInput, -1, boundary_);
      }
    }
  }
}

void Fsdp2::run_pipeline() {
  const StagePipeline pipeline = stage_pipeline(plan_);
  const auto rank = at(plan_.mesh.pp_index(plan_.rank));
  const PipelineRows rows = pipeline_rows(pipeline)[rank];
  unshards_ahead_ = std::ranges::any_of(rows, [](const PipelineRow& row) {
    return row.kind == PipelineRow::Kind::kAction && row.action.kind == Kind::kUnshard;
  });
  const auto has = [&](LayerRole role) {
    return std::ranges::any_of(model_.order, [&](const LayerInstance& layer) {
      return model_.kinds[at(layer.kind)].role == role;
    });
  };
  const bool is_fetched = !framed();
  const std::int64_t samples = plan_.batch.micro_batch * plan_.batch.accumulation;
  if (is_fetched && has(LayerRole::kEmbedding)) {
    input_tokens_ = allocate(MemoryCategory::kInput, Stream::kCompute, -1,
                             Bytes(input_bytes(model_, samples, plan_.batch.sequence)));
  }
  if (is_fetched && has(LayerRole::kLoss)) {
    input_labels_ = allocate(MemoryCategory::kInput, Stream::kCompute, -1,
                             Bytes(label_bytes(model_, samples, plan_.batch.sequence)));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const PipelineRow& row = rows[i];
    switch (row.kind) {
      case PipelineRow::Kind::kBatch:
        exchange(row);
        break;
      case PipelineRow::Kind::kWait:
        // Schedules that gather by actions wait inside the one behind, when its units are there.
        if (unshards_ahead_ && i + 1 < rows.size() &&
            rows[i + 1].kind == PipelineRow::Kind::kAction) {
          awaited_.push_back(row.batch);
        } else {
          await_batch(row.batch);
        }
        break;
      case PipelineRow::Kind::kAction:
        act(row.action);
        break;
      case PipelineRow::Kind::kLocal:
        break;  // the neighbour's tensor
    }
  }
  free_all(sent_gradients_);
  if (is_returned_done_) StepBuilder::free(returned_);
  StepBuilder::free(input_tokens_);
  StepBuilder::free(input_labels_);
  for (const Stage& each : stages_) {
    enter_stage(each.stage);
    if (spec_of(end_ - 1).role != LayerRole::kLoss) continue;
    for (std::int32_t m = 0; m < static_cast<std::int32_t>(plan_.batch.accumulation); ++m) {
      begin_pass(m, m);
      leave_loss(1);
    }
  }
}

void Fsdp2::exchange(const PipelineRow& row) {
  // The list of operations before this one's is dropped with what it holds.
  const bool returns_gradient = std::ranges::any_of(
      row.transfers,
      [](const PipelineTransfer& transfer) { return transfer.sends && !transfer.forward; });
  if (returns_gradient && sent_gradients_.size() > 1) {
    StepBuilder::free(sent_gradients_.front());
    sent_gradients_.erase(sent_gradients_.begin());
  }
  const EventId sent = add_exchange(row.transfers.front().peer, boundary_, Exchange::Side::kBoth);
  batches_sent_.resize(std::max(batches_sent_.size(), at(row.batch) + 1), kNoEvent);
  batches_sent_[at(row.batch)] = sent;
  for (const PipelineTransfer& transfer : row.transfers) {
    if (!logging_) break;
    const std::int64_t bytes = boundary_.count();
    log(transfer.sends ? "send" : "recv",
        {.bytes_in = transfer.sends ? bytes : HostEvent::kBlank,
         .bytes_out = transfer.sends ? HostEvent::kBlank : bytes,
         .dtype = to_string(plan_.param_dtype),
         .group = "pp",
         .group_size = plan_.mesh.pp,
         .splits = fmt::format("peer {} batch {}", transfer.peer, row.batch + 1)});
  }
  if (returns_gradient && unshards_ahead_) free_all(sent_gradients_);
}

void Fsdp2::await_batch(std::int32_t batch) {
  wait(Stream::kCompute, batches_sent_[at(batch)]);
  if (logging_) log("p2p_wait", {.splits = fmt::format("batch {}", batch + 1)});
}

// In an action, behind its stage's gathers.
void Fsdp2::await_inputs() {
  finish_unshards();
  for (const std::int32_t batch : std::exchange(awaited_, {})) await_batch(batch);
}

void Fsdp2::log_action(std::string_view kind, const PipelineAction& action) {
  if (logging_) log(kind, {.splits = text_of(PipelineOrder{action})});
}

void Fsdp2::act(const PipelineAction& action) {
  enter_stage(action.stage);
  log_action("action_begin", action);
  switch (action.kind) {
    case Kind::kForward:
      forward_stage(action.microbatch);
      break;
    case Kind::kBackward:
      backward_stage(action.microbatch);
      break;
    case Kind::kUnshard:
      unshards_now_ = true;
      for (const std::int32_t unit : visits_) unshard(unit);
      unshards_now_ = false;
      stages_[stage_].unshards = true;
      break;
    case Kind::kReshard:
      for (const std::int32_t unit : visits_) reshard(unit);
      break;
    case Kind::kReduceGrad:
      reduce_stage();
      break;
    default:
      FORESHARD_CHECK(false, "an action that no plan has");
  }
  const bool has_loss = action.kind == Kind::kForward && spec_of(end_ - 1).role == LayerRole::kLoss;
  // Schedules of one stage a rank compute it themselves (_maybe_compute_loss).
  if (has_loss && unshards_ahead_) compute_loss(end_ - 1);
  log_action("action_end", action);
  if (action.kind == Kind::kForward) name_output();
  if (has_loss && !unshards_ahead_) compute_loss(end_ - 1);
}

void Fsdp2::finish_unshards() {
  if (!std::exchange(stages_[stage_].unshards, false)) return;
  for (const std::int32_t unit : visits_) wait_for_unshard(unit);
}

void Fsdp2::forward_stage(std::int32_t microbatch) {
  await_inputs();
  begin_pass(microbatch, microbatch);
  run_forward(true);
}

void Fsdp2::backward_stage(std::int32_t microbatch) {
  if (plan_.pipeline.schedule == PipelineSchedule::kGPipe) free_all(sent_gradients_);
  await_inputs();
  begin_pass(microbatch, microbatch);
  for (Group& g : groups_) g.reduces = false;
  is_last_backward_ = reshards_after_backward_ = all_reduces_ = false;
  const std::int32_t last = end_ - 1;
  const bool has_loss = spec_of(last).role == LayerRole::kLoss;
  if (has_loss) {
    add_loss_backward(last);
    add_phase(EventKind::kBackward, last, Segments::kInside);
  }
  run_backward();
  if (has_loss) leave_loss(0);
  std::int32_t output = returned_output();
  if (output == returned_) {
    is_returned_done_ = true;
  } else {
    StepBuilder::free(output);
  }
  if (model_.order[at(begin_)].begins_stage) sent_gradients_.push_back(input_gradient(begin_));
}

// What a stage returned: its logits, or what it sends.
std::int32_t Fsdp2::returned_output() const {
  const std::int32_t last = end_ - 1;
  return spec_of(last).role == LayerRole::kLoss ? input_buffer(last) : output_buffer(last);
}

// A schedule of one stage a rank has a name for what its last forward returned.
void Fsdp2::name_output() {
  if (unshards_ahead_) return;
  if (std::exchange(is_returned_done_, false)) StepBuilder::free(returned_);
  returned_ = returned_output();
}

// The loss' gradient goes with its backward (0), its value with the step (1).
void Fsdp2::leave_loss(std::size_t part) {
  const std::int32_t loss = end_ - 1;
  const std::vector<LayerSegment>& segments = phase(EventKind::kBackward, loss).segments;
  std::size_t found = 0;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    if (segments[s].part != LayerSegment::kAfter || found++ != part) continue;
    add_segment(EventKind::kBackward, loss, static_cast<std::uint8_t>(s));
  }
}

// perform_reduce_grad.
void Fsdp2::reduce_stage() {
  for (Group& g : groups_) g.reduces = true;
  is_last_backward_ = reshards_after_backward_ = all_reduces_ = true;
  for (const std::int32_t unit : visits_) post_backward(unit, "autograd");
  root_post_backward_final_callback();
}

}  // namespace foreshard
