// Forward is one row a layer. Backward walks the hooks of each layer's program; the recorder's
// boundaries are a block's and, of other layers, those of the modules that own parameters.
#include "sim/graph/ddp/gradient_hooks.h"

#include <algorithm>

#include "sim/base/error.h"
#include "sim/graph/layers/layer_modules.h"
#include "sim/spec/size_units.h"

namespace foreshard {

GradientHooks::GradientHooks(
    const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled, Settings settings)
    : StepBuilder(model, plan, programs, std::move(recycled)),
      stored_(settings.stored),
      logging_(settings.log == Log::kKept) {
  add_communicators(PostForwardGroups::kShared);
  set_layers(0, static_cast<std::int32_t>(model_.order.size()));
  list_parameters();
}

// Whether the layer is a block whose parameters are those of the one before it, which has its own.
bool GradientHooks::repeats_parameters(std::int32_t layer) const {
  if (layer == 0 || !is_block(layer) || plan_.frozen.any()) return false;
  const LayerInstance& before = model_.order[at(layer) - 1];
  return before.same_as < 0 && before.kind == model_.order[at(layer)].kind;
}

void GradientHooks::list_parameters() {
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  first_parameter_.assign(model_.order.size(), 0);
  first_place_.assign(model_.order.size(), 0);
  for (std::int32_t l = 0; l < layers; ++l) {
    const auto i = at(l);
    const std::int32_t same = model_.order[i].same_as;
    if (same >= 0) {
      first_parameter_[i] = first_parameter_[at(same)];
      first_place_[i] = first_place_[at(same)];
      continue;
    }
    first_parameter_[i] = static_cast<std::int32_t>(parameters_.size());
    first_place_[i] = static_cast<std::int32_t>(number_in_layer_.size());
    if (repeats_parameters(l)) {  // those of the block before
      const auto first = at(first_parameter_[i - 1]);
      const auto place = at(first_place_[i - 1]);
      const std::size_t end = parameters_.size(), last_place = number_in_layer_.size();
      parameters_.resize(2 * end - first);
      std::copy_n(parameters_.begin() + first, end - first, parameters_.begin() + end);
      for (std::size_t p = end; p < parameters_.size(); ++p) parameters_[p].layer = l;
      number_in_layer_.resize(2 * last_place - place);
      std::copy_n(number_in_layer_.begin() + place, last_place - place, number_in_layer_.begin() + last_place);
      continue;
    }
    const std::vector<ParameterSpec>& own = spec_of(l).parameters;
    std::int16_t number = 0;
    std::vector<bool> of_norm;  // a norm's bias too
    if (plan_.ddp.norms_fp32) {
      of_norm.resize(own.size(), false);
      for (const Operation& op : spec_of(l).operations) {
        if (op.kind != OperationKind::kNorm) continue;
        for (const std::int16_t p : op.parameters) of_norm[at(p)] = true;
      }
    }
    for (std::size_t p = 0; p < own.size(); ++p) {
      number_in_layer_.push_back(own[p].tied ? std::int16_t{-1} : number);
      if (own[p].tied) continue;
      ++number;
      const DType stored = !of_norm.empty() && of_norm[p] ? DType::kFp32
                           : own[p].stored_as_computed    ? plan_.param_dtype
                                                          : stored_;
      const bool waits = is_trained(l, own[p]) || waits_in_vain(l, own[p]);
      parameters_.push_back({l, static_cast<std::int16_t>(p), waits, false, stored, own[p].numel()});
    }
  }
  begin_pass(0, 0);
  ready_order_.reserve(parameters_.size());
  for (std::int32_t l = layers; l-- > 0;) {
    const auto i = at(l);
    for (const LayerHook& hook : phase(EventKind::kBackward, l).hooks) {
      if (hook.kind != LayerHook::Kind::kGradient) continue;
      const std::int32_t p = first_parameter_[i] + number_in_layer_[at(first_place_[i]) + at(hook.index)];
      parameters_[at(p)].used = true;
      ready_order_.push_back(p);
    }
  }
}

// What nobody freezes is waited for, though no gradient reaches it.
bool GradientHooks::waits_in_vain(std::int32_t layer, const ParameterSpec& parameter) const {
  const LayerSpec& spec = spec_of(layer);
  const bool is_in_vain = parameter.unused || (spec.unread && parameter.trainable);
  return is_in_vain && !(spec.tower && plan_.frozen.tower);
}

std::string GradientHooks::name_of(std::int32_t p) const {
  return parameter_name(model_, parameter(p).layer, parameter(p).index);
}

// --- one micro-batch ---

void GradientHooks::run_forward() {
  // (Stages' batches are too small to count.)
  const bool is_given = plan_.mesh.pp == 1;
  is_given ? give_batch(plan_.batch.sequence / plan_.mesh.cp) : allocate_given_masks();
  for (std::int32_t l = begin_; l < end_; ++l) {
    if (spec_of(l).role == LayerRole::kLoss) {
      loss_begins();
      // The model's forward; outputs that are made fp32 are, too, and more than the loss before.
      const Function last = spec_of(l).operations.back().function;
      using Kind = Loss::Kind;
      const bool is_behind = plan_.loss.kind == Kind::kSmoothed || plan_.loss.kind == Kind::kLogProbabilities ||
                             last == Function::kCast || last == Function::kCopy;
      if (is_behind) forward_ended();
      compute_loss(l);
      if (!is_behind) forward_ended();
      drop_logits();
      run_reference();
      first_forward_ends();
      // A loss that casts its logits, or whose operations are known, holds them through its own backward.
      const bool casts_logits =
          spec_of(l).operations.front().kind != OperationKind::kSoftmaxLoss || is_of_modules(model_);
      if (!casts_logits) hold_logits();
      make_zeros();
      add_phase(EventKind::kBackward, l, Segments::kInside);
      if (casts_logits) hold_logits();
      continue;
    }
    forward_begins(l);
    run_layer(EventKind::kForward, l);
    if (!logging_) continue;
    if (is_block(l)) {
      log_module("forward_begin", l, -1);
      log_module("forward_end", l, -1);
      continue;
    }
    for (const LayerHook& hook : phase(EventKind::kForward, l).hooks) {
      if (hook.kind == LayerHook::Kind::kEnter) log_module("forward_begin", l, hook.index);
      if (hook.kind == LayerHook::Kind::kExit) log_module("forward_end", l, hook.index);
    }
  }
}

void GradientHooks::hold_reference() {
  if (!is_held(plan_.reference)) return;
  std::vector<Bytes> stored;
  for (const Parameter& p : parameters()) {
    const DType dtype = plan_.reference_dtype.value_or(p.dtype);
    stored.push_back(allocated_size(p.numel * size_of(dtype)));
  }
  for (const std::int64_t bytes : resident_bytes()) stored.push_back(allocated_size(bytes));
  allocate_persistent_parts(MemoryCategory::kUnshardedParam, -1, add_part_list(std::move(stored)));
}

void GradientHooks::run_reference() {
  if (plan_.reference == Reference::kNone) return;
  const std::int32_t trained = pass();
  begin_pass(reference_pass(), microbatch());
  reference_begins();
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  const bool has_loss = spec_of(layers - 1).role == LayerRole::kLoss;
  for (std::int32_t l = 0; l < layers; ++l) {
    if (has_loss && l + 1 == layers) reference_ended();  // of its forward, not of what reads it
    forward_begins(l);
    run_layer(EventKind::kForward, l);
  }
  if (!has_loss) reference_ended();
  begin_pass(trained, microbatch());
}

void GradientHooks::run_backward() {
  const std::int32_t last = end_ - 1;
  for (std::int32_t l = last; l >= begin_; --l)
    if (spec_of(l).role != LayerRole::kLoss) run_backward(l);
  if (spec_of(last).role == LayerRole::kLoss) add_phase(EventKind::kBackward, last, Segments::kExit);
  drop_zeros();
  drop_batch();
}

void GradientHooks::run_backward(std::int32_t layer) {
  if (recompute_of(layer) != Recompute::kNone) {
    recompute_begins(layer);
    run_layer(EventKind::kRecompute, layer);
  }
  flights_.clear();
  const LayerPhaseProgram& p = phase(EventKind::kBackward, layer);
  const auto i = at(layer);
  const std::int16_t* number = number_in_layer_.data() + first_place_[i];
  if (logging_ && is_block(layer) && !p.segments.empty()) log_backward_begin(layer, -1);
  layer_ = layer;
  next_segment_ = 0;
  for (const LayerHook& hook : p.hooks) {
    segments_run_ = hook.segment;
    if (hook.kind == LayerHook::Kind::kGradient) {
      const std::int32_t at = first_parameter_[i] + number[hook.index];
      if (logging_) {
        log({.kind = "grad_ready",
            .unit = name_of(at),
            .bytes_in = parameter(at).bytes(),
            .dtype = torch_word(parameter(at).dtype)});
      }
      gradient_ready(at);
    } else if (logging_ && !is_block(layer)) {
      if (hook.kind == LayerHook::Kind::kEnter) log_backward_begin(layer, hook.index);
      else if (spec_of(layer).role != LayerRole::kEmbedding) left_ = {layer, hook.index};
    }
  }
  segments_run_ = p.segments.size();
  cut();
  if (logging_ && is_block(layer) && !p.segments.empty()) left_ = {layer, -1};
  backward_ended(layer);
}

void GradientHooks::cut() {
  if (segments_run_ <= next_segment_) return;
  run_segments(EventKind::kBackward, layer_, next_segment_, segments_run_ - next_segment_);
  next_segment_ = segments_run_;
}

void GradientHooks::run_layer(EventKind kind, std::int32_t layer) {
  const LayerPhaseProgram& p = phase(kind, layer);
  const bool is_run = is_captured(kind, layer, 0, p.segments.size());
  if (p.calls.empty() && !is_run) {
    add_layer_row(kind, layer);
    return;
  }
  flights_.clear();
  run_segments(kind, layer, 0, p.segments.size());
}

// Between two collectives one row.
void GradientHooks::run_segments(EventKind kind, std::int32_t layer, std::size_t first, std::size_t count) {
  const LayerPhaseProgram& p = phase(kind, layer);
  if (p.calls.empty()) {
    add_layer_run(kind, layer, first, count);
    return;
  }
  const auto calls_at = [&](std::size_t segment) {
    return std::ranges::any_of(p.calls, [&](const LayerCall& call) { return call.segment == segment; });
  };
  const std::size_t end = first + count;
  for (std::size_t begin = first; begin < end;) {
    launch_and_wait(kind, p, begin, flights_);
    std::size_t next = begin + 1;
    while (next < end && !p.segments[next - 1].host_waits && !calls_at(next)) ++next;
    const std::uint32_t before = begin == 0 ? 0 : p.segments[begin - 1].kernels_end;
    if (p.segments[next - 1].kernels_end > before) {
      const EventId row = add_layer_run(kind, layer, begin, next - begin);
      if (p.segments[next - 1].host_waits && !graph().host.captured) host_wait(row);
    } else {
      for (std::size_t s = begin; s < next; ++s) add_segment(kind, layer, static_cast<std::uint16_t>(s));
    }
    begin = next;
  }
}

void GradientHooks::compute_loss(std::int32_t layer) {
  if (phase(EventKind::kForward, layer).calls.empty()) {
    add_layer_row(EventKind::kLoss, layer);
    return;
  }
  run_layer(EventKind::kLoss, layer);
  add_row(EventKind::kLoss, Stream::kCompute,
      layer_run_work(EventKind::kBackward, layer, 0, phase(EventKind::kBackward, layer).segments.size(), 0), -1);
}

std::int32_t GradientHooks::gradient_buffer(std::int32_t p, std::int32_t pass) const {
  const EventGraph& g = graph();
  const std::size_t before = at(pass) * model_.order.size();
  const LayerExecution& execution = g.executions[before + at(parameter(p).layer)];
  const std::int32_t slot = g.program(execution).weight_gradients[at(parameter(p).index)];
  return slot < 0 ? kNoBuffer : execution.first_buffer + slot;
}

// --- rows ---

EventId GradientHooks::add_known(
    EventKind kind, Stream stream, std::int64_t bytes, std::int64_t launches, std::uint8_t communicator) {
  const auto key = (static_cast<std::uint64_t>(bytes) << 12 | static_cast<std::uint64_t>(launches)) *
                       static_cast<std::uint64_t>(kEventKinds) +
                   static_cast<std::uint64_t>(kind);
  if (const std::uint16_t* known = known_.find(key)) return add_row(kind, stream, *known, -1);
  UnitWork work;
  work.bytes = Bytes(bytes);
  work.communicator = communicator;
  work.launches = work.tensors = launches;
  if (communicator == kNoCommunicator) {
    work.bytes = Bytes(bytes / 2);
    work.kernels = {copy_kernel(bytes)};
  }
  const std::uint16_t index = new_work(kind, work);
  known_.insert(key, index);
  return add_row(kind, stream, index, -1);
}

EventId GradientHooks::add_copy(EventKind kind, Stream stream, std::int64_t moved, std::int64_t launches) {
  return add_known(kind, stream, moved, launches, kNoCommunicator);
}

EventId GradientHooks::add_collective(EventKind kind, Stream stream, std::int64_t bytes, std::uint8_t communicator) {
  return add_known(kind, stream, bytes, 0, communicator);
}

EventId GradientHooks::all_reduce(std::uint8_t communicator, std::int64_t bytes) {
  wait(Stream::kAllReduce, tail(Stream::kCompute));
  const EventId event =
      StepBuilder::add_collective(EventKind::kAllReduce, Stream::kAllReduce, communicator, Bytes(bytes), -1);
  wait(Stream::kCompute, event);
  return event;
}

// Groups of a shape tile the ranks, so pairs half of the stages apart stand for the first and the last one.
void GradientHooks::find_embedding_ranks() {
  const Mesh& mesh = plan_.mesh;
  const bool has_table = std::ranges::any_of(
      parameters(), [&](const Parameter& p) { return spec_of(p.layer).parameters[at(p.index)].in_two_stages; });
  if (!has_table) return;
  std::vector<Communicator>& list = graph().communicators;
  embedding_ranks_ = static_cast<std::uint8_t>(list.size());
  list.push_back({"embedding", {2, mesh.pp / 2 * mesh.stage_ranks(), plan_.placement}, false});
}

void GradientHooks::sum_table_gradients(std::int64_t size) {
  if (embedding_ranks_ == kNoCommunicator) return;
  for (const Parameter& p : parameters()) {
    if (!p.trained || !spec_of(p.layer).parameters[at(p.index)].in_two_stages) continue;
    all_reduce(embedding_ranks_, p.numel * size);
  }
}

GradientHooks::UnitWork GradientHooks::unit_work(EventKind, const UnitShape&, std::int32_t) const {
  FORESHARD_CHECK(false, "no row belongs to a unit");
  return {};
}

// --- the log ---

void GradientHooks::log(LibraryEvent event) {
  if (!logging_) return;
  event.microbatch = microbatch();
  event.actions = static_cast<std::uint32_t>(graph().actions.size());
  events_.push_back(std::move(event));
}

void GradientHooks::log_collective(
    std::string_view kind, std::int64_t bytes, std::string_view dtype, std::string note) {
  if (!logging_) return;
  log({.kind = kind, .bytes_in = bytes, .bytes_out = bytes, .dtype = dtype, .group = "world", .note = std::move(note)});
}

// The gradient of a module's input is that of the output before it, whose hook was registered
// first; where the sum of several embeddings lies between, it comes before theirs.
void GradientHooks::log_backward_begin(std::int32_t layer, std::int16_t module) {
  const std::pair<std::int32_t, std::int16_t> left = std::exchange(left_, {-1, -1});
  const bool sums =
      module >= 0 && foreshard::modules_of(spec_of(layer)).size() > 1 && spec_of(layer).role == LayerRole::kEmbedding;
  if (left.first >= 0 && sums) log_module("backward_end", left.first, left.second);
  log_module("backward_begin", layer, module);
  if (left.first >= 0 && !sums) log_module("backward_end", left.first, left.second);
}

void GradientHooks::log_module(std::string_view kind, std::int32_t layer, std::int16_t module) {
  const std::int32_t same = model_.order[at(layer)].same_as;
  const std::int32_t owner = same < 0 ? layer : same;
  LayerModule whole;
  if (module >= 0) whole = foreshard::modules_of(spec_of(owner))[at(module)];
  // A tied head's parameter carries the token table's name.
  const bool is_tied_head = spec_of(owner).role == LayerRole::kHead && model_.tied_embeddings;
  log({.kind = kind, .unit = is_tied_head ? "lm_head" : module_name(model_, owner, whole)});
}

}
