// Units, rows and works are written in the order the builder asks for; nothing is decided here.
//
// Waits: the pending waits of a stream are kept per source stream, and only the latest event of each counts, because a
// stream's earlier events end before its later ones. So a row never waits for more than kStreams - 1 events.
#include "sim/graph/step_builder.h"

#include <bit>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/graph/axes/rank_part.h"
#include "sim/graph/layer_collectives.h"
#include "sim/graph/layers/given_mask.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/fsdp2_version.h"
#include "sim/spec/size_units.h"

namespace foreshard {
namespace {

// AdamW with torch.optim's multi-tensor implementation, fp32 states: passes over memory per element of each kernel of
// _multi_tensor_adamw (torch/optim/adam.py, 2.11), in tensors read or written: weight decay mul_ (2), lerp_ of exp_avg
// (3), mul_ (2) and addcmul_ (3) of exp_avg_sq, sqrt into a temporary (2), div_ (2) and add_ (2) of it, addcdiv_ (4).
constexpr std::array<std::int64_t, 8> kForeachAdamWPasses = {2, 3, 2, 3, 2, 2, 2, 4};

// transformers' Adafactor, whose update of a parameter is 15 operations of its size (optimization.py, step and
// _approx_sq_grad): the parameter's norm (1), square of the gradient (2), add (2), two means (2), outer product (1),
// times the gradient (3), its norm (1), div_ (2), mul_ (2), negation (2), add_ (3).
constexpr std::array<std::int64_t, 11> kAdafactorPasses = {1, 2, 2, 2, 1, 3, 1, 2, 2, 2, 3};
// With those of vectors, numbers and casts (mBART's 515 parameters: 11,390).
constexpr std::int64_t kAdafactorOperations = 22;

bool is_layer_kind(EventKind kind) {
  return kind == EventKind::kForward || kind == EventKind::kRecompute || kind == EventKind::kBackward ||
         kind == EventKind::kLoss;
}

bool has_beginning(EventKind kind) { return kind == EventKind::kLoss || kind == EventKind::kRecompute; }

// Kernels that TransformerEngine casts the rows of one group with: one for all groups with scales of earlier steps;
// else group by group, with a scale for the whole in front of that a zero, the greatest value and what follows from it
// (2.9, csrc/extensions/cast.cpp, multi_tensor_quantize_impl; common/recipe/current_scaling.cu).
std::uint8_t cast_launches(Float8 recipe) {
  if (recipe == Float8::kCurrent) return 4;
  if (recipe == Float8::kNvfp4) return 3;
  return recipe == Float8::kMxfp8 ? 1 : 0;
}

}

StepBuilder::StepBuilder(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled)
    : model_(programs.model_of(model)), plan_(plan), graph_(std::move(recycled)) {
  graph_.clear();
  graph_.host.python = plan.runtime.kind != RuntimeKind::kNative;
  // What compile: blocks says of Megatron-Core is which kernels it fuses.
  graph_.host.engine = has_engine_modules(plan.runtime);
  if (graph_.host.engine) graph_.host.cast_launches = cast_launches(plan.float8);
  graph_.host.compiled = plan.compile != Compile::kNone && plan.runtime.kind != RuntimeKind::kMegatron;
  graph_.host.captured = plan.megatron.cuda_graphs == MegatronOptions::CudaGraphs::kIteration;
  // Megatron-Core, too, calls c10d itself, from its own buckets and autograd functions.
  graph_.host.reducer = plan.runtime.kind == RuntimeKind::kDdp || plan.runtime.kind == RuntimeKind::kMegatron;
  graph_.host.dtensors = plan.runtime.kind == RuntimeKind::kFsdp2;
  graph_.host.from_host = plan.built_on == BuiltOn::kHost;
  graph_.host.from_device = plan.built_on == BuiltOn::kDevice;
  graph_.host.empties_cache = plan.empties_cache;
  graph_.host.modules = plan.runtime.kind == RuntimeKind::kZero3;
  FORESHARD_CHECK(programs.serve(plan), "layer programs of another batch shape");
  tails_.fill(kNoEvent);
  communicator_tails_.fill(kNoEvent);
  repeats_layers_ = std::ranges::any_of(model_.order, [](const LayerInstance& layer) { return layer.same_as >= 0; });
  if (plan.mesh.pp > 1) find_stage_passes();
  lower_units(programs);
  groups_ = static_cast<std::int32_t>(std::max(shapes_.size(), graph_.programs.size())) + 1;
  for (const auto& program : graph_.programs) {
    for (const LayerPhaseProgram* phase : {&program->forward, &program->recompute, &program->backward}) {
      const auto segments = static_cast<std::int32_t>(phase->segments.size());
      variants_ = std::max(variants_, segments + 1);
    }
  }
  works_.assign(at(groups_ * variants_) * kEventKinds, -1);

  // Slots of the layer executions take the first buffer ids, micro-batch by micro-batch in forward
  // order, so that the slot after a layer's last one is the next layer's first.
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  const auto microbatches = static_cast<std::int32_t>(plan.batch.accumulation);
  const std::int32_t steps =
      microbatches + (plan.evaluation.in_step ? 1 : 0) + (plan.reference == Reference::kNone ? 0 : microbatches);
  std::int64_t slots = 0;  // of one micro-batch
  for (std::int32_t l = 0; l < layers; ++l)
    slots += static_cast<std::int64_t>(graph_.programs[program_of(l, 0)]->slots.size());
  constexpr std::int64_t kMostBuffers = 20'000'000;  // about 2 GB of graph
  if (checked_multiply(slots, steps) > kMostBuffers) {
    throw invalid_input(
        "the step has too many micro-batches to be laid out one by one: lower batch.accumulation or raise "
        "batch.micro_batch");
  }
  graph_.executions.reserve(at(layers) * at(steps));
  std::int64_t next = 0;
  for (std::int32_t m = 0; m < steps; ++m) {
    for (std::int32_t l = 0; l < layers; ++l) {
      const std::uint32_t program = program_of(l, m);
      graph_.executions.push_back(
          {l, m, unit_of_layer(l), program, static_cast<std::int32_t>(next), earlier_of(l, m), joined_by(l, m)});
      next += static_cast<std::int64_t>(graph_.programs[program]->slots.size());
    }
  }
  graph_.first_own_buffer = static_cast<std::int32_t>(next);
  // Per micro-batch about 12 rows a layer, 3 actions a row.
  const std::size_t rows = at(layers) * at(steps) * 12 + 16;
  graph_.rows.reserve(rows);
  graph_.details.reserve(rows);
  graph_.waits.reserve(rows);
  graph_.actions.reserve(rows * 3);
  graph_.buffers.reserve(rows);
}

std::uint32_t StepBuilder::program_of(std::int32_t layer, std::int32_t pass) const {
  const auto kind = at(pass_kind(layer, pass));
  return static_cast<std::uint32_t>(programs_of_layer_[at(layer)][kind]);
}

// The gradients that a backward finds are those of backwards that ran before it and whose gradients
// nobody took away: what is to be cast is, behind each backward that runs a stage's hooks.
void StepBuilder::find_stage_passes() {
  using Kind = PipelineAction::Kind;
  stages_ = stages_of_part(model_, plan_);
  pipeline_rows_ = foreshard::pipeline_rows(stage_pipeline(plan_), static_cast<int>(plan_.mesh.pp_index(plan_.rank())));
  const bool keeps = plan_.reduce_dtype == plan_.param_dtype || !plan_.mesh.is_wrapped() ||
                     fsdp2_version(fsdp2_minor(plan_.runtime.version).value_or(kNewestFsdp2)).autograd_accumulates;
  stage_passes_.assign(stages_.size(), std::vector(at(plan_.batch.accumulation), PassKind::kFirst));
  for (const StageLayers& stage : stages_) stage_of_layer_.resize(at(stage.end), at(&stage - stages_.data()));
  std::vector<bool> exists(stages_.size());
  const std::int64_t each = stage_pipeline(plan_).microbatches;
  for (std::int64_t first = 0; first < plan_.batch.accumulation; first += each) {
    if (plan_.mesh.is_wrapped()) exists.assign(stages_.size(), false);  // sharded
    for (const PipelineRow& row : pipeline_rows_) {
      const auto& [number, kind, microbatch, overlaps] = row.action;
      const bool is_backward = kind == Kind::kBackward || kind == Kind::kInputGrad || kind == Kind::kWeightGrad;
      if (row.kind != PipelineRow::Kind::kAction || !is_backward) continue;
      const auto found = std::ranges::find(stages_, number, &StageLayers::stage);
      FORESHARD_CHECK(found != stages_.end(), "an action of another rank's stage");
      const auto stage = at(found - stages_.begin());
      const bool is_split = kind != Kind::kBackward && number > 0;
      if (kind == Kind::kInputGrad) {
        if (is_split && !keeps) exists[stage] = false;
        continue;
      }
      PassKind& pass = stage_passes_[stage][at(first + microbatch)];
      if (is_split) pass = exists[stage] ? PassKind::kSplitLater : PassKind::kSplit;
      else if (exists[stage]) pass = PassKind::kLater;
      exists[stage] = is_split || keeps;
    }
  }
}

std::int32_t StepBuilder::storing_pass(std::int32_t layer) const {
  if (stage_passes_.empty()) return 0;
  const std::vector<PassKind>& passes = stage_passes_[stage_of_layer_[at(layer)]];
  const auto found =
      std::ranges::find_if(passes, [](PassKind kind) { return kind == PassKind::kFirst || kind == PassKind::kSplit; });
  return static_cast<std::int32_t>(found - passes.begin());
}

StepBuilder::PassKind StepBuilder::pass_kind(std::int32_t layer, std::int32_t pass) const {
  if (pass >= evaluation_pass()) return PassKind::kEvaluation;
  const bool is_alone = plan_.loss.kind == Loss::Kind::kChunkedHead && spec_of(layer).role == LayerRole::kHead;
  if (!stage_passes_.empty() && is_alone) return PassKind::kFirst;  // reduced in each
  if (!stage_passes_.empty()) return stage_passes_[stage_of_layer_[at(layer)]][at(pass)];
  if (pass == 0) return PassKind::kFirst;
  return pass + 1 == evaluation_pass() ? PassKind::kLast : PassKind::kLater;
}

// Backward runs the calls of a module in reverse, and a tied head before the token table.
std::int32_t StepBuilder::earlier_of(std::int32_t layer, std::int32_t pass) const {
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  const LayerRole role = spec_of(layer).role;
  const bool is_table = role == LayerRole::kEmbedding && has_shared_table(model_);
  if (!repeats_layers_ && !is_table) return -1;
  const std::int32_t same = model_.order[at(layer)].same_as;
  const std::int32_t module = same < 0 ? layer : same;
  for (std::int32_t l = layer + 1; l < layers; ++l) {
    const bool tied_head = is_table && !spec_of(layer).tower && spec_of(l).role == LayerRole::kHead;
    if (model_.order[at(l)].same_as == module || tied_head) return pass * layers + l;
  }
  return -1;
}

std::int32_t StepBuilder::joined_by(std::int32_t layer, std::int32_t pass) const {
  if (spec_of(layer).joins < 0) return -1;
  return pass * static_cast<std::int32_t>(model_.order.size()) + chain_joined_at(model_, layer);
}

std::vector<std::int64_t> StepBuilder::resident_bytes() const {
  std::vector<std::int64_t> list;
  // torchtitan's stages are decoders, with the tables of positions that the first one has.
  const bool is_decoder = plan_.step_frame != StepFrame::kPlain;
  std::int64_t of_decoder = 0;
  for (const LayerSpec& kind : model_.kinds)
    if (is_decoder && kind.role == LayerRole::kEmbedding) of_decoder = kind.resident_bytes;
  for (const LayerInstance& layer : model_.order) {
    const std::int64_t bytes = model_.kinds[at(layer.kind)].resident_bytes;
    if (layer.same_as < 0 && bytes > 0) list.push_back(bytes);
    if (layer.begins_stage && of_decoder > 0) list.push_back(of_decoder);
  }
  return list;
}

Recompute StepBuilder::recompute_of(std::int32_t layer) const { return recompute_of_layer_[at(layer)]; }

// --- communicators ---

void StepBuilder::add_communicators(PostForwardGroups groups) {
  std::vector<Communicator>& list = graph_.communicators;
  const Mesh& mesh = plan_.mesh;
  const GroupShape shards = mesh.group(MeshDim::kFsdp);
  list.push_back({"shard", shards, false});
  list.push_back({"replicate", mesh.group(MeshDim::kReplicate), false});
  if (plan_.communicators == Communicators::kSeparate) {
    reduce_scatter_communicator_ = static_cast<std::uint8_t>(list.size());
    list.push_back({"reduce_scatter", shards, false});
  }
  const std::size_t first_small = list.size();
  for (const Unit& unit : graph_.units) {
    if (unit.reshard.kind != Reshard::Kind::kGroup) continue;
    // fully_shard cuts the mesh's rows: neighbours in the shard group stay together.
    const GroupShape group{unit.reshard.group, mesh.shard_stride()};
    const bool known =
        std::any_of(list.begin() + first_small, list.end(), [&](const Communicator& c) { return c.group == group; });
    if (!known) list.push_back({"post_forward", group, groups == PostForwardGroups::kOfEachUnit});
  }
  // (Of HSDP's ranks the group of all is not made.)
  communicator_of_dim_[at(MeshDim::kBatch)] = mesh.shard > 1 ? kShard : kReplicate;
  if (!mesh.is_plain() || plan_.step_frame != StepFrame::kPlain || mesh.pp > 1) add_axes();
  for (Communicator& communicator : list) communicator.group.placement = plan_.placement;
}

// Groups of one rank have none, but for those of experts (torchtitan makes a mesh of them).
void StepBuilder::add_axes() {
  std::vector<Communicator>& list = graph_.communicators;
  const Mesh& mesh = plan_.mesh;
  communicator_of_dim_.fill(kNoCommunicator);
  std::uint8_t world = kNoCommunicator;
  if (mesh.replicate == mesh.world()) world = kReplicate;
  if (mesh.fsdp() == mesh.world()) world = kShard;
  const bool has_experts = mesh.ep > 1 || mesh.etp > 1;
  for (std::size_t d = 0; d < kMeshDims; ++d) {
    const auto dim = static_cast<MeshDim>(d);
    const bool of_experts =
        dim == MeshDim::kEp || dim == MeshDim::kEfsdp || dim == MeshDim::kEtp || dim == MeshDim::kExpertReplicate;
    const GroupShape group = mesh.group(dim);
    // Only what torchtitan's frame of a step sums over; a communicator that nobody uses is not made.
    const bool of_frame = dim == MeshDim::kWorld || dim == MeshDim::kBatch || dim == MeshDim::kLoss;
    const bool framed = plan_.step_frame != StepFrame::kPlain;
    if (of_frame && (dim == MeshDim::kWorld || !framed)) continue;
    if ((of_experts && !has_experts) || (group.size == 1 && dim != MeshDim::kEfsdp)) continue;
    std::uint8_t& index = communicator_of_dim_[d];
    if (group.size == mesh.world()) {
      if (world == kNoCommunicator) {
        world = static_cast<std::uint8_t>(list.size());
        list.push_back({to_string(MeshDim::kWorld), group, false});
      }
      index = world;
    } else if (dim == MeshDim::kFsdp || dim == MeshDim::kReplicate) {
      index = dim == MeshDim::kFsdp ? kShard : kReplicate;
    } else {
      index = static_cast<std::uint8_t>(list.size());
      list.push_back({to_string(dim), group, false});
    }
  }
}

std::uint8_t StepBuilder::post_forward_communicator(std::int64_t size) const {
  const std::vector<Communicator>& list = graph_.communicators;
  for (std::size_t c = 0; c < list.size(); ++c)
    if (list[c].name == "post_forward" && list[c].group.size == size) return static_cast<std::uint8_t>(c);
  FORESHARD_CHECK(false, "no communicator for the reshard group");
  return kNoCommunicator;
}

// --- rows ---

EventId StepBuilder::push(EventKind kind, Stream stream, std::uint16_t work, std::int32_t unit, std::int32_t layer) {
  const auto id = static_cast<EventId>(graph_.rows.size());
  const auto s = at(stream);
  const auto bit = static_cast<StreamSet>(1U << s);
  Row* const rows = graph_.rows.data();
  Row row = {.kind = kind,
      .stream = stream,
      .waits_begin = static_cast<std::uint32_t>(graph_.waits.size()),
      .work = work,
      .wakes = bit};
  for (std::uint32_t sources = pending_sources_[s]; sources != 0; sources &= sources - 1) {
    const EventId event = pending_waits_[s][at(std::countr_zero(sources))];
    graph_.waits.push_back(event);
    rows[event].wakes |= bit;
    ++row.wait_count;
  }
  pending_sources_[s] = 0;
  EventId awaited = std::exchange(host_reads_, kNoEvent);
  // CPU ranks: nothing is issued while a compute row runs.
  if (plan_.host == HostKind::kComputes) {
    awaited = std::exchange(unawaited_compute_, kNoEvent);
    if (stream == Stream::kCompute) unawaited_compute_ = id;
  }
  row.host_wait = std::max(awaited, std::exchange(pending_host_wait_, kNoEvent));
  row.communicator = fifo_of_work_[work];
  if (row.communicator != kNoCommunicator) {
    EventId& queue = communicator_tails_[row.communicator];
    if (queue != kNoEvent) rows[queue].wakes |= bit;
    queue = id;
  }
  graph_.rows.push_back(row);
  // Where the actions end is where the next row's begin: finish() fills it in.
  RowDetail detail = {.unit = unit,
      .layer = layer,
      .microbatch = microbatch_,
      .actions_begin = static_cast<std::uint32_t>(id == 0 ? 0 : graph_.actions.size())};
  detail.actions_end = detail.actions_begin;
  graph_.details.push_back(detail);
  tails_[s] = id;
  pending_hooks_ = 0;
  return id;
}

std::int32_t StepBuilder::add_work(EventKind kind, const UnitWork& cost, Flops flops) {
  Work work = {.kind = kind,
      .communicator = cost.communicator,
      .hooks = static_cast<std::uint16_t>(std::min(pending_hooks_, kHookSteps - 1)),
      .kernels_begin = static_cast<std::uint32_t>(graph_.kernels.size())};
  append(graph_.kernels, cost.kernels);
  work.kernels_end = static_cast<std::uint32_t>(graph_.kernels.size());
  work.launches =
      static_cast<std::uint16_t>(std::clamp<std::int64_t>(std::max(cost.launches, std::ssize(cost.kernels)), 1, 65535));
  work.tensors = static_cast<std::uint32_t>(cost.tensors);
  work.bytes = cost.bytes;
  work.to_neighbour = cost.to_neighbour;
  work.caller = cost.caller;
  work.copies = cost.copies;
  work.flops = flops;
  FORESHARD_CHECK(graph_.works.size() < 65535, "more works than a row can name");
  graph_.works.push_back(work);
  fifo_of_work_.push_back(cost.queues ? cost.communicator : kNoCommunicator);
  return static_cast<std::int32_t>(graph_.works.size()) - 1;
}

std::int32_t StepBuilder::add_work(EventKind kind, std::int32_t group, std::int32_t variant) {
  if (group == groups_ - 1) {
    UnitWork work = step_work(kind);
    for (const std::int32_t shape : shape_of_unit_) work.tensors += shapes_[at(shape)].trained;
    const std::int64_t looped = kind == EventKind::kOptimizer ? looped_operations() : 0;
    if (looped > 0) work.launches = work.tensors * looped;
    return add_work(kind, work, Flops());
  }
  if (!is_layer_kind(kind)) {
    const UnitShape& shape = shapes_[at(group)];
    UnitWork work = unit_work(kind, shape, variant);
    work.tensors = shape.parameters;
    return add_work(kind, work, Flops());
  }
  const LayerProgram& program = *graph_.programs[at(group)];
  UnitWork work;
  Flops flops;
  // Variant 0 is the whole phase, k + 1 its segment k.
  auto append = [&](const LayerPhaseProgram& phase) {
    auto begin = phase.kernels.begin();
    auto end = phase.kernels.end();
    flops += variant == 0 ? phase.flops : phase.segments[at(variant - 1)].flops;
    if (variant > 0) {
      const auto segment = at(variant - 1);
      end = begin + phase.segments[segment].kernels_end;
      if (segment > 0) begin += phase.segments[segment - 1].kernels_end;
    }
    work.kernels.insert(work.kernels.end(), begin, end);
  };
  if (kind == EventKind::kRecompute) append(program.recompute);
  if (kind == EventKind::kForward || kind == EventKind::kLoss) append(program.forward);
  if (kind == EventKind::kBackward || kind == EventKind::kLoss) append(program.backward);
  const std::int32_t index = add_work(kind, work, flops);
  graph_.works.back().begins = has_beginning(kind) && variant <= 1;
  return index;
}

EventId StepBuilder::add_unit_row(EventKind kind, Stream stream, std::int32_t unit, std::int32_t variant) {
  return push(kind, stream, work_index(kind, shape_of_unit_[at(unit)], variant), unit, -1);
}

EventId StepBuilder::add_step_row(EventKind kind, Stream stream) {
  return push(kind, stream, work_index(kind, groups_ - 1, 0), -1, -1);
}

const LayerPhaseProgram& StepBuilder::phase(EventKind kind, std::int32_t layer) const {
  const LayerExecution& execution = graph_.executions[at(std::int64_t{first_execution_} + layer)];
  const LayerProgram& program = *graph_.programs[execution.program];
  if (kind == EventKind::kRecompute) return program.recompute;
  return kind == EventKind::kBackward ? program.backward : program.forward;
}

EventId StepBuilder::add_layer_row(EventKind kind, std::int32_t layer, std::uint16_t segment) {
  const std::int32_t execution = first_execution_ + layer;
  const auto program = static_cast<std::int32_t>(graph_.executions[at(execution)].program);
  const bool whole = segment == MemoryAction::kWhole;
  const std::int8_t part = whole ? std::int8_t{0} : phase(kind, layer).segments[segment].part;
  const EventId id = push(
      kind, Stream::kCompute, work_index(kind, program, whole ? 0 : segment + 1), unit_of_part(layer, part), layer);
  if (!whole && phase(kind, layer).segments[segment].host_waits) host_reads_ = id;
  add_segment(kind, layer, segment);
  return id;
}

std::uint16_t StepBuilder::layer_run_work(
    EventKind kind, std::int32_t layer, std::size_t first, std::size_t count, std::int32_t hooks) {
  const LayerPhaseProgram& p = phase(kind, layer);
  FORESHARD_CHECK(count > 0 && first + count <= p.segments.size() && p.segments.size() < 1024,
      "a run of segments that the phase does not have");
  const LayerExecution& execution = graph_.executions[at(std::int64_t{first_execution_} + layer)];
  std::uint64_t key = execution.program;
  for (const std::uint64_t part :
      {static_cast<std::uint64_t>(kind), std::uint64_t{first}, std::uint64_t{count}, static_cast<std::uint64_t>(hooks)})
    key = key << 10 | part;
  if (const std::uint16_t* known = run_works_.find(key)) return *known;
  UnitWork cost;
  Flops flops;
  const std::uint32_t begin = first == 0 ? 0 : p.segments[first - 1].kernels_end;
  cost.kernels.assign(p.kernels.begin() + begin, p.kernels.begin() + p.segments[first + count - 1].kernels_end);
  for (std::size_t i = first; i < first + count; ++i) flops += p.segments[i].flops;
  const auto work = static_cast<std::uint16_t>(add_work(kind, cost, flops));
  graph_.works.back().hooks = static_cast<std::uint16_t>(hooks);
  graph_.works.back().begins = has_beginning(kind) && first == 0;
  graph_.works.back().captured = is_captured(kind, layer, first, first + count);
  run_works_.insert(key, work);
  return work;
}

// Whether the segments from `begin` up to `end` come before rows of experts are dispatched, or in
// backward after their gradients are back.
bool StepBuilder::is_captured(EventKind kind, std::int32_t layer, std::size_t begin, std::size_t end) const {
  if (plan_.megatron.cuda_graphs != MegatronOptions::CudaGraphs::kModules) return false;
  if (spec_of(layer).role != LayerRole::kBlock) return false;
  const auto outside = [&](const LayerCall& call) {
    const bool is_outside = kind == EventKind::kBackward ? begin >= call.segment : end <= call.segment;
    return call.collective.dim != MeshDim::kEp || is_outside;
  };
  const std::vector<LayerCall>& calls = phase(kind, layer).calls;
  return std::ranges::all_of(calls, outside);
}

EventId StepBuilder::add_layer_run(EventKind kind, std::int32_t layer, std::size_t first, std::size_t count) {
  const std::uint16_t work = layer_run_work(kind, layer, first, count, pending_hooks_);
  const LayerPhaseProgram& p = phase(kind, layer);
  const EventId id = push(kind, Stream::kCompute, work, unit_of_part(layer, p.segments[first].part), layer);
  const bool whole = count > 255;
  FORESHARD_CHECK(!whole || count == p.segments.size(), "a run of so many segments that is not all of them");
  if (whole) add_segment(kind, layer, MemoryAction::kWhole);
  else add_segment(kind, layer, static_cast<std::uint16_t>(first), static_cast<std::uint8_t>(count));
  return id;
}

EventId StepBuilder::add_collective(
    EventKind kind, Stream stream, std::uint8_t communicator, Bytes bytes, std::int32_t unit) {
  UnitWork work = {.communicator = communicator, .bytes = bytes};
  return push(kind, stream, collective_work(kind, work), unit, -1);
}

EventId StepBuilder::add_collective(const LayerCollective& collective, Bytes bytes, std::int32_t unit) {
  const Stream stream = stream_of(collective.dim);
  wait(stream, tail(Stream::kCompute));
  const bool is_of_each = collective.dim == MeshDim::kBatch && collective.kind == CollectiveKind::kAllGather;
  if (is_of_each) bytes = Bytes(bytes.count() * graph_.communicators[communicator_of(collective.dim)].group.size);
  UnitWork work = {.communicator = communicator_of(collective.dim),
      .bytes = bytes,
      .to_neighbour = collective.to_neighbour,
      .caller = collective.dim == MeshDim::kTp ? Caller::kRedistribution : Caller::kFunctional,
      .copies = static_cast<std::uint16_t>(collective.copies)};
  const EventKind kind = kind_of(collective.kind);
  return push(kind, stream, collective_work(kind, work), unit, -1);
}

EventId StepBuilder::add_exchange(std::int32_t peer, Bytes bytes, Exchange::Side side) {
  // In pairs what goes to the rank behind stands in the stream of sends; what is still a batch is awaited at once.
  const bool in_pairs = side == Exchange::Side::kBoth && plan_.runtime.kind == RuntimeKind::kFsdp2 &&
                        fsdp2_version(fsdp2_minor(plan_.runtime.version).value_or(kNewestFsdp2)).exchanges_in_pairs;
  const std::int64_t ranks = plan_.mesh.pp;
  const bool is_next = in_pairs && ranks > 2 && peer == (plan_.mesh.pp_index(plan_.rank()) + 1) % ranks;
  const Stream stream = is_next || side == Exchange::Side::kSend ? Stream::kPipelineSend : Stream::kPipeline;
  wait(stream, tail(Stream::kCompute));
  UnitWork work = {.communicator = communicator_of(MeshDim::kPp), .bytes = bytes};
  work.queues = side == Exchange::Side::kBoth && !in_pairs;  // one way each has a communicator of its own
  const EventId row = push(EventKind::kSendRecv, stream, collective_work(EventKind::kSendRecv, work), -1, -1);
  graph_.exchanges.push_back({row, peer, side});
  return row;
}

std::uint16_t StepBuilder::collective_work(EventKind kind, const UnitWork& work) {
  const auto [it, is_new] = collective_works_.try_emplace(
      {kind, work.communicator, work.bytes.count(), pending_hooks_, work.to_neighbour, work.caller, work.copies});
  if (is_new) it->second = new_work(kind, work);
  return it->second;
}

void StepBuilder::launch_and_wait(
    EventKind kind, const LayerPhaseProgram& phase, std::size_t segment, std::vector<EventId>& flights) {
  flights.resize(phase.calls.size(), kNoEvent);
  // The first forward and the last backward have no other micro-batch beside them.
  const std::int64_t alone = kind == EventKind::kForward ? 0 : plan_.batch.accumulation - 1;
  const bool is_beside = plan_.megatron.overlap_expert_parallel && microbatch_ != alone;
  for (std::size_t c = 0; c < phase.calls.size(); ++c) {
    const LayerCall& call = phase.calls[c];
    const bool is_batch = call.collective.dim == MeshDim::kBatch;
    const bool is_alone = is_batch && graph_.communicators[communicator_of(MeshDim::kBatch)].group.size == 1;
    if (call.segment != segment || is_alone) continue;
    if (call.kind == LayerCall::Kind::kLaunch) flights[c] = launch_call(call, -1);
    else if (call.kind == LayerCall::Kind::kWait && (!is_beside || call.collective.dim != MeshDim::kEp))
      wait(Stream::kCompute, flights[at(call.launch)]);
  }
}

void StepBuilder::add_segment(EventKind kind, std::int32_t layer, std::uint16_t segment, std::uint8_t count) {
  using Kind = MemoryAction::Kind;
  const Kind action = kind == EventKind::kRecompute  ? Kind::kRecompute
                      : kind == EventKind::kBackward ? Kind::kBackward
                                                     : Kind::kForward;
  graph_.actions.push_back({action, first_execution_ + layer, segment, count});
}

void StepBuilder::run_border_segment(EventKind kind, std::int32_t layer, std::size_t segment) {
  const LayerPhaseProgram& p = phase(kind, layer);
  const std::uint32_t kernels_begin = segment == 0 ? 0 : p.segments[segment - 1].kernels_end;
  const auto s = static_cast<std::uint16_t>(segment);
  if (p.segments[segment].kernels_end > kernels_begin) add_layer_row(kind, layer, s);
  else add_segment(kind, layer, s);
}

void StepBuilder::run_border(EventKind kind, std::int32_t layer, std::int8_t part) {
  const LayerPhaseProgram& p = phase(kind, layer);
  if (p.segments.size() < 2) return;
  for (std::size_t s = 0; s < p.segments.size(); ++s)
    if (p.segments[s].part == part) run_border_segment(kind, layer, s);
}

void StepBuilder::add_phase(EventKind kind, std::int32_t layer, Segments segments) {
  const LayerPhaseProgram& p = phase(kind, layer);
  if (p.segments.size() < 2) {
    if (segments == Segments::kInside) add_segment(kind, layer, MemoryAction::kWhole);
    return;
  }
  for (std::size_t s = 0; s < p.segments.size(); ++s) {
    const bool is_exit = p.segments[s].part == LayerSegment::kAfter;
    if (is_exit == (segments == Segments::kExit)) add_segment(kind, layer, static_cast<std::uint16_t>(s));
  }
}

// --- memory ---

std::int32_t StepBuilder::allocate_persistent(MemoryCategory category, std::int32_t unit, Bytes bytes) {
  const std::int32_t id = graph_.buffer_count();
  graph_.buffers.push_back({category, Stream::kCompute, unit, allocated_size(bytes.count())});
  graph_.persistent.push_back(id);
  return id;
}

void StepBuilder::give_batch(std::int64_t sequence) {
  const Batch& batch = plan_.batch;
  const Bytes inputs(input_bytes(model_, batch.micro_batch, sequence));
  const Bytes labels(label_bytes(model_, batch.micro_batch, sequence));
  constexpr auto kCategory = MemoryCategory::kInput;
  if (!batch.prefetched) {
    input_tokens_ = allocate(kCategory, Stream::kCompute, -1, inputs);
    input_labels_ = allocate(kCategory, Stream::kCompute, -1, labels);
  } else if (microbatch() == 0) {
    std::vector<Bytes> all;
    for (std::int64_t m = std::max(batch.whole, batch.accumulation); m > 0; --m)
      for (const Bytes each : {inputs, labels}) all.push_back(allocated_size(each.count()));
    const std::int32_t parts = add_part_list(std::move(all));
    std::int32_t before = allocate_persistent_parts(kCategory, -1, parts);
    allocate_parts(kCategory, -1, parts);
    free(before);
  }
  allocate_given_masks();
}

void StepBuilder::drop_batch() {
  free(input_tokens_);
  free(input_labels_);
  free_all(given_masks_);
}

void StepBuilder::allocate_given_masks() {
  for (const std::int64_t bytes : kept_masks(model_, plan_))
    given_masks_.push_back(allocate(MemoryCategory::kActivation, Stream::kCompute, -1, Bytes(bytes)));
}

std::int64_t StepBuilder::logits_bytes() const {
  const TensorSpec& logits = spec_of(static_cast<std::int32_t>(model_.order.size()) - 1).tensors.front();
  const std::int64_t count = elements(logits, plan_.batch.micro_batch, plan_.batch.sequence);
  // Accelerate makes what a model under autocast returns fp32; a program of its own does not.
  const bool is_autocast = plan_.autocast || (plan_.runtime.kind == RuntimeKind::kDdp &&
                                                 plan_.kernels.residual == ModuleKernels::Residual::kFp32);
  const bool is_fp32 = is_of_modules(model_) ? logits.type == ElementType::kFp32 : is_autocast;
  const DType type = plan_.output_dtype.value_or(is_fp32 ? DType::kFp32 : plan_.compute_dtype());
  return checked_multiply(count, size_of(type));
}

// What lives through the next forward the first one of a step finds of the step before.
void StepBuilder::drop_logits() {
  if (keeps_logits() && !std::exchange(found_logits_, true))
    held_logits_ = allocate_persistent(MemoryCategory::kActivation, -1, Bytes(logits_bytes()));
  free(held_logits_);
}

void StepBuilder::hold_logits() {
  if (plan_.logits != Logits::kHeld && !keeps_logits()) return;
  held_logits_ = allocate(MemoryCategory::kActivation, Stream::kCompute, -1, Bytes(logits_bytes()));
}

void StepBuilder::make_zeros() {
  const bool is_compiled = plan_.compile == Compile::kModel && plan_.loss_in_forward;
  if (!is_compiled || plan_.logits != Logits::kHeld) return;
  zeros_ = allocate(MemoryCategory::kBackwardTemp, Stream::kCompute, -1, Bytes(logits_bytes()));
}

std::int32_t StepBuilder::allocate_persistent_parts(MemoryCategory category, std::int32_t unit, std::int32_t parts) {
  const std::int32_t id = add_parts(category, unit, parts);
  graph_.persistent.push_back(id);
  return id;
}

std::int32_t StepBuilder::add_parts(MemoryCategory category, std::int32_t unit, std::int32_t parts) {
  const std::int32_t id = graph_.buffer_count();
  graph_.buffers.push_back({category, Stream::kCompute, unit, part_sums_[at(parts)], parts});
  return id;
}

// Modules of the unit that made gradients in the pass, last one first: Python drops a list from its end.
void StepBuilder::visit_gradients(std::int32_t unit, std::int32_t pass, const auto& visit) const {
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  const std::span<const Module> list = modules_of(unit);
  for (auto module = list.rbegin(); module != list.rend(); ++module) {
    if (!counts(gradients_, module->layer)) continue;
    const std::int32_t execution = pass * layers + module->layer;
    const LayerProgram& program = graph_.program(graph_.executions[at(execution)]);
    const auto part = at(static_cast<std::uint8_t>(module->part));
    const bool any = part < program.free_last_gradient.size() && !program.free_last_gradient[part].actions.empty();
    if (any && !visit(execution, static_cast<std::uint8_t>(part), program)) return;
  }
}

void StepBuilder::step_one_by_one(const std::vector<Bytes>& moments, bool on_host) {
  std::int32_t divisor = kNoBuffer;
  for (const Bytes moment : moments) {
    const auto temporary = [&] {
      const std::int32_t id = allocate(MemoryCategory::kOptimizerTemp, Stream::kCompute, -1, moment);
      graph_.buffers.back().on_host = on_host;
      return id;
    };
    std::int32_t root = temporary();
    const std::int32_t next = temporary();
    free(root);
    free(divisor);
    divisor = next;
  }
  free(divisor);
}

void StepBuilder::free_gradients(std::int32_t unit, std::int32_t pass) {
  using Kind = MemoryAction::Kind;
  bool is_last = true;
  visit_gradients(unit, pass, [&](std::int32_t execution, std::uint8_t part, const LayerProgram& program) {
    if (!is_last) graph_.actions.push_back({Kind::kFreeLastGradient, execution, part});
    if (!program.free_gradients[part].actions.empty())
      graph_.actions.push_back({Kind::kFreeGradients, execution, part});
    is_last = false;
    return true;
  });
}

void StepBuilder::free_last_gradient(std::int32_t unit, std::int32_t pass) {
  visit_gradients(
      unit, pass,
      [&](std::int32_t execution, std::uint8_t part, const LayerProgram&) {
        graph_.actions.push_back({MemoryAction::Kind::kFreeLastGradient, execution, part});
        return false;
      });
}

std::vector<std::int32_t> StepBuilder::gradient_buffers(std::int32_t unit, std::int32_t pass) const {
  std::vector<std::int32_t> buffers;
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  for (const Module& owned : modules_of(unit)) {
    if (!counts(gradients_, owned.layer)) continue;
    const LayerExecution& execution = graph_.executions[at(std::int64_t{pass} * layers + owned.layer)];
    const LayerProgram& program = graph_.program(execution);
    const std::vector<ParameterSpec>& parameters = spec_of(owned.layer).parameters;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const bool ignored = is_ignored(parameters[p]);
      if (parameters[p].tied || !is_in(parameters[p], owned) || ignored || program.weight_gradients[p] < 0) continue;
      buffers.push_back(execution.first_buffer + program.weight_gradients[p]);
    }
  }
  return buffers;
}

void StepBuilder::begin_pass(std::int32_t pass, std::int32_t microbatch) {
  pass_ = pass;
  microbatch_ = microbatch;
  first_execution_ = pass * static_cast<std::int32_t>(model_.order.size());
}

// Of the step before, alike those that this one leaves.
void StepBuilder::find_gradients() {
  if (left_gradients_.empty()) return;
  std::vector<MemoryAction> frees;
  for (const std::int32_t left : left_gradients_) {
    const std::int32_t found = graph_.buffer_count();
    graph_.buffers.push_back(graph_.buffer(left));
    graph_.buffers.back().category = MemoryCategory::kShardedGrad;
    graph_.persistent.push_back(found);
    frees.push_back({MemoryAction::Kind::kFree, found});
  }
  const auto [rows, actions] = forward_end_;
  graph_.actions.insert(graph_.actions.begin() + static_cast<std::ptrdiff_t>(actions), frees.begin(), frees.end());
  for (std::size_t r = rows; r < graph_.details.size(); ++r)
    graph_.details[r].actions_begin += static_cast<std::uint32_t>(frees.size());
}

EventGraph StepBuilder::finish() {
  // What the next step's first forward is to find.
  if (found_logits_ && held_logits_ == kNoBuffer) hold_logits();
  if (!keeps_logits()) drop_logits();
  find_gradients();
  graph_.final_host_wait = std::max({graph_.final_host_wait, unawaited_compute_, pending_host_wait_});
  for (std::size_t i = 0; i + 1 < graph_.details.size(); ++i)
    graph_.details[i].actions_end = graph_.details[i + 1].actions_begin;
  if (!graph_.details.empty()) graph_.details.back().actions_end = static_cast<std::uint32_t>(graph_.actions.size());
  return std::move(graph_);
}

// --- counts shared by the runtimes ---

Kernel StepBuilder::memory_kernel(MemoryClass memory_class, std::int64_t bytes_moved) {
  return Kernel{.memory_class = memory_class, .bytes = Bytes(bytes_moved)};
}

Kernel StepBuilder::copy_kernel(std::int64_t bytes_moved) { return memory_kernel(MemoryClass::kCopy, bytes_moved); }

int StepBuilder::moments() const {
  using enum Optimizer::Kind;
  if (steps_by_adamw()) return 2;
  // Adafactor's of vectors, as shards of flat parameters are; others': none, or of another size than the parameter's
  // (ddp).
  return is_among(plan_.optimizer.kind, {kMomentum, kAdafactor}) ? 1 : 0;
}

std::int64_t StepBuilder::looped_operations() const {
  using Kind = Optimizer::Kind;
  const RuntimeKind runtime = plan_.runtime.kind;  // others step few flat parameters
  if (runtime != RuntimeKind::kDdp && runtime != RuntimeKind::kFsdp2) return 0;
  if (plan_.optimizer.operations > 0) return plan_.optimizer.operations;
  if (plan_.optimizer.kind == Kind::kAdafactor) return kAdafactorOperations;
  const bool loops = steps_by_adamw() && plan_.optimizer.implementation == Optimizer::Implementation::kLoop;
  return loops ? std::ssize(kForeachAdamWPasses) : 0;
}

std::int64_t StepBuilder::listed_temporaries() const {
  const Optimizer& optimizer = plan_.optimizer;
  if (optimizer.implementation != Optimizer::Implementation::kForeach) return 0;
  if (optimizer.temporaries > 0) return optimizer.temporaries;
  return steps_by_adamw() ? 1 : 0;
}

void StepBuilder::hold_temporaries(std::int64_t count, std::int32_t parts, bool on_host) {
  std::vector<std::int32_t> held;
  for (std::int64_t i = 0; i < count; ++i) {
    held.push_back(allocate_parts(MemoryCategory::kOptimizerTemp, -1, parts));
    graph().buffers.back().on_host = on_host;
  }
  free_all(held);
}

std::vector<Kernel> StepBuilder::optimizer_kernels(std::int64_t elements) const {
  using enum Optimizer::Kind;
  const Optimizer& optimizer = plan_.optimizer;
  const std::int64_t state = size_of(optimizer.state), master = size_of(plan_.master_dtype);
  const bool is_fused = optimizer.implementation == Optimizer::Implementation::kFused;
  std::vector<std::int64_t> passes;  // what each kernel moves, in bytes of an element
  if (optimizer.passes > 0 && !is_fused) passes = {optimizer.passes * std::max(master, state)};
  else if (optimizer.kind == kSgd) passes = {3 * master};                   // p -= lr * g
  else if (optimizer.kind == kMomentum) passes = {3 * master, 3 * master};  // m = b * m + g, then as SGD with m for g
  else if (optimizer.kind == kAdafactor)
    for (const std::int64_t tensors : kAdafactorPasses) passes.push_back(tensors * master);
  else if (optimizer.kind == kPagedAdamW) passes = {3 * master + 16};
  else if (!steps_by_adamw()) passes = {3 * master + 4};  // of 8 bits: as fused, states of a byte
  else if (is_fused)
    passes = {3 * master + 4 * state};  // reads parameter, gradient and moments, writes all but the gradient
  else
    for (const std::int64_t tensors : kForeachAdamWPasses) passes.push_back(tensors * std::max(master, state));
  return list_of<Kernel>(passes,
      [&](std::int64_t bytes) { return memory_kernel(MemoryClass::kOptimizer, checked_multiply(elements, bytes)); });
}

StepBuilder::UnitWork StepBuilder::step_work_of(EventKind kind, std::int64_t elements) const {
  const std::int64_t bytes = checked_multiply(elements, size_of(plan_.master_dtype));
  UnitWork work;
  switch (kind) {
    case EventKind::kGradNorm: work.kernels = {memory_kernel(MemoryClass::kOptimizer, bytes)}; break;
    case EventKind::kGradScale: work.kernels = {memory_kernel(MemoryClass::kOptimizer, 2 * bytes)}; break;
    case EventKind::kAllReduce:  // the squared norm
      work.bytes = Bytes(4);
      work.communicator = kShard;
      break;
    case EventKind::kOptimizer:
    case EventKind::kHostOptimizer: work.kernels = optimizer_kernels(elements); break;
    default: FORESHARD_CHECK(false, "not a row of the whole step");
  }
  return work;
}

StepBuilder::UnitWork StepBuilder::master_step_work(EventKind kind, std::int64_t own) const {
  UnitWork work;
  switch (kind) {
    case EventKind::kGradScale: work.kernels = {memory_kernel(MemoryClass::kOptimizer, 8 * own)}; break;
    case EventKind::kHostOptimizer: work.bytes = Bytes(own * 4); [[fallthrough]];
    case EventKind::kOptimizer:
      work.kernels = optimizer_kernels(own);
      if (kind == EventKind::kHostOptimizer && work.kernels.size() > 1) {
        // DeepSpeedCPUAdam is one pass over parameter, gradient and moments.
        work.kernels = {memory_kernel(MemoryClass::kOptimizer, own * (12 + 4 * size_of(plan_.optimizer.state)))};
      }
      work.kernels.push_back(memory_kernel(MemoryClass::kCopy, own * (4 + size_of(plan_.param_dtype))));
      break;
    default: FORESHARD_CHECK(false, "not a row of the whole step");
  }
  return work;
}

}
