// One micro-batch. Stage 2 and overlap_comm act in the hooks of gradients; stage 1 without overlap
// keeps them until backward is done and fills its buckets in the order of registration. Stage 1
// reduces in the last micro-batch only, stage 2 in each.
//
// Copies into a bucket are written once a layer, so that gradients go soon after they are made.
#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "sim/graph/optimizer_state.h"
#include "sim/graph/runtimes.h"
#include "sim/graph/zero/zero12_builder.h"

namespace foreshard {

Zero12::Zero12(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled, Log keep)
    : GradientHooks(model, plan, programs, std::move(recycled), {plan.param_dtype, keep}),
      rank_(plan.mesh.shard_index(plan.rank())),
      alive_(parameters().size(), false) {
  lay_out_groups();
  find_embedding_ranks();
  if (plan.mesh.replicate == 1) return;
  world_ = static_cast<std::uint8_t>(graph().communicators.size());
  graph().communicators.push_back({"world", {plan.mesh.stage_ranks(), 1}, false});
}

// Parameters as the model lists them: PipelineModule its tied modules first.
std::vector<std::int32_t> Zero12::in_order() const {
  std::vector<std::int32_t> order(parameters().size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_partition(order,
      [&](std::int32_t p) { return spec_of(parameter(p).layer).parameters[at(parameter(p).index)].in_two_stages; });
  return order;
}

void Zero12::lay_out_groups() {
  const bool by_decay = plan_.optimizer.groups == Optimizer::Groups::kDecay;
  std::array<std::vector<std::int32_t>, 2> members;
  for (const std::int32_t p : in_order()) {
    const Parameter& each = parameter(p);
    if (!each.trained) continue;
    const auto& spec = spec_of(each.layer).parameters[at(each.index)];
    members[by_decay && !decays(spec) ? 1 : 0].push_back(p);
  }
  for (std::vector<std::int32_t>& order : members) {
    if (order.empty() && !groups_.empty()) continue;
    groups_.push_back(lay_out(parameters(), std::move(order), plan_.mesh.fsdp(), options().round_robin_gradients));
  }
}

std::int64_t Zero12::total(std::int64_t ZeroPartition::*of) const {
  return sum_of<std::int64_t>(
      groups_, [&](const ZeroPartition& group) { return group.*of; });
}

std::int64_t Zero12::own_numel(std::int32_t p) const {
  for (const ZeroPartition& group : groups_) {
    if (!group.has(p)) continue;
    const std::int64_t begin = group.offset[at(p)];
    const std::int64_t first = rank_ * group.partition_numel;
    const std::int64_t from = std::max(begin, first);
    const std::int64_t to = std::min(begin + parameter(p).numel, first + group.partition_numel);
    return std::max<std::int64_t>(to - from, 0);
  }
  return 0;
}

std::int64_t Zero12::own_elements() const {
  std::int64_t elements = 0;
  for (std::size_t p = 0; p < parameters().size(); ++p) {
    const auto number = static_cast<std::int32_t>(p);
    elements += is_own(number) ? parameter(number).numel : 0;
  }
  return elements;
}

LibraryStep Zero12::build(bool stepped) {
  persistent_memory(stepped);
  if (is_pipeline()) sum_losses();
  const auto count = static_cast<std::int32_t>(plan_.batch.accumulation);
  if (is_pipeline()) run_pipeline();
  for (std::int32_t m = 0; m < count && !is_pipeline(); ++m) {
    begin_pass(m, m);
    boundary_ = m + 1 == count;
    run_forward();
    run_backward();
    if (is_bf16_optimizer()) {
      add_to_flat_gradient();
      if (boundary_) reduce_flat_gradient();
    } else if (partitions_gradients() || boundary_) {
      epilogue();
    }
    log({.kind = "engine_step", .note = boundary_ ? "boundary=1" : "boundary=0"});
  }
  step(stepped);
  log({.kind = "step_done"});
  return {finish(), take_log()};
}

// --- hooks ---

void Zero12::gradient_ready(std::int32_t p) {
  alive_[at(p)] = true;
  if (!has_hooks() || is_bf16_optimizer()) return;
  set_up_buckets();
  if (reduces_in_hooks() && (partitions_gradients() || boundary_)) add_to_bucket(p);
}

void Zero12::backward_ended(std::int32_t) {
  if (reduces_in_hooks() && !is_bf16_optimizer()) copy_in();
}

// Buffers of the whole reduce_bucket_size, however small the model.
void Zero12::set_up_buckets() {
  if (std::exchange(ready_for_gradients_, true) || !is_contiguous()) return;
  bucket_.slot = 0;
  cut();
  const Bytes bytes(checked_multiply(options().reduce_bucket_size, gradient_size()));
  for (int slot = 0; slot < (overlaps() ? 2 : 1); ++slot)
    bucket_buffers_.push_back(allocate(MemoryCategory::kReduceScatterInput, Stream::kCompute, -1, bytes));
}

// reduce_independent_p_g_buckets_and_remove_grads. A parameter larger than the bucket empties it
// even where it is empty, and goes alone from where it lies.
void Zero12::add_to_bucket(std::int32_t p) {
  const std::int64_t numel = parameter(p).numel;
  if (bucket_.elements + numel > options().reduce_bucket_size) {
    reduce_ipg_grads();
    if (is_contiguous() && overlaps()) bucket_.slot = 1 - bucket_.slot;
  }
  if (is_contiguous() && numel <= options().reduce_bucket_size) to_copy_.push_back(p);
  bucket_.elements += numel;
  bucket_.parameters.push_back(p);
}

void Zero12::copy_in() {
  cut();
  if (to_copy_.empty()) return;
  std::int64_t elements = 0;
  for (const std::int32_t p : to_copy_) elements += parameter(p).numel;
  add_copy(EventKind::kGradientCopyIn, Stream::kCompute, 2 * elements * gradient_size(), std::ssize(to_copy_));
  for (const std::int32_t p : to_copy_) free_gradient(p);
  to_copy_.clear();
}

// Stage 1 adds to the gradients of the first micro-batch, stage 2 drops each micro-batch's.
void Zero12::free_gradient(std::int32_t p) {
  if (!alive_[at(p)]) return;
  alive_[at(p)] = false;
  std::int32_t gradient = gradient_buffer(p, partitions_gradients() ? pass() : 0);
  StepBuilder::free(gradient, is_contiguous() ? StreamSet{0} : recorded());
}

void Zero12::reduce_ipg_grads() {
  copy_in();
  if (logging()) list_bucket();
  if (!bucket_.parameters.empty()) {
    average_tensor();
    take_own_parts();
  }
  bucket_.parameters.clear();
  bucket_.elements = 0;
}

// independent_gradient_partition_epilogue.
void Zero12::epilogue() {
  if (!reduces_in_hooks()) {
    for (const ZeroPartition& group : groups_)
      for (const std::int32_t p : in_order())
        if (group.has(p) && parameter(p).used) add_to_bucket(p);
  }
  reduce_ipg_grads();
  if (overlaps()) host_wait(tail(reducing()));  // synchronize()
  keep_own_gradients();
  for (std::int32_t& buffer : bucket_buffers_) StepBuilder::free(buffer, recorded());
  bucket_buffers_.clear();
  ready_for_gradients_ = false;
  for (std::size_t p = 0; p < parameters().size(); ++p) free_gradient(static_cast<std::int32_t>(p));
}

// What the step will read: the contiguous copy, or the gradients of the partition's parameters.
// Later micro-batches are added to it.
void Zero12::keep_own_gradients() {
  if (sums_in_fp32() || offloads()) return;
  if (averaged_ == kNoBuffer && kept_.empty()) {
    averaged_ = std::exchange(own_gradients_, kNoBuffer);
    for (std::size_t p = 0; p < parameters().size() && !is_contiguous(); ++p) {
      const auto number = static_cast<std::int32_t>(p);
      if (!alive_[p] || !is_own(number)) continue;
      alive_[p] = false;
      kept_.push_back(gradient_buffer(number, partitions_gradients() ? pass() : 0));
    }
    return;
  }
  wait(Stream::kCompute, tail(reducing()));
  add_copy(EventKind::kAccumulate, Stream::kCompute, 3 * own_elements() * gradient_size(), 1);
  StepBuilder::free(own_gradients_);
}

EventGraph build_zero12(const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, EventGraph recycled) {
  Zero12 zero(model, plan, programs, std::move(recycled), GradientHooks::Log::kNone);
  return std::move(zero.build(/*stepped=*/true).graph);
}

LibraryRun record_zero12(
    const ModelSpec& model, const Plan& plan, const LayerPrograms& programs, const LibraryWatch& watch) {
  LibraryRun run;
  for (std::int32_t step = 1; step <= watch.steps; ++step) {
    Zero12 zero(model, plan, programs, {}, GradientHooks::Log::kKept);
    if (step == 1) run.construction = zero.construction();
    run.steps.push_back(zero.build(step > 1));
    if (step < watch.steps) continue;
    run.buckets = zero.take_buckets();
    for (LibraryBucket& bucket : run.buckets) bucket.phase = "step" + std::to_string(step);
    zero.list_facts(run);
  }
  return run;
}

}
