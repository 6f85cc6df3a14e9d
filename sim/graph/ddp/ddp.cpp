// One step. Copies into buckets are written where a bucket closes, behind what backward has run until then; gradients
// that become views of a bucket are freed there or with their layer's end, a little later than in PyTorch.
//
// The first iteration has one bucket per dtype, so that nothing overlaps; buckets are assigned anew
// at the next forward, in the order in which gradients were ready. static_graph counts hooks in the
// first iteration, reduces when backward is done, and rebuilds an iteration later.
// A bucket_cap_mb of 0 is a model that is not wrapped, as trainers leave it on one rank
// (Accelerate's prepare_model, Lightning's single-device strategy): no buckets, no broadcasts.
//
// find_unused_parameters has its buckets from the start, marks what backward will not reach with
// the first gradient, and reduces a map of what was used.
#include <algorithm>
#include <utility>

#include "sim/base/lookup.h"
#include "sim/graph/ddp/ddp_builder.h"
#include "sim/graph/runtimes.h"

namespace foreshard {
namespace {

constexpr Stream kReducing = Stream::kAllReduce;  // the process group's stream
constexpr std::int64_t kInt32 = 4;

}

Ddp::Ddp(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled, Log keep)
    : GradientHooks(model, plan, programs, std::move(recycled), {plan.master_dtype, keep}), unused_(unused()) {
  cast_.assign(model.order.size(), kNoBuffer);
  is_in_bucket_.assign(parameters().size(), false);
  if (options().zero_redundancy_optimizer) partition_ = partition_by_size(parameters(), plan.mesh.replicate);
}

DdpState Ddp::steady() const { return {2, rebuilds(), true, true}; }

LibraryStep Ddp::build(DdpState& state) {
  buckets_ = buckets_of(state.rebuilt);
  persistent_memory(state.stepped);
  const auto count = static_cast<std::int32_t>(plan_.batch.accumulation);
  for (std::int32_t m = 0; m < count; ++m) {
    begin_pass(m, m);
    synchronises_ = plan_.accumulation == AccumulationMode::kReduceEach || m + 1 == count;
    pre_forward(state);
    run_forward();
    prepare_reduction();
    run_backward();
    if (!synchronises_) {
      if (copies_parameters()) drop_copies();
      continue;
    }
    if (delays_) reduce_delayed();
    finalize_backward();
    ++state.reductions;
  }
  optimizer(state.stepped);
  state.stepped = true;
  return {finish(), take_log()};
}

void Ddp::pre_forward(DdpState& state) {
  delays_ = !alone() && options().static_graph && state.reductions == 0;
  const std::int64_t needed = options().static_graph ? 2 : 1;
  if (!alone() && rebuilds() && !state.rebuilt && state.reductions >= needed) {
    rebuild();
    state.rebuilt = true;
  }
  // _sync_buffers, unless the forward before was under no_sync().
  if (!alone() && options().broadcast_buffers && model_.buffer_elements > 0 && state.synchronised) {
    const std::int64_t bytes = model_.buffer_elements * size_of(plan_.master_dtype);
    wait(kReducing, tail(Stream::kCompute));
    wait(Stream::kCompute, add_collective(EventKind::kBroadcast, kReducing, bytes, kReplicate));
    log_collective("broadcast", bytes, torch_word(plan_.master_dtype), "root=0");
  }
  state.synchronised = synchronises_;
  if (!copies_parameters()) return;
  // _root_copy_hook: every module's copies, before the forward of the first.
  const std::int64_t sizes = size_of(plan_.master_dtype) + size_of(plan_.param_dtype);
  for (std::int32_t l = 0; l < static_cast<std::int32_t>(model_.order.size()); ++l) {
    if (model_.order[at(l)].same_as >= 0) continue;
    std::int64_t numel = 0, count = 0;
    for (const ParameterSpec& p : spec_of(l).parameters) {
      numel += p.tied ? 0 : p.numel();
      count += p.tied ? 0 : 1;
    }
    if (numel == 0) continue;
    wait(Stream::kCopyIn, tail(Stream::kCompute));
    add_copy(EventKind::kQuantize, Stream::kCopyIn, numel * sizes, count);
    cast_[at(l)] =
        allocate(MemoryCategory::kUnshardedParam, Stream::kCopyIn, -1, Bytes(numel * size_of(plan_.param_dtype)));
  }
}

// sync_bucket_indices tells every rank what rank 0 has found.
void Ddp::rebuild() {
  for (std::int32_t& buffer : bucket_buffers_) StepBuilder::free(buffer);
  buckets_ = buckets_of(/*rebuilt=*/true);
  const auto indices = static_cast<std::int64_t>(trained().size()) + 1;
  for (const std::int64_t elements : {indices, std::ssize(buckets_)}) {
    wait(kReducing, tail(Stream::kCompute));
    add_collective(EventKind::kBroadcast, kReducing, elements * kInt32, kReplicate);
    log_collective("broadcast", elements * kInt32, "int32", "root=0");
  }
  wait(Stream::kCompute, tail(kReducing));
  allocate_buckets(/*persistent=*/false);
}

// --- forward ---

// (It has no rule for the grouped products of transformers' experts.)
bool Ddp::is_cast(std::int32_t layer, std::size_t p) const {
  const LayerSpec& spec = spec_of(layer);
  const ParameterSpec& parameter = spec.parameters[p];
  const bool is_grouped = parameter.shape.size() == 3 && plan_.experts == ExpertKernels::kTransformers;
  if (parameter.is_norm || parameter.stored_as_computed || is_grouped) return false;
  if (spec.role != LayerRole::kEmbedding && spec.role != LayerRole::kInner) return true;
  return std::ranges::any_of(spec.operations, [&](const Operation& op) {
    return op.kind == OperationKind::kGemm && contains(op.parameters, static_cast<Index>(p));
  });
}

// Autocast casts the weights of matrix products once a forward. It lets go of them at its end, which is that of the
// forward; backward keeps those of blocks that are not checkpointed, a checkpointed one makes them again. Of what is
// not trained nothing is kept for a second use, only what a product of backward reads.
std::int64_t Ddp::cast_elements(std::int32_t layer) const {
  const LayerSpec& spec = spec_of(layer);
  // A loss that takes the head's product by parts casts them itself.
  if (spec.role == LayerRole::kHead && plan_.loss.kind == Loss::Kind::kTiledLinear) return 0;
  std::int64_t elements = 0;
  for (std::size_t p = 0; p < spec.parameters.size(); ++p)
    elements += is_cast(layer, p) ? spec.parameters[p].numel() : 0;
  return elements;
}

void Ddp::forward_begins(std::int32_t layer) {
  if (copies_parameters()) return wait(Stream::kCompute, tail(Stream::kCopyIn));
  if (pass() == reference_pass() && plan_.reference_dtype == plan_.param_dtype) return;
  // (Autocast's cache has what an earlier call of the same modules cast.)
  if (casts() && model_.order[at(layer)].same_as < 0) cast_weights(layer, recompute_of(layer) != Recompute::kFull);
}

void Ddp::forward_ended() {
  if (!casts() || copies_parameters()) return;
  for (std::size_t l = 0; l < cast_.size(); ++l)
    if (recompute_of(static_cast<std::int32_t>(l)) == Recompute::kFull) StepBuilder::free(cast_[l]);
}

// Autocast around another forward, whose casts go with it.
void Ddp::reference_begins() {
  trained_cast_ = std::exchange(cast_, std::vector<std::int32_t>(cast_.size(), kNoBuffer));
}

void Ddp::reference_ended() {
  for (std::int32_t& cast : cast_) StepBuilder::free(cast);
  cast_ = std::move(trained_cast_);
}

void Ddp::recompute_begins(std::int32_t layer) {
  const bool again = recompute_of(layer) == Recompute::kFull && !copies_parameters();
  if (casts() && again) cast_weights(layer, true);
}

void Ddp::cast_weights(std::int32_t layer, bool is_read_again) {
  const std::int64_t elements = cast_elements(layer);
  if (elements == 0) return;
  const std::int64_t sizes = size_of(plan_.master_dtype) + size_of(plan_.param_dtype);
  const auto count = static_cast<std::int64_t>(spec_of(layer).parameters.size());
  add_copy(EventKind::kQuantize, Stream::kCompute, elements * sizes, count);
  std::vector<Bytes> casts;
  const std::vector<ParameterSpec>& parameters = spec_of(layer).parameters;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    if (!is_cast(layer, p) || !(is_read_again || is_trained(layer, parameters[p]))) continue;
    casts.push_back(allocated_size(parameters[p].numel() * size_of(plan_.param_dtype)));
  }
  if (casts.empty()) return;
  cast_[at(layer)] = allocate_parts(MemoryCategory::kUnshardedParam, -1, add_part_list(std::move(casts)));
}

void Ddp::backward_ended(std::int32_t layer) {
  if (is_view()) copy_in();
  if (casts() && !copies_parameters()) StepBuilder::free(cast_[at(layer)]);
}

// --- backward ---

void Ddp::prepare_reduction() {
  next_bucket_ = 0;
  marked_unused_ = false;
  used_map_ = kNoEvent;
  ready_.clear();
  reductions_.assign(buckets_.size(), {});
  bucket_of_.assign(parameters().size(), -1);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    reductions_[b].pending = static_cast<std::int32_t>(buckets_[b].parameters.size());
    for (const std::int32_t p : buckets_[b].parameters) bucket_of_[at(p)] = static_cast<std::int32_t>(b);
  }
}

void Ddp::gradient_ready(std::int32_t p) {
  if (plan_.optimizer.in_backward) step_now(p);
  if (alone() || !synchronises_ || delays_) return;
  if (!std::exchange(marked_unused_, true))
    for (const std::int32_t other : unused_) mark_ready(other);
  mark_ready(p);
}

// An optimizer of its own in a hook behind the gradient, which goes with its step.
void Ddp::step_now(std::int32_t p) {
  cut();
  const std::int64_t state = parameter(p).numel * size_of(plan_.optimizer.state);
  add_copy(EventKind::kOptimizer, Stream::kCompute, 3 * parameter(p).bytes() + 4 * state, 1);
  const bool is_fused = plan_.optimizer.implementation == Optimizer::Implementation::kFused;
  if (plan_.optimizer.kind == Optimizer::Kind::kAdamW && !is_fused) {
    std::int32_t root = allocate(MemoryCategory::kOptimizerTemp, Stream::kCompute, -1, Bytes(state));
    StepBuilder::free(root);
  }
  std::int32_t gradient = gradient_buffer(p, 0);
  StepBuilder::free(gradient);
}

void Ddp::mark_ready(std::int32_t p) {
  ready_.push_back(p);
  --reductions_[at(bucket_of_[at(p)])].pending;
  const std::size_t first = next_bucket_;
  while (next_bucket_ < buckets_.size() && reductions_[next_bucket_].pending == 0) all_reduce(next_bucket_++);
  if (next_bucket_ == buckets_.size() && first < next_bucket_ && finds_unused()) reduce_used_map();
}

// mark_variable_ready_dense for all that became ready since the last call.
void Ddp::copy_in() {
  cut();
  if (ready_.empty()) return;
  std::int64_t moved = 0;
  for (const std::int32_t p : ready_)  // what is not there is zeroed
    moved += (parameter(p).used ? 2 : 1) * gradient_bytes(parameter(p));
  add_copy(EventKind::kGradientCopyIn, Stream::kCompute, moved, std::ssize(ready_));
  for (const std::int32_t p : ready_) {
    if (!is_view() || !parameter(p).used || is_in_bucket_[at(p)]) continue;
    is_in_bucket_[at(p)] = true;
    std::int32_t gradient = gradient_buffer(p, 0);
    StepBuilder::free(gradient);
  }
  ready_.clear();
}

DType Ddp::wire_dtype(const DdpBucket& bucket) const {
  if (copies_parameters()) return plan_.reduce_dtype;
  const bool narrower = size_of(plan_.reduce_dtype) < size_of(plan_.master_dtype);
  return narrower ? plan_.reduce_dtype : bucket.dtype;
}

std::int64_t Ddp::buffer_bytes(const DdpBucket& bucket) const {
  return bucket.bytes / size_of(bucket.dtype) * size_of(bucket_dtype(bucket));
}

// With another dtype on the wire a hook casts before, and back: bf16_compress_hook, or that of _MixedPrecision.
void Ddp::all_reduce(std::size_t b) {
  copy_in();
  const DdpBucket& bucket = buckets_[b];
  const DType held = bucket_dtype(bucket), wire = wire_dtype(bucket);
  const std::int64_t numel = bucket.bytes / size_of(bucket.dtype);
  const std::int64_t bytes = numel * size_of(wire);
  std::int32_t cast = kNoBuffer;
  if (held != wire) {
    add_copy(EventKind::kQuantize, Stream::kCompute, numel * (size_of(held) + size_of(wire)), 1);
    cast = allocate(MemoryCategory::kCastTemp, Stream::kCompute, -1, Bytes(bytes));
  }
  wait(kReducing, tail(Stream::kCompute));
  reductions_[b].event = add_collective(EventKind::kAllReduce, kReducing, bytes, kReplicate);
  log_collective("all_reduce", bytes, torch_word(wire), "op=SUM");
  if (held == wire) return;
  reductions_[b].event = add_copy(EventKind::kDequantize, kReducing, numel * (size_of(held) + size_of(wire)), 1);
  StepBuilder::free(cast);
}

void Ddp::reduce_used_map() {
  const std::int64_t bytes = static_cast<std::int64_t>(trained().size()) * kInt32;
  wait(kReducing, tail(Stream::kCompute));
  used_map_ = add_collective(EventKind::kAllReduce, kReducing, bytes, kReplicate);
  log_collective("all_reduce", bytes, "int32", "op=SUM");
}

// delay_all_reduce: the callback at the end of static_graph's first backward.
void Ddp::reduce_delayed() {
  reduce_used_map();
  for (const DdpBucket& bucket : buckets_) append(ready_, bucket.parameters);
  copy_in();
  for (std::size_t b = 0; b < buckets_.size(); ++b) all_reduce(b);
}

// What nobody used is known when the map is back on the host, which waits for it. _MixedPrecision
// casts gradients to the stored dtype here, and lets go of its copies of the parameters.
void Ddp::finalize_backward() {
  bool awaits_map = !unused_.empty() && used_map_ != kNoEvent;
  const bool is_last = microbatch() + 1 == static_cast<std::int32_t>(plan_.batch.accumulation);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    wait(Stream::kCompute, reductions_[b].event);
    std::int64_t bytes = 0, numel = 0, count = 0;
    bool has_unused = false;
    for (const std::int32_t p : buckets_[b].parameters) {
      has_unused |= !parameter(p).used;
      if (!parameter(p).used) continue;
      bytes += gradient_bytes(parameter(p));
      numel += parameter(p).numel;
      ++count;
    }
    if (has_unused && std::exchange(awaits_map, false)) host_wait(used_map_);
    if (is_view() || count == 0) continue;
    const bool widens = copies_parameters() && is_last;
    const std::int64_t wide = numel * size_of(plan_.master_dtype);
    add_copy(EventKind::kGradientCopyOut, Stream::kCompute, widens ? bytes + wide : 2 * bytes, count);
    if (!widens) continue;
    wide_gradients_.push_back(allocate(MemoryCategory::kUnshardedGrad, Stream::kCompute, -1, Bytes(wide)));
    for (const std::int32_t p : buckets_[b].parameters) {
      if (!parameter(p).used) continue;
      is_in_bucket_[at(p)] = true;
      std::int32_t gradient = gradient_buffer(p, 0);
      StepBuilder::free(gradient);
    }
  }
  if (copies_parameters()) drop_copies();
}

void Ddp::drop_copies() {
  for (std::int32_t& copy : cast_) StepBuilder::free(copy);
}

EventGraph build_ddp(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled) {
  Ddp ddp(model, plan, programs, std::move(recycled), GradientHooks::Log::kNone);
  DdpState state = ddp.steady();
  return std::move(ddp.build(state).graph);
}

}
