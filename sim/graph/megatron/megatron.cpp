// One step: forward and backward of each micro-batch, then finalize_model_grads and the optimizer.
#include <algorithm>
#include <utility>

#include "sim/graph/megatron/megatron_builder.h"
#include "sim/graph/runtimes.h"

namespace foreshard {

Megatron::Megatron(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled)
    : GradientHooks(model, plan, programs, std::move(recycled), {plan.param_dtype, Log::kNone}) {
  find_norm_ranks();
  find_embedding_ranks();
  find_amaxes();
  lay_out();
}

// Each rank has its part of the norm: of its shard, or of its part of the model. (4 bytes: of ranks
// over tp and pp those of tp stand for all.)
void Megatron::find_norm_ranks() {
  const Mesh& mesh = plan_.mesh;
  if (!options().distributed_optimizer || !fuses()) {
    if (mesh.tp > 1 || mesh.pp > 1) norm_ranks_ = communicator_of(mesh.tp > 1 ? MeshDim::kTp : MeshDim::kPp);
    return;
  }
  norm_ranks_ = communicator_of_first("world", mesh.world());
}

// The one that there is of the first so many ranks, those behind them and so on; else a new one.
std::uint8_t Megatron::communicator_of_first(const char* name, std::int64_t ranks) {
  std::vector<Communicator>& list = graph().communicators;
  const auto known = std::ranges::find_if(
      list, [&](const Communicator& each) { return each.group.size == ranks && each.group.stride == 1; });
  const auto number = static_cast<std::uint8_t>(known - list.begin());
  if (known == list.end()) list.push_back({name, {ranks, 1}, false});
  return number;
}

// Delayed scaling: greatest values of all blocks' modules, attention's too, over all ranks of a stage
// where TransformerEngine's context ends (get_amax_reduction_group, reduce_and_update_fp8_tensors).
void Megatron::find_amaxes() {
  const std::int64_t ranks = plan_.mesh.stage_ranks();
  if (plan_.float8 != Float8::kDelayed || ranks == 1) return;
  for (std::int32_t l = 0; l < static_cast<std::int32_t>(model_.order.size()); ++l) {
    if (!is_block(l)) continue;
    for (const Operation& op : spec_of(l).operations) {
      const bool is_product = op.kind == OperationKind::kGemm && op.fp8 != Float8::kNone;
      const std::int64_t products = is_product ? op.groups : 0;
      const std::int64_t attentions = op.kind == OperationKind::kAttention ? 1 : 0;
      amax_bytes_forward_ += 4 * (3 * products + 9 * attentions);
      amax_bytes_backward_ += 4 * (2 * products + 6 * attentions);
    }
  }
  if (amax_bytes_forward_ > 0) amax_ranks_ = communicator_of_first("amax", ranks);
}

bool Megatron::is_block(std::int32_t layer) const {
  return layer >= 0 && layer < static_cast<std::int32_t>(model_.order.size()) &&
         spec_of(layer).role == LayerRole::kBlock;
}

EventGraph Megatron::build() {
  persistent_memory();
  const auto count = static_cast<std::int32_t>(plan_.batch.accumulation);
  for (const FlatBuffer& buffer : buffers_)  // zero_grad_buffer
    add_copy(EventKind::kAccumulate, Stream::kCompute, buffer.numel * gradient_size(), 1);
  if (plan_.mesh.pp > 1) run_pipeline();
  for (std::int32_t m = 0; m < count && plan_.mesh.pp == 1; ++m) {
    begin_pass(m, m);
    first_ = m == 0;
    last_ = m + 1 == count;
    run_forward();
    run_backward();
    if (!fuses()) add_gradients();
  }
  finalize_gradients();
  step();
  return finish();
}

// Weights are cast in the first micro-batch, in both layouts, and kept (TELinear.forward hands
// TransformerEngine is_first_microbatch); those that arrived in fp8 are transposed.
void Megatron::cast_weights(std::int32_t layer) {
  std::int64_t numel = 0, count = 0;
  for (const Operation& op : spec_of(layer).operations) {
    if (!op.fp8_weight) continue;
    numel += parameter(first_of_layer_[at(layer)] + op.parameters.front()).numel;
    ++count;
  }
  if (count == 0) return;
  const bool fp4 = plan_.float8 == Float8::kNvfp4;  // a kernel for each layout
  const bool asks_amax = fp4 || plan_.float8 == Float8::kCurrent;
  const std::int64_t reads = 1 + (fp4 ? 1 : 0) + (asks_amax ? 1 : 0);
  const std::int64_t moved =
      plan_.float8_all_gather ? 2 * numel : reads * 2 * numel + 2 * narrow_bytes(plan_.float8, numel);
  add_copy(EventKind::kQuantize, Stream::kCompute, moved, count);
}

// _forward_pre_hook: a module waits for the buckets that its parameters are in, then casts them.
void Megatron::forward_begins(std::int32_t layer) {
  const auto l = at(layer);
  if (amax_ranks_ != kNoCommunicator && is_block(layer - 1) && !is_block(layer))
    all_reduce(amax_ranks_, amax_bytes_forward_);
  if (!first_ || model_.order[l].same_as >= 0) return;
  if (gathers_beside())
    for (std::int32_t p = first_of_layer_[l]; p < first_of_layer_[l + 1]; ++p) finish_param_sync(place_of_[at(p)]);
  cast_weights(layer);
}

void Megatron::gradient_ready(std::int32_t p) { fuses() ? ready_.push_back(p) : keep_gradient(p); }

// A product that adds to the buffer reads and writes it, where its kernel was counted with one
// write in the compute dtype. Half of that is hidden by the product: it takes 0.48 of what
// the bytes would alone in 61 products on an A100, 0.33 in 144 on a B200 (medians of SimuMax's
// configs/system, layout=NT, accumulate=True beside TN and NN). Other gradients are tensors
// that are added one by one.
void Megatron::backward_ended(std::int32_t layer) {
  cut();
  if (amax_ranks_ != kNoCommunicator && is_block(layer)) {
    // A checkpoint is a context of its own.
    const bool is_checkpointed = recompute_of(layer) == Recompute::kFull;
    if (is_checkpointed) all_reduce(amax_ranks_, amax_bytes_forward_);
    if (is_checkpointed || !is_block(layer - 1)) all_reduce(amax_ranks_, amax_bytes_backward_);
    if (is_checkpointed && !is_block(layer + 1)) all_reduce(amax_ranks_, amax_bytes_backward_);
  }
  if (!fuses()) return;
  std::int64_t fused = 0, added = 0, launches = 0;
  for (const std::int32_t p : ready_) {
    const Parameter& each = parameter(p);
    std::int32_t gradient = gradient_buffer(p, pass());
    if (gradient == kNoBuffer || graph().buffer(gradient).bytes == Bytes(0)) {
      fused += each.numel;
    } else {
      added += each.numel;
      ++launches;
    }
  }
  if (fused > 0) {
    const std::int64_t more = 2 * gradient_size() - param_size();
    add_copy(EventKind::kAccumulate, Stream::kCompute, fused * more / 2, 0);
  }
  if (added > 0) {
    const std::int64_t moved = added * (2 * gradient_size() + param_size());
    add_copy(EventKind::kAccumulate, Stream::kCompute, moved, launches);
  }
  for (const std::int32_t p : std::exchange(ready_, {})) {
    std::int32_t gradient = gradient_buffer(p, pass());
    StepBuilder::free(gradient);
    const Place& place = place_of_[at(p)];
    FlatBuffer& buffer = buffers_[at(place.buffer)];
    for (std::int32_t b = place.bucket; b <= place.last_bucket; ++b) {
      Bucket& bucket = buffer.buckets[at(b)];
      const bool full = last_ && --bucket.missing == 0;
      if (full && options().overlap_grad_reduce) reduce(buffer, bucket);
    }
  }
}

// Tensors of their own, which DDP's hooks put into buckets in the last backward; a full one is added
// to the flat gradient and summed.
void Megatron::keep_gradient(std::int32_t p) {
  kept_.push_back(p);
  if (!fills_buckets()) return;
  const Place& place = place_of_[at(p)];
  FlatBuffer& buffer = buffers_[at(place.buffer)];
  Bucket& bucket = buffer.buckets[at(place.bucket)];
  if (--bucket.missing > 0) return;
  cut();
  if (buffer.ranks > 1) add_copy(EventKind::kGradientCopyIn, Stream::kCompute, 2 * bucket.numel * param_size(), 1);
  if (is_flat())
    add_copy(EventKind::kAccumulate, Stream::kCompute, bucket.numel * (2 * gradient_size() + param_size()), 1);
  reduce(buffer, bucket);
}

// Behind a backward: those that no bucket has added. Without a flat gradient they stay for the step.
void Megatron::add_gradients() {
  if (is_flat() && !fills_buckets()) {
    const auto numel = sum_of<std::int64_t>(kept_, [&](std::int32_t p) { return parameter(p).numel; });
    add_copy(EventKind::kAccumulate, Stream::kCompute, numel * (2 * gradient_size() + param_size()), std::ssize(kept_));
  }
  for (const std::int32_t p : kept_) {
    std::int32_t gradient = gradient_buffer(p, pass());
    if (gradient == kNoBuffer) continue;
    if (is_flat()) StepBuilder::free(gradient);
    else until_step_.push_back(gradient);
  }
  kept_.clear();
}

// finalize_model_grads: what was not reduced beside backward is now; then gradients of which each
// rank of tp has a part (_allreduce_non_tensor_model_parallel_grads).
void Megatron::finalize_gradients() {
  for (FlatBuffer& buffer : buffers_) {
    for (Bucket& bucket : buffer.buckets) {
      const bool reduced = (options().overlap_grad_reduce || !fuses()) && bucket.missing == 0;
      if (!reduced) reduce(buffer, bucket);
    }
  }
  wait(Stream::kCompute, tail(Stream::kReduceScatter));
  reduce_replicated_gradients();
  sum_table_gradients(gradient_size());  // (_allreduce_word_embedding_grads; the optimizer's shard is as it should be)
}

// Put side by side, summed over tp, put back.
void Megatron::reduce_replicated_gradients() {
  if (plan_.mesh.tp == 1) return;
  std::int64_t numel = 0, count = 0;
  for (const Parameter& p : parameters()) {
    const ParameterSpec& spec = spec_of(p.layer).parameters[at(p.index)];
    if (!p.used || !spec.partial) continue;
    numel += p.numel;
    ++count;
  }
  if (count == 0) return;
  const std::int64_t bytes = numel * gradient_size();
  std::int32_t flat = kNoBuffer;
  if (fuses()) {  // else coalesced
    add_copy(EventKind::kGradientCopyIn, Stream::kCompute, 2 * bytes, 1);
    flat = allocate(MemoryCategory::kCommTemp, Stream::kCompute, -1, Bytes(bytes));
  }
  wait(Stream::kTensor, tail(Stream::kCompute));
  wait(Stream::kCompute, StepBuilder::add_collective(
                             EventKind::kAllReduce, Stream::kTensor, communicator_of(MeshDim::kTp), Bytes(bytes), -1));
  if (fuses()) add_copy(EventKind::kGradientCopyOut, Stream::kCompute, 2 * bytes, count);
  StepBuilder::free(flat);
}

std::int64_t Megatron::shard_numel() const { return sum_of<std::int64_t>(buffers_, &FlatBuffer::own); }

// quantize_master_weights: shards that were cast to bf16 get the scales of all ranks, then fp8.
void Megatron::cast_shards() {
  for (FlatBuffer& buffer : buffers_) {
    if (buffer.narrow == 0) continue;
    const std::int64_t own = buffer.narrow / buffer.parts;
    const std::int64_t weights = (buffer.narrow_weights + buffer.parts - 1) / buffer.parts;
    if (plan_.float8 == Float8::kCurrent) add_copy(EventKind::kQuantize, Stream::kCompute, 2 * own, weights);
    if (buffer.ranks > 1) all_reduce(buffer.shards, 4 * buffer.narrow_weights);
    add_copy(EventKind::kQuantize, Stream::kCompute, 3 * own, weights);
  }
}

// MixedPrecisionOptimizer.step: the norm, which the host reads (get_grad_norm_fp32, .item()),
// clipping, FusedAdam on the fp32 shard and its cast into the parameters.
void Megatron::step() {
  const std::int64_t own = shard_numel();
  std::int32_t wide = kNoBuffer;
  if (gradient_size() != 4 && fuses()) {
    add_copy(EventKind::kAccumulate, Stream::kCompute, own * (gradient_size() + 4), 1);
    wide = allocate(MemoryCategory::kOptimizerTemp, Stream::kCompute, -1, Bytes(own * 4));
  }
  if (plan_.optimizer.clip_norm) {
    add_copy(EventKind::kGradNorm, Stream::kCompute, own * 4, 1);
    EventId norm = tail(Stream::kCompute);
    if (norm_ranks_ != kNoCommunicator) {
      wait(Stream::kAllReduce, norm);
      norm = StepBuilder::add_collective(EventKind::kAllReduce, Stream::kAllReduce, norm_ranks_, Bytes(4), -1);
      wait(Stream::kCompute, norm);
    }
    host_wait(norm);
    add_step_row(EventKind::kGradScale, Stream::kCompute);
  }
  add_step_row(EventKind::kOptimizer, Stream::kCompute);
  StepBuilder::free(wide);
  cast_shards();
  EventId last = tail(Stream::kCompute);
  if (options().distributed_optimizer && !fuses()) {
    last = gather_copies();
  } else if (options().distributed_optimizer && !gathers_beside()) {
    for (FlatBuffer& buffer : buffers_) {
      for (Bucket& bucket : buffer.buckets) {
        gather(buffer, bucket);
        if (bucket.gathered != kNoEvent) last = bucket.gathered;
      }
    }
    wait(Stream::kCompute, last);
  }
  for (std::int32_t gradient : std::exchange(until_step_, {})) StepBuilder::free(gradient);
  if (plan_.host_sync == HostSync::kStep) graph().final_host_wait = last;
}

// Of parameters that are tensors of their own: their parts side by side, gathered into a list that
// NCCL's buffer is copied to, and put back (nanotron, distributed.py, all_gather_coalesced).
EventId Megatron::gather_copies() {
  for (const FlatBuffer& buffer : buffers_) {
    if (buffer.parts == 1) continue;
    const std::int64_t bytes = buffer.numel * param_size();
    const auto temporary = [&](std::int64_t size) {
      return allocate(MemoryCategory::kOptimizerTemp, Stream::kCompute, -1, Bytes(size));
    };
    std::int32_t own = temporary(buffer.own * param_size()), list = temporary(bytes), all = temporary(bytes);
    add_copy(EventKind::kGradientCopyIn, Stream::kCompute, 2 * (bytes + buffer.own * param_size()), 1);
    wait(Stream::kAllGather, tail(Stream::kCompute));
    wait(Stream::kCompute,
        StepBuilder::add_collective(EventKind::kAllGather, Stream::kAllGather, buffer.shards, Bytes(bytes), -1));
    add_copy(EventKind::kGradientCopyOut, Stream::kCompute, 4 * bytes, 2 * std::ssize(parameters()));
    for (std::int32_t* each : {&own, &list, &all}) StepBuilder::free(*each);
  }
  return tail(Stream::kCompute);
}

Megatron::UnitWork Megatron::step_work(EventKind kind) const { return master_step_work(kind, shard_numel()); }

EventGraph build_megatron(
    const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled) {
  return Megatron(model, plan, programs, std::move(recycled)).build();
}

}
