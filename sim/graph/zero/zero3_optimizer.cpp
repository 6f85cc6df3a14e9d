// What lives between steps, and the step itself (DeepSpeedZeroOptimizer_Stage3.step): everything is
// let go of, overflow is looked for (fp16 only), the norm is summed over the ranks sub-group by
// sub-group and read by the host, whether it clips or not; then each sub-group's gradients become
// fp32, are scaled, the optimizer steps, and the partitions are written back in 16 bits.
//
// Per parameter of a rank: 2 bytes of partition, 2 of its gradient (4 with fp32 accumulation), 4 of
// the fp32 master and 8 of AdamW: the 16 of the ZeRO paper (arXiv:1910.02054, section 5). While a
// sub-group is updated its gradients exist in fp32 once more.
#include <algorithm>
#include <utility>

#include "sim/graph/optimizer_state.h"
#include "sim/graph/zero/zero3_builder.h"

namespace foreshard {

// Of each group of parameters; closed by the parameter that reaches sub_group_size.
void Zero3::list_sub_groups() {
  const bool by_decay = plan_.optimizer.groups == Optimizer::Groups::kDecay;
  for (const bool decaying : {true, false}) {
    std::int64_t open = 0;
    for (const Zero3Parameter& each : script_->parameters) {
      const auto& spec = spec_of(each.layer).parameters[static_cast<std::size_t>(each.index)];
      if (!each.trained || (!by_decay || decays(spec)) != decaying) continue;
      partitioned_ += partition_of(each);
      open += partition_of(each);
      if (open < plan_.zero.sub_group_size) continue;
      sub_groups_.push_back(std::exchange(open, 0));
    }
    if (open > 0) sub_groups_.push_back(open);
  }
}

void Zero3::persistent_memory() {
  const auto hold = [&](MemoryCategory category, std::int64_t bytes, bool on_host) {
    if (bytes == 0) return;
    allocate_persistent(category, -1, Bytes(bytes));
    graph().buffers.back().on_host = on_host;
  };
  const auto is_in_memory = [](ZeroOffload offload) { return offload != ZeroOffload::kNvme; };
  // What is on NVMe passes through pinned buffers of the host: OffloadParam's buffer_count of buffer_size elements,
  // OffloadOptimizer's buffer_count of the largest state (deepspeed/runtime/zero/offload_config.py).
  constexpr std::int64_t kParameterBuffers = 5, kParameterBuffer = 100'000'000;
  constexpr std::int64_t kOptimizerBuffers = 4;
  const ZeroOffload parameters = plan_.zero.offload_param;
  const ZeroOffload states = plan_.zero.offload_optimizer;
  if (is_in_memory(parameters)) {
    hold(MemoryCategory::kShardedParam, partition_bytes(), parameters != ZeroOffload::kNone);
  } else {
    std::int64_t kept = 0;
    for (const Zero3Parameter& each : script_->parameters) {
      const std::int64_t bytes = partition_of(each) * element_size(each);
      kept += goes_to_nvme(bytes) ? 0 : bytes;
    }
    hold(MemoryCategory::kShardedParam, kept + kParameterBuffers * kParameterBuffer * param_size(), true);
  }
  for (const std::int64_t bytes : resident_bytes()) hold(MemoryCategory::kUnshardedParam, bytes, false);
  hold_reference();
  const bool on_host = states != ZeroOffload::kNone;
  std::int64_t largest = 0;
  for (const std::int64_t elements : sub_groups_) {
    largest = std::max(largest, elements);
    if (!is_in_memory(states)) continue;
    // Of fp32 partitions, too (stage3.py compares a device with its name).
    hold(MemoryCategory::kOptimizerState, elements * size_of(plan_.master_dtype), on_host);
    graph().buffers.back().role = BufferRole::kMaster;
    if (on_host) hold(MemoryCategory::kAccumulatedGrad, elements * 4, true);  // fp32 gradients
    for (int moment = 0; moment < moments(); ++moment)
      hold(MemoryCategory::kOptimizerState, elements * size_of(plan_.optimizer.state), on_host);
  }
  if (!is_in_memory(states)) hold(MemoryCategory::kOptimizerState, kOptimizerBuffers * largest * 4, true);
  if (plan_.zero.contiguous_gradients)
    hold(MemoryCategory::kReduceScatterInput, plan_.zero.reduce_bucket_size * comm_size(), false);
  hold(MemoryCategory::kShardedGrad, partitioned_ * size_of(accumulation_dtype()), on_host);
  // What the step before gathered.
  const auto keep = [&](std::int32_t p) {
    hold_gathered(p);
    persistent_.resize(script_->parameters.size(), kNoBuffer);
    at(persistent_, p) = at(gathered_, p);
  };
  if (plan_.mesh.fsdp() == 1) return;
  if (trace_ != nullptr) {
    for (const std::int32_t p : trace_->list(trace_->at_start)) keep(p);
    return;
  }
  for (std::int32_t p = 0; p < script_->parameter_count(); ++p)
    if (!coordinator_->is_gone(p)) keep(p);
}

// What is in flight behind the last backward arrives, then all is let go of.
void Zero3::release_all() {
  if (trace_ != nullptr) {
    for (const std::int32_t p : trace_->list(trace_->in_flight)) await(p);
    let_go(trace_->list(trace_->at_end));
    return;
  }
  std::int64_t available = 0;
  for (std::int32_t p = 0; logs() && p < script_->parameter_count(); ++p) {
    const std::int32_t handle = at(handle_of_, p);
    const bool arrived =
        !coordinator_->is_in_flight(p) || handle < 0 || handles_[static_cast<std::size_t>(handle)].copied;
    if (!coordinator_->is_gone(p) && arrived) available += parameter(p).numel;
  }
  for (std::int32_t p = 0; p < script_->parameter_count(); ++p)
    if (coordinator_->is_in_flight(p)) await(p);
  let_go(coordinator_->release_all());
  if (logs()) log("release_all", "", "before optimizer").bytes_in = available * 2;
}

void Zero3::optimizer() {
  release_all();
  if (plan_.param_dtype == DType::kFp16) check_overflow();
  gradient_norm();
  for (std::size_t s = 0; s < sub_groups_.size(); ++s)
    if (optimizes_on_host()) update_on_host(s);
    else update(s);
  // invalidate_secondary_tensor: of what is trained.
  for (std::int32_t p = 0; small_group_ > 1 && p < script_->parameter_count(); ++p)
    if (parameter(p).trained) StepBuilder::free(at(secondary_, p));
  gather_persistent();
  graph().final_host_wait = std::max(graph().final_host_wait, std::exchange(awaited_, kNoEvent));  // no row came behind
  if (plan_.host_sync == HostSync::kStep)
    graph().final_host_wait = std::max(graph().final_host_wait, tail(Stream::kCompute));
}

// isinf and isnan over all gradient partitions, a byte over the ranks, and .item().
void Zero3::check_overflow() {
  const std::int64_t bytes = partitioned_ * size_of(accumulation_dtype());
  add_bytes(EventKind::kGradNorm, reduces_, 2 * (bytes + 2 * partitioned_), -1);
  wait(Stream::kCompute, tail(reduces_));
  host_awaits(add(EventKind::kAllReduce, Stream::kCompute, work_of(EventKind::kAllReduce, 1, kShard), -1));
  if (!logs()) return;
  note_ = "has_overflow";
  log_collective("all_reduce", 1, 1, "op=MAX");
  log_.back().dtype = "uint8";
  note_.clear();
}

// Sums in float64; with the optimizer on the host, where norms were taken while gradients were
// copied, in float32. The host reads the result.
void Zero3::gradient_norm() {
  const std::int64_t size = optimizes_on_host() ? 4 : 8;
  for (const std::int64_t elements : sub_groups_) {
    if (!optimizes_on_host())
      add_bytes(EventKind::kGradNorm, Stream::kCompute, elements * (size_of(accumulation_dtype()) + 2 * size), -1);
    const EventId sum = add(EventKind::kAllReduce, Stream::kCompute, work_of(EventKind::kAllReduce, size, kShard), -1);
    if (optimizes_on_host()) host_awaits(sum);
    if (!logs()) continue;
    note_ = "_get_norm_groups";
    log_collective("all_reduce", size, size, "op=SUM");
    log_.back().dtype = optimizes_on_host() ? "float32" : "float64";
    note_.clear();
  }
  host_awaits(tail(Stream::kCompute));
}

// Gradient partitions are concatenated, cast to fp32 and scaled; AdamW; the cast back.
void Zero3::update(std::size_t sub_group) {
  const std::int64_t elements = sub_groups_[sub_group];
  const std::int64_t kept = size_of(accumulation_dtype());
  const auto temporary = [&](std::int64_t bytes) {
    return allocate(MemoryCategory::kOptimizerTemp, Stream::kCompute, -1, Bytes(bytes));
  };
  const std::int64_t master = size_of(plan_.master_dtype);  // of gradients, too
  const bool casts = kept != master;
  add_bytes(
      EventKind::kGradScale, Stream::kCompute, elements * (2 * kept + (casts ? kept + master : 0) + 2 * master), -1);
  std::int32_t flat = temporary(elements * kept);
  std::int32_t gradients = flat;
  if (casts) {
    gradients = temporary(elements * master);
    StepBuilder::free(flat);
  }
  const bool adam = plan_.optimizer.kind == Optimizer::Kind::kAdamW;
  UnitWork work = {.kernels = optimizer_kernels(elements)};
  add(EventKind::kOptimizer, Stream::kCompute, new_work(EventKind::kOptimizer, work), -1);
  if (adam && plan_.optimizer.implementation != Optimizer::Implementation::kFused) {
    std::int32_t denominator = temporary(elements * size_of(plan_.optimizer.state));
    StepBuilder::free(denominator);
  }
  add_bytes(EventKind::kAccumulate, Stream::kCompute, elements * (master + param_size()), -1);
  StepBuilder::free(gradients);
}

// DeepSpeedCPUAdam on the host's cores; the new 16-bit partitions go back to where they live.
// States on NVMe are read before and written behind it, and the host waits for both, as for what is
// written of the parameters (PartitionedOptimizerSwapper.swap_in_optimizer_state and
// swap_out_optimizer_state, AsyncPartitionedParameterSwapper.swap_out_and_release; pipeline_read
// and pipeline_write, which would overlap them, are off by default and no keys of a plan).
void Zero3::update_on_host(std::size_t sub_group) {
  const std::int64_t elements = sub_groups_[sub_group];
  const bool swaps_states = plan_.zero.offload_optimizer == ZeroOffload::kNvme;
  // Master, gradient and moments in fp32.
  const std::int64_t states = elements * 4 * (2 + moments());
  if (swaps_states) host_awaits(add_bytes(EventKind::kStorageRead, Stream::kCopyIn, states, -1));
  // The gradient is scaled by a pass of its own; AdamW reads four and writes three values.
  const std::int64_t moved = elements * 4 * (3 + 2 * moments() + 2) + elements * (4 + param_size());
  host_awaits(add_bytes(EventKind::kHostOptimizer, Stream::kCompute, moved, -1));
  const std::int64_t bytes = elements * param_size();
  if (plan_.zero.offload_param == ZeroOffload::kNone)
    host_awaits(add_bytes(EventKind::kHostToDevice, Stream::kCompute, bytes, -1));
  else if (plan_.zero.offload_param == ZeroOffload::kNvme)
    host_awaits(add_bytes(EventKind::kStorageWrite, Stream::kCopyIn, bytes, -1));
  if (swaps_states) host_awaits(add_bytes(EventKind::kStorageWrite, Stream::kCopyIn, states - elements * 4, -1));
}

}
