// The walk. A step begins where the last one ended. For every row: its issue is stamped; a compute
// row waits for its waits, runs here, and is done; any other row is queued on its stream, where it
// waits, takes its communicator's turn, runs, and is done. After the last row the streams are
// drained.
//
// A row that throws stops everything: its cause is kept, communicators are aborted so that threads
// that wait for peers come back, and the host throws one StepFailure that names the row.
#include "exec/engine/engine.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "exec/compute/kernels.h"
#include "exec/engine/exact_sum.h"
#include "exec/engine/update.h"
#include "reports/event_names.h"

namespace foreshard {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

std::int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::int64_t rotary_head_dim(const ModelSpec& model) {
  for (const LayerSpec& kind : model.kinds) {
    for (const Operation& operation : kind.operations) {
      if (operation.function == Function::kRotary) return operation.attention.head_dim;
    }
  }
  return 2;
}

}  // namespace

std::optional<std::string> find_engine_problem(const ModelSpec& model, const Plan& plan) {
  const auto refuse = [](std::string what, const char* nearest) {
    return std::optional(fmt::format("{}; nearest plan: {}", what, nearest));
  };
  if (plan.runtime.kind != RuntimeKind::kNative) {
    return refuse(fmt::format("the engine runs native plans, this one is {}@{}",
                              to_string(plan.runtime.kind), plan.runtime.version),
                  "the same with runtime: native");
  }
  for (const DType dtype :
       {plan.param_dtype, plan.reduce_dtype, plan.master_dtype, plan.optimizer.state}) {
    if (dtype == DType::kFp16) {
      return refuse("the engine has no fp16, which needs loss scaling", "dtype.param: bf16");
    }
  }
  if (plan.param_dtype == DType::kFp32 && plan.reduce_dtype != DType::kFp32) {
    return refuse("fp32 gradients are reduced in fp32", "dtype.reduce: fp32");
  }
  if (plan.param_dtype == DType::kFp32 && plan.master_dtype != DType::kFp32) {
    return refuse("fp32 parameters are stored in fp32", "dtype.master: fp32");
  }
  if (model.tied_embeddings &&
      (plan.units.embedding != UnitPlacement::kRoot || plan.units.head != UnitPlacement::kRoot)) {
    return refuse("embedding and head are one parameter (tied), which is in one unit only",
                  "units.embedding: root and units.head: root");
  }
  if (model.numerics.alibi) {
    return refuse("the engine's attention has no ALiBi",
                  "a model with rotary or learned positions");
  }
  if (model.numerics.rope_scaling) {
    return refuse("the engine does not rescale rotary frequencies (rope_scaling)",
                  "the model without rope_scaling");
  }
  return std::nullopt;
}

Engine::Engine(const ModelSpec& model, const Plan& plan, const EventGraph& graph, World& world,
               Options options)
    : model_(model),
      plan_(plan),
      graph_(graph),
      rank_(world.rank()),
      world_size_(world.size()),
      shard_index_(static_cast<int>(world.rank() % plan.mesh.shard)),
      replica_(static_cast<int>(world.rank() / plan.mesh.shard)),
      options_(options),
      units_(model, plan, graph, shard_index_),
      layers_(model, graph),
      events_(graph.rows.size(), graph.communicators.size()),
      sums_(graph.units.size()),
      spans_(graph.rows.size()) {
  install_allocator();
  FORESHARD_CHECK(world.size() == plan.mesh.world(), "a world of another size than the mesh");
  rotary_ = rotary_table(plan.batch.sequence, rotary_head_dim(model), model.numerics.rope_theta);
  connect(world);
  for (const Row& row : graph.rows) {
    const auto s = static_cast<std::size_t>(row.stream);
    if (row.stream == Stream::kCompute || streams_[s]) continue;
    streams_[s] = std::make_unique<StreamThread>([this] {
      static thread_local std::optional<AccountScope> scope;
      scope.emplace(&account_);
    });
  }
}

Engine::~Engine() = default;

// Groups of the mesh: shard groups are consecutive ranks, replicate groups a stride of mesh.shard.
void Engine::connect(World& world) {
  for (const auto& c : graph_.communicators) {
    const auto size = static_cast<int>(c.group.size);
    const auto stride = static_cast<int>(c.group.stride);
    const int block = size * stride;
    const int first = stride == 1 ? rank_ / size * size : rank_ / block * block + rank_ % stride;
    std::vector<int> ranks;
    for (int i = 0; i < size; ++i) ranks.push_back(first + i * stride);
    communicators_.push_back(std::make_unique<GroupCommunicator>(
        world.connect(fmt::format("{}/{}/{}", c.name, size, first), ranks)));
  }
}

Time Engine::now() const { return Time::ns(steady_ns() - step_begin_ns_); }

std::string Engine::event_name(EventId id) const {
  return fmt::format("{} (event {} of step {})", EventNames(graph_, model_).of(id), id, number_);
}

void Engine::stop(std::exception_ptr cause) {
  events_.fail(kNoEvent, std::move(cause));
  for (const auto& communicator : communicators_) communicator->abort();
}

void Engine::throw_failure() {
  for (const auto& communicator : communicators_) communicator->abort();
  for (const auto& stream : streams_) {
    if (stream) stream->drain();
  }
  const EventFailure failure = events_.failure();
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
  } catch (const std::exception& error) {
    throw StepFailure(fmt::format("rank {}, {}: {}", rank_, where, error.what()),
                      ExitCode::kInternal);
  }
}

StepOutcome Engine::step(std::int64_t number, std::span<MicroBatch> batches, MeasuredStep* record) {
  FORESHARD_CHECK(static_cast<std::int64_t>(batches.size()) == plan_.batch.accumulation,
                  "a step needs every micro-batch");
  const AccountScope scope(&account_);
  number_ = number;
  batches_ = batches;
  norm_ = 0;
  step_begin_ns_ = last_end_ns_ != 0 ? last_end_ns_ : steady_ns();
  for (UnitMemory& unit : units_.all()) unit.gradient_microbatch = -1;
  events_.begin_step();
  EventId id = 0;
  try {
    for (; id < static_cast<EventId>(graph_.rows.size()); ++id) issue(id);
    for (const auto& stream : streams_) {
      if (stream) stream->drain();
    }
  } catch (const StepStopped&) {
  } catch (...) {
    events_.fail(id, std::current_exception());
  }
  if (events_.failed()) throw_failure();
  FORESHARD_CHECK(layers_.held() == 0, "a tensor outlives the step");
  last_end_ns_ = steady_ns();
  if (record != nullptr) {
    record->step = number;
    record->begin = Time::ns(step_begin_ns_);
    record->duration = Time::ns(last_end_ns_ - step_begin_ns_);
    record->spans = spans_;
  }
  StepOutcome outcome;
  for (const MicroBatch& batch : batches) outcome.losses.push_back(batch.loss);
  outcome.gradient_norm = norm_;
  return outcome;
}

// --- rows ---

void Engine::issue(EventId id) {
  const Row& row = graph_.rows[index(id)];
  Span& span = spans_[index(id)];
  span.issue = now();
  if (row.stream == Stream::kCompute) {
    for (const EventId awaited : graph_.waits_of(id)) events_.wait(awaited);
    span.start = span.arrive = now();
    compute_row(id);
    span.end = now();
    events_.finish(id);
    return;
  }
  stream_row(id);
}

void Engine::stream_row(EventId id) {
  const Row& row = graph_.rows[index(id)];
  const RowDetail& detail = graph_.details[index(id)];
  // From here on the unit's parameters are where it is gathered to.
  if (row.kind == EventKind::kAllGather && detail.buffer >= 0) {
    units_.at(detail.unit).values.attach(units_.buffer(detail.buffer));
  }
  const bool queues = row.communicator != kNoCommunicator;
  const std::int64_t ticket = queues ? events_.take_ticket(row.communicator) : 0;
  streams_[static_cast<std::size_t>(row.stream)]->issue([this, id, queues, ticket] {
    const Row& own = graph_.rows[index(id)];
    Span& span = spans_[index(id)];
    try {
      for (const EventId awaited : graph_.waits_of(id)) events_.wait(awaited);
      span.start = now();
      if (queues) events_.wait_turn(own.communicator, ticket);
      span.arrive = now();
      run_stream_row(id);
      span.end = now();
      if (queues) events_.end_turn(own.communicator);
      events_.finish(id);
    } catch (const StepStopped&) {
    } catch (...) {
      events_.fail(id, std::current_exception());
    }
  });
}

void Engine::run_stream_row(EventId id) {
  const Row& row = graph_.rows[index(id)];
  const RowDetail& detail = graph_.details[index(id)];
  switch (row.kind) {
    case EventKind::kAllGather:
      return all_gather(id);
    case EventKind::kReduceScatter:
      return reduce_scatter(id);
    case EventKind::kAccumulate:
      return accumulate(id);
    case EventKind::kAllReduce: {
      GroupCommunicator& communicator = *communicators_[row.communicator];
      if (detail.unit < 0) return communicator.all_reduce(std::span(norm_digits_));
      UnitMemory& unit = units_.at(detail.unit);
      return communicator.all_reduce(std::span(unit.gradient, index(unit.shard)));
    }
    default:
      break;
  }
  FORESHARD_CHECK(false, fmt::format("no stream does {}", to_string(row.kind)));
}

void Engine::compute_row(EventId id) {
  const Row& row = graph_.rows[index(id)];
  const RowDetail& detail = graph_.details[index(id)];
  switch (row.kind) {
    case EventKind::kForward:
    case EventKind::kLoss:
    case EventKind::kRecompute:
      return layer_row(detail, row.kind);
    case EventKind::kBackward: {
      UnitMemory& unit = units_.at(detail.unit);
      const bool keeps = plan_.accumulation == AccumulationMode::kKeepUnsharded;
      const std::int32_t microbatch = keeps ? 0 : detail.microbatch;
      if (unit.gradient_microbatch != microbatch) {
        unit.gradient_microbatch = microbatch;
        units_.begin_gradients(unit, units_.buffer(detail.buffer), options_.debug);
      }
      return layer_row(detail, row.kind);
    }
    case EventKind::kReshard:
      return reshard(detail.unit);
    case EventKind::kGradNorm:
      return grad_norm();
    case EventKind::kGradScale:
      return grad_scale();
    case EventKind::kOptimizer:
      return optimizer();
    default:
      break;
  }
  FORESHARD_CHECK(false, fmt::format("the host does no {}", to_string(row.kind)));
}

void Engine::layer_row(const RowDetail& detail, EventKind kind) {
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  const LayerExecution& execution =
      graph_.executions[index(detail.microbatch * layers + detail.layer)];
  const LayerProgram& program = graph_.program(execution);
  const OperationContext context{model_.numerics, plan_.param_dtype, rotary_,
                                 batches_[index(detail.microbatch)]};
  const auto& parameters = units_.of_layer(detail.layer);
  const auto run = [&](const LayerPhaseProgram& phase) {
    layers_.run(execution, phase, context, parameters);
  };
  if (kind == EventKind::kRecompute) run(program.recompute);
  if (kind == EventKind::kForward || kind == EventKind::kLoss) run(program.forward);
  if (kind == EventKind::kBackward || kind == EventKind::kLoss) run(program.backward);
}

// --- collectives ---

// This rank's shard is put into place, then everyone's are exchanged. In backward of a unit
// resharded to a smaller group, a piece of the unit is sent around inside that group.
void Engine::all_gather(EventId id) {
  const RowDetail& detail = graph_.details[index(id)];
  const Work& work = graph_.works[graph_.rows[index(id)].work];
  UnitMemory& unit = units_.at(detail.unit);
  GroupCommunicator& communicator = *communicators_[work.communicator];
  std::byte* whole = units_.buffer(detail.buffer);
  const bool small = graph_.communicators[work.communicator].name == "post_forward";
  const std::size_t bytes = index(unit.padded() / communicator.size() * size_of(plan_.param_dtype));
  std::memcpy(whole + static_cast<std::size_t>(communicator.index()) * bytes,
              small ? unit.post_forward : unit.shadow, bytes);
  communicator.all_gather(whole, bytes);
}

void Engine::reshard(std::int32_t u) {
  UnitMemory& unit = units_.at(u);
  const std::int64_t group = graph_.units[index(u)].reshard.group;
  const auto bytes = index(unit.padded() / group * size_of(plan_.param_dtype));
  const auto* whole = static_cast<const std::byte*>(unit.values.flat().const_data_ptr());
  std::memcpy(unit.post_forward, whole + index(rank_ % group) * bytes, bytes);
}

void Engine::reduce_scatter(EventId id) {
  const RowDetail& detail = graph_.details[index(id)];
  const Row& row = graph_.rows[index(id)];
  UnitMemory& unit = units_.at(detail.unit);
  if (options_.debug) check_gradients(unit);
  const bool continues = plan_.reduction_order == ReductionOrder::kMicrobatch &&
                         plan_.accumulation == AccumulationMode::kReduceEach &&
                         detail.microbatch > 0;
  const std::size_t next = index(id) + 1;
  const bool added_later = next < graph_.rows.size() &&
                           graph_.rows[next].kind == EventKind::kAccumulate &&
                           graph_.details[next].unit == detail.unit;
  float* target = unit.gradient;
  if (added_later) {
    sums_[index(detail.unit)].resize(index(unit.shard));
    target = sums_[index(detail.unit)].data();
  }
  communicators_[row.communicator]->reduce_scatter(
      units_.buffer(detail.buffer), plan_.reduce_dtype, index(unit.shard), target,
      continues ? SumInto::kContinue : SumInto::kOverwrite);
}

void Engine::accumulate(EventId id) {
  const RowDetail& detail = graph_.details[index(id)];
  UnitMemory& unit = units_.at(detail.unit);
  const bool from_slot = plan_.mesh.shard == 1;
  if (from_slot && options_.debug) check_gradients(unit);
  const void* source = from_slot ? static_cast<const void*>(units_.buffer(detail.buffer))
                                 : sums_[index(detail.unit)].data();
  const DType dtype = from_slot ? plan_.reduce_dtype : DType::kFp32;
  const bool adds = detail.microbatch > 0 && plan_.accumulation == AccumulationMode::kReduceEach;
  adds ? add_to_fp32(dtype, unit.shard, source, unit.gradient)
       : copy_to_fp32(dtype, unit.shard, source, unit.gradient);
}

void Engine::check_gradients(UnitMemory& unit) {
  if (!unit.gradients.flat().isnan().any().item<bool>()) return;
  FORESHARD_CHECK(false, "a gradient of unit " + unit.name +
                             " was not written, or came from memory that was free");
}

// --- the step's end ---

void Engine::grad_norm() {
  ExactSum sum;
  for (const UnitMemory& unit : units_.all()) add_squares(unit.gradient, unit.shard, sum);
  norm_digits_ = sum.digits();
}

void Engine::grad_scale() {
  ExactSum sum;
  sum.digits() = norm_digits_;
  norm_ = std::sqrt(sum.value());
  // torch.nn.utils.clip_grad_norm_: the factor is at most 1.
  const auto factor =
      static_cast<float>(std::min(1.0, *plan_.optimizer.clip_norm / (norm_ + 1e-6)));
  for (UnitMemory& unit : units_.all()) {
    tensor_over(unit.gradient, unit.shard, at::kFloat).mul_(factor);
  }
}

void Engine::optimizer() {
  for (UnitMemory& unit : units_.all()) update_parameters(unit, model_, plan_, number_);
}

// --- parameters ---

void Engine::initialise() {
  for (UnitMemory& unit : units_.all()) initialise_shard(unit, model_, plan_);
}

std::string Engine::parameter_hash() {
  std::int64_t sum = 0;
  for (const UnitMemory& unit : units_.all()) {
    sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum) +
                                    hash_shard(unit, model_, plan_));
  }
  communicators_.front()->all_reduce(std::span(&sum, 1));  // the shard group holds them all
  return fmt::format("{:016x}", static_cast<std::uint64_t>(sum));
}

// --- evaluation ---

void Engine::gather_now(std::int32_t u) {
  UnitMemory& unit = units_.at(u);
  if (!units_.gathers()) return;
  // Any row that gathers the whole unit knows where to.
  for (std::size_t id = 0; id < graph_.rows.size(); ++id) {
    if (graph_.rows[id].kind != EventKind::kAllGather || graph_.details[id].unit != u) continue;
    unit.values.attach(units_.buffer(graph_.details[id].buffer));
    all_gather(static_cast<EventId>(id));
    return;
  }
}

double Engine::evaluate(MicroBatch& batch) {
  const AccountScope scope(&account_);
  const std::int64_t peak = account_.peak;
  const OperationContext context{model_.numerics, plan_.param_dtype, rotary_, batch};
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
  account_.peak = peak;
  last_end_ns_ = 0;  // the next step begins when it is called
  return batch.loss;
}

}  // namespace foreshard
