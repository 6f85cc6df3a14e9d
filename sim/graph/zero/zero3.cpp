// One step: for each micro-batch the places of forward and backward, then the optimizer.
//
// At every place the coordinator says what is asked for and let go of. Kernels between places are
// launched one after the other; a row holds as many of them as run before something else is issued
// or waited for, but memory is told place by place.
//
// The steady step is the first one whose decisions are all made: the second, and later ones repeat
// it, since a step ends with the persistent parameters gathered and nothing else.
#include <algorithm>
#include <tuple>
#include <utility>

#include "sim/graph/zero/zero3_builder.h"

namespace foreshard {

Zero3::Zero3(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled)
    : StepBuilder(model, plan, programs, std::move(recycled)) {
  add_communicators(PostForwardGroups::kShared);
  small_group_ = std::min(plan.zero.zero_hpz_partition_size, plan.mesh.fsdp());
  if (small_group_ > 1 && small_group_ < plan.mesh.fsdp()) {
    small_communicator_ = static_cast<std::uint8_t>(graph().communicators.size());
    graph().communicators.push_back({"secondary", {small_group_, 1}, false});
  }
  if (!overlaps()) gather_copies_ = reduces_ = Stream::kCompute;
  param_size_ = size_of(plan.param_dtype);
  comm_size_ = size_of(plan.reduce_dtype);
  placeholder_ = new_work(EventKind::kForward, {});
}

EventGraph Zero3::build(const LayerPrograms& programs) {
  if (small_group_ > 1) {  // which shard is gathered is the coordinator's to say
    own_script_ = std::make_unique<Zero3Script>(*this, model_, plan_);
    own_coordinator_ = std::make_unique<Zero3Coordinator>(*own_script_, plan_);
    script_ = own_script_.get();
    coordinator_ = own_coordinator_.get();
    if (plan_.batch.accumulation > 1) coordinator_->rehearse();
    coordinator_->start(Zero3Coordinator::Trace::kComplete);
  } else {
    trace_ = programs.zero3_trace();
    if (trace_ == nullptr || !trace_->serves(plan_)) {
      std::vector<Zero3Place> base;
      if (plan_.reference == Reference::kBase) {  // as programs without gradients have it
        begin_pass(reference_pass(), 0);
        base = Zero3Script(*this, model_, plan_).base();
        begin_pass(0, 0);
      }
      trace_ = std::make_shared<const Zero3Trace>(*this, model_, plan_, false, base);
    }
    script_ = &trace_->script;
  }
  if (is_held(plan_.reference)) make_reference();
  run_step();
  return finish();
}

// What transformers has not filled in by then DeepSpeed takes as its own default
// (trl/models/utils.py, prepare_deepspeed: it is called in front of the first step).
void Zero3::make_reference() {
  Plan plan = plan_;
  const std::int64_t square = model_.hidden * model_.hidden;
  ZeroOptions& zero = plan.zero;
  const ZeroOptions usual;
  if (zero.stage3_prefetch_bucket_size == square * 9 / 10)
    zero.stage3_prefetch_bucket_size = usual.stage3_prefetch_bucket_size;
  if (zero.stage3_param_persistence_threshold == 10 * model_.hidden)
    zero.stage3_param_persistence_threshold = usual.stage3_param_persistence_threshold;
  plan.batch.accumulation = 1;
  begin_pass(reference_pass(), 0);
  other_.trace = std::make_shared<const Zero3Trace>(*this, model_, plan, true);
  const std::vector<Zero3Parameter>& parameters = other_.trace->script.parameters;
  other_.gathered.assign(parameters.size(), kNoBuffer);
  other_.handle_of.assign(parameters.size(), -1);
  for (const std::int64_t numel : other_.trace->script.sizes)
    other_.partitions.push_back(foreshard::partition_of(numel, plan_.mesh.fsdp()));
}

void Zero3::swap_models() {
  std::swap(trace_, other_.trace);
  std::swap(partitions_, other_.partitions);
  std::swap(gathered_, other_.gathered);
  std::swap(handle_of_, other_.handle_of);
  script_ = &trace_->script;
}

std::int64_t Zero3::partition_bytes() const {
  return sum_of<std::int64_t>(
      script_->parameters, [&](const Zero3Parameter& each) { return partition_of(each) * element_size(each); });
}

void Zero3::hold_gathered(std::int32_t p) {
  at(gathered_, p) = allocate_persistent(
      MemoryCategory::kUnshardedParam, unit_of(p), Bytes(partition_of(p) * plan_.mesh.fsdp() * element_size(p)));
}

void Zero3::hold_reference() {
  if (other_.trace == nullptr) return;
  swap_models();
  allocate_persistent(MemoryCategory::kShardedParam, -1, Bytes(partition_bytes()));
  graph().buffers.back().on_host = plan_.zero.offload_param != ZeroOffload::kNone;
  for (const std::int64_t bytes : resident_bytes())
    allocate_persistent(MemoryCategory::kUnshardedParam, -1, Bytes(bytes));
  for (const std::int32_t p : trace_->list(trace_->at_start))
    if (plan_.mesh.fsdp() > 1) hold_gathered(p);
  swap_models();
}

void Zero3::run_reference() {
  if (plan_.reference == Reference::kNone) return;
  close_run();
  const std::int32_t trained = pass();
  const bool is_other = other_.trace != nullptr;
  const auto place = std::tuple(layer_, phase_, done_, target_);
  if (is_other) swap_models();
  refers_ = true;
  begin_pass(reference_pass(), microbatch());
  layer_ = -1;
  const Zero3Trace::Pass& own = trace_->pass(is_other ? 0 : microbatch());
  if (!is_other) arrive(own.stale_in_base);
  follow(is_other ? own.forward : own.base);
  catch_up();
  close_run();
  std::tie(layer_, phase_, done_, target_) = place;
  refers_ = false;
  if (is_other) swap_models();
  begin_pass(trained, microbatch());
}

LibraryStep Zero3::record(Zero3Run& run, std::int32_t step) {
  run_ = &run;
  step_ = step;
  script_ = run.script;
  coordinator_ = run.coordinator;
  run_step();
  return LibraryStep{.graph = finish(), .log = std::move(log_)};
}

void Zero3::run_step() {
  const std::size_t count = script_->parameters.size();
  handle_of_.assign(count, -1);
  gathered_.assign(count, kNoBuffer);
  if (plan_.zero.offload_param == ZeroOffload::kNvme) is_read_.assign(count, false);
  if (small_group_ > 1) secondary_.assign(count, kNoBuffer);
  fetched_now_.reserve(count);
  for (const std::int64_t numel : script_->sizes)
    partitions_.push_back(foreshard::partition_of(numel, plan_.mesh.fsdp()));
  list_sub_groups();
  persistent_memory();
  for (std::int32_t m = 0; m < static_cast<std::int32_t>(plan_.batch.accumulation); ++m) {
    begin_pass(m, m);
    give_batch(plan_.batch.sequence / plan_.mesh.cp);
    if (trace_ != nullptr) follow(trace_->pass(m));
    else ask();
    if (logs()) {
      const bool last = m + 1 == static_cast<std::int32_t>(plan_.batch.accumulation);
      log("engine_step", "", last ? "boundary=1" : "boundary=0");
    }
  }
  optimizer();
  if (logs()) log("step_done", "", "");
}

// What is still in flight, and goes.
void Zero3::arrive(Zero3Trace::Range range) {
  const Parameters stale = trace_->list(range);
  for (const std::int32_t p : stale) await(p);
  let_go(stale);
}

void Zero3::follow(const Zero3Trace::Pass& pass) {
  arrive(pass.stale);
  follow(pass.forward);
  follow(pass.backward);
  let_go(trace_->list(pass.leftovers));
  end_backward();
}

void Zero3::follow(const std::vector<Zero3Trace::Stop>& stops) {
  for (const Zero3Trace::Stop& stop : stops) {
    move_to(stop.place);
    hooks_ += stop.hooks;
    if (stop.place.kind == Zero3Place::Kind::kEnter) {
      const Parameters fetched = trace_->list(stop.begin, stop.first_end);
      if (!fetched.empty()) gather(fetched);
      for (const std::int32_t p : trace_->list(stop.first_end, stop.second_end)) await(p);
      wait_for_gathers();
      const Parameters ahead = trace_->list(stop.second_end, stop.third_end);
      if (!ahead.empty()) gather(ahead);
      read_ahead(trace_->list(stop.third_end, stop.fourth_end));
    } else if (stop.place.kind == Zero3Place::Kind::kExit) {
      for (const std::int32_t p : trace_->list(stop.first_end, stop.second_end)) await(p);
      let_go(trace_->list(stop.begin, stop.first_end));
    } else {
      visit(stop.place);
    }
    if (stop.ends_gradients) end_gradients();
  }
}

void Zero3::ask() {
  if (logs()) log_trace_reset();
  // What is in flight still arrives and goes.
  const Parameters stale = coordinator_->reset_step();
  fetched_now_.assign(stale.begin(), stale.end());
  for (const std::int32_t p : fetched_now_) await(p);
  let_go(fetched_now_);
  walk(script_->forward);
  walk(script_->backward);
  const Parameters released = coordinator_->release_backward_leftovers();
  let_go(released);
  if (logs() && !released.empty()) log_release("backward_leftovers", released);
  end_backward();
}

void Zero3::walk(const std::vector<Zero3Place>& places) {
  using Kind = Zero3Place::Kind;
  for (const Zero3Place& place : places) {
    move_to(place);
    if (place.kind == Kind::kEnter) enter(place);
    else if (place.kind == Kind::kExit) leave(place);
    else visit(place);
    if (&place - places.data() == script_->last_gradient && &places == &script_->backward) end_gradients();
  }
}

void Zero3::visit(const Zero3Place& place) {
  using Kind = Zero3Place::Kind;
  switch (place.kind) {
    case Kind::kGradient: gradient(place); break;
    case Kind::kLeafGradients:
      for (const std::int32_t p : script_->owned_of(place.id))
        if (parameter(p).trained) reduce(p);
      break;
    case Kind::kPhaseEnd:
      catch_up();
      close_run();
      if (place.phase == EventKind::kBackward) copy_gradients();
      break;
    case Kind::kLoss:
      if (refers_) {
        settle(add_layer_row(EventKind::kForward, place.layer));
        break;
      }
      settle(add_layer_row(EventKind::kLoss, place.layer));
      drop_logits();
      run_reference();
      add_phase(EventKind::kBackward, place.layer, Segments::kInside);
      hold_logits();
      break;
    case Kind::kEnter:
    case Kind::kExit: break;
  }
}

// independent_gradient_partition_epilogue: the host waits for the reductions.
void Zero3::end_gradients() {
  flush();
  host_awaits(tail(reduces_));
}

void Zero3::enter(const Zero3Place& place) {
  const std::int32_t module = place.id;
  const Pass pass = place.phase == EventKind::kBackward ? Pass::kBackward : Pass::kForward;
  if (logs()) log_boundary(pass == Pass::kForward ? "forward_begin" : "backward_begin", module, "before_fetch");
  ++hooks_;
  if (pass == Pass::kBackward) coordinator_->begin_backward(module);
  const Parameters fetched = coordinator_->fetch(module);
  if (!fetched.empty()) {
    if (logs()) log_gather(fetched, Cause::kFetch, module, pass);
    gather(fetched);
  }
  for (const std::int32_t p : script_->owned_of(module))
    if (coordinator_->use(module, p, place.phase == EventKind::kRecompute)) await(p);
  wait_for_gathers();
  const Parameters ahead = coordinator_->prefetch(module);
  if (!ahead.empty()) {
    if (logs()) log_gather(ahead, Cause::kPrefetch, module, pass);
    gather(ahead);
  }
  read_ahead(coordinator_->read_ahead());
}

void Zero3::leave(const Zero3Place& place) {
  const std::int32_t module = place.id;
  const Pass pass = place.phase == EventKind::kBackward ? Pass::kBackward : Pass::kForward;
  ++hooks_;
  const Parameters released = coordinator_->release(module, pass);
  let_go(released);
  if (!logs()) return;
  log_boundary(pass == Pass::kForward ? "forward_end" : "backward_end", module, "after_release");
  if (!released.empty()) log_release(run_->modules[static_cast<std::size_t>(module)], released);
}

void Zero3::end_backward() {
  drop_batch();
  const auto last = static_cast<std::int32_t>(model_.order.size()) - 1;
  if (spec_of(last).role == LayerRole::kLoss) add_phase(EventKind::kBackward, last, Segments::kExit);
}

// --- rows ---

void Zero3::move_to(const Zero3Place& place) {
  if (place.layer < 0 || place.kind == Zero3Place::Kind::kLoss) return;
  if (place.layer != layer_ || place.phase != phase_) {
    layer_ = place.layer;
    phase_ = place.phase;
    done_ = 0;
  }
  target_ = place.segment;
}

// Between two collectives inside the layer a run of its own.
void Zero3::run_segments() {
  const LayerPhaseProgram& p = phase(phase_, layer_);
  const auto calls_at = [&](auto segment) {
    return std::ranges::any_of(
        p.calls, [&](const LayerCall& call) { return call.segment == static_cast<std::size_t>(segment); });
  };
  while (done_ < target_) {
    if (calls_at(done_)) {
      close_run();
      launch_and_wait(phase_, p, done_, flights_);  // DeepSpeed-Ulysses' all-to-alls
    }
    auto next = static_cast<std::uint16_t>(done_ + 1);
    while (next < target_ && !calls_at(next)) ++next;
    run_to(next);
  }
}

void Zero3::run_to(std::uint16_t end) {
  using Kind = MemoryAction::Kind;
  if (run_row_ == kNoEvent) {
    run_first_ = done_;
    run_hooks_ = hooks_;
    const auto part = phase(phase_, layer_).segments[done_].part;
    run_row_ = add(phase_, Stream::kCompute, placeholder_, unit_of_part(layer_, part));
    graph().details.back().layer = layer_;
  }
  const Kind action = phase_ == EventKind::kRecompute  ? Kind::kRecompute
                      : phase_ == EventKind::kBackward ? Kind::kBackward
                                                       : Kind::kForward;
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  graph().actions.push_back(
      {action, pass() * layers + layer_, static_cast<std::uint8_t>(done_), static_cast<std::uint8_t>(end - done_)});
  done_ = end;
}

void Zero3::price_run() {
  Row& row = graph().rows[static_cast<std::size_t>(run_row_)];
  row.work = layer_run_work(phase_, layer_, run_first_, static_cast<std::size_t>(done_ - run_first_), run_hooks_);
  run_row_ = kNoEvent;
}

EventId Zero3::add(EventKind kind, Stream stream, std::uint16_t work, std::int32_t unit) {
  const EventId id = add_row(kind, stream, work, unit);
  settle(id);
  return id;
}

// What the host did and waited for before the row.
void Zero3::settle(EventId id) {
  hooks_ = 0;
  if (awaited_ == kNoEvent) return;
  Row& row = graph().rows[static_cast<std::size_t>(id)];
  row.host_wait = std::max(row.host_wait, std::exchange(awaited_, kNoEvent));
}

// A copy or a kernel over memory; `bytes` are moved.
EventId Zero3::add_bytes(EventKind kind, Stream stream, std::int64_t bytes, std::int32_t unit) {
  return add(kind, stream, work_of(kind, bytes, kNoCommunicator), unit);
}

std::uint16_t Zero3::work_of(EventKind kind, std::int64_t bytes, std::uint8_t communicator) {
  constexpr std::int32_t kMostHooks = 255;
  const std::int32_t hooks = std::min(hooks_, kMostHooks);
  const std::uint64_t key = static_cast<std::uint64_t>(bytes) << 18 | static_cast<std::uint64_t>(kind) << 13 |
                            static_cast<std::uint64_t>(communicator & 31U) << 8 | static_cast<std::uint64_t>(hooks);
  if (const std::uint16_t* known = work_indices_.find(key)) return *known;
  UnitWork work = {.communicator = communicator};
  const bool is_copy = kind == EventKind::kAllGatherCopyIn || kind == EventKind::kAllGatherCopyOut ||
                       kind == EventKind::kReduceScatterCopyIn || kind == EventKind::kGradientCopyIn;
  work.bytes = Bytes(is_copy ? bytes / 2 : bytes);  // of copies what is written
  if (!is_collective(kind)) {
    const bool optimizes = kind == EventKind::kOptimizer || kind == EventKind::kGradScale ||
                           kind == EventKind::kGradNorm || kind == EventKind::kHostOptimizer;
    // Links and drives are told in bytes; the host's optimizer moves what its kernel says.
    const bool is_transfer = kind == EventKind::kHostToDevice || kind == EventKind::kDeviceToHost ||
                             kind == EventKind::kStorageRead || kind == EventKind::kStorageWrite;
    if (!is_transfer) work.kernels = {optimizes ? memory_kernel(MemoryClass::kOptimizer, bytes) : copy_kernel(bytes)};
  }
  const std::uint16_t index = new_work(kind, work);
  graph().works.back().hooks = static_cast<std::uint16_t>(hooks);
  work_indices_.insert(key, index);
  return index;
}

// --- entry points ---

EventGraph build_zero3(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled) {
  return Zero3(model, plan, programs, std::move(recycled)).build(programs);
}

LibraryRun record_zero3(
    const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, const LibraryWatch& watch) {
  LibraryRun record;
  Zero3Run run = {.record = &record, .steps = watch.steps};
  Zero3 first(model, plan, programs, {});
  const Zero3Script script(first, model, plan);
  Zero3Coordinator coordinator(script, plan);
  coordinator.make_secondaries();
  run.script = &script;
  run.coordinator = &coordinator;
  for (std::int32_t p = 0; p < script.parameter_count(); ++p) run.parameters.push_back(script.name_of_parameter(p));
  for (std::size_t m = 0; m < script.modules.size(); ++m)
    run.modules.push_back(script.name_of_module(static_cast<std::int32_t>(m)));
  Zero3::record_construction(run, plan);
  for (std::int32_t s = 1; s <= watch.steps; ++s)
    record.steps.push_back(Zero3(model, plan, programs, {}).record(run, s));
  return record;
}

}
