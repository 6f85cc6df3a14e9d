// Units, rows and works are written in the order the builder asks for; nothing is decided here.
//
// Waits: the pending waits of a stream are kept per source stream, and only the latest event of
// each counts, because a stream's earlier events end before its later ones. So a row never waits
// for more than kStreams - 1 events.
#include "sim/graph/step_builder.h"

#include <algorithm>
#include <bit>

#include "sim/base/error.h"

namespace foreshard {
namespace {

// AdamW with torch.optim's multi-tensor implementation, fp32 states: passes over memory per element
// of each kernel of _multi_tensor_adamw (torch/optim/adam.py, 2.11), in tensors read or written:
// weight decay mul_ (2), lerp_ of exp_avg (3), mul_ (2) and addcmul_ (3) of exp_avg_sq, sqrt into a
// temporary (2), div_ (2) and add_ (2) of it, addcdiv_ (4).
constexpr std::array<std::int64_t, 8> kForeachAdamWPasses = {2, 3, 2, 3, 2, 2, 2, 4};

bool is_layer_kind(EventKind kind) {
  return kind == EventKind::kForward || kind == EventKind::kRecompute ||
         kind == EventKind::kBackward || kind == EventKind::kLoss;
}

}  // namespace

LayerPrograms::LayerPrograms(const ModelSpec& model, const Plan& plan)
    : batch_(plan.batch), compute_(plan.param_dtype), runtime_(plan.runtime.kind) {
  modes_[static_cast<std::size_t>(Recompute::kNone)] = true;
  modes_[static_cast<std::size_t>(plan.recompute.value)] = true;
  for (const auto& range : plan.recompute.ranges) {
    modes_[static_cast<std::size_t>(range.value)] = true;
  }
  programs_.resize(model.kinds.size());
  for (std::size_t kind = 0; kind < model.kinds.size(); ++kind) {
    const LayerSpec& layer = model.kinds[kind];
    for (std::size_t mode = 0; mode < modes_.size(); ++mode) {
      if (!modes_[mode]) continue;
      if (layer.role != LayerRole::kBlock && mode != 0) continue;
      ProgramOptions options;
      options.batch = plan.batch.micro_batch;
      options.sequence = plan.batch.sequence;
      options.compute = plan.param_dtype;
      options.recompute = static_cast<Recompute>(mode);
      options.gradients = plan.runtime.kind == RuntimeKind::kNative
                              ? GradientStorage::kFlat
                              : GradientStorage::kPerParameter;
      options.tied = model.tied_embeddings && layer.role == LayerRole::kEmbedding
                         ? Tying::kTokenTable
                         : Tying::kNone;
      programs_[kind][mode] =
          std::make_shared<const LayerProgram>(build_layer_program(layer, options));
    }
  }
}

const std::shared_ptr<const LayerProgram>& LayerPrograms::at(std::int32_t kind,
                                                             Recompute recompute) const {
  return programs_[static_cast<std::size_t>(kind)][static_cast<std::size_t>(recompute)];
}

bool LayerPrograms::serve(const Plan& plan) const {
  if (plan.batch.sequence != batch_.sequence || plan.batch.micro_batch != batch_.micro_batch ||
      plan.param_dtype != compute_ || plan.runtime.kind != runtime_) {
    return false;
  }
  if (!modes_[static_cast<std::size_t>(plan.recompute.value)]) return false;
  return std::all_of(
      plan.recompute.ranges.begin(), plan.recompute.ranges.end(),
      [&](const auto& range) { return modes_[static_cast<std::size_t>(range.value)]; });
}

StepBuilder::StepBuilder(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs,
                         EventGraph recycled)
    : model_(model), plan_(plan), graph_(std::move(recycled)) {
  graph_.clear();
  FORESHARD_CHECK(programs.serve(plan), "layer programs of another batch shape");
  tails_.fill(kNoEvent);
  communicator_tails_.fill(kNoEvent);
  lower_units(programs);
  groups_ = static_cast<std::int32_t>(std::max(shapes_.size(), graph_.programs.size())) + 1;
  works_.assign(static_cast<std::size_t>(groups_) * kEventKinds * kVariants * kHookSteps, -1);

  // Slots of the layer executions take the first buffer ids, micro-batch by micro-batch in forward
  // order, so that the slot after a layer's last one is the next layer's first.
  const auto layers = static_cast<std::int32_t>(model.order.size());
  const auto steps = static_cast<std::int32_t>(plan.batch.accumulation);
  std::int64_t slots = 0;  // of one micro-batch
  for (std::int32_t program : program_of_layer_) {
    slots +=
        static_cast<std::int64_t>(graph_.programs[static_cast<std::size_t>(program)]->slots.size());
  }
  constexpr std::int64_t kMostBuffers = 20'000'000;  // about 2 GB of graph
  if (checked_multiply(slots, steps) > kMostBuffers) {
    throw Error(ExitCode::kInvalidInput,
                "the step has too many micro-batches to be laid out one by one: lower "
                "batch.accumulation or raise batch.micro_batch");
  }
  graph_.executions.reserve(static_cast<std::size_t>(layers) * static_cast<std::size_t>(steps));
  std::int64_t next = 0;
  for (std::int32_t m = 0; m < steps; ++m) {
    for (std::int32_t l = 0; l < layers; ++l) {
      const auto program =
          static_cast<std::uint32_t>(program_of_layer_[static_cast<std::size_t>(l)]);
      graph_.executions.push_back(
          {l, m, unit_of_layer(l), program, static_cast<std::int32_t>(next)});
      next += static_cast<std::int64_t>(graph_.programs[program]->slots.size());
    }
  }
  graph_.first_own_buffer = static_cast<std::int32_t>(next);
  // Per micro-batch about 12 rows a layer, 3 actions a row.
  const std::size_t rows =
      static_cast<std::size_t>(layers) * static_cast<std::size_t>(steps) * 12 + 16;
  graph_.rows.reserve(rows);
  graph_.details.reserve(rows);
  graph_.waits.reserve(rows);
  graph_.actions.reserve(rows * 3);
  graph_.buffers.reserve(rows);
}

Recompute StepBuilder::recompute_of(std::int32_t layer) const {
  return recompute_of_layer_[static_cast<std::size_t>(layer)];
}

// --- units ---

void StepBuilder::lower_units(const LayerPrograms& programs) {
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  unit_of_layer_.assign(model_.order.size(), -1);
  program_of_layer_.assign(model_.order.size(), -1);
  recompute_of_layer_.assign(model_.order.size(), Recompute::kNone);

  // Which layers stay in the root unit.
  bool has_root = false;
  for (const LayerInstance& layer : model_.order) {
    const LayerSpec& spec = model_.kinds[static_cast<std::size_t>(layer.kind)];
    if (spec.parameters.empty()) continue;
    if (spec.role == LayerRole::kEmbedding)
      has_root |= plan_.units.embedding == UnitPlacement::kRoot;
    if (spec.role == LayerRole::kFinalNorm)
      has_root |= plan_.units.head != UnitPlacement::kWithNorm;
    if (spec.role == LayerRole::kHead) has_root |= plan_.units.head == UnitPlacement::kRoot;
  }
  graph_.units.reserve(model_.order.size());
  auto new_unit = [&](std::string name) {
    Unit& unit = graph_.units.emplace_back();
    unit.name = std::move(name);
    unit.shards = plan_.mesh.shard;
    return unit_count() - 1;
  };
  if (has_root) root_ = new_unit("root");

  std::int64_t block = 0;
  std::int32_t open_blocks = -1;  // unit that still takes blocks
  std::int32_t norm_unit = -1;
  for (std::int32_t l = 0; l < layers; ++l) {
    const LayerInstance& layer = model_.order[static_cast<std::size_t>(l)];
    const LayerSpec& spec = model_.kinds[static_cast<std::size_t>(layer.kind)];
    Recompute recompute = Recompute::kNone;
    std::int32_t unit = -1;
    switch (spec.role) {
      case LayerRole::kEmbedding:
        unit = plan_.units.embedding == UnitPlacement::kRoot ? root_ : new_unit("embedding");
        break;
      case LayerRole::kBlock: {
        recompute = plan_.recompute.at(block);
        if (block % plan_.units.layers_per_unit == 0) {
          open_blocks = new_unit(layer.name);
        } else if (const std::size_t dot = layer.name.rfind('.'); dot != std::string::npos) {
          std::string& name = graph_.units[static_cast<std::size_t>(open_blocks)].name;
          const std::size_t dash = name.find('-', dot);
          name = name.substr(0, dash) + "-" + layer.name.substr(dot + 1);
        }
        unit = open_blocks;
        ++block;
        break;
      }
      case LayerRole::kFinalNorm:
        unit = plan_.units.head == UnitPlacement::kWithNorm ? new_unit("norm+head") : root_;
        norm_unit = unit;
        break;
      case LayerRole::kHead:
        unit = plan_.units.head == UnitPlacement::kRoot       ? root_
               : plan_.units.head == UnitPlacement::kWithNorm ? norm_unit
                                                              : new_unit("head");
        break;
      case LayerRole::kLoss:
        break;
    }
    unit_of_layer_[static_cast<std::size_t>(l)] = unit;
    recompute_of_layer_[static_cast<std::size_t>(l)] = recompute;
    const auto& program = programs.at(layer.kind, recompute);
    auto it = std::find(graph_.programs.begin(), graph_.programs.end(), program);
    if (it == graph_.programs.end()) it = graph_.programs.insert(graph_.programs.end(), program);
    program_of_layer_[static_cast<std::size_t>(l)] =
        static_cast<std::int32_t>(it - graph_.programs.begin());
  }

  // Padded sizes per kind of layer, then summed per unit. Units with equal sums share a shape.
  const std::int64_t shards = plan_.mesh.shard;
  std::vector<UnitShape> of_kind(model_.kinds.size());
  for (std::size_t k = 0; k < model_.kinds.size(); ++k) {
    UnitShape& shape = of_kind[k];
    for (const ParameterSpec& parameter : model_.kinds[k].parameters) {
      if (parameter.tied) continue;
      const std::int64_t numel = parameter.numel();
      const std::int64_t rows = parameter.shape.front();
      const std::int64_t rest = numel / rows;
      const std::int64_t chunk = (rows + shards - 1) / shards;
      const std::int64_t padded = checked_multiply(chunk, rest);
      const std::int64_t local = std::min(chunk, rows) * rest;
      shape.numel = checked_add(shape.numel, numel);
      shape.shard_numel = checked_add(shape.shard_numel, padded);
      shape.local_numel += local;
      shape.unsharded += allocated_size(
          checked_multiply(checked_multiply(padded, shards), size_of(plan_.param_dtype)));
      shape.sharded += allocated_size(checked_multiply(padded, size_of(plan_.master_dtype)));
      shape.optimizer_state +=
          allocated_size(checked_multiply(local, size_of(plan_.optimizer.state)));
      shape.largest_parameter = std::max(
          shape.largest_parameter, allocated_size(padded * shards * size_of(plan_.param_dtype)));
      ++shape.parameters;
    }
  }
  // Layers by unit: units are in the order of their first layers but for the root, whose layers are
  // spread.
  first_layer_.assign(graph_.units.size() + 1, 0);
  unit_layers_.reserve(model_.order.size());
  for (std::int32_t u = 0, l = 0; u < unit_count(); ++u) {
    if (u == root_) {
      for (std::int32_t each = 0; each < layers; ++each) {
        if (unit_of_layer(each) == root_) unit_layers_.push_back(each);
      }
    } else {
      while (unit_of_layer(l) != u) ++l;
      for (; l < layers && unit_of_layer(l) == u; ++l) unit_layers_.push_back(l);
    }
    first_layer_[static_cast<std::size_t>(u) + 1] = static_cast<std::int32_t>(unit_layers_.size());
  }
  shape_of_unit_.reserve(graph_.units.size());
  for (std::int32_t u = 0; u < unit_count(); ++u) {
    Unit& unit = graph_.units[static_cast<std::size_t>(u)];
    UnitShape sum;
    for (std::int32_t l : layers_of(u)) {
      const UnitShape& s =
          of_kind[static_cast<std::size_t>(model_.order[static_cast<std::size_t>(l)].kind)];
      sum.numel = checked_add(sum.numel, s.numel);
      sum.shard_numel = checked_add(sum.shard_numel, s.shard_numel);
      sum.local_numel += s.local_numel;
      sum.unsharded += s.unsharded;
      sum.sharded += s.sharded;
      sum.optimizer_state += s.optimizer_state;
      sum.parameters += s.parameters;
      sum.largest_parameter = std::max(sum.largest_parameter, s.largest_parameter);
    }
    unit.reshard = plan_.reshard_after_forward.at(u);
    // PyTorch keeps the root unsharded unless told otherwise for it (reshard_after_forward=None):
    // its backward is next.
    const bool named = std::any_of(
        plan_.reshard_after_forward.ranges.begin(), plan_.reshard_after_forward.ranges.end(),
        [&](const auto& range) { return range.first <= u && u <= range.last; });
    if (u == root_ && !named) unit.reshard = {Reshard::Kind::kNever, 0};
    if (unit.reshard.kind == Reshard::Kind::kGroup) sum.reshard_group = unit.reshard.group;
    auto same = std::find(shapes_.begin(), shapes_.end(), sum);
    if (same == shapes_.end()) same = shapes_.insert(shapes_.end(), sum);
    shape_of_unit_.push_back(static_cast<std::int32_t>(same - shapes_.begin()));
    unit.parameters = sum.parameters;
    unit.numel = sum.numel;
    unit.shard_numel = sum.shard_numel;
  }
}

// --- rows ---

EventId StepBuilder::push(EventKind kind, Stream stream, std::uint16_t work, std::int32_t unit,
                          std::int32_t layer) {
  const auto id = static_cast<EventId>(graph_.rows.size());
  const auto s = static_cast<std::size_t>(stream);
  const auto bit = static_cast<std::uint8_t>(1U << s);
  Row row;
  row.kind = kind;
  row.stream = stream;
  row.work = work;
  row.wakes = bit;
  row.waits_begin = static_cast<std::uint32_t>(graph_.waits.size());
  for (std::uint32_t sources = pending_sources_[s]; sources != 0; sources &= sources - 1) {
    const EventId event = pending_waits_[s][static_cast<std::size_t>(std::countr_zero(sources))];
    graph_.waits.push_back(event);
    graph_.rows[static_cast<std::size_t>(event)].wakes |= bit;
    ++row.wait_count;
  }
  pending_sources_[s] = 0;
  row.communicator = fifo_of_work_[work];
  if (row.communicator != kNoCommunicator) {
    EventId& queue = communicator_tails_[row.communicator];
    if (queue != kNoEvent) graph_.rows[static_cast<std::size_t>(queue)].wakes |= bit;
    queue = id;
  }
  graph_.rows.push_back(row);
  // Where the actions end is where the next row's begin: finish() fills it in.
  const auto actions = static_cast<std::uint32_t>(id == 0 ? 0 : graph_.actions.size());
  graph_.details.push_back({unit, layer, microbatch_, actions, actions});
  tails_[s] = id;
  pending_hooks_ = 0;
  return id;
}

std::int32_t StepBuilder::add_work(EventKind kind, const UnitWork& cost, Flops flops) {
  Work work;
  work.kind = kind;
  work.communicator = cost.communicator;
  work.hooks = static_cast<std::uint16_t>(std::min(pending_hooks_, kHookSteps - 1));
  work.kernels_begin = static_cast<std::uint32_t>(graph_.kernels.size());
  graph_.kernels.insert(graph_.kernels.end(), cost.kernels.begin(), cost.kernels.end());
  work.kernels_end = static_cast<std::uint32_t>(graph_.kernels.size());
  work.launches = static_cast<std::uint16_t>(std::clamp<std::int64_t>(
      std::max(cost.launches, static_cast<std::int64_t>(cost.kernels.size())), 1, 65535));
  work.bytes = cost.bytes;
  work.flops = flops;
  FORESHARD_CHECK(graph_.works.size() < 65535, "more works than a row can name");
  graph_.works.push_back(work);
  fifo_of_work_.push_back(cost.queues ? cost.communicator : kNoCommunicator);
  return static_cast<std::int32_t>(graph_.works.size()) - 1;
}

std::int32_t StepBuilder::add_work(EventKind kind, std::int32_t group, std::int32_t variant) {
  if (group == groups_ - 1) return add_work(kind, step_work(kind), Flops());
  if (!is_layer_kind(kind)) {
    return add_work(kind, unit_work(kind, shapes_[static_cast<std::size_t>(group)], variant),
                    Flops());
  }
  const LayerProgram& program = *graph_.programs[static_cast<std::size_t>(group)];
  UnitWork work;
  Flops flops;
  auto append = [&](const LayerPhaseProgram& phase) {
    work.kernels.insert(work.kernels.end(), phase.kernels.begin(), phase.kernels.end());
    flops += phase.flops;
  };
  if (kind == EventKind::kRecompute) append(program.recompute);
  if (kind == EventKind::kForward || kind == EventKind::kLoss) append(program.forward);
  if (kind == EventKind::kBackward || kind == EventKind::kLoss) append(program.backward);
  return add_work(kind, work, flops);
}

EventId StepBuilder::add_unit_row(EventKind kind, Stream stream, std::int32_t unit,
                                  std::int32_t variant) {
  return push(kind, stream,
              work_index(kind, shape_of_unit_[static_cast<std::size_t>(unit)], variant), unit, -1);
}

EventId StepBuilder::add_step_row(EventKind kind, Stream stream) {
  return push(kind, stream, work_index(kind, groups_ - 1, 0), -1, -1);
}

EventId StepBuilder::add_layer_row(EventKind kind, std::int32_t layer) {
  const std::int32_t program = program_of_layer_[static_cast<std::size_t>(layer)];
  const EventId id =
      push(kind, Stream::kCompute, work_index(kind, program, 0), unit_of_layer(layer), layer);
  const std::int32_t execution = first_execution_ + layer;
  using Kind = MemoryAction::Kind;
  if (kind == EventKind::kRecompute) graph_.actions.push_back({Kind::kRecompute, execution});
  if (kind == EventKind::kForward || kind == EventKind::kLoss) {
    graph_.actions.push_back({Kind::kForward, execution});
  }
  if (kind == EventKind::kBackward || kind == EventKind::kLoss) {
    graph_.actions.push_back({Kind::kBackward, execution});
  }
  return id;
}

// --- memory ---

std::int32_t StepBuilder::allocate_persistent(MemoryCategory category, std::int32_t unit,
                                              Bytes bytes) {
  const std::int32_t id = graph_.buffer_count();
  graph_.buffers.push_back({category, Stream::kCompute, unit, allocated_size(bytes.count())});
  graph_.persistent.push_back(id);
  return id;
}

void StepBuilder::free_gradients(std::int32_t unit) {
  const std::span<const std::int32_t> layers = layers_of(unit);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::int32_t execution = first_execution_ + layers[i];
    graph_.actions.push_back({MemoryAction::Kind::kFreeGradients, execution});
    if (i + 1 < layers.size()) {
      graph_.actions.push_back({MemoryAction::Kind::kFreeLastGradient, execution});
    }
  }
}

void StepBuilder::free_last_gradient(std::int32_t unit) {
  const std::span<const std::int32_t> layers = layers_of(unit);
  graph_.actions.push_back(
      {MemoryAction::Kind::kFreeLastGradient, first_execution_ + layers.back()});
}

void StepBuilder::begin_microbatch(std::int32_t microbatch) {
  microbatch_ = microbatch;
  first_execution_ = microbatch * static_cast<std::int32_t>(model_.order.size());
}

EventGraph StepBuilder::finish() {
  for (std::size_t i = 0; i + 1 < graph_.details.size(); ++i) {
    graph_.details[i].actions_end = graph_.details[i + 1].actions_begin;
  }
  if (!graph_.details.empty()) {
    graph_.details.back().actions_end = static_cast<std::uint32_t>(graph_.actions.size());
  }
  return std::move(graph_);
}

// --- counts shared by the runtimes ---

Kernel StepBuilder::memory_kernel(MemoryClass memory_class, std::int64_t bytes_moved) {
  Kernel kernel;
  kernel.memory_class = memory_class;
  kernel.bytes = Bytes(bytes_moved);
  return kernel;
}

Kernel StepBuilder::copy_kernel(std::int64_t bytes_moved) {
  return memory_kernel(MemoryClass::kCopy, bytes_moved);
}

std::vector<Kernel> StepBuilder::optimizer_kernels(std::int64_t elements) const {
  const std::int64_t state = size_of(plan_.optimizer.state);
  const std::int64_t master = size_of(plan_.master_dtype);
  std::vector<Kernel> kernels;
  auto pass = [&](std::int64_t bytes_per_element) {
    kernels.push_back(
        memory_kernel(MemoryClass::kOptimizer, checked_multiply(elements, bytes_per_element)));
  };
  if (plan_.optimizer.kind == Optimizer::Kind::kSgd) {
    pass(3 * master);  // p -= lr * g
    return kernels;
  }
  if (plan_.optimizer.implementation == Optimizer::Implementation::kFused) {
    // Reads parameter, gradient and both moments, writes all but the gradient.
    pass(3 * master + 4 * state);
    return kernels;
  }
  for (std::int64_t tensors : kForeachAdamWPasses) pass(tensors * std::max(master, state));
  return kernels;
}

}  // namespace foreshard
