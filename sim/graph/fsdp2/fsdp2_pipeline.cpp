// Stages of a pipeline as torch.distributed.pipelining (2.11) drives FSDP2.
//
// Each stage is a root of its own. Backward only accumulates, unsharded: every backward first switches reductions off
// (stage.py, backward_maybe_with_nosync), and a row of its own reduces when the stage's last micro-batch is done: unit
// by unit in forward order, then waits for all (perform_reduce_grad). Schedules of several stages also gather by an
// action of its own, all units of a stage at once, whose copies out wait for the stage's first forward.
//
// A backward in two halves runs the hooks with the first one, which finds the gradients that second ones before it
// left; the second one is autograd's alone. The first stage makes all of its backward where others make weights'
// gradients (stage.py, backward_one_chunk, backward_weight_one_chunk).
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/graph/fsdp2/fsdp2_builder.h"
#include "sim/graph/fsdp2/fsdp2_scope.h"

namespace foreshard {

using Kind = PipelineAction::Kind;

void Fsdp2::list_stages() {
  for (const StageLayers& layers : stages()) {
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
// sends; of one that a stage of this rank gives, the tensor itself until the next step's replaces
// it. Gradients of inputs that halves of backwards left go when a step begins. From 2.15 on buffers are made when a
// transfer is posted and go with the backward that they were for (_recv_buffers.py, stage.py), gradients that were sent
// stay until the schedule ends (_add_wait_send), and outputs of schedules of one stage a rank go when they were sent.
void Fsdp2::hold_buffers_ahead(StepNumber step) {
  const std::vector<int> ranks = stage_ranks(stage_pipeline(plan_));
  for (const Stage& each : stages_) {
    for (const std::int32_t other : {each.stage - 1, each.stage + 1}) {
      if (other < 0 || other >= static_cast<std::int32_t>(ranks.size())) continue;
      if (ranks[at(each.stage)] == ranks[at(other)]) continue;
      for (std::int64_t m = 0; m < given_microbatches(); ++m)
        allocate_persistent(MemoryCategory::kInput, -1, boundary_);
    }
  }
  if (step == StepNumber::kFirst) return;
  for (const PipelineRow& row : pipeline_rows()) {
    const PipelineAction& action = row.action;
    if (row.kind == PipelineRow::Kind::kLocal) {
      const bool forward = action.kind == Kind::kForward;
      const MemoryCategory category = forward ? MemoryCategory::kActivation : MemoryCategory::kBackwardTemp;
      given_[{action.stage, forward, action.microbatch}] = allocate_persistent(category, -1, boundary_);
    } else if (row.kind == PipelineRow::Kind::kAction && keeps_gradient(action)) {
      kept_.push_back(allocate_persistent(MemoryCategory::kBackwardTemp, -1, boundary_));
    }
  }
}

void Fsdp2::hold_received(StepNumber step) {
  if (!version_.receives_late) hold_buffers_ahead(step);
  if (step == StepNumber::kFirst) return;
  const bool ends = spec_of(static_cast<std::int32_t>(model_.order.size()) - 1).role == LayerRole::kLoss;
  for (std::int32_t m = 0; plan_.pipeline.return_outputs && ends && m < call_microbatches(); ++m)
    kept_.push_back(allocate_persistent(MemoryCategory::kActivation, -1, Bytes(returned_bytes())));
}

void Fsdp2::give(const PipelineAction& action) {
  if (logging_) {
    log(action.kind == Kind::kForward ? "local_forward" : "local_backward",
        {.splits = fmt::format("stage {} microbatch {}", action.stage, action.microbatch)});
  }
  const bool forward = action.kind == Kind::kForward;
  const std::tuple key(action.stage, forward, action.microbatch);
  std::int32_t& place = given_.try_emplace(key, kNoBuffer).first->second;
  StepBuilder::free(place);
  place = forward ? output_buffer(end_ - 1) : input_gradient(begin_);
}

// Whether its stage's input keeps a gradient that nobody else does.
bool Fsdp2::keeps_gradient(const PipelineAction& action) const {
  return action.kind == Kind::kInputGrad && action.stage > 0 && !is_local(action.stage - 1);
}

bool Fsdp2::is_local(std::int32_t stage) const { return contains(stages_, stage, &Stage::stage); }

void Fsdp2::run_pipeline() {
  unshards_ahead_ = std::ranges::any_of(pipeline_rows(), [](const PipelineRow& row) {
    return row.kind == PipelineRow::Kind::kAction && row.action.kind == Kind::kUnshard;
  });
  const auto microbatches = static_cast<std::int32_t>(plan_.batch.accumulation);
  for (; first_microbatch_ < microbatches; first_microbatch_ += call_microbatches()) run_call();
}

// One step() of the schedule, and what a trainer makes of its losses.
void Fsdp2::run_call() {
  const auto has = [&](LayerRole role) {
    return std::ranges::any_of(
        model_.order, [&](const LayerInstance& layer) { return model_.kinds[at(layer.kind)].role == role; });
  };
  const auto temporary = [&](std::int64_t bytes) {
    return allocate(MemoryCategory::kActivation, Stream::kCompute, -1, Bytes(bytes));
  };
  const bool is_fetched = !framed();
  const std::int64_t samples = plan_.batch.micro_batch * given_microbatches();
  if (is_fetched && has(LayerRole::kEmbedding)) {
    input_tokens_ = allocate(
        MemoryCategory::kInput, Stream::kCompute, -1, Bytes(input_bytes(model_, samples, plan_.batch.sequence)));
  }
  if (is_fetched && has(LayerRole::kLoss)) {
    input_labels_ = allocate(
        MemoryCategory::kInput, Stream::kCompute, -1, Bytes(label_bytes(model_, samples, plan_.batch.sequence)));
  }
  if (framed()) cut_batch();
  free_all(kept_);
  run_rows();
  free_all(sent_gradients_);
  for (auto& [of, buffer] : given_)
    if (version_.receives_late) StepBuilder::free(buffer);
  if (version_.receives_late) given_.clear();
  if (std::exchange(is_returned_done_, false)) StepBuilder::free(returned_);
  if (has(LayerRole::kLoss)) {
    if (plan_.pipeline.return_outputs) {
      std::int32_t merged = temporary(call_microbatches() * returned_bytes());
      StepBuilder::free(merged);
    }
    std::int32_t stacked = temporary(4 * call_microbatches()), mean = temporary(4);
    StepBuilder::free(stacked);
    StepBuilder::free(mean);
  }
  StepBuilder::free(input_tokens_);
  StepBuilder::free(input_labels_);
  drop_batch_parts();
  for (const Stage& each : stages_) {
    enter_stage(each.stage);
    if (spec_of(end_ - 1).role != LayerRole::kLoss) continue;
    for (std::int32_t m = first_microbatch_; m < first_microbatch_ + call_microbatches(); ++m) {
      begin_pass(m, m);
      leave_loss(1);
    }
  }
}

void Fsdp2::run_rows() {
  const PipelineRows& rows = pipeline_rows();
  first_batch_ = static_cast<std::int32_t>(batches_sent_.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const PipelineRow& row = rows[i];
    const PipelineRow* const next = i + 1 < rows.size() ? &rows[i + 1] : nullptr;
    const auto is_next = [&](PipelineRow::Kind kind) { return next != nullptr && next->kind == kind; };
    switch (row.kind) {
      case PipelineRow::Kind::kBatch: exchange(row); break;
      case PipelineRow::Kind::kWait:
        // Schedules that gather by actions wait inside the one behind, when its units are there.
        if (unshards_ahead_ && is_next(PipelineRow::Kind::kAction)) awaited_.push_back(row.batch);
        else await_batch(row.batch);
        break;
      case PipelineRow::Kind::kAction:
        act(row.action, is_next(PipelineRow::Kind::kLocal) ? &next->action : nullptr);
        break;
      case PipelineRow::Kind::kLocal: break;  // with the action
    }
  }
}

void Fsdp2::exchange(const PipelineRow& row) {
  // The list of operations before this one's is dropped with what it holds.
  const bool returns_gradient = std::ranges::any_of(
      row.transfers, [](const PipelineTransfer& transfer) { return transfer.sends && !transfer.forward; });
  const bool keeps_sent = unshards_ahead_ && version_.receives_late;
  if (returns_gradient && sent_gradients_.size() > 1 && !keeps_sent) {
    StepBuilder::free(sent_gradients_.front());
    sent_gradients_.erase(sent_gradients_.begin());
  }
  for (const PipelineTransfer& transfer : row.transfers) {
    if (!version_.receives_late) break;
    if (!transfer.sends) {
      given_[{transfer.stage, transfer.forward, transfer.microbatch}] =
          allocate(MemoryCategory::kInput, Stream::kCompute, -1, boundary_);
    } else if (transfer.forward && !unshards_ahead_) {
      outgoing_[static_cast<std::int32_t>(batches_sent_.size())] = returned_output();
    }
  }
  batches_sent_.push_back(add_exchange(row.transfers.front().peer, boundary_, Exchange::Side::kBoth));
  for (const PipelineTransfer& transfer : row.transfers) {
    if (!logging_) break;
    const std::int64_t bytes = boundary_.count();
    log(transfer.sends ? "send" : "recv",
        {.bytes_in = transfer.sends ? bytes : HostEvent::kBlank,
            .bytes_out = transfer.sends ? HostEvent::kBlank : bytes,
            .dtype = to_string(plan_.param_dtype),
            .group = "pp",
            .group_size = plan_.mesh.pp,
            .splits = fmt::format("peer {} batch {}", transfer.peer, batches_sent_.size())});
  }
  if (returns_gradient && unshards_ahead_ && !keeps_sent) free_all(sent_gradients_);
}

void Fsdp2::await_batch(std::int32_t batch) {
  batch += first_batch_;
  wait(Stream::kCompute, batches_sent_[at(batch)]);
  if (const auto sent = outgoing_.find(batch); sent != outgoing_.end()) {
    StepBuilder::free(sent->second);
    outgoing_.erase(sent);
  }
  if (logging_) log("p2p_wait", {.splits = fmt::format("batch {}", batch + 1)});
}

// In an action, behind its stage's gathers.
void Fsdp2::await_inputs() {
  finish_unshards();
  for (const std::int32_t batch : std::exchange(awaited_, {})) await_batch(batch);
}

void Fsdp2::log_action(std::string_view kind, const PipelineAction& action) {
  PipelineAction alone = action;
  alone.overlaps_next = false;
  if (logging_) log(kind, {.splits = text_of(PipelineOrder{alone})});
}

void Fsdp2::act(const PipelineAction& action, const PipelineAction* given) {
  enter_stage(action.stage);
  const std::int32_t microbatch = first_microbatch_ + action.microbatch;
  const std::vector<std::int32_t> units = is_wrapped() ? visits_ : std::vector<std::int32_t>();
  // Before each action of a pair, inside of one alone; and the loss of one alone.
  const bool is_paired = std::exchange(overlaps_, action.overlaps_next) || overlaps_;
  if (is_paired) await_inputs();
  log_action("action_begin", action);
  switch (action.kind) {
    case Kind::kForward: forward_stage(microbatch); break;
    case Kind::kBackward: backward_stage(microbatch); break;
    case Kind::kInputGrad: action.stage > 0 ? backward_stage(microbatch, /*is_half=*/true) : await_inputs(); break;
    case Kind::kWeightGrad: action.stage > 0 ? weights_of_stage(microbatch) : backward_stage(microbatch); break;
    case Kind::kUnshard:
      unshards_now_ = true;
      for (const std::int32_t unit : units) unshard(unit);
      unshards_now_ = false;
      stages_[stage_].unshards = !units.empty();
      break;
    case Kind::kReshard:
      for (const std::int32_t unit : units) reshard(unit);
      break;
    case Kind::kReduceGrad:
      reduce_stage();
      if (plan_.pipeline.scale_grads) scale_gradients();
      break;
    default: FORESHARD_CHECK(false, "an action that no plan has");
  }
  const bool has_loss = action.kind == Kind::kForward && computes_loss();
  // Schedules of one stage a rank compute it themselves (_maybe_compute_loss).
  const bool is_outside = !unshards_ahead_ || is_paired;
  if (has_loss && !is_outside) compute_loss(end_ - 1);
  if (given != nullptr && !is_paired) give(*given);
  const bool is_done = action.kind == Kind::kBackward || action.kind == Kind::kWeightGrad;
  for (const bool forward : {true, false}) {
    const auto received = given_.find({action.stage, forward, action.microbatch});
    // The losses' graphs keep what the last stage was given.
    const bool is_kept = forward && spec_of(end_ - 1).role == LayerRole::kLoss;
    if (!version_.receives_late || !is_done || is_kept || received == given_.end()) continue;
    StepBuilder::free(received->second);
    given_.erase(received);
  }
  log_action("action_end", action);
  if (action.kind == Kind::kForward) name_output();
  if (has_loss && is_outside) compute_loss(end_ - 1);
  if (given != nullptr && is_paired) give(*given);
}

void Fsdp2::finish_unshards() {
  if (!std::exchange(stages_[stage_].unshards, false)) return;
  for (const std::int32_t unit : visits_) wait_for_unshard(unit);
}

void Fsdp2::forward_stage(std::int32_t microbatch) {
  await_inputs();
  begin_pass(microbatch, microbatch);
  if (chunked_unit_ >= 0) group(chunked_unit_).reduces = all_reduces_ = reshards_after_backward_ = true;
  run_forward(true);
}

// A head in chunks is done, backward and all, with its stage's forward.
bool Fsdp2::computes_loss() const { return spec_of(end_ - 1).role == LayerRole::kLoss && !in_chunks(end_ - 2); }

void Fsdp2::backward_stage(std::int32_t microbatch, bool is_half) {
  if (plan_.pipeline.schedule == PipelineSchedule::kGPipe) free_all(sent_gradients_);
  await_inputs();
  begin_pass(microbatch, microbatch);
  for (Group& g : groups_) g.reduces = false;
  is_last_backward_ = reshards_after_backward_ = all_reduces_ = false;
  const std::int32_t last = end_ - 1;
  const bool has_loss = computes_loss();
  if (has_loss) {
    add_loss_backward(last);
    add_phase(EventKind::kBackward, last, Segments::kInside);
  }
  is_half_ = is_half;
  run_backward();
  is_half_ = false;
  if (spec_of(last).role == LayerRole::kLoss) leave_loss(0);
  if (has_loss || (!is_half && spec_of(last).role != LayerRole::kLoss)) leave_output();
  const bool is_given = stages_[stage_].stage > 0 && is_local(stages_[stage_].stage - 1);
  if (is_given || !model_.order[at(begin_)].begins_stage) return;
  (is_half && !version_.receives_late ? kept_ : sent_gradients_).push_back(input_gradient(begin_));
}

// stage_backward_weight.
void Fsdp2::weights_of_stage(std::int32_t microbatch) {
  begin_pass(microbatch, microbatch);
  for (const std::int8_t part : {LayerSegment::kWeights, LayerSegment::kGraph}) {
    for (std::int32_t l = begin_; l < end_; ++l) {
      const LayerPhaseProgram& p = phase(EventKind::kBackward, l);
      flights_.assign(p.calls.size(), kNoEvent);
      for (std::size_t s = 0; s < p.segments.size() && p.segments.size() > 1; ++s) {
        if (p.segments[s].part != part) continue;
        if (part == LayerSegment::kWeights) run_calls(EventKind::kBackward, l, s);  // a block that runs again
        run_border_segment(EventKind::kBackward, l, s);
      }
      if (part != LayerSegment::kWeights) continue;
      for (std::size_t p = 0; p <= spec_of(l).nested.size(); ++p) store_gradients(l, static_cast<std::int8_t>(p));
    }
  }
  if (spec_of(end_ - 1).role != LayerRole::kLoss) leave_output();
}

void Fsdp2::leave_output() {
  const bool is_sent = version_.receives_late && !unshards_ahead_ && spec_of(end_ - 1).role != LayerRole::kLoss;
  if (is_local(stages_[stage_].stage + 1) || is_sent) return;
  if (returns_outputs()) return kept_.push_back(returned_output());
  std::int32_t output = returned_output();
  if (output == returned_) is_returned_done_ = true;
  else StepBuilder::free(output);
}

// What a stage returned: its logits, or what it sends.
std::int32_t Fsdp2::returned_output() const {
  const std::int32_t last = end_ - 1;
  return spec_of(last).role == LayerRole::kLoss ? input_buffer(last) : output_buffer(last);
}

// A schedule of one stage a rank has a name for what its last forward returned.
void Fsdp2::name_output() {
  if (unshards_ahead_ || returns_outputs() || version_.receives_late) return;
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
    add_segment(EventKind::kBackward, loss, static_cast<std::uint16_t>(s));
  }
}

// perform_reduce_grad.
void Fsdp2::reduce_stage() {
  if (!is_wrapped()) return;
  for (Group& g : groups_) g.reduces = true;
  is_last_backward_ = reshards_after_backward_ = all_reduces_ = true;
  std::vector<std::int32_t> units = visits_;
  if (version_.leftovers_first) std::ranges::reverse(units);  // 2.15.0 _fsdp_state.py:470
  for (const std::int32_t unit : units) {
    if (unit == chunked_unit_) take_rest();
    post_backward(unit, "autograd");
    if (unit == chunked_unit_) take_gradients(Gradients::kOfAll);
  }
  root_post_backward_final_callback();
}

// Divides by the number of micro-batches (stage.py, scale_grads).
void Fsdp2::scale_gradients() {
  if (call_microbatches() == 1) return;
  std::int64_t bytes = 0, parameters = 0;
  const std::set<std::int32_t> units(visits_.begin(), visits_.end());
  for (const std::int32_t unit : units) {
    add_unit_row(EventKind::kAccumulate, Stream::kCompute, unit, kDivide);
    for (const UnitParameter& p : shape(unit).list) {
      if (!p.trainable) continue;
      bytes += p.local_numel * master_size();
      ++parameters;
    }
  }
  if (logging_) log("scale_grads", {.bytes_out = bytes, .splits = fmt::format("{} x div_", parameters)});
}

// Of the model's output of one micro-batch.
std::int64_t Fsdp2::returned_bytes() const {
  const auto loss = static_cast<std::int32_t>(model_.order.size()) - 1;
  const Batch& batch = plan_.batch;
  return checked_multiply(elements(spec_of(loss).tensors.front(), batch.micro_batch, batch.sequence / plan_.mesh.cp),
      size_of(plan_.param_dtype));
}

// Whether what the stage's forwards returned stays: the model's outputs, which step() returns.
bool Fsdp2::returns_outputs() const {
  return plan_.pipeline.return_outputs && spec_of(end_ - 1).role == LayerRole::kLoss;
}

}
