// A layer's row: every kernel stands for the operation that launches it, with the module, the views
// and the autograd node around it; a recomputed one runs forward under checkpointing's hooks. A
// unit's row: one call for all of it and one per parameter, each a Python loop's turn. Clipping and
// the optimizer: a Python loop over the parameters, which DTensor's dispatch lengthens; a for-each
// optimizer goes through them once per operation.
#include "sim/cost/host_calls.h"

#include <numeric>

namespace foreshard {
namespace {

class Counter {
 public:
  void add(HostCall call, std::int64_t count) { counts_[static_cast<std::size_t>(call)] += count; }
  const HostCounts& counts() const { return counts_; }

 private:
  HostCounts counts_{};
};

HostCall call_of(const Kernel& kernel) {
  const bool forward = kernel.pass == Pass::kForward;
  switch (kernel.kind) {
    case KernelKind::kGemm:
      return forward ? HostCall::kForwardProduct : HostCall::kBackwardProduct;
    case KernelKind::kAttention:
      return forward ? HostCall::kForwardAttention : HostCall::kBackwardAttention;
    default:
      return forward ? HostCall::kForwardOperation : HostCall::kBackwardOperation;
  }
}

HostCall call_of(Caller caller) {
  if (caller == Caller::kRuntime) return HostCall::kCollective;
  return caller == Caller::kFunctional ? HostCall::kFunctionalCollective
                                       : HostCall::kRedistribution;
}

void add_layer(const EventGraph& graph, const Work& work, Counter& counter) {
  if (graph.host.compiled) {
    counter.add(HostCall::kCompiled, work.kernels_end - work.kernels_begin);
    return;
  }
  for (std::uint32_t k = work.kernels_begin; k < work.kernels_end; ++k) {
    counter.add(call_of(graph.kernels[k]), 1);
    if (work.kind == EventKind::kRecompute) counter.add(HostCall::kRecomputed, 1);
  }
}

}  // namespace

HostCounts host_calls(const EventGraph& graph, const Work& work) {
  Counter counter;
  if (!graph.host.python) return counter.counts();
  const std::int64_t kernels = work.kernels_end - work.kernels_begin;
  const std::int64_t tensors = work.tensors;
  const std::int64_t shards = graph.host.dtensors ? tensors : 0;
  counter.add(HostCall::kHook, work.hooks);
  switch (work.kind) {
    case EventKind::kLoss:
      counter.add(HostCall::kPass, 1);
      [[fallthrough]];
    case EventKind::kForward:
    case EventKind::kRecompute:
    case EventKind::kBackward:
      add_layer(graph, work, counter);
      break;
    case EventKind::kGradNorm:
      counter.add(HostCall::kClippedTensor, tensors);
      counter.add(HostCall::kClippedShard, shards);
      break;
    case EventKind::kGradScale:  // in the loop of the norm
      break;
    case EventKind::kOptimizer:
    case EventKind::kHostOptimizer:
      counter.add(HostCall::kStep, 1);
      counter.add(HostCall::kUpdatedTensor, tensors);
      counter.add(HostCall::kUpdatedShard, shards);
      counter.add(HostCall::kUpdatedOperation, tensors * (kernels - 1));
      break;
    case EventKind::kReduceScatterCopyIn:
      counter.add(HostCall::kReducedRow, 1);
      counter.add(HostCall::kUnitTensor, tensors);
      break;
    default:
      if (is_collective(work.kind)) {
        counter.add(graph.host.reducer ? HostCall::kBucketRow : call_of(work.caller), 1);
      } else if (graph.host.reducer) {
        counter.add(HostCall::kBucketTensor, tensors);
      } else {
        counter.add(HostCall::kUnitRow, 1);
        counter.add(HostCall::kUnitTensor, tensors);
      }
  }
  return counter.counts();
}

HostSeconds host_seconds(const EventGraph& graph, const Work& work, const HostCurve& curve) {
  if (!graph.host.python || curve.calls == HostCurve().calls) {
    const double row = curve.per_row + (is_collective(work.kind) ? curve.per_collective : 0);
    return {curve.per_hook * work.hooks + row, curve.per_launch * work.launches};
  }
  const HostCounts counts = host_calls(graph, work);
  const double all = std::inner_product(counts.begin(), counts.end(), curve.calls.begin(), 0.0);
  const double hooks = work.hooks * curve.calls[static_cast<std::size_t>(HostCall::kHook)];
  return {curve.processor * hooks,
          curve.processor * (all - hooks) + curve.per_driver_launch * work.launches};
}

}  // namespace foreshard
