// The walk: every row is given to the backend in id order, together with what it does.
//
// A row that throws stops everything: its cause is kept, communicators are aborted so that threads
// that wait for peers come back, and the host throws one StepFailure that names the row.
#include "exec/engine/engine.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "exec/compute/device_operations.h"
#include "exec/engine/update.h"
#include "exec/memory/flat_storage.h"
#include "reports/view/event_names.h"
#include "sim/graph/axes/rank_part.h"

namespace foreshard {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

std::int64_t rotary_head_dim(const ModelSpec& model) {
  for (const LayerSpec& kind : model.kinds) {
    for (const Operation& operation : kind.operations) {
      if (operation.function == Function::kRotary) return operation.attention.head_dim;
    }
  }
  return 2;
}

std::int64_t attention_head_dim(const ModelSpec& model) {
  for (const LayerSpec& kind : model.kinds) {
    for (const Operation& operation : kind.operations) {
      if (operation.function == Function::kAttention) return operation.attention.head_dim;
    }
  }
  return 0;
}

RankMemory& memory_of(const Engine::Options& options) {
  return options.device != nullptr ? *options.device : host_memory();
}

}  // namespace

Engine::Engine(const ModelSpec& model, const Plan& plan, const EventGraph& graph, World& world,
               Options options)
    : model_(model),
      part_(cuts_layers(plan) ? std::optional(part_of_rank(model, plan)) : std::nullopt),
      plan_(plan),
      graph_(graph),
      rank_(world.rank()),
      part_index_(static_cast<int>(plan.mesh.tp_index(rank_))),
      shard_index_(static_cast<int>(plan.mesh.shard_index(rank_))),
      replica_(static_cast<int>(rank_ / (plan.mesh.shard * plan.mesh.tp))),
      options_(options),
      units_(part_ ? *part_ : model, plan, graph, shard_index_, memory_of(options)),
      layers_(part_ ? *part_ : model, graph, part_ ? slices_of_part(model, plan) : SlicesOfPart()) {
  if (part_) units_.set_cuts(model, *part_, part_index_);
  FORESHARD_CHECK(world.size() == plan.mesh.world(), "a world of another size than the mesh");
  if (options.graph) {
    if (const auto problem = find_graph_problem(plan, world)) {
      throw Error(ExitCode::kMissingCapability, *problem);
    }
    FORESHARD_CHECK(!options.debug, "the checks of --debug read the device in every row");
  }
  rotary_ = rotary_table(plan.batch.sequence, rotary_head_dim(model), model.numerics.rope_theta,
                         model.numerics.rope_scaling);
  const BackendParts parts{model,  plan,     graph,          world,
                           units_, account_, options.pacing, options.graph};
  if (options.device == nullptr) {
    install_allocator();
    backend_ = make_cpu_backend(parts);
    return;
  }
  const c10::Device device = options.device->device();
  rotary_ = {rotary_.cos.to(device), rotary_.sin.to(device)};
  attention_ = attention_kernel({plan.attention, plan.param_dtype, attention_head_dim(model)},
                                options.device->info());
  backend_ = make_device_backend(parts, *options.device);
}

Engine::~Engine() = default;

std::string Engine::event_name(EventId id) const {
  return fmt::format("{} (event {} of step {})", EventNames(graph_, model_).of(id), id, number_);
}

void Engine::stop(std::exception_ptr cause) {
  backend_->fail(kNoEvent, std::move(cause));
  backend_->abort();
}

void Engine::throw_failure() {
  backend_->abort();
  backend_->drain();
  const EventFailure failure = backend_->failure();
  const std::string where =
      failure.event == kNoEvent ? fmt::format("step {}", number_) : event_name(failure.event);
  try {
    std::rethrow_exception(failure.cause);
  } catch (const PeerFailure& lost) {
    throw PeerFailure(lost.rank(),
                      fmt::format("rank {} waited in {}: {}", rank_, where, lost.what()));
  } catch (const Error& error) {
    throw StepFailure(fmt::format("rank {}, {}: {}", rank_, where, error.what()),
                      error.exit_code());
  } catch (const c10::OutOfMemoryError& error) {
    throw StepFailure(fmt::format("rank {}, {}: the GPU has no memory left: {}", rank_, where,
                                  error.what_without_backtrace()),
                      ExitCode::kInfeasible);
  } catch (const c10::Error& error) {
    throw StepFailure(fmt::format("rank {}, {}: {}", rank_, where, error.what_without_backtrace()),
                      ExitCode::kInternal);
  } catch (const std::exception& error) {
    throw StepFailure(fmt::format("rank {}, {}: {}", rank_, where, error.what()),
                      ExitCode::kInternal);
  }
}

void Engine::issue(std::int64_t number, std::span<MicroBatch> batches) {
  FORESHARD_CHECK(static_cast<std::int64_t>(batches.size()) == plan_.batch.accumulation,
                  "a step needs every micro-batch");
  const AccountScope scope(&account_);
  number_ = number;
  try {
    batches_ = backend_->begin_step(number, batches);
    backend_->run_rows([this] { issue_rows(); });
    backend_->end_step();
  } catch (const StepStopped&) {
  } catch (...) {
    backend_->fail(issuing_, std::current_exception());
  }
  issuing_ = kNoEvent;
  if (backend_->failed()) throw_failure();
  FORESHARD_CHECK(layers_.held() == 0, "a tensor outlives the step");
}

// A backend may keep this as the step: what differs from one step to the next is in its memory.
void Engine::issue_rows() {
  for (EventId id = 0; id < static_cast<EventId>(graph_.rows.size()); ++id) {
    issuing_ = id;
    attach_gathered(id);
    RECORD_USER_SCOPE(EventNames(graph_, model_).of(id));  // named where a profiler looks
    if (is_in_layer(graph_.details[index(id)])) {
      const LayerCollectiveCall call = layer_collective(id);
      backend_->issue(id, [this, call] { backend_->layer_collective(call); });
      layer_row(id, Passes::kAll);  // tensors that end behind it
    } else {
      backend_->issue(id, [this, id] { run_row(id); });
    }
  }
  issuing_ = kNoEvent;
}

// From a gather on the unit's parameters are where it is gathered to.
void Engine::attach_gathered(EventId id) {
  const RowDetail& detail = graph_.details[index(id)];
  const bool of_unit = graph_.rows[index(id)].kind == EventKind::kAllGather && detail.buffer >= 0;
  if (!of_unit || is_in_layer(detail)) return;
  units_.at(detail.unit).values.attach(units_.buffer(detail.buffer));
}

StepResult Engine::collect() {
  try {
    return backend_->collect();
  } catch (...) {
    backend_->fail(kNoEvent, std::current_exception());
  }
  throw_failure();
}

StepOutcome Engine::step(std::int64_t number, std::span<MicroBatch> batches, MeasuredStep* record) {
  issue(number, batches);
  StepResult result = collect();
  if (record != nullptr) *record = std::move(result.times);
  return {std::move(result.losses), result.gradient_norm};
}

std::int64_t Engine::activations_peak() {
  return options_.device != nullptr && options_.device->is_gpu()
             ? options_.device->memory().allocated_peak
             : account_.peak;
}

void Engine::forget_peak() {
  account_.peak = account_.now;
  if (options_.device != nullptr) options_.device->reset_peaks();
}

// --- rows ---

void Engine::run_row(EventId id) {
  const Row& row = graph_.rows[index(id)];
  const RowDetail& detail = graph_.details[index(id)];
  switch (row.kind) {
    case EventKind::kForward:
    case EventKind::kRecompute:
    case EventKind::kLoss:
      return layer_row(id, Passes::kAll);
    case EventKind::kBackward:
      begin_gradients(detail);
      return layer_row(id, Passes::kAll);
    case EventKind::kReshard:
      return reshard(detail);
    case EventKind::kAllGather:
      return all_gather(id);
    case EventKind::kReduceScatter:
      return reduce_scatter(id);
    case EventKind::kAccumulate:
      return accumulate(id);
    case EventKind::kAllReduce:
      if (detail.unit < 0) return backend_->all_reduce_norm(id, row.communicator);
      if (detail.buffer >= 0) {
        const FlatUnit& layout = units_.at(detail.unit).layout;
        return backend_->all_reduce_partial(
            id, row.communicator,
            units_.buffer(detail.buffer) + layout.partial_offset * size_of(plan_.reduce_dtype),
            layout.partial_numel);
      }
      return backend_->all_reduce_gradient(
          id, row.communicator, {floats(detail.other), index(units_.at(detail.unit).shard)});
    case EventKind::kGradNorm:
      return backend_->grad_norm();
    case EventKind::kGradScale:
      return backend_->grad_scale();
    case EventKind::kOptimizer:
      return backend_->optimizer(number_);
    case EventKind::kHostToDevice:
      return host_to_device(detail);
    case EventKind::kDeviceToHost:
      return units_.memory().copy(units_.buffer(detail.other), units_.buffer(detail.buffer),
                                  index(units_.at(detail.unit).shard) * sizeof(float));
    case EventKind::kHostOptimizer:
      return host_optimizer(graph_.works[row.work]);
    default:
      break;
  }
  FORESHARD_CHECK(false, fmt::format("the engine does no {}", to_string(row.kind)));
}

void Engine::begin_gradients(const RowDetail& detail) {
  if (detail.sum != SumMode::kBegin) return;
  units_.begin_gradients(units_.at(detail.unit), units_.buffer(detail.buffer), options_.debug);
}

// Whatever of layers the row's actions name.
void Engine::layer_row(EventId id, Passes passes) {
  const RowDetail& detail = graph_.details[index(id)];
  for (std::uint32_t a = detail.actions_begin; a < detail.actions_end; ++a) {
    const MemoryAction& action = graph_.actions[a];
    const LayerPhaseProgram LayerProgram::*phase = nullptr;
    if (action.kind == MemoryAction::Kind::kForward) phase = &LayerProgram::forward;
    if (action.kind == MemoryAction::Kind::kRecompute) phase = &LayerProgram::recompute;
    if (action.kind == MemoryAction::Kind::kBackward) phase = &LayerProgram::backward;
    const bool skipped = passes == Passes::kForward && phase != &LayerProgram::forward;
    if (phase == nullptr || skipped) continue;
    const LayerExecution& execution = graph_.executions[index(action.target)];
    const OperationContext context{model_.numerics,
                                   plan_.param_dtype,
                                   rotary_,
                                   batches_[index(execution.microbatch)],
                                   {part_index_, plan_.mesh.tp},
                                   {},
                                   nullptr,
                                   options_.device,
                                   attention_};
    const SegmentRun segments = action.segment == MemoryAction::kWhole
                                    ? SegmentRun{0, SegmentRun::kAll}
                                    : SegmentRun{action.segment, action.segments};
    layers_.run(execution, graph_.program(execution).*phase, segments, context,
                units_.of_layer(execution.layer));
  }
}

bool Engine::is_in_layer(const RowDetail& detail) const {
  return detail.other >= 0 && detail.other < graph_.first_own_buffer;
}

// What it works on, and where its result is from now on.
LayerCollectiveCall Engine::layer_collective(EventId id) {
  const Row& row = graph_.rows[index(id)];
  const RowDetail& detail = graph_.details[index(id)];
  LayerCollectiveCall call{id, row.kind, row.communicator, layers_.tensor(detail.other), {}};
  std::vector<std::int64_t> shape = call.in.sizes().vec();
  if (row.kind == EventKind::kAllGather) {
    shape[0] *= plan_.mesh.tp;
  } else {
    shape[0] /= plan_.mesh.tp;
  }
  call.out = at::empty(shape, call.in.options());
  layers_.tensor(detail.buffer) = call.out;
  return call;
}

// --- collectives ---

// This rank's shard of offloaded parameters goes to its place in the whole unit; sums of gradients
// come back to be added to.
void Engine::host_to_device(const RowDetail& detail) {
  UnitMemory& unit = units_.at(detail.unit);
  std::byte* place = units_.buffer(detail.buffer);
  const bool is_gradient = graph_.buffer(detail.buffer).category == MemoryCategory::kShardedGrad;
  const std::size_t bytes =
      index(unit.shard) * (is_gradient ? sizeof(float) : index(size_of(plan_.param_dtype)));
  if (!is_gradient) place += index(shard_index_) * bytes;
  units_.memory().copy(place, units_.buffer(detail.other), bytes);
}

// What the row's operations are.
void Engine::host_optimizer(const Work& work) {
  for (std::uint32_t k = work.kernels_begin; k < work.kernels_end; ++k) {
    switch (graph_.kernels[k].function) {
      case Function::kSumOfSquares:
        backend_->grad_norm();
        break;
      case Function::kScale:
        backend_->grad_scale();
        break;
      case Function::kAdamW:
      case Function::kSgd:
        backend_->optimizer(number_);
        break;
      default:
        FORESHARD_CHECK(false, "the host's optimizer has no such operation");
    }
  }
}

// This rank's piece is put into place, then everyone's are exchanged.
void Engine::all_gather(EventId id) {
  const RowDetail& detail = graph_.details[index(id)];
  const Work& work = graph_.works[graph_.rows[index(id)].work];
  UnitMemory& unit = units_.at(detail.unit);
  std::byte* whole = units_.buffer(detail.buffer);
  const std::size_t bytes =
      index(unit.padded() / backend_->group_size(work.communicator) * size_of(plan_.param_dtype));
  if (detail.other >= 0) {
    units_.memory().copy(whole + index(backend_->group_index(work.communicator)) * bytes,
                         units_.buffer(detail.other), bytes);
  }
  backend_->all_gather(id, work.communicator, whole, bytes);
}

void Engine::reshard(const RowDetail& detail) {
  const UnitMemory& unit = units_.at(detail.unit);
  const std::int64_t group = graph_.units[index(detail.unit)].reshard.group;
  const auto bytes = index(unit.padded() / group * size_of(plan_.param_dtype));
  units_.memory().copy(units_.buffer(detail.other),
                       units_.buffer(detail.buffer) + index(rank_ % group) * bytes, bytes);
}

void Engine::reduce_scatter(EventId id) {
  const RowDetail& detail = graph_.details[index(id)];
  if (options_.debug) check_gradients(detail);
  ReduceScatterCall call;
  call.event = id;
  call.communicator = graph_.rows[index(id)].communicator;
  call.shard = units_.at(detail.unit).shard;
  call.whole = units_.buffer(detail.buffer);
  call.mode = detail.sum;
  if (detail.sum == SumMode::kApart) {
    call.apart = detail.other;
  } else {
    call.target = floats(detail.other);
  }
  backend_->reduce_scatter(call);
}

// Of one rank's own gradients, in the arena, or of a sum that a reduce-scatter left.
void Engine::accumulate(EventId id) {
  const RowDetail& detail = graph_.details[index(id)];
  const bool is_own = units_.holds(detail.buffer);
  if (is_own && options_.debug) check_gradients(detail);
  AccumulateCall call;
  call.shard = units_.at(detail.unit).shard;
  if (is_own) {
    call.slot = units_.buffer(detail.buffer);
  } else {
    call.apart = detail.buffer;
  }
  call.mode = detail.sum;
  call.target = floats(detail.other);
  backend_->accumulate(call);
}

float* Engine::floats(std::int32_t buffer) const {
  return reinterpret_cast<float*>(units_.buffer(buffer));
}

// Where the row reads: the unit's own view may be in the next micro-batch's slot by now.
void Engine::check_gradients(const RowDetail& detail) {
  const UnitMemory& unit = units_.at(detail.unit);
  const at::Tensor gradients =
      tensor_over(units_.buffer(detail.buffer), unit.padded(), scalar_type(plan_.reduce_dtype),
                  units_.memory().device());
  if (!gradients.isnan().any().item<bool>()) return;
  FORESHARD_CHECK(false, "a gradient of unit " + unit.name +
                             " was not written, or came from memory that was free");
}

// --- parameters ---

void Engine::initialise() {
  // CPU ranks share the machine's cores; a device has the host for itself.
  const int threads =
      options_.device == nullptr
          ? 1
          : std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 64);
  for (UnitMemory& unit : units_.all()) {
    initialise_shard(unit, model_, plan_, units_.states(), threads);
  }
  backend_->sync();
}

std::string Engine::parameter_hash() {
  backend_->sync();
  std::uint64_t sum = 0;
  std::vector<std::byte> copy;
  for (const UnitMemory& unit : units_.all()) {
    const std::byte* master = unit.master;
    if (options_.device != nullptr) {
      copy.resize(index(unit.shard * size_of(plan_.master_dtype)));
      units_.states().to_host(copy.data(), unit.master, copy.size());
      master = copy.data();
    }
    sum += hash_shard(unit, master, model_, plan_);
  }
  const std::int64_t all = backend_->add_over_shards(static_cast<std::int64_t>(sum));
  return fmt::format("{:016x}", static_cast<std::uint64_t>(all));
}

// --- evaluation ---

// The graph's own rows up to the first loss, one after the other: every dependency of a row has a
// smaller id, and a slot is filled again only by a row behind its last use.
void Engine::forward_rows() {
  for (EventId id = 0; id < static_cast<EventId>(graph_.rows.size()); ++id) {
    attach_gathered(id);
    if (is_in_layer(graph_.details[index(id)])) {
      backend_->layer_collective(layer_collective(id));
      layer_row(id, Passes::kForward);
    } else if (graph_.rows[index(id)].kind == EventKind::kLoss) {
      layer_row(id, Passes::kForward);
      if (ends_loss(id)) return;
    } else {
      run_row(id);
    }
  }
}

// Its gradient stands there when the loss does.
bool Engine::ends_loss(EventId id) const {
  const RowDetail& detail = graph_.details[index(id)];
  return std::any_of(
      graph_.actions.begin() + detail.actions_begin, graph_.actions.begin() + detail.actions_end,
      [](const MemoryAction& action) { return action.kind == MemoryAction::Kind::kBackward; });
}

double Engine::evaluate(MicroBatch& host_batch) {
  const AccountScope scope(&account_);
  const std::int64_t peak = account_.peak;
  backend_->sync();
  MicroBatch batch = host_batch;
  if (options_.device != nullptr) {
    const c10::Device device = options_.device->device();
    batch.tokens = batch.tokens.to(device);
    batch.labels = batch.labels.to(device);
    batch.loss_sum = at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device));
  }
  batches_ = std::span(&batch, 1);
  forward_rows();
  batches_ = {};
  layers_.clear();
  if (options_.device != nullptr) {
    batch.loss = batch.loss_sum.item<double>() / static_cast<double>(batch.count());
  }
  account_.peak = peak;
  backend_->forget_begin();
  host_batch.loss = batch.loss;
  return batch.loss;
}

}  // namespace foreshard
