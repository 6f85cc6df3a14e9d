// The words of a plan's enumerations; the rules that check() applies are in plan_check.cpp.
#include "sim/spec/plan.h"

#include "sim/spec/checks/plan_check.h"

namespace foreshard {

std::int64_t size_of(DType dtype) { return dtype == DType::kFp32 ? 4 : 2; }

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return "bf16";
    case DType::kFp16:
      return "fp16";
    case DType::kFp32:
      return "fp32";
  }
  return "?";
}

const char* to_string(RuntimeKind kind) {
  switch (kind) {
    case RuntimeKind::kFsdp2:
      return "fsdp2";
    case RuntimeKind::kNative:
      return "native";
    case RuntimeKind::kFsdp1:
      return "fsdp1";
    case RuntimeKind::kDdp:
      return "ddp";
    case RuntimeKind::kMegatron:
      return "megatron";
    case RuntimeKind::kZero1:
      return "zero1";
    case RuntimeKind::kZero2:
      return "zero2";
    case RuntimeKind::kZero3:
      return "zero3";
  }
  return "?";
}

const char* to_string(ZeroOffload offload) {
  switch (offload) {
    case ZeroOffload::kNone:
      return "none";
    case ZeroOffload::kCpu:
      return "cpu";
    case ZeroOffload::kNvme:
      return "nvme";
  }
  return "?";
}

const char* to_string(MegatronOptions::CudaGraphs graphs) {
  switch (graphs) {
    case MegatronOptions::CudaGraphs::kNone:
      return "none";
    case MegatronOptions::CudaGraphs::kModules:
      return "modules";
    case MegatronOptions::CudaGraphs::kIteration:
      return "iteration";
    case MegatronOptions::CudaGraphs::kRouters:
      return "routers";
  }
  return "?";
}

const char* to_string(ContextParallel::Rotate rotate) {
  switch (rotate) {
    case ContextParallel::Rotate::kAllGather:
      return "allgather";
    case ContextParallel::Rotate::kAllToAll:
      return "alltoall";
    case ContextParallel::Rotate::kUlysses:
      return "ulysses";
  }
  return "?";
}
const char* to_string(ExpertParallel::Dispatcher dispatcher) {
  return dispatcher == ExpertParallel::Dispatcher::kAllToAll ? "alltoall" : "deepep";
}

const char* to_string(ContextParallel::Balance balance) {
  return balance == ContextParallel::Balance::kHeadTail ? "headtail" : "none";
}

const char* to_string(StepFrame frame) {
  switch (frame) {
    case StepFrame::kPlain:
      return "plain";
    case StepFrame::kTorchtitan:
      return "torchtitan";
    case StepFrame::kTorchtitanLog:
      return "torchtitan_log";
  }
  return "?";
}

const char* to_string(UnitPlacement placement) {
  switch (placement) {
    case UnitPlacement::kOwn:
      return "own";
    case UnitPlacement::kRoot:
      return "root";
    case UnitPlacement::kWithNorm:
      return "with_norm";
    case UnitPlacement::kWithHead:
      return "with_head";
    case UnitPlacement::kNorm:
      return "norm_only";
  }
  return "?";
}

const char* to_string(CollectiveKernels kernels) {
  switch (kernels) {
    case CollectiveKernels::kDefault:
      return "default";
    case CollectiveKernels::kSymmetric:
      return "symmetric";
    case CollectiveKernels::kCopyEngine:
      return "copy_engine";
  }
  return "?";
}

const char* to_string(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "none";
    case Recompute::kFull:
      return "full";
    case Recompute::kSelective:
      return "selective";
  }
  return "?";
}

const char* to_string(SelectivePolicy policy) {
  switch (policy) {
    case SelectivePolicy::kEverySecondMm:
      return "every_second_mm";
    case SelectivePolicy::kDots:
      return "dots";
    case SelectivePolicy::kDotsExceptMlp:
      return "dots_except_mlp";
  }
  return "?";
}

const char* to_string(Compile compile) {
  switch (compile) {
    case Compile::kNone:
      return "none";
    case Compile::kBlocks:
      return "blocks";
    case Compile::kModel:
      return "model";
  }
  return "?";
}

const char* to_string(AttentionKernel kernel) {
  static constexpr const char* kWords[] = {
      "flash",  "cudnn", "efficient", "math",           "fa1", "fa2", "fa3",
      "triton", "eager", "flex",      "flash-all-heads"};
  return kWords[static_cast<std::size_t>(kernel)];
}

const char* to_string(ModuleKernels::Norm norm) {
  static constexpr const char* kWords[] = {"compute", "fp32", "eager", "eager-fp32"};
  return kWords[static_cast<std::size_t>(norm)];
}

const char* to_string(ModuleKernels::Rope rope) {
  static constexpr const char* kWords[] = {"complex", "real", "fused"};
  return kWords[static_cast<std::size_t>(rope)];
}

const char* to_string(ModuleKernels::Residual residual) {
  return residual == ModuleKernels::Residual::kFp32 ? "fp32" : "compute";
}

const char* to_string(ModuleKernels::Activation activation) {
  return activation == ModuleKernels::Activation::kEager ? "eager" : "fused";
}

const char* to_string(Logits logits) { return logits == Logits::kHeld ? "held" : "released"; }

const char* to_string(BuiltOn place) {
  static constexpr const char* kWords[] = {"meta", "host", "device"};
  return kWords[static_cast<std::size_t>(place)];
}

const char* to_string(Float8 recipe) {
  static constexpr const char* kWords[] = {"none",          "tensorwise", "rowwise",
                                           "rowwise_gw_hp", "delayed",    "current"};
  return kWords[static_cast<std::size_t>(recipe)];
}

const char* to_string(AccumulationMode mode) {
  switch (mode) {
    case AccumulationMode::kReduceEach:
      return "reduce_each";
    case AccumulationMode::kKeepUnsharded:
      return "keep_unsharded";
  }
  return "?";
}

const char* to_string(When when) { return when == When::kEach ? "each" : "last"; }

const char* to_string(Lora::Base base) {
  switch (base) {
    case Lora::Base::kMaster:
      return "master";
    case Lora::Base::kParam:
      return "param";
    case Lora::Base::kNf4:
      return "nf4";
  }
  return "";
}

const char* to_string(ExpertKernels kernels) {
  static constexpr const char* kWords[] = {"grouped", "loop", "transformers"};
  return kWords[static_cast<std::size_t>(kernels)];
}

const char* to_string(Ignored ignored) { return ignored == Ignored::kNone ? "none" : "norms"; }

const char* to_string(Offload offload) {
  switch (offload) {
    case Offload::kNone:
      return "none";
    case Offload::kCpu:
      return "cpu";
    case Offload::kCpuUnpinned:
      return "cpu_unpinned";
  }
  return "?";
}

const char* to_string(CheckpointWraps wraps) {
  return wraps == CheckpointWraps::kModule ? "module" : "unit";
}

const char* to_string(ReductionOrder order) {
  switch (order) {
    case ReductionOrder::kMicrobatch:
      return "microbatch";
    case ReductionOrder::kLibrary:
      return "library";
    case ReductionOrder::kMicrobatch2:
      return "microbatch_2";
    case ReductionOrder::kMicrobatch4:
      return "microbatch_4";
    case ReductionOrder::kMicrobatch8:
      return "microbatch_8";
  }
  return "?";
}

std::int64_t slices_of(ReductionOrder order) {
  switch (order) {
    case ReductionOrder::kMicrobatch2:
      return 2;
    case ReductionOrder::kMicrobatch4:
      return 4;
    case ReductionOrder::kMicrobatch8:
      return 8;
    default:
      return 1;
  }
}

void check(const Plan& plan, const ModelSpec& model, const Cluster& cluster) {
  if (const auto problem = find_problem(plan, model, cluster)) throw_problem(*problem, {});
}

}  // namespace foreshard
