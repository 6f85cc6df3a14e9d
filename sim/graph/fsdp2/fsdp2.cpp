// fully_shard's FSDPState, and the training loop, model and autograd around it.
//
// Forward: each unit's pre-forward (gather, copy-out, wrap of its inputs), its layers, its post-forward (reshard,
// order, hooks on its outputs). A unit of several modules begins with the first that runs and ends with the last.
//
// Backward: autograd meets a unit's hooks at its outputs (pre_backward), and a node at those of its
// inputs that need a gradient (post_backward). Units that have none, like that of the embedding,
// whose inputs are token ids, are left to the callback at the end of backward, root first.
//
// A recomputed forward inside a unit finds its hooks switched off; a unit inside the recomputed
// module does not, and behaves as the root of a forward of its own.
#include <algorithm>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/graph/fsdp2/fsdp2_builder.h"
#include "sim/graph/fsdp2/fsdp2_repeat.h"
#include "sim/graph/fsdp2/fsdp2_scope.h"
#include "sim/graph/runtimes.h"
#include "sim/spec/checks/condition.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/size_units.h"

namespace foreshard {

Fsdp2::Fsdp2(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled)
    : StepBuilder(model, plan, programs, std::move(recycled)),
      version_(fsdp2_version(fsdp2_minor(plan.runtime.version).value_or(kNewestFsdp2))),
      groups_(at(unit_count())) {
  add_communicators(PostForwardGroups::kOfEachUnit);
  prepare();
}

void Fsdp2::prepare() {
  if (root() >= 0 && !version_.root_may_reshard) graph().units[at(root())].reshard = {Reshard::Kind::kNever, 0};
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  // The loss in chunks leaves its head resharding (set_reshard_after_forward).
  if (chunked_unit_ >= 0) graph().units[at(chunked_unit_)].reshard = {};
  std::vector<bool> visited(groups_.size());
  const auto visit = [&](std::int32_t unit) {
    const auto u = at(unit);
    if (!visited[u] || !version_.visits_lists_once) visits_.push_back(unit);
    visited[u] = true;
  };
  bool needed = false;
  std::vector<bool> waiting;  // whether what later layers join needs a gradient
  for (std::int32_t l = 0; l < layers; ++l) {
    const LayerSpec& spec = spec_of(l);
    needed |= model_.order[at(l)].begins_stage;
    if (l > 0 && spec.role == LayerRole::kEmbedding) {
      waiting.push_back(needed);
      needed = false;
    }
    input_needs_gradient_.push_back(needed);
    if (spec.joins >= 0) {
      needed = needed || waiting.back();
      waiting.pop_back();
    }
    for (const ParameterSpec& parameter : spec.parameters) {
      if (needed) break;
      needed = is_trained(l, parameter);
    }
    output_needs_gradient_.push_back(needed);
    if (model_.order[at(l)].same_as >= 0 || unit_of_layer(l) < 0) continue;
    if (unit_of_layer(l) != root()) visit(unit_of_layer(l));
    for (std::size_t n = 0; n < spec.nested.size(); ++n) {
      const std::int32_t nested = unit_of_part(l, static_cast<std::int8_t>(n + 1));
      if (nested != unit_of_layer(l)) visit(nested);
    }
  }
  end_ = layers;
  if (is_pipelined()) list_stages();
  list_trained();
  // The root is on a trainer's list where it stands for the embedding.
  if (root() >= 0 && plan_.units.embedding == UnitPlacement::kRoot) prefetch_order_.push_back(root());
  for (std::int32_t u = 0; u < count(); ++u) {
    if (u == root()) continue;
    const Module& first = modules_of(u).front();
    if (first.part == 0 || spec_of(first.layer).role == LayerRole::kEmbedding) prefetch_order_.push_back(u);
  }
  prefetch_place_.assign(groups_.size(), -1);
  for (std::size_t i = 0; i < prefetch_order_.size(); ++i)
    prefetch_place_[at(prefetch_order_[i])] = static_cast<std::int32_t>(i);
}

RecordedStep Fsdp2::build(StepNumber step, Log keep, const std::vector<std::int32_t>& stale) {
  logging_ = keep == Log::kKept;
  if (keep == Log::kNone && !is_pipelined()) find_runs();
  Repeat repeat(*this, stale.empty() ? Repeat::Groups::kUntouched : Repeat::Groups::kUsed);
  repeat_ = &repeat;
  persistent_memory(step);
  if (framed() && step != StepNumber::kFirst) hold_gradients();
  if (!framed()) hold_unstepped_gradients();
  for (std::int32_t unit : stale) {
    Gather& gather = group(unit).gather;
    gather.pending = true;
    gather.bytes = shape(unit).gather_bytes * shape(unit).shards;
    gather.event = {kNoEvent, "all_gather", unit, true};
    gather.buffer = allocate_persistent(MemoryCategory::kAllGatherOutput, unit, Bytes(gather.bytes));
    graph().buffers.back().pool = Stream::kCopyIn;
  }
  log_microbatch_ = step == StepNumber::kFirst ? 0 : -1;  // what the step before left
  if (logging_) log("step_begin");
  begin_step_frame();
  if (plan_.evaluation.in_step) {
    input_tokens_ = allocate(MemoryCategory::kInput, Stream::kCompute, -1,
        Bytes(input_bytes(model_, plan_.batch.micro_batch, plan_.batch.sequence)));
    begin_pass(evaluation_pass(), 0);
    run_forward(false);
    StepBuilder::free(input_tokens_);
    if (logging_) log("eval_end");
  }
  const auto microbatches = static_cast<std::int32_t>(plan_.batch.accumulation);
  if (is_pipelined()) run_pipeline();
  for (std::int32_t m = 0; m < microbatches && !is_pipelined(); ++m) {
    begin_pass(m, m);
    log_microbatch_ = m;
    set_flags(m);
    run_forward(true);
    run_backward();
    drop_zeros();
  }
  log_microbatch_ = -1;
  if (plan_.output_dtype == DType::kFp16) reduce_found_infinite();
  if (plan_.optimizer.clip_norm) clip();
  optimizer(step);
  end_step_frame();
  if (logging_) log("step_end");
  return {finish(), std::move(events_), std::move(padded_again_)};
}

void Fsdp2::set_flags(std::int32_t microbatch) {
  const bool last = microbatch + 1 == static_cast<std::int32_t>(plan_.batch.accumulation);
  const auto now = [last](When when) { return when == When::kEach || last; };
  const bool reduces = plan_.accumulation == AccumulationMode::kReduceEach || last;
  for (Group& g : groups_) g.reduces = reduces;
  all_reduces_ = reduces && now(plan_.accumulation_details.all_reduce);
  reshards_after_backward_ = now(plan_.accumulation_details.reshard_after_backward);
  is_last_backward_ = now(plan_.accumulation_details.is_last_backward);
}

// --- forward ---

void Fsdp2::run_forward(bool training) {
  log_where_ = training ? "forward" : "eval";
  if (is_pipelined()) {
  } else if (training && framed()) {
    cut_batch();
  } else if (training) {
    give_batch(plan_.batch.sequence);
  }
  root_pre_forward(kRootState);
  const bool gathers_root = root() >= 0 && is_wrapped();
  if (gathers_root) {
    group(root()).module_state = Training::kForward;
    pre_forward(root());
    prefetch_forward(root());
  }
  const std::int32_t last = end_ - 1;
  const bool has_loss = spec_of(last).role == LayerRole::kLoss;
  const bool refers = !training && pass() == reference_pass();
  const bool inside = has_loss && (training || refers) && plan_.loss_in_forward;
  loss_is_inside_ = inside;
  repeat_->begin(Repeat::Order::kForward);
  for (std::int32_t l = begin_; l < end_; ++l) {
    if (spec_of(l).role == LayerRole::kLoss || in_chunks(l)) continue;
    forward_layer(l);
    l += repeat_->after(l);
  }
  if (inside) {
    training ? compute_loss(last) : run_whole(last);
    drop_head_inputs();
  }
  if (gathers_root) {
    post_forward(root(), /*in_backward=*/false);
    group(root()).module_state = Training::kIdle;
  }
  const bool chunks = has_loss && training && in_chunks(last - 1);
  // A list of modules of which not all were called. (_force_complete_incomplete_states: its hook, too, is on what the
  // root returns.)
  const bool completes = chunks || (training && has_loss && plan_.loss.has_product() && version_.completes_lists);
  const std::int32_t head_unit = completes ? unit_of_layer(last - 1) : -1;
  const bool completed =
      head_unit >= 0 && head_unit != root() && is_wrapped() && std::exchange(group(head_unit).open_modules, 0) > 0;
  if (completed) state_post_forward(head_unit, /*in_backward=*/false);
  end_root_forward(kRootState);
  if (chunks) return run_in_chunks(last - 1);
  drop_logits();
  if (!has_loss) return;
  if (!training) {
    if (inside) return;
    return refers ? run_whole(last) : add_phase(EventKind::kForward, last, Segments::kInside);
  }
  if (is_pipelined()) return;
  if (!inside) compute_loss(last);
  run_reference();
  first_forward_ends();
  // The root's hook sits on the loss where its forward returns that.
  if (inside && root() >= 0) {
    log_where_ = "backward";
    state_pre_backward(root());
  }
  if (completed) {
    log_where_ = "backward";
    state_pre_backward(head_unit);
  }
  // A loss behind which the root casts its outputs does not hold what they were cast of.
  const bool casts_outputs = spec_of(last).operations.back().function == Function::kCast;
  if (inside && casts_outputs) hold_logits();
  make_zeros();
  add_phase(EventKind::kBackward, last, Segments::kInside);
  const bool holds = inside || is_of_modules(model_) || plan_.logits == Logits::kKept;
  if (holds && !casts_outputs) hold_logits();
}

// A model that computes its loss holds the name of what went into its head till then; its base
// model has returned, and so let go of what went into the norm.
void Fsdp2::drop_head_inputs() {
  for (std::int32_t l = 1; l < static_cast<std::int32_t>(model_.order.size()); ++l) {
    if (spec_of(l).role != LayerRole::kHead || casts_logits(l)) continue;
    run_border(EventKind::kForward, l, LayerSegment::kAfter);
  }
}

// Whether the head's own unit hands on another dtype.
bool Fsdp2::casts_logits(std::int32_t head) const {
  return plan_.output_dtype.value_or(plan_.param_dtype) != plan_.param_dtype && !in_root_unit(head);
}

// A table's gradients of both ends add up.
void Fsdp2::take_rest() {
  take_gradients(Gradients::kOfRest);
  const auto shares = [](const UnitParameter& p) { return p.shares_storage; };
  if (std::ranges::any_of(shape(chunked_unit_).list, shares)) group(chunked_unit_).has_gradient = true;
}

bool Fsdp2::in_chunks(std::int32_t layer) const {
  return plan_.loss.kind == Loss::Kind::kChunkedHead && spec_of(layer).role == LayerRole::kHead;
}

// torchtitan's ChunkedLossWrapper: behind the model's forward the head's unit is gathered by hand, stays for all
// chunks, forward and backward, and the last one reduces it, apart from what else the unit has.
void Fsdp2::run_in_chunks(std::int32_t head) {
  const std::int32_t u = unit_of_layer(head);
  const auto swap_group = [&] {
    if (is_wrapped()) std::swap(group(u), apart_);
  };
  apart_.reduces = group(u).reduces;
  swap_group();
  take_gradients(Gradients::kOfHead);
  if (is_wrapped()) {
    unshards_now_ = true;
    unshard(u);
    wait_for_unshard(u);
    unshards_now_ = false;
  }
  run_border(EventKind::kForward, head, LayerSegment::kBefore);
  run_layer(EventKind::kForward, head);
  run_border(EventKind::kForward, head, LayerSegment::kAfter);
  compute_loss(head + 1);
  add_phase(EventKind::kBackward, head + 1, Segments::kInside);
  first_forward_ends();
  log_where_ = "backward";
  run_border(EventKind::kBackward, head, LayerSegment::kBefore);
  run_layer(EventKind::kBackward, head);
  store_gradients(head, 0);
  if (is_wrapped()) {
    if (group(u).gradient_pass >= 0 && reduce_size() > param_size()) sum_in_reduce_dtype(u);
    apart_.gradient_pass >= 0 ? reduce_with_rest(u) : post_backward(u, "autograd");
  }
  run_border(EventKind::kBackward, head, LayerSegment::kAfter);
  swap_group();
  take_gradients(Gradients::kOfAll);
}

// What backwards of a stage before left of the unit's other gradients travels with the head's; where it is the first
// of its kind, the gradient that stays of it is a view of all.
void Fsdp2::reduce_with_rest(std::int32_t unit) {
  Group& head = group(unit);
  Group& rest = apart_;
  take_gradients(Gradients::kOfRest);
  std::vector<std::int32_t> gradients = gradient_buffers(unit, rest.gradient_pass);
  append(gradients, std::exchange(head.accumulated, {}));
  head.accumulated = std::move(gradients);
  rest.gradient_pass = -1;
  take_gradients(Gradients::kOfAll);
  const std::int32_t own = head.gradient;
  if (!rest.has_gradient) {
    head.has_gradient = false;
    head.keeps_gradient = true;  // to which it is added
  }
  post_backward(unit, "autograd");
  head.keeps_gradient = false;
  if (!std::exchange(rest.has_gradient, true)) rest.gradient = std::exchange(head.gradient, own);
}

// Whether a forward of the last stage comes behind a backward of it.
bool Fsdp2::rest_travels() const {
  bool is_behind = false;
  for (const PipelineRow& row : pipeline_rows()) {
    if (row.kind != PipelineRow::Kind::kAction || row.action.stage != stages().back().stage) continue;
    if (row.action.kind == PipelineAction::Kind::kForward && is_behind) return true;
    is_behind |= row.action.kind == PipelineAction::Kind::kBackward;
  }
  return false;
}

void Fsdp2::compute_loss(std::int32_t layer) {
  log_where_ = "loss";
  const LayerPhaseProgram& forward = phase(EventKind::kForward, layer);
  const bool is_apart = is_pipelined() && !in_chunks(layer - 1);
  if (!forward.calls.empty()) {
    run_layer(EventKind::kLoss, layer);
    if (!is_apart) add_loss_backward(layer);
  } else if (is_apart) {
    add_layer_run(EventKind::kLoss, layer, 0, forward.segments.size());  // its backward comes later
  } else {
    add_layer_row(EventKind::kLoss, layer);
  }
  if (logging_) log("loss");
}

void Fsdp2::add_loss_backward(std::int32_t layer) {
  const std::size_t segments = phase(EventKind::kBackward, layer).segments.size();
  add_row(EventKind::kLoss, Stream::kCompute, layer_run_work(EventKind::kBackward, layer, 0, segments, 0), -1);
}

// A forward behind which nothing comes.
void Fsdp2::run_whole(std::int32_t layer) {
  run_border(EventKind::kForward, layer, LayerSegment::kBefore);
  run_layer(EventKind::kForward, layer);
  run_border(EventKind::kForward, layer, LayerSegment::kAfter);
}

void Fsdp2::forward_layer(std::int32_t layer) {
  run_border(EventKind::kForward, layer, LayerSegment::kBefore);
  if (is_called(layer)) enter_module(layer, 0);
  for (std::int64_t call = calls_of(layer); call > 1; --call) {
    state_post_forward(unit_of_layer(layer), /*in_backward=*/false);
    state_pre_forward(unit_of_layer(layer));
  }
  run_layer(EventKind::kForward, layer);
  if (ends_module(layer)) leave_module(layer, 0, /*in_backward=*/false);
  const LayerRole role = spec_of(layer).role;
  // One function calls norm and head: what went into the norm is let go of after the head. Where
  // the head is the root's, its output is cast with the root's hooks.
  if (role == LayerRole::kFinalNorm && !loss_is_inside_ && !in_chunks(layer + 1)) return;
  if (role == LayerRole::kHead && loss_is_inside_ && !casts_logits(layer)) return;
  const bool root_casts = role == LayerRole::kHead && plan_.output_dtype && in_root_unit(layer);
  if (!root_casts) run_border(EventKind::kForward, layer, LayerSegment::kAfter);
  const bool follows_norm = layer > 0 && spec_of(layer - 1).role == LayerRole::kFinalNorm;
  if (role == LayerRole::kHead && follows_norm && !loss_is_inside_)
    run_border(EventKind::kForward, layer - 1, LayerSegment::kAfter);
}

// A loss that has the head's product in it reads the head's weight: the module's hooks do not run,
// and its unit, which other modules open, is never seen to end its forward.
bool Fsdp2::is_called(std::int32_t layer) const {
  return !plan_.loss.has_product() || spec_of(layer).role != LayerRole::kHead;
}

// Nor is that of a list with a module that nobody calls: Accelerate's of the head and the table
// that is tied to it, which stacks look up in modules of their own.
bool Fsdp2::ends_module(std::int32_t layer) const {
  const bool lists_table = parts_tied(plan_.units) && model_.tied_embeddings && stacks_share_table(model_);
  return is_called(layer) && !(lists_table && spec_of(layer).role == LayerRole::kHead);
}

// Chunks of the sequence go through a head of its own unit one by one.
std::int64_t Fsdp2::calls_of(std::int32_t layer) const {
  const bool is_alone = spec_of(layer).role == LayerRole::kHead && !in_root_unit(layer);
  return is_alone && is_wrapped() ? plan_.units.head_calls : 1;
}

// The hooks of a list of modules run with the first to begin and the last to end.
void Fsdp2::enter_module(std::int32_t layer, std::int8_t part) {
  const std::int32_t u = unit_of_part(layer, part);
  if (u == root() || group(u).open_modules != 0 || in_group(part)) return;
  if (!is_by_hand(part)) return state_pre_forward(u);
  unshards_now_ = true;
  unshard(u);
  wait_for_unshard(u);
  unshards_now_ = false;
}

void Fsdp2::leave_module(std::int32_t layer, std::int8_t part, bool in_backward) {
  const std::int32_t u = unit_of_part(layer, part);
  if (u == root() || is_by_hand(part) || in_group(part)) return;
  if (++group(u).open_modules < static_cast<std::int32_t>(modules_of(u).size())) return;
  group(u).open_modules = 0;
  state_post_forward(u, in_backward);
}

void Fsdp2::run_layer(EventKind kind, std::int32_t layer) {
  const LayerPhaseProgram& p = phase(kind, layer);
  if (p.calls.empty() && p.segments.size() < 2) {
    if (p.segments.empty()) return;
    begin_plain_backward();
    add_layer_row(kind, layer);
    return;
  }
  std::vector<EventId> outer = std::exchange(flights_, {});
  flights_.assign(p.calls.size(), kNoEvent);
  for (std::size_t s = 0; s < p.segments.size(); ++s)
    if (p.segments[s].part >= 0) run_part(kind, layer, s);
    else if (p.segments[s].part != LayerSegment::kWeights) run_calls(kind, layer, s);
  note_open(kind, layer);
  flights_ = std::move(outer);
}

void Fsdp2::run_part(EventKind kind, std::int32_t layer, std::size_t segment) {
  const std::int8_t part = phase(kind, layer).segments[segment].part;
  if (unit_of_part(layer, part) == unit_of_layer(layer)) {
    run_calls(kind, layer, segment);
    return run_segment(kind, layer, segment);
  }
  const bool backward = kind == EventKind::kBackward;
  if (begins_part(kind, layer, segment)) {
    backward ? begin_backward(layer, part) : enter_module(layer, part);
    // Where checkpointing has kept the rows none are sent again.
    const std::vector<LayerCall>& calls = phase(kind, layer).calls;
    permutes_rows_ = framed() && kind == EventKind::kRecompute && std::ranges::none_of(calls, brings_rows);
  }
  run_calls(kind, layer, segment);
  run_segment(kind, layer, segment);
  if (!ends_part(kind, layer, segment)) return;
  if (backward) end_backward(layer, part);
  else leave_module(layer, part, kind == EventKind::kRecompute);
}

// Collectives cut a module's run into several segments.
bool Fsdp2::begins_part(EventKind kind, std::int32_t layer, std::size_t segment) const {
  const std::vector<LayerSegment>& segments = phase(kind, layer).segments;
  return segment == 0 || segments[segment - 1].part != segments[segment].part;
}
bool Fsdp2::ends_part(EventKind kind, std::int32_t layer, std::size_t segment) const {
  const std::vector<LayerSegment>& segments = phase(kind, layer).segments;
  return segment + 1 == segments.size() || segments[segment + 1].part != segments[segment].part;
}

void Fsdp2::run_segment(EventKind kind, std::int32_t layer, std::size_t segment) {
  const LayerPhaseProgram& p = phase(kind, layer);
  const auto permute = [&] {
    if (!std::exchange(permutes_rows_, false) || kind == EventKind::kBackward) return;
    replace_row_order(kind, layer);
    if (notes_mesh()) allocate(MemoryCategory::kActivation, Stream::kCompute, -1, allocated_size(1));
  };
  if (p.calls.empty()) {
    begin_plain_backward();
    permute();
    add_layer_row(kind, layer, static_cast<std::uint16_t>(segment));
    return;
  }
  const std::uint32_t kernels = segment == 0 ? 0 : p.segments[segment - 1].kernels_end;
  const std::uint32_t actions = segment == 0 ? 0 : p.segments[segment - 1].actions_end;
  if (p.segments[segment].kernels_end > kernels) {
    begin_plain_backward();
    permute();
    const EventId row = add_layer_run(kind, layer, segment, 1);
    if (p.segments[segment].host_waits) host_wait(row);
    log_splits(layer, p.segments[segment]);
  } else if (p.segments[segment].actions_end > actions) {
    add_segment(kind, layer, static_cast<std::uint16_t>(segment));
  }
}

// A gradient arrives at the outputs of the unit's last module.
void Fsdp2::begin_backward(std::int32_t layer, std::int8_t part) {
  if (!ends_module(layer) || is_by_hand(part) || in_group(part)) return;
  const std::int32_t u = unit_of_part(layer, part);
  if (u != root() && modules_of(u).back() == Module{first_call(layer), part}) state_pre_backward(u);
}

// Gradients of the inputs of its first module are there, unless those need none.
void Fsdp2::end_backward(std::int32_t layer, std::int8_t part) {
  const std::int32_t u = unit_of_part(layer, part);
  if (!is_half_) store_gradients(layer, part);
  if (is_by_hand(part) || in_group(part)) return;
  const bool inputs = part == 0 || spec_of(layer).role == LayerRole::kEmbedding ? input_needs_gradient_[at(layer)]
                                                                                : output_needs_gradient_[at(layer)];
  if (u != root() && inputs && modules_of(u).front() == Module{first_call(layer), part}) {
    if (u == chunked_unit_) take_rest();
    for (const std::int32_t of : groups_beside(u)) post_backward(of, "autograd");
    if (is_wrapped()) post_backward(u, "autograd");
    if (u == chunked_unit_) take_gradients(Gradients::kOfAll);
  }
}

// torchtitan 0.3 (distributed/fsdp.py): experts of a mesh of their own are a second group of their block's state.
bool Fsdp2::groups_experts() const { return is_titan_3() && plan_.mesh.ep > 1 && is_wrapped(); }

std::vector<std::int32_t> Fsdp2::groups_beside(std::int32_t unit) const {
  return groups_experts() ? experts_listed(unit, unit) : std::vector<std::int32_t>();
}

void Fsdp2::state_pre_forward(std::int32_t unit) {
  if (!is_wrapped()) return note_module("forward_begin", unit);
  Group& g = group(unit);
  // Activation checkpointing around the unit: its parameters are there.
  if (g.module_state == Training::kPreBackward) return;
  g.module_state = Training::kForward;
  root_pre_forward(unit);
  pre_forward(unit);
  for (const std::int32_t of : groups_beside(unit)) pre_forward(of);
  prefetch_forward(unit);
}

void Fsdp2::prefetch_forward(std::int32_t unit) {
  if (plan_.prefetch.forward <= 0) return;
  if (!is_on_lists(unit)) return;
  std::int64_t left = plan_.prefetch.forward;
  auto target = prefetch_order_.begin() + prefetch_place_[at(unit)] + 1;
  for (; target != prefetch_order_.end() && left > 0; ++target, --left) {
    if (!is_on_lists(*target)) continue;
    prefetch(*target, Training::kForward, "explicit_forward");
    for (const std::int32_t nested : experts_listed(unit, *target))
      prefetch(nested, Training::kForward, "explicit_forward");
  }
}

void Fsdp2::state_post_forward(std::int32_t unit, bool in_backward) {
  if (!is_wrapped()) return note_module("forward_end", unit);
  Group& g = group(unit);
  if (g.module_state == Training::kPreBackward) return;
  post_forward(unit, in_backward);
  for (const std::int32_t of : groups_beside(unit)) post_forward(of, in_backward);
  g.module_state = Training::kIdle;
  end_root_forward(unit);
}

// Gathers start when the optimizer's (or the previous micro-batch's) work is done.
void Fsdp2::root_pre_forward(std::int32_t state) {
  if (forward_root_ != kNoRoot || !is_wrapped()) return;
  forward_root_ = state;
  if (logging_) log("root_pre_forward", {.unit = root_unit()});
  pad_again();
  wait_stream(Stream::kCopyIn, Stream::kCompute);
  wait_stream(Stream::kAllGather, Stream::kCompute);
}

// lazy_init; see RecordedStep::padded_again.
void Fsdp2::pad_again() {
  for (std::int32_t& old : unpadded_) {
    const Buffer shard = graph().buffer(old);
    padded_again_.push_back(allocate(MemoryCategory::kShardedParam, Stream::kCompute, -1, shard.bytes));
    StepBuilder::free(old);
  }
  unpadded_.clear();
}

// A local name keeps the last gather's output until the outputs are cast (until 2.14).
void Fsdp2::end_root_forward(std::int32_t state) {
  const bool is_root = forward_root_ == state;
  HeldGather held;
  if (is_root && held_gather_.gather.buffer != kNoBuffer) {
    wait_gather_streams(held_gather_.copy_out);
    held = std::exchange(held_gather_, {});
    if (version_.frees_gather_before_copy_out) free_gather(held.unit, held.gather);
  }
  if (is_root) forward_root_ = kNoRoot;
  if (state == kRootState) cast_root_output();
  free_gather(held.unit, held.gather);
}

void Fsdp2::cast_root_output() {
  if (!plan_.output_dtype || loss_is_inside_) return;
  for (std::int32_t l = 0; l < static_cast<std::int32_t>(model_.order.size()); ++l)
    if (spec_of(l).role == LayerRole::kHead && in_root_unit(l))
      run_border(EventKind::kForward, l, LayerSegment::kAfter);
}

// --- backward ---

void Fsdp2::run_backward() {
  log_where_ = "backward";
  bool root_hook_due = root() >= 0 && !plan_.loss_in_forward;
  repeat_->begin(Repeat::Order::kBackward);
  for (std::int32_t l = end_; l-- > begin_;) {
    if (spec_of(l).role == LayerRole::kLoss || !output_needs_gradient_[at(l)] || in_chunks(l)) continue;
    const bool meets_chunks = l + 1 < end_ && in_chunks(l + 1) && is_wrapped();
    if (meets_chunks && std::exchange(root_hook_due, false)) state_pre_backward(root());
    if (meets_chunks && unit_of_layer(l) == unit_of_layer(l + 1)) state_pre_backward(unit_of_layer(l));
    // Where the last unit casts its output, the root's hook sits on the cast one.
    if (root_hook_due && plan_.output_dtype && !in_root_unit(l)) {
      state_pre_backward(root());
      root_hook_due = false;
    }
    run_border(EventKind::kBackward, l, LayerSegment::kBefore);
    const bool again = recompute_of(l) != Recompute::kNone && !recomputes_inside(l);
    // A reentrant checkpoint's forward had no gradients, so that its outputs have the hook of
    // backward, which prefetches, only once it ran again.
    const bool again_first = again && plan_.recompute_reentrant && is_wrapped() && !root_hook_due;
    if (again_first) {
      unshard(unit_of_layer(l));
      wait_for_unshard(unit_of_layer(l));
      run_layer(EventKind::kRecompute, l);
      if (version_.recompute_reshards && unit_of_layer(l) != root()) state_post_forward(unit_of_layer(l), true);
    }
    begin_backward(l, 0);
    // The root's hook sits on the same output as the last unit's and was registered after it.
    if (root_hook_due) {
      state_pre_backward(root());
      root_hook_due = false;
    }
    for (std::int64_t call = calls_of(l); call > 1; --call) {
      post_backward(unit_of_layer(l), "autograd");
      state_pre_backward(unit_of_layer(l));
    }
    if (again && !again_first) run_layer(EventKind::kRecompute, l);
    run_layer(EventKind::kBackward, l);
    end_backward(l, 0);
    run_border(EventKind::kBackward, l, LayerSegment::kAfter);
    l -= repeat_->after(l);
  }
  root_post_backward_final_callback();
  if (is_pipelined()) return;
  if (framed()) drop_batch_parts();
  else drop_batch();
  const std::int32_t last = end_ - 1;
  if (spec_of(last).role == LayerRole::kLoss) {
    leave_backward(last);
    if (framed()) keep_loss(last);
  }
}

std::int32_t Fsdp2::first_call(std::int32_t layer) const {
  const std::int32_t same = model_.order[at(layer)].same_as;
  return same >= 0 ? same : layer;
}

// Backward of the layer's earliest call is done: autograd has stored the gradients of its weights.
void Fsdp2::store_gradients(std::int32_t layer, std::int8_t part) {
  if (first_call(layer) != layer) return;
  const std::int32_t u = unit_of_part(layer, part);
  if (u < 0 || shape(u).trained == 0) return;  // -1: no parameters, and no root
  Group& g = group(u);
  g.fresh_gradients = true;
  if (g.gradient_pass < 0) g.gradient_pass = pass();
}

void Fsdp2::state_pre_backward(std::int32_t unit) {
  if (!is_wrapped()) {
    if (!is_pipelined()) plain_next_ = unit;
    return;
  }
  group(unit).module_state = Training::kPreBackward;
  std::vector<std::int32_t> list;
  if (plan_.prefetch.backward > 1 || plan_.prefetch.backward_lists) {
    if (is_on_lists(unit)) {
      const std::int64_t position = prefetch_place_[at(unit)];
      const std::int64_t from = std::max<std::int64_t>(0, position - plan_.prefetch.backward);
      for (std::int64_t i = position; i-- > from;)
        if (is_on_lists(prefetch_order_[at(i)])) list.push_back(prefetch_order_[at(i)]);
    }
  }
  pre_backward(unit, list.empty());
  for (const std::int32_t of : groups_beside(unit)) pre_backward(of, list.empty());
  for (std::int32_t target : list) {
    std::vector<std::int32_t> groups = experts_listed(unit, target);
    groups.insert(groups_experts() ? groups.end() : groups.begin(), target);
    for (const std::int32_t of : groups) prefetch(of, Training::kPreBackward, "explicit_backward");
  }
}

void Fsdp2::root_post_backward_final_callback() {
  if (!is_wrapped()) return;
  Scope scope(*this, "root_post_backward", root_unit());
  if (logging_) log_here("root_post_backward_begin");
  std::vector<std::int32_t> states;
  if (root() >= 0) states.push_back(root());
  append(states, visits_);
  const auto is_left_over = [&](const Group& g, std::int32_t u) {
    if (version_.leftovers == Leftovers::kAll) return g.state != Training::kPostBackward;
    if (g.unsharded) return true;
    return version_.leftovers == Leftovers::kUnshardedOrNotGathered && !plan_.unshard_in_backward.at(u);
  };
  if (version_.leftovers_first) {
    for (std::int32_t u : states) {
      if (u == chunked_unit_) take_rest();
      if (is_left_over(group(u), u)) post_backward(u, "root_post_backward");
      if (u == chunked_unit_) take_gradients(Gradients::kOfAll);
      group(u).module_state = group(u).state = Training::kIdle;
    }
    if (is_last_backward_) {
      wait_last_reductions();
      for (std::int32_t u : states) finalize_backward(u);
    }
  } else {
    for (std::int32_t u : states) {
      if (is_left_over(group(u), u)) post_backward(u, "root_post_backward");
      group(u).module_state = group(u).state = Training::kIdle;
      if (is_last_backward_) finalize_backward(u);
    }
  }
  if (is_last_backward_) {
    post_forward_order_.clear();
    for (const HeldInput& held : held_inputs_) wait_event(Stream::kCompute, held.event);
    // The list is dropped from its end, but for the one that the loop's name holds.
    for (std::size_t i = held_inputs_.size(); i-- > 0;)
      if (i + 1 < held_inputs_.size()) free_input(held_inputs_[i]);
    if (!held_inputs_.empty()) free_input(held_inputs_.back());
    held_inputs_.clear();
  }
  scope.leave();
  if (logging_) log("root_post_backward_end", {.unit = root_unit()});
}

std::vector<std::int32_t> Fsdp2::pending_units() const {
  std::vector<std::int32_t> units;
  for (std::int32_t u = 0; u < count(); ++u)
    if (groups_[at(u)].gather.pending) units.push_back(u);
  return units;
}

namespace {

// Until 2.5, gathers that nobody waited for serve the step after.
std::vector<std::int32_t> stale_units(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs) {
  if (fsdp2_version(fsdp2_minor(plan.runtime.version).value_or(kNewestFsdp2)).drops_stray_gathers) return {};
  Fsdp2 first(model, plan, programs, {});
  first.build(StepNumber::kFirst, Fsdp2::Log::kNone, {});
  return first.pending_units();
}

}

EventGraph build_fsdp2(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled) {
  return Fsdp2(model, plan, programs, std::move(recycled))
      .build(StepNumber::kSteady, Fsdp2::Log::kNone, stale_units(model, plan, programs))
      .graph;
}

RecordedStep record_training_step(
    const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, StepNumber step) {
  FORESHARD_CHECK(plan.runtime.kind == RuntimeKind::kFsdp2, "only fsdp2 keeps a host log");
  std::vector<std::int32_t> stale;
  if (step == StepNumber::kSteady) stale = stale_units(model, plan, programs);
  return Fsdp2(model, plan, programs, {}).build(step, Fsdp2::Log::kKept, stale);
}

}
