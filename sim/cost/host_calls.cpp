// A layer's row: every kernel stands for the operation that launches it, with the module, the views
// and the autograd node around it; a recomputed layer runs under checkpointing's hooks, once. A
// unit's row: one call for all of it and one per parameter, each a Python loop's turn. Clipping and
// the optimizer: a Python loop over the parameters, which DTensor's dispatch lengthens; a for-each
// optimizer goes through them once per operation. A CUDA graph is one call and one launch.
#include "sim/cost/host_calls.h"

#include <algorithm>
#include <numeric>

namespace foreshard {
namespace {

// What modules of TransformerEngine and Megatron-Core take the host on the processor of the fit, less launches
// (docs/host.md): te.Linear, twice that in fp8; each further group of te.GroupedLinear, and what casts it;
// te.DotProductAttention; of a layer's wrappers, what each product without groups has. Operations between take as many
// times as long as PyTorch's as a router's do.
constexpr double kEngineProduct = 56e-6, kEngineBackwardProduct = 26e-6;
constexpr double kEngineWrapper = 112e-6, kEngineBackwardWrapper = 12e-6;
constexpr double kEngineGroup = 13e-6, kEngineCast = 9e-6, kEngineCastLaunch = 4e-6;
constexpr double kEngineAttention = 100e-6, kEngineBackwardAttention = 30e-6;
constexpr double kEngineTimes = 2.7;

// What Megatron-Core's checkpoint around a module takes the host besides what runs again, on the processor of the fit:
// CheckpointFunction 51 us, CheckpointWithoutOutput 79 (0.16.1, core/tensor_parallel/random.py, around one product with
// a number on the null GPU: docs/host.md). It has none of the hooks that PyTorch's goes through for each operation.
constexpr double kEngineCheckpoint = 79e-6;

// How many times as long DeepSpeed's hook around a module takes the host as one of fully_shard's, and its collective
// with the Python around it as that of a unit: 50 us where that takes 256, 52 where that takes 172 (ZeRO-3 with and
// without parameters that persist against ZeRO-2 on the null GPU: docs/host.md).
constexpr double kModuleTimes = 50 / 256.4, kModuleCollectiveTimes = 52 / 171.7;

// What an operation on DTensors takes the host on top of one on plain tensors, forward or backward,
// with what its module wraps and unwraps, on the processor of the fit: 65 us of a product and of a
// norm (PyTorch 2.11 on the null GPU: docs/host.md).
constexpr double kDtensorOperation = 65e-6;
// One that runs again under checkpointing: a layer over tp 4 takes 2.2 to 2.8 ms again, with what
// checkpointing takes of any layer, its collectives and its other operations (docs/host.md).
constexpr double kDtensorRecomputed = 150e-6;

// Of an optimizer's own loop, a parameter and an operation on it: transformers' Adafactor took 31
// ms (515 and 11,390), AdamW with foreach=False 2.6 (72 and 576; null GPU).
constexpr double kLoopedTensor = 20e-6, kLoopedOperation = 1.9e-6;

bool is_layer(EventKind kind) {
  return kind == EventKind::kForward || kind == EventKind::kRecompute || kind == EventKind::kBackward;
}

// An operation for each parameter, not one for all.
bool loops(const Work& work) {
  return work.kind == EventKind::kOptimizer && work.launches > work.kernels_end - work.kernels_begin;
}

bool is_norm_or_loss(MemoryClass kind) {
  return kind == MemoryClass::kNormForward || kind == MemoryClass::kNormBackward ||
         kind == MemoryClass::kEagerNormForward || kind == MemoryClass::kEagerNormBackward ||
         kind == MemoryClass::kLoss;
}

// A matrix of Muon's, operation by operation: 99 us, where DTensors are cut 1.8 ms with their collectives
// (PyTorch 2.11, null GPU; `tensors`: a matrix, or operations on DTensors, which take as long as one).
bool by_operations(const Work& work) { return work.kind == EventKind::kOptimizer && work.caller != Caller::kRuntime; }

class Counter {
 public:
  void add(HostCall call, std::int64_t count) { counts_[at(call)] += count; }
  const HostCounts& counts() const { return counts_; }

 private:
  HostCounts counts_{};
};

HostCall call_of(const Kernel& kernel) {
  const bool forward = kernel.pass == Pass::kForward;
  switch (kernel.kind) {
    case KernelKind::kGemm: return forward ? HostCall::kForwardProduct : HostCall::kBackwardProduct;
    case KernelKind::kAttention: return forward ? HostCall::kForwardAttention : HostCall::kBackwardAttention;
    default: return forward ? HostCall::kForwardOperation : HostCall::kBackwardOperation;
  }
}

HostCall call_of(Caller caller) {
  if (caller == Caller::kRuntime) return HostCall::kCollective;
  return caller == Caller::kFunctional ? HostCall::kFunctionalCollective : HostCall::kRedistribution;
}

void add_layer(const EventGraph& graph, const Work& work, Counter& counter) {
  if (work.captured) return counter.add(HostCall::kCompiled, 1);
  if (graph.host.compiled) {
    counter.add(HostCall::kCompiled, work.kernels_end - work.kernels_begin);
    return;
  }
  const bool again = work.kind == EventKind::kRecompute && work.begins;
  counter.add(HostCall::kRecomputed, again && !graph.host.engine ? 1 : 0);
  for (const Kernel& kernel : graph.kernels_of(work)) counter.add(call_of(kernel), 1);
}

// Products, norms and the loss of layers that PyTorch's tensor parallelism cuts: its styles give
// them DTensors and hand plain tensors to what is between (torch/distributed/tensor/parallel).
std::int64_t dtensor_operations(const EventGraph& graph, const Work& work) {
  const bool is_cut = graph.host.dtensors && !graph.host.compiled && !work.captured &&
                      (is_layer(work.kind) || work.kind == EventKind::kLoss) &&
                      std::ranges::any_of(graph.communicators, [](const Communicator& c) { return c.name == "tp"; });
  if (!is_cut) return 0;
  const auto first = graph.kernels.begin() + work.kernels_begin;
  const auto last = graph.kernels.begin() + work.kernels_end;
  return std::count_if(first, last, [](const Kernel& kernel) {
    return kernel.kind == KernelKind::kGemm
               ? kernel.groups == 1
               : kernel.kind == KernelKind::kMemory && is_norm_or_loss(kernel.memory_class);
  });
}

struct EngineCalls {
  double python = 0;    // s on the processor of the fit
  double launches = 0;  // beyond the first of each kernel
};

// TransformerEngine multiplies group by group, from a loop of C++ over several streams
// (common/gemm/cublaslt_gemm.cu, multi_stream_cublas_gemm). So it casts what they read: forward the
// rows, backward the gradient that both products read.
EngineCalls engine_calls(const EventGraph& graph, const Work& work, const HostCurve& curve) {
  EngineCalls sum;
  for (const Kernel& kernel : graph.kernels_of(work)) {
    const bool forward = kernel.pass == Pass::kForward;
    if (kernel.kind == KernelKind::kAttention) {
      sum.python += forward ? kEngineAttention : kEngineBackwardAttention;
    } else if (kernel.kind != KernelKind::kGemm) {
      sum.python += kEngineTimes * curve.calls[at(call_of(kernel))];
    } else {
      const double others = static_cast<double>(kernel.groups - 1);
      const double casts = kernel.fp8 && graph.host.cast_launches > 0 ? (forward ? 1 : 0.5) : 0;
      const double launches = casts * graph.host.cast_launches;
      const double wrapper = forward ? kEngineWrapper : kEngineBackwardWrapper;
      sum.python += (forward ? kEngineProduct : kEngineBackwardProduct) * (kernel.fp8 ? 2 : 1) +
                    (kernel.groups == 1 ? wrapper : 0) +
                    others * (kEngineGroup + casts * kEngineCast + launches * kEngineCastLaunch);
      sum.launches += others * (1 + launches);
    }
  }
  return sum;
}

}

HostCounts host_calls(const EventGraph& graph, const Work& work) {
  Counter counter;
  if (!graph.host.python) return counter.counts();
  if (graph.host.captured && !is_of_optimizer(work.kind)) return counter.counts();
  const std::int64_t kernels = work.kernels_end - work.kernels_begin;
  const std::int64_t tensors = work.tensors;
  const std::int64_t shards = graph.host.dtensors ? tensors : 0;
  counter.add(HostCall::kHook, work.hooks);
  switch (work.kind) {
    case EventKind::kLoss: counter.add(HostCall::kPass, work.begins ? 1 : 0); [[fallthrough]];
    case EventKind::kForward:
    case EventKind::kRecompute:
    case EventKind::kBackward: add_layer(graph, work, counter); break;
    case EventKind::kGradNorm:
      counter.add(HostCall::kClippedTensor, tensors);
      counter.add(HostCall::kClippedShard, shards);
      break;
    case EventKind::kGradScale:  // in the loop of the norm
      break;
    case EventKind::kOptimizer:
    case EventKind::kHostOptimizer:
      if (by_operations(work)) break;
      counter.add(HostCall::kStep, 1);
      counter.add(HostCall::kUpdatedTensor, tensors);
      counter.add(HostCall::kUpdatedShard, shards);
      counter.add(HostCall::kUpdatedOperation, loops(work) ? 0 : tensors * (kernels - 1));
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
  const auto of = [&](HostCall call) {
    const auto i = at(call);
    return static_cast<double>(counts[i]) * curve.calls[i];
  };
  double all = std::inner_product(counts.begin(), counts.end(), curve.calls.begin(), 0.0);
  if (graph.host.modules) all -= (1 - kModuleCollectiveTimes) * of(HostCall::kCollective);
  if (loops(work) || by_operations(work)) all += kLoopedTensor * work.tensors + kLoopedOperation * work.launches;
  const bool again = work.kind == EventKind::kRecompute;
  all += (again ? kDtensorRecomputed : kDtensorOperation) * static_cast<double>(dtensor_operations(graph, work));
  const double hooks = of(HostCall::kHook);
  const double before = curve.processor * hooks * (graph.host.modules ? kModuleTimes : 1);
  if (graph.host.captured && !is_of_optimizer(work.kind)) return {before, 0};
  const int launches = work.captured ? 1 : work.launches;
  const double python = curve.processor * (all - hooks) + curve.per_driver_launch * launches;
  if (!graph.host.engine || !is_layer(work.kind) || work.captured) return {before, python};
  const double checkpoint = again && work.begins ? curve.processor * kEngineCheckpoint : 0;
  const EngineCalls engine = engine_calls(graph, work, curve);
  return {
      before, curve.processor * engine.python + checkpoint + curve.per_driver_launch * (launches + engine.launches)};
}

}
