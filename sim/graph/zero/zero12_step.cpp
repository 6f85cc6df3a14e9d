// What ZeRO-1 and 2 hold, DeepSpeedZeroOptimizer.step() and what a recording lists.
//
// The step reads its gradients twice before it uses them: a byte of overflow and the norm are
// all-reduced, with or without clipping, and the host reads both. Then of each group the
// partition's gradients are concatenated and cast to fp32, the optimizer steps one flat tensor, and
// its result is cast into the flat group; each is gathered in place by one collective.
#include <algorithm>
#include <utility>

#include "sim/graph/zero/zero12_builder.h"

namespace foreshard {

void Zero12::persistent_memory(bool stepped) {
  const std::int64_t own = total(&ZeroPartition::partition_numel);
  const std::int64_t flat = total(&ZeroPartition::flat_numel);
  const auto hold = [&](MemoryCategory category, std::int64_t bytes, bool on_host) {
    allocate_persistent(category, -1, Bytes(bytes));
    graph().buffers.back().on_host = on_host;
  };
  std::int64_t frozen = 0, largest = 0;
  for (const Parameter& p : parameters()) {
    frozen += p.trained ? 0 : p.bytes();
    if (p.trained) largest = std::max(largest, p.bytes());
  }
  for (const ZeroPartition& group : groups_)
    hold(MemoryCategory::kUnshardedParam, group.flat_numel * param_size(), false);
  if (frozen > 0) hold(MemoryCategory::kUnshardedParam, frozen, false);
  for (const std::int64_t bytes : resident_bytes()) hold(MemoryCategory::kUnshardedParam, bytes, false);
  hold_reference();
  for (const ZeroPartition& group : groups_) hold(MemoryCategory::kShardedParam, group.partition_numel * 4, offloads());
  for (const ZeroPartition& group : groups_)
    for (int moment = 0; moment < moments() && stepped; ++moment)
      hold(MemoryCategory::kOptimizerState, group.partition_numel * size_of(plan_.optimizer.state), offloads());
  if (is_bf16_optimizer()) hold(MemoryCategory::kAccumulatedGrad, flat * gradient_size(), false);
  if (is_pipeline()) hold_pipe_buffers();
  if (!offloads()) return;
  hold(MemoryCategory::kShardedGrad, own * 4, true);
  hold(MemoryCategory::kShardedParam, own * param_size(), true);  // what goes back to the device
  hold(MemoryCategory::kCommTemp, largest, true);
  hold(MemoryCategory::kCommTemp, largest, false);  // temp_grad_buffer_for_gpu_offload
  if (plan_.batch.accumulation < 2) return;
  std::int64_t accumulated = 0;
  for (std::size_t p = 0; p < parameters().size(); ++p)
    if (is_own(static_cast<std::int32_t>(p))) accumulated += parameters()[p].bytes();
  if (accumulated > 0) hold(MemoryCategory::kAccumulatedGrad, accumulated, true);
}

std::int64_t Zero12::largest_own_slice(const ZeroPartition& group) const {
  std::int64_t largest = 0;
  for (std::size_t p = 0; p < parameters().size(); ++p) {
    const auto number = static_cast<std::int32_t>(p);
    if (group.has(number)) largest = std::max(largest, own_numel(number));
  }
  return largest;
}

// A result that every rank learns and the host reads.
void Zero12::all_reduce_result(std::int64_t bytes, const char* dtype, const char* note) {
  EventId known = collective(EventKind::kAllReduce, bytes, Stream::kCompute);
  if (is_pipeline()) known = all_reduce(communicator_of(MeshDim::kPp), bytes);
  host_wait(known);
  log_collective("all_reduce", bytes, dtype, note);
}

void Zero12::step(bool stepped) {
  if (is_bf16_optimizer()) return step_of_bf16(stepped);
  wait(Stream::kCompute, tail(reducing()));
  if (offloads()) host_wait(tail(reducing()));
  const std::int64_t own = total(&ZeroPartition::partition_numel);
  if (sums_in_fp32() && averaged_ == kNoBuffer && !offloads())
    averaged_ = allocate(MemoryCategory::kShardedGrad, Stream::kCompute, -1, Bytes(own * 4));
  const std::int64_t averaged = sums_in_fp32() ? 4 : param_size();
  if (plan_.param_dtype != DType::kFp32) {
    if (!offloads())  // the largest and the smallest value
      add_copy(EventKind::kGradNorm, Stream::kCompute, 2 * own * averaged, 2);
    all_reduce_result(1, "uint8", "has_overflow op=MAX");
  }
  for (const ZeroPartition& group : groups_) {
    if (!offloads()) {
      add_copy(EventKind::kGradNorm, Stream::kCompute, group.partition_numel * (averaged + 16), 2);
      std::int32_t wide =
          allocate(MemoryCategory::kOptimizerTemp, Stream::kCompute, -1, Bytes(largest_own_slice(group) * 8));
      StepBuilder::free(wide);
    }
    all_reduce_result(4, "float32", "scaled_global_norm op=SUM");
  }
  for (std::size_t g = 0; g < groups_.size(); ++g)
    if (offloads()) step_on_host(groups_[g]);
    else step_on_device(g, stepped);
  gather();
}

void Zero12::gather() {
  for (const ZeroPartition& group : groups_) {
    if (group.ranks == 1) continue;
    const std::int64_t bytes = group.flat_numel * param_size();
    const EventId gathered = collective(EventKind::kAllGather, bytes, Stream::kCompute);
    log({.kind = "all_gather",
        .bytes_in = bytes / group.ranks,
        .bytes_out = bytes,
        .dtype = torch_word(plan_.param_dtype),
        .group = group_word(plan_.rank() - rank_, group.ranks, 1, plan_.mesh.world()),
        .note = is_bf16_optimizer() ? "in_place" : "all_gather_dp_groups in_place"});
    if (plan_.host_sync == HostSync::kStep) graph().final_host_wait = gathered;
  }
}

EventId Zero12::step_row(EventKind kind, const ZeroPartition& group) {
  stepped_ = &group;
  if (groups_.size() == 1) return add_step_row(kind, Stream::kCompute);
  return add_row(kind, Stream::kCompute, new_work(kind, step_work(kind)), -1);
}

Zero12::UnitWork Zero12::step_work(EventKind kind) const { return master_step_work(kind, stepped_->partition_numel); }

void Zero12::step_on_device(std::size_t g, bool stepped) {
  const ZeroPartition& group = groups_[g];
  const bool last = g + 1 == groups_.size();  // whose gradients share their memory with the others'
  const std::int64_t own = group.partition_numel;
  const bool wide = sums_in_fp32() || plan_.param_dtype == DType::kFp32;
  std::int32_t flat = kNoBuffer, gradient = kNoBuffer;
  if (sums_in_fp32()) {
    if (last) gradient = std::exchange(averaged_, kNoBuffer);
  } else {
    add_copy(EventKind::kGradientCopyIn, Stream::kCompute, 2 * own * param_size(), 1);
    flat = allocate(MemoryCategory::kOptimizerTemp, Stream::kCompute, -1, Bytes(own * param_size()));
    if (wide) {
      gradient = std::exchange(flat, kNoBuffer);
    } else {
      add_copy(EventKind::kAccumulate, Stream::kCompute, own * (param_size() + 4), 1);
      gradient = allocate(MemoryCategory::kOptimizerTemp, Stream::kCompute, -1, Bytes(own * 4));
      StepBuilder::free(flat);
    }
    if (last) {
      StepBuilder::free(averaged_);
      for (std::int32_t& kept : kept_) StepBuilder::free(kept);
      kept_.clear();
    }
  }
  if (plan_.optimizer.clip_norm || plan_.param_dtype == DType::kFp16) step_row(EventKind::kGradScale, group);
  step_partition(group, stepped);
  StepBuilder::free(gradient);
}

void Zero12::step_partition(const ZeroPartition& group, bool stepped) {
  const EventId last = step_row(EventKind::kOptimizer, group);
  const bool adam = plan_.optimizer.kind == Optimizer::Kind::kAdamW;
  const Bytes moment(group.partition_numel * size_of(plan_.optimizer.state));
  for (int m = 0; m < moments() && !stepped; ++m)
    allocate(MemoryCategory::kOptimizerState, Stream::kCompute, -1, moment);
  if (adam && plan_.optimizer.implementation != Optimizer::Implementation::kFused) {
    const auto temporary = [&] { return allocate(MemoryCategory::kOptimizerTemp, Stream::kCompute, -1, moment); };
    std::int32_t root = temporary();  // foreach divides it in place
    const bool loops = plan_.optimizer.implementation == Optimizer::Implementation::kLoop;
    std::int32_t divisor = loops ? temporary() : kNoBuffer;
    StepBuilder::free(root);
    StepBuilder::free(divisor);
  }
  if (plan_.host_sync == HostSync::kStep) graph().final_host_wait = last;
}

// The host has its gradients (_wait_for_offload_copies): it scales, steps and casts, and copies the result over.
void Zero12::step_on_host(const ZeroPartition& group) {
  step_row(EventKind::kHostOptimizer, group);
  add_copy(EventKind::kHostToDevice, Stream::kCompute, 2 * group.partition_numel * param_size(), 1);
}

// --- what a recording lists ---

// Each parameter by itself, as bytes.
std::vector<LibraryEvent> Zero12::construction() {
  take_log();
  for (const Parameter& p : parameters()) log_collective("broadcast", p.bytes(), "uint8", "root=0");
  return take_log();
}

// Storage behind averaged_gradients when backward is done.
std::int64_t Zero12::averaged_gradient_bytes() const {
  if (sums_in_fp32()) return total(&ZeroPartition::partition_numel) * 4;
  if (offloads()) return 0;
  std::int64_t bytes = sum_of<std::int64_t>(
      groups_, [&](const ZeroPartition& group) { return group.padding(rank_) * size_of(plan_.param_dtype); });
  std::int64_t own = 0, unused = 0;
  bool any_used = false;
  for (std::size_t p = 0; p < parameters().size(); ++p) {
    if (!is_own(static_cast<std::int32_t>(p))) continue;
    own += parameters()[p].bytes();
    unused += parameters()[p].used ? 0 : parameters()[p].bytes();
    any_used |= parameters()[p].used;
  }
  // The contiguous copy has room for all; what got no gradient is zeros of its own.
  if (is_contiguous()) return bytes + (any_used ? own : 0) + unused;
  return bytes + own;
}

void Zero12::list_facts(LibraryRun& run) const {
  run.facts["skipped_steps"] = 0;
  if (is_bf16_optimizer()) {
    run.words["optimizer_class"] = "BF16_Optimizer";
    return;
  }
  run.words["optimizer_class"] = "DeepSpeedZeroOptimizer";
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::string number = "." + std::to_string(g);
    run.facts["flat_numel" + number] = groups_[g].flat_numel;
    run.facts["partition_numel" + number] = groups_[g].partition_numel;
    run.facts["padding_this_rank" + number] = groups_[g].padding(rank_);
  }
  run.facts["fp32_bytes"] = total(&ZeroPartition::partition_numel) * 4;
  run.facts["bit16_bytes"] = total(&ZeroPartition::flat_numel) * param_size();
  run.facts["alignment"] = 2;
  run.facts["averaged_gradient_bytes_end_of_backward"] = averaged_gradient_bytes();
}

}
