// The words of a plan's enumerations; the rules that check() applies are in plan_check.cpp.
#include "sim/spec/plan.h"

#include "sim/base/letters.h"
#include "sim/spec/checks/plan_check.h"

namespace foreshard {

std::int64_t size_of(DType dtype) { return dtype == DType::kFp32 ? 4 : 2; }

const char* to_string(DType dtype) { return word_at(dtype, {"bf16", "fp16", "fp32"}); }

const char* to_string(RuntimeKind kind) {
  return word_at(kind, {"fsdp2", "native", "fsdp1", "ddp", "megatron", "zero1", "zero2", "zero3"});
}

const char* to_string(ZeroOffload offload) { return word_at(offload, {"none", "cpu", "nvme"}); }

const char* to_string(MegatronOptions::CudaGraphs graphs) {
  return word_at(graphs, {"none", "modules", "iteration", "routers"});
}

const char* to_string(MegatronOptions::Module module) {
  return word_at(
      module, {"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"});
}

const char* to_string(ContextParallel::Rotate rotate) {
  return word_at(rotate, {"allgather", "alltoall", "ulysses"});
}
const char* to_string(ExpertParallel::Dispatcher dispatcher) {
  return dispatcher == ExpertParallel::Dispatcher::kAllToAll ? "alltoall" : "deepep";
}

const char* to_string(ContextParallel::Balance balance) {
  return balance == ContextParallel::Balance::kHeadTail ? "headtail" : "none";
}

const char* to_string(PipelineSchedule schedule) {
  return word_at(schedule, {"GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS",
                            "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV", "custom"});
}

bool PipelineParallel::splits_backward() const {
  if (schedule != PipelineSchedule::kCustom) {
    return schedule >= PipelineSchedule::kInterleavedZeroBubble;
  }
  return std::ranges::any_of(orders, [](const std::string& order) {
    return order.find_first_of("IW") != std::string::npos;
  });
}

Plan shortened(Plan plan, std::int64_t most) {
  std::int64_t& all = plan.batch.accumulation;
  if (all <= most) return plan;
  if (plan.mesh.pp > 1 && plan.pipeline.microbatches == 0)
    plan.pipeline.stands_for = std::max(plan.pipeline.stands_for, all);
  all = most;
  return plan;
}

std::vector<std::int64_t> blocks_of_stages(std::int64_t blocks, const Plan& plan) {
  const PipelineParallel& pipeline = plan.pipeline;
  const std::int64_t stages = checked_multiply(plan.mesh.pp, pipeline.stages_per_rank);
  const std::int64_t all = blocks + pipeline.first_less + pipeline.last_less;
  std::vector<std::int64_t> list;
  for (std::int64_t s = 0; s < stages; ++s) list.push_back(all / stages + (s < all % stages));
  list.front() -= pipeline.first_less;
  list.back() -= pipeline.last_less;
  return list;
}

const char* to_string(StepFrame frame) {
  return word_at(frame, {"plain", "torchtitan", "torchtitan_log"});
}

const char* to_string(UnitPlacement placement) {
  return word_at(placement, {"own", "root", "with_norm", "with_head", "norm_only"});
}

const char* to_string(CollectiveKernels kernels) {
  return word_at(kernels, {"default", "symmetric", "copy_engine"});
}

const char* to_string(Recompute recompute) {
  return word_at(recompute, {"none", "full", "selective"});
}

const char* to_string(SelectivePolicy policy) {
  return word_at(policy, {"every_second_mm", "dots", "dots_except_mlp"});
}

const char* to_string(Compile compile) { return word_at(compile, {"none", "blocks", "model"}); }

const char* to_string(AttentionKernel kernel) {
  static constexpr const char* kWords[] = {
      "flash",  "cudnn", "efficient", "math",           "fa1", "fa2", "fa3",
      "triton", "eager", "flex",      "flash-all-heads"};
  return kWords[at(kernel)];
}

const char* to_string(ModuleKernels::Norm norm) {
  static constexpr const char* kWords[] = {"compute", "fp32", "eager", "eager-fp32"};
  return kWords[at(norm)];
}

const char* to_string(ModuleKernels::Rope rope) {
  static constexpr const char* kWords[] = {"complex", "real", "fused"};
  return kWords[at(rope)];
}

const char* to_string(ModuleKernels::Residual residual) {
  return residual == ModuleKernels::Residual::kFp32 ? "fp32" : "compute";
}

const char* to_string(ModuleKernels::Activation activation) {
  return activation == ModuleKernels::Activation::kEager ? "eager" : "fused";
}

const char* to_string(Logits logits) { return logits == Logits::kHeld ? "held" : "released"; }

const char* to_string(Reference reference) {
  static constexpr const char* kWords[] = {"none", "base", "whole", "unit", "units"};
  return kWords[at(reference)];
}

const char* to_string(BuiltOn place) {
  static constexpr const char* kWords[] = {"meta", "host", "device"};
  return kWords[at(place)];
}

const char* to_string(Float8 recipe) {
  static constexpr const char* kWords[] = {"none",    "tensorwise", "rowwise", "rowwise_gw_hp",
                                           "delayed", "current",    "mxfp8",   "nvfp4"};
  return kWords[at(recipe)];
}

const char* to_string(AccumulationMode mode) {
  return word_at(mode, {"reduce_each", "keep_unsharded"});
}

const char* to_string(When when) { return when == When::kEach ? "each" : "last"; }

const char* to_string(Lora::Base base) { return word_at(base, {"master", "param", "nf4"}, ""); }

const char* to_string(ExpertKernels kernels) {
  static constexpr const char* kWords[] = {"grouped", "loop", "transformers"};
  return kWords[at(kernels)];
}

const char* to_string(Ignored ignored) { return ignored == Ignored::kNone ? "none" : "norms"; }

const char* to_string(Offload offload) { return word_at(offload, {"none", "cpu", "cpu_unpinned"}); }

const char* to_string(CheckpointWraps wraps) {
  return wraps == CheckpointWraps::kModule ? "module" : "unit";
}

const char* to_string(ReductionOrder order) {
  return word_at(order, {"microbatch", "library", "microbatch_2", "microbatch_4", "microbatch_8"});
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
