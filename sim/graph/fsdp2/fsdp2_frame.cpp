// What torchtitan's train_step puts around forward and backward (torchtitan 0.2.2 train.py).
//
// zero_grad drops the gradients of the step before. The batches of all micro-batches are fetched and their tokens
// counted, summed over all samples and read by the host; batches stay until the step ends, the last labels until the
// next fetch. Context parallel makes each rank's part of a batch, and of the positions, in front of its forward. The
// loss is divided by the tokens (scale_loss) and kept for the mean that is logged.
#include <algorithm>
#include <string>
#include <utility>

#include "sim/base/lookup.h"
#include "sim/graph/axes/layer_cutter.h"
#include "sim/graph/axes/rank_part.h"
#include "sim/graph/fsdp2/fsdp2_builder.h"

namespace foreshard {
namespace {

constexpr std::int64_t kPosition = 4;  // int32

}

// An optimizer forgets the gradients of what it steps; one that it does not step is a view of all
// that its unit's first reduction made.
void Fsdp2::hold_unstepped_gradients() {
  for (std::int32_t u = 0; u < count(); ++u) {
    const UnitShape& s = shape(u);
    if (s.unstepped == 0) continue;
    allocate_persistent(MemoryCategory::kShardedGrad, u, Bytes(s.trained_shard_numel * master_size()));
  }
}

// Gradients and labels of the step before.
void Fsdp2::hold_gradients() {
  if (!is_wrapped()) hold_plain_gradients();
  for (std::int32_t u = 0; u < count() + (chunked_unit_ < 0 ? 0 : 1); ++u) {
    const bool is_apart = u == count();
    if (is_apart) take_gradients(Gradients::kOfHead);
    if (u == chunked_unit_ && !rest_travels()) take_rest();
    const bool is_there = u == chunked_unit_ && std::exchange(group(u).has_gradient, false);
    if (!is_there) hold_gradients_of(is_apart ? chunked_unit_ : u, is_apart ? apart_ : group(u));
    take_gradients(Gradients::kOfAll);
  }
  fetched_labels_ = allocate_persistent(MemoryCategory::kInput, -1, Bytes(whole_labels()));
  hold_row_orders();
  if (notes_mesh()) allocate_persistent(MemoryCategory::kActivation, -1, allocated_size(1));
}

void Fsdp2::hold_gradients_of(std::int32_t u, Group& g) {
  const UnitShape& s = shape(u);
  if (s.trained == 0 || !is_wrapped()) return;
  const bool offloaded = plan_.offload != Offload::kNone;
  std::int64_t bytes = offloaded ? 0 : s.trained_shard_numel * master_size();
  for (const UnitParameter& p : s.list)  // each comes to the host by itself, without padding
    if (offloaded && p.trainable) bytes += allocated_size(p.local_numel * master_size()).count();
  const auto hold = [&] {
    const std::int32_t gradient = allocate_persistent(MemoryCategory::kShardedGrad, u, Bytes(bytes));
    graph().buffers.back().pool = replicated() && casts_gradients() ? Stream::kAllReduce : Stream::kReduceScatter;
    graph().buffers.back().on_host = offloaded;
    return gradient;
  };
  // The first step's stays, of which a gradient is a view that nobody lets go of; a recorded step is the second.
  g.keeps_gradient = s.unstepped > 0;
  const std::int32_t gradient = hold();
  g.gradient = !g.keeps_gradient ? gradient : logging_ ? kNoBuffer : hold();
}

std::int32_t Fsdp2::slot_called(std::int32_t layer, std::string_view name) const {
  const LayerExecution& execution = graph().executions[at(layer)];
  const std::vector<Slot>& slots = graph().program(execution).slots;
  const auto slot = std::ranges::find(slots, name, &Slot::name);
  return slot == slots.end() ? -1 : static_cast<std::int32_t>(slot - slots.begin());
}

// The mesh of etp alone, made by the first rows that arrive, whose tensor of ranks is the host's: a
// recorder on a host counts it, once.
bool Fsdp2::notes_mesh() { return framed() && logging_ && plan_.mesh.etp > 1 && !std::exchange(mesh_noted_, true); }

// Of the step before: the last forward's, which checkpointing may have run again.
void Fsdp2::hold_row_orders() {
  for (std::int32_t l = 0; l < static_cast<std::int32_t>(model_.order.size()); ++l) {
    std::int32_t slot = slot_called(l, std::string(kRowOrder) + " (recomputed)");
    if (slot < 0) slot = slot_called(l, kRowOrder);
    if (slot < 0) continue;
    const LayerExecution& execution = graph().executions[at(l)];
    const Slot& order = graph().program(execution).slots[at(slot)];
    row_orders_.resize(model_.order.size(), kNoBuffer);
    row_orders_[at(l)] = allocate_persistent(order.category, -1, order.bytes);
  }
}

void Fsdp2::replace_row_order(EventKind kind, std::int32_t layer) {
  const bool again = kind == EventKind::kRecompute;
  const std::int32_t slot = slot_called(layer, again ? std::string(kRowOrder) + " (recomputed)" : kRowOrder);
  if (slot < 0) return;
  row_orders_.resize(model_.order.size(), kNoBuffer);
  std::int32_t& held = row_orders_[at(layer)];
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  const std::int32_t made = graph().executions[at(pass() * layers + layer)].first_buffer + slot;
  if (held == made) return;
  StepBuilder::free(held);
  held = made;
}

// A pipeline is given the samples of all its micro-batches at once.
std::int64_t Fsdp2::fetched_samples() const {
  return plan_.batch.micro_batch * (is_pipelined() ? given_microbatches() : 1);
}

std::int64_t Fsdp2::whole_labels() const { return label_bytes(model_, fetched_samples(), plan_.batch.sequence); }

std::int32_t Fsdp2::counted(std::int64_t bytes) {
  return allocate(MemoryCategory::kOther, Stream::kCompute, -1, Bytes(bytes));
}
std::int32_t Fsdp2::fetched(std::int64_t bytes) {
  return allocate(MemoryCategory::kInput, Stream::kCompute, -1, Bytes(bytes));
}

void Fsdp2::begin_step_frame() {
  if (!framed()) return;
  log_where_ = "step";
  free_all(plain_gradients_);
  if (is_wrapped()) zero_grad();
  if (logging_) log("zero_grad");
  token_count_ = counted(8);
  const std::int64_t fetches = plan_.batch.accumulation / (is_pipelined() ? call_microbatches() : 1);
  for (std::int64_t m = 0; m < fetches; ++m) {
    StepBuilder::free(fetched_labels_);
    batches_.push_back(fetched(input_bytes(model_, fetched_samples(), plan_.batch.sequence)));
    batches_.push_back(fetched(whole_labels()));
    std::int32_t valid = counted(whole_labels() / 8), sum = counted(8);
    StepBuilder::free(valid);
    StepBuilder::free(sum);
  }
  if (plan_.mesh.data_parallel() == 1) loss_weight_ = counted(4);
  else sum_and_read(MeshDim::kBatch, {8, "int64", "SUM"});
}

// FlexAttention's BlockMask, of one sequence for all: of partial and of full blocks, how many and which, for each block
// of queries and for each of keys (torch/nn/attention/flex_attention.py, from_kv_blocks).
std::vector<std::int32_t> Fsdp2::block_mask(std::int64_t queries) {
  constexpr std::int64_t kBlock = 128, kInt32 = 4;
  std::vector<std::int32_t> mask;
  if (plan_.attention != AttentionKernel::kFlex) return mask;
  const std::int64_t rows = (queries + kBlock - 1) / kBlock;
  const std::int64_t columns = (plan_.batch.sequence + kBlock - 1) / kBlock;
  for (const std::int64_t counted : {rows, rows, columns, columns}) {
    mask.push_back(fetched(kInt32 * counted));
    mask.push_back(fetched(kInt32 * rows * columns));
  }
  return mask;
}

// The rank's part of the batch: tokens, labels, positions, each put in the order of the balancer
// first; then its part of the mask of all.
void Fsdp2::cut_batch() {
  const std::int64_t cp = plan_.mesh.cp;
  std::vector<std::int32_t> mask = block_mask(plan_.batch.sequence);
  if (cp == 1) {
    batch_parts_ = std::move(mask);
    return;
  }
  const bool balances = plan_.context_parallel.balance == ContextParallel::Balance::kHeadTail;
  const std::int64_t row = plan_.batch.sequence * kPosition;
  std::int32_t positions = fetched(row);
  std::int32_t order = balances ? fetched(row) : kNoBuffer;
  const auto cut = [&](std::int64_t whole) {
    std::int32_t ordered = balances ? fetched(whole) : kNoBuffer;
    batch_parts_.push_back(fetched(whole / cp));
    StepBuilder::free(ordered);
  };
  cut(input_bytes(model_, fetched_samples(), plan_.batch.sequence));
  cut(whole_labels());
  cut(row * fetched_samples());
  const std::vector<std::int32_t> part = block_mask(plan_.batch.sequence / cp);
  append(batch_parts_, part);
  free_all(mask);
  StepBuilder::free(positions);
  StepBuilder::free(order);
}

void Fsdp2::drop_batch_parts() { free_all(batch_parts_); }

void Fsdp2::sum_and_read(MeshDim dim, const Scalar& scalar) {
  std::int32_t sum = counted(scalar.bytes);
  const EventId row = communicate({.kind = CollectiveKind::kAllReduce, .dim = dim}, scalar.bytes, scalar.bytes,
      {.dtype = scalar.dtype, .on = scalar.reduction});
  await_collective(row, CollectiveKind::kAllReduce, dim, HostEvent::kNobody);
  if (!is_titan_3() || dim != MeshDim::kBatch) read_on_host(scalar, row);
  StepBuilder::free(sum);
}

void Fsdp2::read_on_host(const Scalar& scalar, EventId row) {
  host_wait(row);
  if (logging_) log("host_wait", {.bytes_in = scalar.bytes, .dtype = scalar.dtype, .on = "item"});
}

// A step that logs: the mean and the greatest loss and the tokens so far, then the norm.
void Fsdp2::end_step_frame() {
  if (!framed()) return;
  std::int32_t losses = counted(4 * plan_.batch.accumulation), loss = counted(4);
  StepBuilder::free(losses);
  if (plan_.step_frame == StepFrame::kTorchtitanLog) log_step();
  StepBuilder::free(token_count_);
  batches_.pop_back();  // the last labels, until the next step fetches
  for (std::int32_t& batch : batches_) StepBuilder::free(batch);
  for (std::int32_t& kept : losses_) StepBuilder::free(kept);
  StepBuilder::free(loss);
  StepBuilder::free(loss_weight_);
  StepBuilder::free(gradient_norm_);
}

void Fsdp2::log_step() {
  const MeshDim dim = MeshDim::kLoss;
  std::int32_t mean = kNoBuffer;  // of the rank's own tokens
  if (plan_.mesh.group(dim).size > 1) {
    std::int32_t weighed = counted(4);
    mean = counted(4);
    StepBuilder::free(weighed);
    sum_and_read(dim, {4, "fp32", "SUM"});
    sum_and_read(dim, {4, "fp32", "MAX"});
    std::int32_t tokens = counted(8);
    sum_and_read(dim, {8, "int64", "SUM"});
    StepBuilder::free(tokens);
  } else {
    read_on_host({4, "fp32", ""}, tail(Stream::kCompute));
  }
  read_on_host({master_size(), to_string(plan_.master_dtype), ""}, tail(Stream::kCompute));
  StepBuilder::free(mean);
}

// The undivided loss goes where the divided one would, which stays: they are alike.
void Fsdp2::keep_loss(std::int32_t layer) {
  const auto layers = static_cast<std::int32_t>(model_.order.size());
  const LayerExecution& execution = graph().executions[at(pass() * layers + layer)];
  const std::int32_t slot = slot_called(layer, kUndividedLoss);
  if (slot >= 0) losses_.push_back(execution.first_buffer + slot);
}

// torchtitan's optimizer pre-hook (components/optimizer.py): the tokens of each expert of every
// layer of experts, summed over `loss`; those of checkpointed layers, counted twice, are halved.
void Fsdp2::balance_routers() {
  if (!framed() || plan_.mesh.group(MeshDim::kLoss).size == 1) return;
  std::int64_t counts = 0, own = 0;
  std::vector<Bytes> parts;
  for (std::int32_t l = 0; l < static_cast<std::int32_t>(model_.order.size()); ++l) {
    const auto is_scores = [&](Index t) { return spec_of(l).tensors[at(t)].name == "router_scores"; };
    for (const Operation& op : spec_of(l).operations) {
      // (Its mixtures are balanced whatever the model's own router does.)
      const bool is_plain = is_titan_3() && op.name == "topk" && is_scores(op.inputs.front());
      if (op.name != "correct" && !is_plain) continue;
      const auto scores = at(op.inputs.front());
      own = spec_of(l).tensors[scores].per_token;
      if (recompute_of(l) != Recompute::kNone) parts.push_back(allocated_size(4 * own));
      counts += own;
    }
  }
  if (counts == 0) return;
  parts.push_back(allocated_size(4 * counts));
  std::int32_t read = allocate_parts(MemoryCategory::kOptimizerTemp, -1, add_part_list(std::move(parts)));
  // A router's buffers are where its parameters are.
  const bool on_host = plan_.offload != Offload::kNone;
  graph().buffers.back().on_host = on_host;
  const std::int64_t bytes = counts * 4;
  const auto sum_over = [&](MeshDim dim) {
    const std::uint8_t communicator = communicator_of(dim);
    wait(Stream::kAllReduce, tail(Stream::kCompute));
    wait(Stream::kCompute,
        add_collective(EventKind::kAllReduce, Stream::kAllReduce, communicator, Bytes(bytes), HostEvent::kNobody));
    if (!logging_) return;
    log("all_reduce", {.bytes_in = bytes,
                          .bytes_out = bytes,
                          .dtype = "fp32",
                          .group = to_string(dim),
                          .group_size = plan_.mesh.group(dim).size,
                          .on = "SUM",
                          .communicator = communicator,
                          .issue = "c10d"});
  };
  if (is_titan_3() && plan_.mesh.ep > 1 && plan_.mesh.tp > 1) sum_over(MeshDim::kTp);
  sum_over(MeshDim::kLoss);
  // Of one layer after the other: the step of its bias, from the mean and the sign.
  std::int32_t change = allocate_parts(MemoryCategory::kOptimizerTemp, -1,
      add_part_list({allocated_size(4 * own), allocated_size(4), allocated_size(4 * own)}));
  graph().buffers.back().on_host = on_host;
  StepBuilder::free(change);
  StepBuilder::free(read);
}

}
