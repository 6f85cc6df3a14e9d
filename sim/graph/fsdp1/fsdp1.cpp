// The training loop, the model and autograd around FullyShardedDataParallel.
//
// Backward runs autograd's nodes in the reverse of the order of their creation: an engine takes the ready node that was
// made last, and where one loss depends on all, that one is ready. So the forward writes a tape: parts of layers, and
// the views that unshard makes of a flat parameter. The gradient of a flat parameter is there when backward has met its
// views; a unit that was gathered ahead made them before the unit in front of it ran, and is reduced one unit later.
//
// FSDP's hook before a unit's backward sits on the unit's output, the root's on the model's.
//
// The steady step begins with the limiter's queue of the step before. Which length that has is
// found by running the host's code without writing anything, until the length repeats.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "sim/base/error.h"
#include "sim/graph/fsdp1/fsdp1_builder.h"
#include "sim/graph/fsdp1/fsdp1_log.h"
#include "sim/graph/runtimes.h"

namespace foreshard {

Fsdp1::Fsdp1(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled)
    : StepBuilder(model, plan, programs, std::move(recycled)), handles_(at(unit_count())) {
  add_communicators(PostForwardGroups::kShared);
  prepare();
}

Fsdp1::~Fsdp1() = default;

void Fsdp1::prepare() {
  const UnitShape* like = nullptr;
  for (std::int32_t u = 0; u < count(); ++u) {
    Handle& h = handle(u);
    const UnitShape& s = shape(u);
    h.size = like == &s ? handle(u - 1).size : flat_size(s.list, plan_);
    like = &s;
    h.trained = s.trained > 0;
    h.reshards_after_forward = sharded() && plan_.reshard_after_forward.at(u).kind == Reshard::Kind::kAlways;
    graph().units[at(u)].shard_numel = h.size.shard;
  }
  // By size the base model is a unit, too, and the root, whose head is one, has nothing left.
  const std::int64_t least = plan_.units.min_parameters;
  root_is_inner_ =
      least > 0 && root() >= 0 && plan_.units.head == UnitPlacement::kOwn && graph().units[at(root())].numel >= least;
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  bool needed = false;
  for (std::int32_t l = 0; l < layers; ++l) {
    input_needs_gradient_.push_back(needed);
    // Views of a flat parameter need gradients if any of its parameters is trained.
    for (const ParameterSpec& parameter : spec_of(l).parameters)
      needed |= handle(unit_of_part(l, parameter.part)).trained;
    output_needs_gradient_.push_back(needed);
    if (spec_of(l).role != LayerRole::kLoss) last_layer_ = l;
    const bool is_inside = spec_of(l).role != LayerRole::kLoss && unit_of_layer(l) == root();
    if (root_is_inner_ ? is_inside : last_layer_ == l) root_ends_ = l;
  }
}

// --- steps ---

EventGraph Fsdp1::build() {
  const bool depends_on_earlier = plan_.fsdp1.limit_all_gathers || plan_.prefetch.forward > 0;
  constexpr int kMostSteps = 16;  // queues grow by what is freed beyond what is gathered: never
  if (depends_on_earlier) {
    dry_ = true;
    std::size_t queued = 0;
    for (int step = 0; step < kMostSteps; ++step) {
      begin({carried_.step + 1, carried_.pre_forward_order, carried_.free_events});
      run_step();
      const std::size_t left = carried_.free_events.size() - queue_head_;
      if (step > 0 && left == queued) break;
      queued = left;
    }
    dry_ = false;
  }
  Carried before = std::move(carried_);
  before.free_events.erase(before.free_events.begin(), before.free_events.begin() + queue_head_);
  queue_head_ = 0;
  begin(before);
  persistent_memory();
  run_step();
  // What the step before left is what this one leaves to the next.
  const std::size_t late = queue_head_ + at(std::max(late_free_, 0));
  if (late_free_ >= 0 && late < carried_.free_events.size()) host_wait(carried_.free_events[late].row);
  return finish();
}

void Fsdp1::begin(const Carried& carried) {
  std::vector<FreeEvent> left(carried.free_events.begin() + queue_head_, carried.free_events.end());
  carried_ = carried;
  carried_.free_events = std::move(left);
  queue_head_ = 0;
  for (FreeEvent& event : carried_.free_events) event.row = kNoEvent;
  inherited_ = carried_.free_events.size();
  late_free_ = -1;
  first_iteration_ = carried_.pre_forward_order.empty();
  for (std::size_t i = 0; i < carried_.pre_forward_order.size(); ++i)
    handle(carried_.pre_forward_order[i]).pre_forward_index = static_cast<std::int32_t>(i);
}

void Fsdp1::run_step() {
  const auto microbatches = static_cast<std::int32_t>(plan_.batch.accumulation);
  for (std::int32_t m = 0; m < microbatches; ++m) {
    begin_pass(m, m);
    syncs_gradients_ = plan_.accumulation == AccumulationMode::kReduceEach || m + 1 == microbatches;
    run_forward();
    run_backward();
    if (log_) note_facts();
  }
  // ShardedGradScaler: whether any gradient is infinite.
  if (!dry_ && plan_.autocast == DType::kFp16) reduce_number();
  if (!dry_ && plan_.optimizer.clip_norm) clip();
  if (log_) log_->add({.kind = "optimizer_step"});
  optimizer();
}

void Fsdp1::note_facts() {
  std::int64_t unsharded = 0, gradients = 0;
  for (const Handle& h : handles_) {
    if (h.unsharded) unsharded += h.size.padded * param_size();
    if (h.has_flat_gradient) gradients += h.size.flat * size_of(gradient_dtype(h));
    if (h.has_gradient) gradients += h.size.shard * (h.lowered_gradient ? param_size() : master_size());
  }
  const std::string where = fmt::format("step{}.{}.", carried_.step, microbatch());
  facts_[where + "unsharded_bytes_live"] = unsharded;
  facts_[where + "grad_bytes"] = gradients;
}

// --- forward ---

void Fsdp1::run_forward() {
  tape_.clear();
  if (!dry_) give_batch(plan_.batch.sequence / plan_.mesh.cp);
  if (log_) log_->begin_pass();
  run_model(EventKind::kLoss);
  const std::int32_t loss = static_cast<std::int32_t>(model_.order.size()) - 1;
  if (dry_ || loss == last_layer_) return;
  drop_logits();
  run_reference();
  first_forward_ends();
  if (loss_is_inside_ && root() >= 0 && !root_is_inner_) pre_backward(root());  // its hook sits on the loss, too
  const bool casts_outputs = spec_of(loss).operations.back().function == Function::kCast;
  if (casts_outputs) hold_logits();
  add_phase(EventKind::kBackward, loss, Segments::kInside);
  if (!casts_outputs) hold_logits();
}

// `last`: what the loss' row is.
void Fsdp1::run_model(EventKind last) {
  root_pre_forward();
  if (root() >= 0) pre_forward(root());
  const std::int32_t loss = static_cast<std::int32_t>(model_.order.size()) - 1;
  const bool has_loss = !dry_ && loss != last_layer_;
  loss_is_inside_ = has_loss && plan_.loss_in_forward;
  for (std::int32_t l = 0; l <= last_layer_; ++l) {
    forward_layer(l);
    if (root_is_inner_ && l == root_ends_) end_root();
  }
  if (loss_is_inside_) {
    add_layer_row(last, loss);
    // The model holds the name of what went into its head till then.
    if (spec_of(last_layer_).role == LayerRole::kHead)
      run_border(EventKind::kForward, last_layer_, LayerSegment::kAfter);
  }
  if (root() >= 0 && !root_is_inner_) end_root();
  if (has_loss && !loss_is_inside_) add_layer_row(last, loss);
}

// Another root with handles and a limiter of its own, which no backward reshards: it is gathered
// once. Nothing of its forward without gradients stays.
void Fsdp1::run_reference() {
  if (plan_.reference == Reference::kNone) return;
  const std::int32_t trained = pass();
  auto state = std::tuple(handles_, tape_, post_forward_order_, carried_, queue_head_, late_free_, inherited_);
  for (Handle& h : handles_) {
    h.state = Training::kIdle;
    h.parameters = kNoBuffer;
    h.unsharded = h.prefetched = false;
  }
  if (root() >= 0) handle(root()).unsharded = true;
  carried_.free_events.clear();
  queue_head_ = inherited_ = 0;
  begin_pass(reference_pass(), microbatch());
  run_model(EventKind::kForward);
  begin_pass(trained, microbatch());
  std::tie(handles_, tape_, post_forward_order_, carried_, queue_head_, late_free_, inherited_) = std::move(state);
}

void Fsdp1::end_root() {
  post_forward(root(), is_trained_below(root_ends_));
  if (log_) log_->register_unit_hook(root_ends_);
}

void Fsdp1::forward_layer(std::int32_t layer) {
  const std::int32_t u = unit_of_layer(layer);
  run_border(EventKind::kForward, layer, LayerSegment::kBefore);
  if (u != root()) pre_forward(u);
  if (log_) log_->begin_layer(layer);
  if (u != root() && is_reentrant(layers_of(u))) make_views(u);
  run_segments(layer);
  if (log_) log_->end_layer(layer);
  if (u != root()) {
    post_forward(u, is_trained_below(layer));
    if (log_) log_->register_unit_hook(layer);
  }
  // One function calls norm and head: what went into the norm is let go of after the head. A model
  // that computes its loss has a base model that has returned by then.
  const LayerRole role = spec_of(layer).role;
  if (role == (loss_is_inside_ ? LayerRole::kHead : LayerRole::kFinalNorm)) return;
  run_border(EventKind::kForward, layer, LayerSegment::kAfter);
  const bool follows_norm = layer > 0 && spec_of(layer - 1).role == LayerRole::kFinalNorm;
  if (role == LayerRole::kHead && follows_norm) run_border(EventKind::kForward, layer - 1, LayerSegment::kAfter);
}

void Fsdp1::run_segments(std::int32_t layer) {
  const LayerPhaseProgram& p = phase(EventKind::kForward, layer);
  if (p.segments.size() < 2) {
    if (!dry_ && !p.segments.empty()) add_layer_row(EventKind::kForward, layer);
    tape_.push_back({.layer = layer, .begins_layer = true, .ends_layer = true});
    if (log_) log_->run_operations(layer, 0, /*whole=*/true);
    return;
  }
  const std::size_t before = tape_.size();
  std::size_t last = before;
  bool begins = true;
  for (std::size_t s = 0; s < p.segments.size(); ++s) {
    const std::int8_t part = p.segments[s].part;
    if (part < 0) continue;
    const std::int32_t nested = unit_of_part(layer, part);
    const bool is_unit = nested != unit_of_layer(layer);
    if (is_unit) pre_forward(nested);
    if (!dry_) add_layer_row(EventKind::kForward, layer, static_cast<std::uint8_t>(s));
    last = tape_.size();
    tape_.push_back({.layer = layer, .part = part, .begins_layer = begins, .ends_part = is_unit});
    begins = false;
    if (log_) log_->run_operations(layer, part, /*whole=*/false);
    if (!is_unit) continue;
    post_forward(nested, is_trained_below(layer));
    if (log_) log_->register_unit_hook(layer);
  }
  FORESHARD_CHECK(last < tape_.size(), "a layer of nothing but borders");
  tape_[last].ends_layer = true;
}

void Fsdp1::run_border(EventKind kind, std::int32_t layer, std::int8_t part) {
  if (!dry_) StepBuilder::run_border(kind, layer, part);
}

// --- backward ---

void Fsdp1::run_backward() {
  next_segment_.assign(model_.order.size(), 0);
  recomputed_.assign(model_.order.size(), false);
  for (std::size_t i = tape_.size(); i-- > 0;) {
    const TapeEntry entry = tape_[i];
    if (entry.unit >= 0) {
      run_views(entry.unit);
    } else if (is_trained_below(entry.layer)) {
      begin_backward(entry);
      run_entry(entry);
    }
  }
  final_callback();
  if (dry_) return;
  drop_batch();
  const std::int32_t loss = static_cast<std::int32_t>(model_.order.size()) - 1;
  if (loss != last_layer_) add_phase(EventKind::kBackward, loss, Segments::kExit);
}

// A module that was called several times has views of each call, which end in one gradient.
void Fsdp1::run_views(std::int32_t unit) {
  Handle& h = handle(unit);
  if (--h.open_views > 0 || !h.trained) return;
  accumulate_grad(unit);
  post_backward(unit);
}

void Fsdp1::begin_backward(const TapeEntry& entry) {
  const std::int32_t l = entry.layer;
  if (log_) log_->begin_entry(l);
  const auto meet = [&](std::int32_t unit) {
    if (log_) log_->run_hooks();
    pre_backward(unit);
  };
  if (entry.ends_part) meet(unit_of_part(l, entry.part));
  if (!entry.ends_layer) return;
  if (unit_of_layer(l) != root()) meet(unit_of_layer(l));
  if (l == root_ends_ && root() >= 0) meet(root());
  // A frozen unit is done with when the gradients of its inputs are there.
  if (l == last_layer_) return;
  const std::int32_t next = unit_of_layer(l + 1);
  if (next != root() && !handle(next).trained) reshard_only(next);
}

namespace {

// Behind the last unit inside of a block there may be nothing but sums: backward enters that unit
// before anything is unpacked.
bool saves_behind_units(const LayerSpec& spec) {
  for (auto op = spec.operations.rbegin(); op != spec.operations.rend() && op->part == 0; ++op)
    if (op->kind == OperationKind::kGemm || !op->saved.empty()) return true;
  return spec.nested.empty();
}

}

void Fsdp1::run_entry(const TapeEntry& entry) {
  const std::int32_t l = entry.layer;
  if (log_) log_->run_inner_hooks();
  const LayerPhaseProgram& p = phase(EventKind::kBackward, l);
  if (p.segments.size() < 2) {
    // (A forward that the host waits in has several entries.)
    if (!entry.ends_layer) return;
    run_recompute(l);
    if (!dry_ && !p.segments.empty()) add_layer_row(EventKind::kBackward, l);
    return;
  }
  std::size_t& s = next_segment_[at(l)];
  for (; s < p.segments.size(); ++s) {
    const std::int8_t part = p.segments[s].part;
    const bool mine = part < 0 || part == entry.part || entry.begins_layer;
    if (!mine) return;
    const bool unpacks = part > 0 || !entry.ends_layer || plan_.recompute_reentrant;
    if (part >= 0 && (unpacks || saves_behind_units(spec_of(l)))) run_recompute(l);
    if (!dry_) run_border_segment(EventKind::kBackward, l, s);
  }
}

// Activation checkpointing inside of the unit: the first operation that asks for what it saved runs
// the block again. Units inside of it that backward has not come to yet are gathered for that.
void Fsdp1::run_recompute(std::int32_t layer) {
  if (recompute_of(layer) == Recompute::kNone || recomputed_[at(layer)]) return;
  recomputed_[at(layer)] = true;
  const LayerPhaseProgram& p = phase(EventKind::kRecompute, layer);
  if (p.segments.size() < 2) {
    if (!dry_ && !p.segments.empty()) add_layer_row(EventKind::kRecompute, layer);
    return;
  }
  recomputing_ = true;
  for (std::size_t s = 0; s < p.segments.size(); ++s) {
    const std::int8_t part = p.segments[s].part;
    const std::int32_t nested = unit_of_part(layer, std::max<std::int8_t>(part, 0));
    const bool is_unit = nested != unit_of_layer(layer);
    if (is_unit) pre_forward(nested);
    if (!dry_) run_border_segment(EventKind::kRecompute, layer, s);
    if (is_unit) post_forward(nested, is_trained_below(layer));
  }
  recomputing_ = false;
}

// --- the runtime's entries ---

LibraryStep Fsdp1::record(Carried& carried, LibraryWatch::Modules modules, LibraryRun& run) {
  log_ = std::make_unique<Fsdp1Log>(*this, modules);
  begin(carried);
  persistent_memory();
  run_step();
  LibraryStep step = {.log = log_->take()};
  if (run.buckets.empty()) run.buckets = log_->buckets();
  log_.reset();
  for (const auto& [name, value] : facts_) run.facts[name] = value;
  std::int64_t shards = 0;
  for (const Handle& h : handles_) shards += h.size.shard * master_size();
  run.facts["shard_bytes"] = shards;
  std::vector<FreeEvent> left(carried_.free_events.begin() + queue_head_, carried_.free_events.end());
  carried = {carried_.step + 1, carried_.pre_forward_order, std::move(left)};
  step.graph = finish();
  return step;
}

EventGraph build_fsdp1(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled) {
  return Fsdp1(model, plan, programs, std::move(recycled)).build();
}

LibraryRun record_fsdp1(
    const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, const LibraryWatch& watch) {
  LibraryRun run;
  Fsdp1::Carried carried;
  for (std::int32_t s = 0; s < watch.steps; ++s)
    run.steps.push_back(Fsdp1(model, plan, programs, {}).record(carried, watch.modules, run));
  return run;
}

}
