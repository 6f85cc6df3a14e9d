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
#include "reports/view/event_names.h"

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
      plan_(plan),
      graph_(graph),
      rank_(world.rank()),
      shard_index_(static_cast<int>(world.rank() % plan.mesh.shard)),
      replica_(static_cast<int>(world.rank() / plan.mesh.shard)),
      options_(options),
      units_(model, plan, graph, shard_index_, memory_of(options)),
      layers_(model, graph) {
  FORESHARD_CHECK(world.size() == plan.mesh.world(), "a world of another size than the mesh");
  if (options.graph) {
    if (const auto problem = find_graph_problem(plan, world)) {
      throw Error(ExitCode::kMissingCapability, *problem);
    }
    FORESHARD_CHECK(!options.debug, "the checks of --debug read the device in every row");
  }
  find_staging();
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

// Rows that sum a unit's gradients do it where the next copy to the host reads.
void Engine::find_staging() {
  staging_.assign(graph_.rows.size(), -1);
  std::vector<std::int32_t> next(graph_.units.size(), -1);
  for (std::size_t id = graph_.rows.size(); id-- > 0;) {
    const RowDetail& detail = graph_.details[id];
    const EventKind kind = graph_.rows[id].kind;
    if (detail.unit < 0) continue;
    std::int32_t& slot = next[index(detail.unit)];
    if (kind == EventKind::kDeviceToHost) slot = detail.buffer;
    if (kind == EventKind::kReduceScatter || kind == EventKind::kAccumulate ||
        kind == EventKind::kAllReduce) {
      staging_[id] = slot;
    }
  }
}

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
  for (UnitMemory& unit : units_.all()) unit.gradient_microbatch = -1;
  for (EventId id = 0; id < static_cast<EventId>(graph_.rows.size()); ++id) {
    issuing_ = id;
    // From here on the unit's parameters are where it is gathered to.
    const RowDetail& detail = graph_.details[index(id)];
    if (graph_.rows[index(id)].kind == EventKind::kAllGather && detail.buffer >= 0) {
      units_.at(detail.unit).values.attach(units_.buffer(detail.buffer));
    }
    RECORD_USER_SCOPE(EventNames(graph_, model_).of(id));  // named where a profiler looks
    backend_->issue(id, [this, id] { run_row(id); });
  }
  issuing_ = kNoEvent;
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
  if (staging_[index(id)] >= 0) {  // what is summed goes to the host from there
    units_.at(detail.unit).gradient = reinterpret_cast<float*>(units_.buffer(staging_[index(id)]));
  }
  switch (row.kind) {
    case EventKind::kForward:
    case EventKind::kLoss:
    case EventKind::kRecompute:
      return layer_row(detail, row.kind);
    case EventKind::kBackward:
      return backward_row(detail);
    case EventKind::kReshard:
      return reshard(detail.unit);
    case EventKind::kAllGather:
      return all_gather(id);
    case EventKind::kReduceScatter:
      return reduce_scatter(id);
    case EventKind::kAccumulate:
      return accumulate(id);
    case EventKind::kAllReduce:
      if (detail.unit < 0) return backend_->all_reduce_norm(id, row.communicator);
      return backend_->all_reduce_gradient(id, row.communicator, units_.at(detail.unit));
    case EventKind::kGradNorm:
      return backend_->grad_norm();
    case EventKind::kGradScale:
      return backend_->grad_scale();
    case EventKind::kOptimizer:
      return backend_->optimizer(number_);
    case EventKind::kHostToDevice:
      return host_to_device(detail);
    case EventKind::kDeviceToHost: {
      const UnitMemory& unit = units_.at(detail.unit);
      return units_.memory().copy(unit.stored_gradient, units_.buffer(detail.buffer),
                                  index(unit.shard) * sizeof(float));
    }
    case EventKind::kHostOptimizer:
      return host_optimizer(id);
    default:
      break;
  }
  FORESHARD_CHECK(false, fmt::format("the engine does no {}", to_string(row.kind)));
}

void Engine::backward_row(const RowDetail& detail) {
  UnitMemory& unit = units_.at(detail.unit);
  const bool keeps = plan_.accumulation == AccumulationMode::kKeepUnsharded;
  const std::int32_t microbatch = keeps ? 0 : detail.microbatch;
  if (unit.gradient_microbatch != microbatch) {
    unit.gradient_microbatch = microbatch;
    units_.begin_gradients(unit, units_.buffer(detail.buffer), options_.debug);
  }
  layer_row(detail, EventKind::kBackward);
}

void Engine::layer_row(const RowDetail& detail, EventKind kind) {
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  const LayerExecution& execution =
      graph_.executions[index(detail.microbatch * layers + detail.layer)];
  const LayerProgram& program = graph_.program(execution);
  const OperationContext context{
      model_.numerics, plan_.param_dtype, rotary_,   batches_[index(detail.microbatch)],
      nullptr,         options_.device,   attention_};
  const auto& parameters = units_.of_layer(detail.layer);
  const auto run = [&](const LayerPhaseProgram& phase) {
    layers_.run(execution, phase, context, parameters);
  };
  if (kind == EventKind::kRecompute) run(program.recompute);
  if (kind == EventKind::kForward || kind == EventKind::kLoss) run(program.forward);
  if (kind == EventKind::kBackward || kind == EventKind::kLoss) run(program.backward);
}

// --- collectives ---

// Of offloaded parameters this rank's shard was put into place by a copy before; sums of gradients
// come back to be added to.
void Engine::host_to_device(const RowDetail& detail) {
  UnitMemory& unit = units_.at(detail.unit);
  std::byte* place = units_.buffer(detail.buffer);
  if (graph_.buffer(detail.buffer).category == MemoryCategory::kShardedGrad) {
    return units_.memory().copy(place, unit.stored_gradient, index(unit.shard) * sizeof(float));
  }
  const std::size_t bytes = index(unit.shard * size_of(plan_.param_dtype));
  units_.memory().copy(place + index(shard_index_) * bytes, unit.shadow, bytes);
}

// The last one is the step, which scales first; an earlier one the norm.
void Engine::host_optimizer(EventId id) {
  for (std::size_t later = index(id) + 1; later < graph_.rows.size(); ++later) {
    if (graph_.rows[later].kind == EventKind::kHostOptimizer) return backend_->grad_norm();
  }
  if (plan_.optimizer.clip_norm) backend_->grad_scale();
  backend_->optimizer(number_);
}

// This rank's shard is put into place, then everyone's are exchanged. In backward of a unit
// resharded to a smaller group, a piece of the unit is sent around inside that group.
void Engine::all_gather(EventId id) {
  const RowDetail& detail = graph_.details[index(id)];
  const Work& work = graph_.works[graph_.rows[index(id)].work];
  UnitMemory& unit = units_.at(detail.unit);
  std::byte* whole = units_.buffer(detail.buffer);
  const bool small = graph_.communicators[work.communicator].name == "post_forward";
  const std::size_t bytes =
      index(unit.padded() / backend_->group_size(work.communicator) * size_of(plan_.param_dtype));
  if (small || !units_.offloads()) {
    units_.memory().copy(
        whole + static_cast<std::size_t>(backend_->group_index(work.communicator)) * bytes,
        small ? unit.post_forward : unit.shadow, bytes);
  }
  backend_->all_gather(id, work.communicator, whole, bytes);
}

void Engine::reshard(std::int32_t u) {
  UnitMemory& unit = units_.at(u);
  const std::int64_t group = graph_.units[index(u)].reshard.group;
  const auto bytes = index(unit.padded() / group * size_of(plan_.param_dtype));
  const auto* whole = static_cast<const std::byte*>(unit.values.flat().const_data_ptr());
  units_.memory().copy(unit.post_forward, whole + index(rank_ % group) * bytes, bytes);
}

void Engine::reduce_scatter(EventId id) {
  const RowDetail& detail = graph_.details[index(id)];
  if (options_.debug) check_gradients(detail);
  const std::size_t next = index(id) + 1;
  ReduceScatterCall call;
  call.event = id;
  call.communicator = graph_.rows[index(id)].communicator;
  call.unit = detail.unit;
  call.whole = units_.buffer(detail.buffer);
  call.continues = plan_.reduction_order == ReductionOrder::kMicrobatch &&
                   plan_.accumulation == AccumulationMode::kReduceEach && detail.microbatch > 0;
  call.added_later = next < graph_.rows.size() &&
                     graph_.rows[next].kind == EventKind::kAccumulate &&
                     graph_.details[next].unit == detail.unit;
  backend_->reduce_scatter(call);
}

void Engine::accumulate(EventId id) {
  const RowDetail& detail = graph_.details[index(id)];
  const bool from_slot = plan_.mesh.shard == 1;
  if (from_slot && options_.debug) check_gradients(detail);
  AccumulateCall call;
  call.unit = detail.unit;
  call.slot = from_slot ? units_.buffer(detail.buffer) : nullptr;
  call.adds = detail.microbatch > 0 && plan_.accumulation == AccumulationMode::kReduceEach;
  backend_->accumulate(call);
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

void Engine::gather_now(std::int32_t u) {
  UnitMemory& unit = units_.at(u);
  if (!units_.gathers()) return;
  // Any row that gathers the whole unit knows where to.
  for (std::size_t id = 0; id < graph_.rows.size(); ++id) {
    if (graph_.rows[id].kind != EventKind::kAllGather || graph_.details[id].unit != u) continue;
    unit.values.attach(units_.buffer(graph_.details[id].buffer));
    if (units_.offloads()) host_to_device(graph_.details[id]);
    all_gather(static_cast<EventId>(id));
    return;
  }
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
  const OperationContext context{model_.numerics, plan_.param_dtype, rotary_,   batch,
                                 nullptr,         options_.device,   attention_};
  std::int32_t gathered = -1;
  std::vector<std::int32_t> kept;  // units with storage of their own stay where they are
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  for (std::int32_t l = 0; l < layers; ++l) {
    const LayerExecution& execution = graph_.executions[index(l)];
    const std::int32_t unit = execution.unit;
    const bool is_kept = std::find(kept.begin(), kept.end(), unit) != kept.end();
    if (unit >= 0 && unit != gathered && !is_kept) {
      gather_now(unit);
      gathered = unit;
      if (graph_.units[index(unit)].reshard.kind == Reshard::Kind::kNever) kept.push_back(unit);
    }
    layers_.run(execution, graph_.program(execution).forward, context, units_.of_layer(l));
  }
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
