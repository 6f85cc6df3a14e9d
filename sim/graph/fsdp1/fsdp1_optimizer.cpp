// What lives between steps, clip_grad_norm_ of FullyShardedDataParallel, and the optimizer on
// shards of flat parameters.
//
// With use_orig_params the optimizer steps the pieces of the parameters that lie in the shard, else
// the shards themselves, padding included. Of a frozen base under adapters it steps nothing, though
// the flat gradient holds all of it.
#include <algorithm>
#include <utility>

#include "sim/graph/fsdp1/fsdp1_builder.h"

namespace foreshard {

void Fsdp1::persistent_memory() {
  const auto keep = [&](MemoryCategory category, std::int32_t unit, std::int64_t bytes) {
    allocate_persistent(category, unit, Bytes(bytes));
    graph().buffers.back().on_host = offloads();
  };
  for (const std::int64_t bytes : resident_bytes())
    allocate_persistent(MemoryCategory::kShardedParam, -1, Bytes(bytes));
  for (std::int32_t u = 0; u < count(); ++u) {
    const Handle& h = handle(u);
    keep(MemoryCategory::kShardedParam, u, h.size.shard * master_size());
    if (is_held(plan_.reference)) {
      keep(MemoryCategory::kShardedParam, u, h.size.shard * master_size());
      if (u == root() && sharded())
        allocate_persistent(MemoryCategory::kUnshardedParam, u, Bytes(h.size.padded * param_size()));
    }
    // _cpu_grad: what reduced gradients are copied to.
    if (offloads()) keep(MemoryCategory::kShardedGrad, u, h.size.shard * master_size());
    for (const std::int64_t numel : h.size.stepped)
      for (int moment = 0; moment < moments(); ++moment)
        keep(MemoryCategory::kOptimizerState, u, numel * size_of(plan_.optimizer.state));
  }
}

void Fsdp1::reduce_number() {
  if (!sharded()) return;
  // On the stream that calls, which is the compute stream.
  wait(Stream::kAllReduce, tail(Stream::kCompute));
  wait(Stream::kCompute, add_step_row(EventKind::kAllReduce, Stream::kAllReduce));
  if (offloads()) host_wait(tail(Stream::kAllReduce));
}

// A norm for each gradient, in fp32, then that of the norms; with shards its square is summed over
// the shard group. CPU offload reads it on the host.
void Fsdp1::clip() {
  const auto temporary = [&](std::int64_t bytes) {
    return hold(MemoryCategory::kOptimizerTemp, Stream::kCompute, -1, bytes);
  };
  add_step_row(EventKind::kGradNorm, Stream::kCompute);
  std::int64_t gradients = 0;
  for (std::int32_t u = 0; u < count(); ++u) {
    if (!handle(u).trained) continue;
    gradients += plan_.fsdp1.use_orig_params ? shape(u).trained : 1;
  }
  constexpr std::int64_t kNorm = 4;
  std::int32_t norms = temporary(gradients * kNorm);
  std::int32_t total = temporary(kNorm);
  drop(norms);
  reduce_number();
  add_step_row(EventKind::kGradScale, Stream::kCompute);
  drop(total);
}

void Fsdp1::optimizer() {
  if (!dry_) {
    const EventId last = add_step_row(offloads() ? EventKind::kHostOptimizer : EventKind::kOptimizer, Stream::kCompute);
    const bool loops = plan_.optimizer.kind == Optimizer::Kind::kAdamW &&
                       plan_.optimizer.implementation == Optimizer::Implementation::kLoop;
    std::vector<Bytes> sizes;
    for (const Handle& h : handles_)
      for (const std::int64_t numel : h.size.stepped)
        sizes.push_back(allocated_size(numel * size_of(plan_.optimizer.state)));
    // One tensor after the other: root and divisor of the largest are there at once.
    if (loops && !sizes.empty()) {
      const Bytes largest = *std::ranges::max_element(sizes);
      sizes = {largest, largest};
    }
    const std::int32_t parts = add_part_list(std::move(sizes));
    hold_temporaries(loops ? 1 : listed_temporaries(), parts, offloads());
    if (plan_.host_sync == HostSync::kStep) graph().final_host_wait = last;
  }
  for (Handle& h : handles_) {  // zero_grad
    if (plan_.optimizer.leaves_gradients() && !dry_) {
      drop_gradient(h.gradient);
      drop_gradient(h.flat_gradient);
    }
    drop(h.gradient, gradient_streams());
    drop(h.flat_gradient);
    h.has_gradient = h.has_flat_gradient = h.lowered_gradient = h.gradient_is_stored_dtype = false;
  }
}

}
