#include "exec/engine/rows.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include "exec/memory/flat_storage.h"
#include "sim/base/integers.h"
#include "sim/graph/axes/rank_part.h"

namespace foreshard {
Rows::Rows(const RankParts& parts, const EventGraph& graph, Of of)
    : parts_(parts),
      graph_(graph),
      of_(of),
      layers_(parts.model, graph, cuts_layers(parts.plan) ? slices_of_part(parts.whole, parts.plan) : SlicesOfPart()),
      places_(graph.buffers.size(), nullptr) {
  for (std::size_t i = 0; i < graph.persistent.size(); ++i)
    places_[at(graph.persistent[i] - graph.first_own_buffer)] = parts.units.place(i);
}

void Rows::begin(std::int64_t number, std::span<MicroBatch> batches) {
  number_ = number;
  batches_ = batches;
}

void Rows::attach_gathered(EventId id) {
  const RowDetail& d = detail(id);
  const bool of_unit = row(id).kind == EventKind::kAllGather && d.buffer >= 0;
  if (!of_unit || is_in_layer(id)) return;
  parts_.units.at(d.unit).values.attach(memory(d.buffer));
}

void Rows::issued(EventId id) {
  const RowDetail& d = detail(id);
  for (std::uint32_t a = d.actions_begin; a < d.actions_end; ++a) {
    const MemoryAction& action = graph_.actions[a];
    if (action.kind != MemoryAction::Kind::kAllocate && action.kind != MemoryAction::Kind::kFree) continue;
    const BufferRole role = graph_.buffer(action.target).role;
    if (role == BufferRole::kGradient || role == BufferRole::kUnitGradient) awaited_.push_back(&action);
  }
}

void Rows::make_gradients() {
  for (const MemoryAction* action : awaited_) {
    const Buffer buffer = graph_.buffer(action->target);
    std::byte* place = nullptr;
    if (action->kind == MemoryAction::Kind::kFree) {
      made_.erase(action->target);
    } else {
      at::Tensor& memory = made_[action->target];
      memory = at::empty(
          {buffer.bytes.count()}, at::TensorOptions().dtype(at::kByte).device(parts_.units.memory().device()));
      place = static_cast<std::byte*>(memory.mutable_data_ptr());
      places_[at(action->target - graph_.first_own_buffer)] = place;
    }
    if (buffer.role == BufferRole::kGradient) parts_.units.at(buffer.unit).gradient = reinterpret_cast<float*>(place);
  }
  awaited_.clear();
}

void Rows::run(EventId id) {
  const RowDetail& d = detail(id);
  if (row(id).stream == Stream::kCompute) make_gradients();
  switch (row(id).kind) {
    case EventKind::kForward:
    case EventKind::kRecompute:
    case EventKind::kLoss: return layer_row(id);
    case EventKind::kBackward: begin_gradients(d); return layer_row(id);
    case EventKind::kReshard: return reshard(d);
    case EventKind::kAllGather: return all_gather(id);
    case EventKind::kReduceScatter: return reduce_scatter(id);
    case EventKind::kAccumulate: return accumulate(id);
    case EventKind::kAllReduce: return all_reduce(id);
    case EventKind::kGradNorm: return parts_.backend.grad_norm();
    case EventKind::kGradScale: return parts_.backend.grad_scale();
    case EventKind::kOptimizer: return parts_.backend.optimizer(number_);
    case EventKind::kHostToDevice: return host_to_device(d);
    case EventKind::kDeviceToHost:
      return parts_.units.memory().copy(
          memory(d.other), memory(d.buffer), at(parts_.units.at(d.unit).shard) * sizeof(float));
    case EventKind::kHostOptimizer: return host_optimizer(graph_.works[row(id).work]);
    default: break;
  }
  FORESHARD_CHECK(false, fmt::format("the engine does no {}", to_string(row(id).kind)));
}

// --- layers ---

void Rows::begin_gradients(const RowDetail& d) {
  if (d.sum != SumMode::kBegin) return;
  parts_.units.begin_gradients(parts_.units.at(d.unit), memory(d.buffer), parts_.debug);
}

// Whatever of layers the row's actions name.
void Rows::layer_row(EventId id) {
  const RowDetail& d = detail(id);
  for (std::uint32_t a = d.actions_begin; a < d.actions_end; ++a) {
    const MemoryAction& action = graph_.actions[a];
    const LayerPhaseProgram LayerProgram::*phase = nullptr;
    if (action.kind == MemoryAction::Kind::kForward) phase = &LayerProgram::forward;
    if (action.kind == MemoryAction::Kind::kRecompute) phase = &LayerProgram::recompute;
    if (action.kind == MemoryAction::Kind::kBackward) phase = &LayerProgram::backward;
    if (phase == nullptr) continue;
    const LayerExecution& execution = graph_.executions[at(action.target)];
    const OperationContext context{parts_.whole.numerics, parts_.plan.param_dtype, parts_.rotary,
        batches_[at(d.microbatch)], {parts_.part, parts_.plan.mesh.tp}, {}, nullptr, parts_.device, parts_.attention};
    const SegmentRun segments = action.segment == MemoryAction::kWhole ? SegmentRun{0, SegmentRun::kAll}
                                                                       : SegmentRun{action.segment, action.segments};
    layers_.run(execution, graph_.program(execution).*phase, segments, context, parts_.units.of_layer(execution.layer));
  }
}

bool Rows::is_in_layer(EventId id) const {
  const RowDetail& d = detail(id);
  return d.other >= 0 && d.other < graph_.first_own_buffer;
}

// What it works on, and where its result is from now on.
LayerCollectiveCall Rows::layer_collective(EventId id) {
  const RowDetail& d = detail(id);
  LayerCollectiveCall call{told(id), row(id).kind, row(id).communicator, layers_.tensor(d.other), {}};
  std::vector<std::int64_t> shape = call.in.sizes().vec();
  if (row(id).kind == EventKind::kAllGather) shape[0] *= parts_.plan.mesh.tp;
  else shape[0] /= parts_.plan.mesh.tp;
  call.out = at::empty(shape, call.in.options());
  layers_.tensor(d.buffer) = call.out;
  return call;
}

// --- memory of units ---

std::byte* Rows::find_memory(std::int32_t buffer) const {
  return buffer < graph_.first_own_buffer ? nullptr : places_[at(buffer - graph_.first_own_buffer)];
}

std::byte* Rows::memory(std::int32_t buffer) const {
  std::byte* const found = find_memory(buffer);
  FORESHARD_CHECK(found != nullptr, "a row works in a buffer that is not there");
  return found;
}

// This rank's shard of offloaded parameters goes to its place in the whole unit; sums of gradients
// come back to be added to.
void Rows::host_to_device(const RowDetail& d) {
  const UnitMemory& unit = parts_.units.at(d.unit);
  std::byte* place = memory(d.buffer);
  const bool is_gradient = graph_.buffer(d.buffer).category == MemoryCategory::kShardedGrad;
  const std::size_t bytes = at(unit.shard) * (is_gradient ? sizeof(float) : at(size_of(parts_.plan.param_dtype)));
  if (!is_gradient) place += at(parts_.shard) * bytes;
  parts_.units.memory().copy(place, memory(d.other), bytes);
}

void Rows::reshard(const RowDetail& d) {
  const std::int64_t group = graph_.units[at(d.unit)].reshard.group;
  const auto bytes = at(parts_.units.at(d.unit).padded() / group * size_of(parts_.plan.param_dtype));
  parts_.units.memory().copy(memory(d.other), memory(d.buffer) + at(parts_.rank % group) * bytes, bytes);
}

// What the row's operations are.
void Rows::host_optimizer(const Work& work) {
  for (std::uint32_t k = work.kernels_begin; k < work.kernels_end; ++k) {
    switch (graph_.kernels[k].function) {
      case Function::kSumOfSquares: parts_.backend.grad_norm(); break;
      case Function::kScale: parts_.backend.grad_scale(); break;
      case Function::kAdamW:
      case Function::kSgd: parts_.backend.optimizer(number_); break;
      default: FORESHARD_CHECK(false, "the host's optimizer has no such operation");
    }
  }
}

// --- collectives ---

// This rank's piece is put into place, then everyone's are exchanged.
void Rows::all_gather(EventId id) {
  const RowDetail& d = detail(id);
  const std::uint8_t communicator = graph_.works[row(id).work].communicator;
  Backend& backend = parts_.backend;
  std::byte* whole = memory(d.buffer);
  const std::size_t bytes =
      at(parts_.units.at(d.unit).padded() / backend.group_size(communicator) * size_of(parts_.plan.param_dtype));
  if (d.other >= 0)
    parts_.units.memory().copy(whole + at(backend.group_index(communicator)) * bytes, memory(d.other), bytes);
  backend.all_gather(told(id), communicator, whole, bytes);
}

void Rows::all_reduce(EventId id) {
  const RowDetail& d = detail(id);
  const std::uint8_t communicator = row(id).communicator;
  if (d.unit < 0) return parts_.backend.all_reduce_norm(id, communicator);
  const UnitMemory& unit = parts_.units.at(d.unit);
  if (d.buffer >= 0) {
    return parts_.backend.all_reduce_partial(id, communicator,
        memory(d.buffer) + unit.layout.partial_offset * size_of(parts_.plan.reduce_dtype), unit.layout.partial_numel);
  }
  parts_.backend.all_reduce_gradient(id, communicator, {floats(d.other), at(unit.shard)});
}

void Rows::reduce_scatter(EventId id) {
  const RowDetail& d = detail(id);
  if (parts_.debug) check_gradients(d);
  ReduceScatterCall call;
  call.event = id;
  call.communicator = row(id).communicator;
  call.shard = parts_.units.at(d.unit).shard;
  call.whole = memory(d.buffer);
  call.mode = d.sum;
  if (d.sum == SumMode::kApart) call.apart = d.other;
  else call.target = floats(d.other);
  parts_.backend.reduce_scatter(call);
}

// Of one rank's own gradients, in the arena, or of a sum that a reduce-scatter left.
void Rows::accumulate(EventId id) {
  const RowDetail& d = detail(id);
  AccumulateCall call;
  call.slot = find_memory(d.buffer);
  if (call.slot == nullptr) call.apart = d.buffer;
  else if (parts_.debug) check_gradients(d);
  call.shard = parts_.units.at(d.unit).shard;
  call.mode = d.sum;
  call.target = floats(d.other);
  parts_.backend.accumulate(call);
}

// Where the row reads: the unit's own view may be in the next micro-batch's slot by now.
void Rows::check_gradients(const RowDetail& d) {
  const UnitMemory& unit = parts_.units.at(d.unit);
  const at::Tensor gradients = tensor_over(
      memory(d.buffer), unit.padded(), scalar_type(parts_.plan.reduce_dtype), parts_.units.memory().device());
  if (!gradients.isnan().any().item<bool>()) return;
  FORESHARD_CHECK(false, "a gradient of unit " + unit.name + " was not written, or came from memory that was free");
}

}
