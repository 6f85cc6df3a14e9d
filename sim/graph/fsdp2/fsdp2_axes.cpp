// Collectives inside layers (tensor, context and expert parallel), and what they add around FSDP2.
//
// Functional collectives run on their communicator's own stream, which first waits for what is computed; compute waits
// for them once, where the layer's program says. FSDP's post-backward completes gradients of which each rank of an axis
// has a part (an all-reduce that is awaited at once) or of which the rank keeps a slice (a copy), before it reshards
// (_fsdp_param.py, unsharded_grad_data; torch 2.11). Clipping sums the row of norms over every axis
// that parameters are cut by, one after the other (torchtitan 0.2.2, clip_grad_norm_).
#include <algorithm>
#include <numeric>
#include <utility>

#include "sim/graph/fsdp2/fsdp2_builder.h"
#include "sim/graph/layer_collectives.h"

namespace foreshard {
namespace {

std::string_view awaited_word(CollectiveKind kind) {
  return word_at(kind, {"", "work all_gather", "work reduce_scatter", "work all_reduce", "work all_to_all"});
}

// The recorder's words of groups.
std::string_view group_word(MeshDim dim) {
  if (dim == MeshDim::kFsdp) return "shard";
  return dim == MeshDim::kEfsdp ? "expert_shard" : to_string(dim);
}

std::string_view dtype_word(const TensorElement& element) {
  if (element.type == ElementType::kCompute) return to_string(element.dtype);
  return word_at(element.type, {"", "fp32", "bf16", "int64", "uint8"});
}

std::string_view reduction_word(const LayerCollective& collective) {
  const bool reduces =
      collective.kind == CollectiveKind::kReduceScatter || collective.kind == CollectiveKind::kAllReduce;
  if (!reduces) return "";
  return collective.maximum ? "MAX" : "SUM";
}

}

// --- inside layers ---

EventId Fsdp2::communicate(
    const LayerCollective& collective, std::int64_t bytes_in, std::int64_t bytes_out, HostEvent event) {
  const MeshDim dim = collective.dim;
  const EventId row = add_collective(collective, Bytes(std::max(bytes_in, bytes_out)), event.unit);
  if (!logging_) return row;
  event.bytes_in = bytes_in;
  event.bytes_out = bytes_out;
  event.group = group_word(dim);
  event.group_size = plan_.mesh.group(dim).size;
  event.communicator = communicator_of(dim);
  event.issue = "functional";
  log(to_string(kind_of(collective.kind)), event);
  return row;
}

void Fsdp2::await_collective(EventId row, CollectiveKind kind, MeshDim dim, std::int32_t unit) {
  wait(Stream::kCompute, row);
  if (!logging_) return;
  log("wait", {.unit = unit,
                  .on = awaited_word(kind),
                  .on_group = group_word(dim),
                  .on_group_size = plan_.mesh.group(dim).size,
                  .communicator = communicator_of(dim)});
}

bool Fsdp2::brings_rows(const LayerCall& call) {
  return call.collective.dim == MeshDim::kEp && call.collective.kind == CollectiveKind::kAllToAll &&
         call.element.type != ElementType::kInt64;
}

void Fsdp2::run_calls(EventKind kind, std::int32_t layer, std::size_t segment) {
  const LayerPhaseProgram& p = phase(kind, layer);
  const std::int8_t part = p.segments[segment].part;
  for (std::size_t c = 0; c < p.calls.size(); ++c) {
    const LayerCall& call = p.calls[c];
    if (call.segment != segment) continue;
    const std::int32_t unit = unit_of_part(layer, part);
    switch (call.kind) {
      case LayerCall::Kind::kLaunch: flights_[c] = launch(call, unit); break;
      case LayerCall::Kind::kWait:
        await(call, unit);
        permutes_rows_ = framed() && part > 0 && brings_rows(call);
        break;
      case LayerCall::Kind::kRecompute: run_layer(EventKind::kRecompute, layer); break;
    }
  }
}

EventId Fsdp2::launch(const LayerCall& call, std::int32_t unit) {
  HostEvent event{.unit = unit,
      .dtype = dtype_word(call.element),
      .on = reduction_word(call.collective),
      .splits = splits_of(call)};
  return communicate(call.collective, call.bytes_in, call.bytes_out, std::move(event));
}

void Fsdp2::await(const LayerCall& call, std::int32_t unit) {
  begin_plain_backward();
  if (call.launch != LayerCall::kOfLayerBefore)
    return await_collective(flights_[at(call.launch)], call.collective.kind, call.collective.dim, unit);
  await_collective(open_.row, open_.collective.kind, open_.collective.dim, unit);
  StepBuilder::free(open_.buffer);
  open_ = {};
}

// "out=" received from, "in=" sent to every rank of the group: elements round the ring of cp, rows
// (of counts: experts) among the ranks of ep.
std::string Fsdp2::splits_of(const LayerCall& call) const {
  if (!logging_ || call.collective.kind != CollectiveKind::kAllToAll) return "";
  const auto text = [](const std::vector<std::int64_t>& list) {
    std::string joined;
    for (const std::int64_t value : list) joined += (joined.empty() ? "" : "/") + std::to_string(value);
    return joined;
  };
  std::vector<std::int64_t> sent, received;
  const std::int64_t count = call.bytes_in / call.element.size();
  if (call.collective.to_neighbour) {
    const std::int64_t ranks = plan_.mesh.cp, rank = plan_.mesh.cp_index(plan_.rank());
    sent.assign(at(ranks), 0);
    received = sent;
    sent[at((rank + 1) % ranks)] = count;
    received[at((rank + ranks - 1) % ranks)] = count;
  } else {
    const bool of_rows = call.collective.dim == MeshDim::kEp && call.element.type != ElementType::kInt64;
    const std::int64_t width = of_rows ? model_.hidden : 1;
    const std::int64_t ranks = plan_.mesh.group(call.collective.dim).size;
    sent.assign(at(ranks), count / width / ranks);
    received = sent;
    if (of_rows && !plan_.expert_parallel.sent.empty()) {
      sent = plan_.expert_parallel.sent;
      received = plan_.expert_parallel.received;
      // Which way: what is sent has as many rows as the call's input.
      const std::int64_t out = std::accumulate(sent.begin(), sent.end(), std::int64_t{0});
      if (out != count / width) std::swap(sent, received);
    }
  }
  return "out=" + text(received) + " in=" + text(sent);
}

void Fsdp2::note_open(EventKind kind, std::int32_t layer) {
  const LayerPhaseProgram& p = phase(kind, layer);
  if (p.open_launch < 0) return;
  const auto launch = at(p.open_launch);
  open_ = {flights_[launch], p.calls[launch].collective, kNoBuffer};
  if (p.open_slot >= 0) {
    const auto layers = static_cast<std::int32_t>(model_.order.size());
    const auto execution = at(pass() * layers + layer);
    open_.buffer = graph().executions[execution].first_buffer + p.open_slot;
  }
}

bool Fsdp2::recomputes_inside(std::int32_t layer) const {
  const std::vector<LayerCall>& calls = phase(EventKind::kBackward, layer).calls;
  return std::ranges::any_of(calls, [](const LayerCall& call) { return call.kind == LayerCall::Kind::kRecompute; });
}

// --- post-backward ---

// In the order of the unit's parameters; sums that were kept, or this pass'.
std::vector<std::int32_t> Fsdp2::complete_gradients(std::int32_t unit) {
  Group& g = group(unit);
  const DType dtype = version_.autograd_accumulates ? plan_.reduce_dtype : gradients_dtype(g);
  std::vector<std::int32_t> gradients = g.accumulated.empty() ? gradient_buffers(unit, g.gradient_pass) : g.accumulated;
  std::size_t i = 0;
  for (const UnitParameter& p : shape(unit).list) {
    if (!p.trainable) continue;
    std::int32_t& gradient = gradients[i++];
    if (!p.partial && p.gradient_numel == 0) continue;
    const std::int64_t bytes = p.numel * size_of(dtype);
    const std::int32_t own = allocate(MemoryCategory::kAccumulatedGrad, Stream::kCompute, unit, Bytes(bytes));
    if (p.partial) {
      const EventId row = communicate({.kind = CollectiveKind::kAllReduce, .dim = MeshDim::kTp}, bytes, bytes,
          {.unit = unit, .dtype = to_string(dtype), .on = "SUM"});
      await_collective(row, CollectiveKind::kAllReduce, MeshDim::kTp, unit);
    } else {
      add_unit_row(EventKind::kGradientCopyIn, Stream::kCompute, unit, kSlice);
      log_operator("clone", Stream::kCompute, bytes, dtype);
    }
    StepBuilder::free(gradient);
    gradient = own;
  }
  return gradients;
}

// --- experts ---

// Expert parallel: rows to and from every rank go to the host, which waits for the second copy.
void Fsdp2::log_splits(std::int32_t layer, const LayerSegment& segment) {
  if (!logging_ || plan_.mesh.ep == 1) return;
  if (!segment.host_waits && !segment.host_copies) return;
  const std::int32_t unit = unit_of_part(layer, segment.part);
  log("device_to_host", {.unit = unit,
                            .bytes_in = plan_.mesh.ep * 8,
                            .dtype = "int64",
                            .on = segment.host_waits ? "blocking" : "non_blocking"});
  if (segment.host_waits) log("host_wait", {.unit = unit, .on = "device_to_host"});
}

// Where experts have a mesh of their own, torchtitan's blocks list the next block with its experts
// (llama4/infra/parallelize.py:436-497); embedding and head list a block alone.
// (0.3: whoever lists the block lists both groups of its one fully_shard.)
std::vector<std::int32_t> Fsdp2::experts_listed(std::int32_t by, std::int32_t unit) const {
  std::vector<std::int32_t> units;
  const bool alone = !groups_experts() && block_of(modules_of(by).front().layer) < 0;
  if (plan_.mesh.ep == 1 || alone) return units;
  for (std::int32_t u = unit + 1; u < unit_count(); ++u) {
    const Module& first = modules_of(u).front();
    if (first.part == 0 || unit_of_layer(first.layer) != unit) break;
    units.push_back(u);
  }
  return units;
}

// The row of norms of all parameters that are cut by the same axes, experts first.
void Fsdp2::clip_over_axes() {
  // Where the gradients are.
  const auto beside_gradients = [&](std::int32_t buffer) {
    graph().buffers.back().on_host = plan_.offload != Offload::kNone;
    return buffer;
  };
  const auto temporary = [&](std::int64_t bytes) {
    return beside_gradients(allocate(MemoryCategory::kOptimizerTemp, Stream::kCompute, -1, Bytes(bytes)));
  };
  const auto scalars = [&](std::int64_t count) {
    const std::vector<Bytes> each(at(count), allocated_size(4));
    return beside_gradients(allocate_parts(MemoryCategory::kOptimizerTemp, -1, add_part_list(each)));
  };
  std::vector<std::int32_t> sums = sum_plain_gradients();
  add_step_row(EventKind::kGradNorm, Stream::kCompute);
  std::int32_t total = kNoBuffer;
  for (const ClipGroup& clipped : clip_groups()) {
    const std::int64_t row = clipped.parameters * master_size();
    std::int32_t norms = scalars(clipped.parameters);
    free_all(sums);
    // Norms that every rank of tp has whole become summands of the row.
    std::int32_t shares = clipped.replicated == 0 ? kNoBuffer : scalars(clipped.replicated);
    std::int32_t stacked = temporary(row);
    StepBuilder::free(shares);
    std::int32_t roots = kNoBuffer;
    for (const MeshDim dim : clipped.dims) {
      std::int32_t powers = temporary(row);
      std::int32_t reduced = temporary(row);
      const EventId done = communicate({.kind = CollectiveKind::kAllReduce, .dim = dim}, row, row,
          {.dtype = to_string(plan_.master_dtype), .on = "SUM"});
      await_collective(done, CollectiveKind::kAllReduce, dim, HostEvent::kNobody);
      std::int32_t root = temporary(row);
      StepBuilder::free(powers);
      StepBuilder::free(reduced);
      StepBuilder::free(roots);
      roots = root;
    }
    const std::int32_t norm = temporary(master_size());
    StepBuilder::free(stacked);
    StepBuilder::free(roots);
    StepBuilder::free(norms);
    StepBuilder::free(total);
    total = norm;
  }
  sum_over_stages();
  std::int32_t sum = temporary(4), reciprocal = temporary(4), factor = temporary(4);
  StepBuilder::free(sum);
  StepBuilder::free(reciprocal);
  std::int32_t clamped = temporary(4);
  sums = sum_plain_gradients();
  free_all(sums);
  add_step_row(EventKind::kGradScale, Stream::kCompute);
  StepBuilder::free(clamped);
  StepBuilder::free(factor);             // a name of the function's
  if (framed()) gradient_norm_ = total;  // which is logged
  else StepBuilder::free(total);
  if (logging_) log("clip_end");
}

std::vector<Fsdp2::ClipGroup> Fsdp2::clip_groups() const {
  const Mesh& mesh = plan_.mesh;
  ClipGroup experts, others;
  for (const Trained& p : trained_) {
    const bool expert = p.unit >= 0 && of_experts(shape(p.unit));
    ClipGroup& of = expert ? experts : others;
    if (is_titan_3() && !p.stepped) continue;  // the table's again
    ++of.parameters;
    of.replicated += p.replicated ? 1 : 0;
  }
  const auto add = [&](ClipGroup& to, MeshDim dim) {
    if (mesh.group(dim).size > 1) to.dims.push_back(dim);
  };
  add(others, MeshDim::kFsdp);
  add(others, MeshDim::kTp);
  // Dimensions side by side become one all-reduce where a flattened mesh of just these ranks
  // exists: torchtitan makes `loss` (tensor/_redistribute.py:251-283).
  const bool whole = framed() && mesh.tp == 1 && mesh.replicate == 1 && mesh.etp == 1 && mesh.efsdp() > 1;
  if (whole) {
    add(experts, MeshDim::kLoss);
  } else {
    add(experts, MeshDim::kEfsdp);
    add(experts, MeshDim::kEp);
    add(experts, MeshDim::kEtp);
  }
  std::vector<ClipGroup> groups;
  if (experts.parameters > 0) groups.push_back(std::move(experts));
  groups.push_back(std::move(others));
  return groups;
}

}
