// What the engine, a device, and a recorded step cannot do, each with the nearest plan that they can.
#include <fmt/format.h>

#include "exec/engine/engine.h"

namespace foreshard {

std::optional<std::string> find_engine_problem(const ModelSpec& model, const Plan& plan) {
  const auto refuse = [](std::string what, const char* nearest) {
    return std::optional(fmt::format("{}; nearest plan: {}", what, nearest));
  };
  if (plan.runtime.kind != RuntimeKind::kNative) {
    return refuse(fmt::format("the engine runs native plans, this one is {}@{}", to_string(plan.runtime.kind),
                      plan.runtime.version),
        "the same with runtime: native");
  }
  for (const DType dtype : {plan.param_dtype, plan.reduce_dtype, plan.master_dtype, plan.optimizer.state})
    if (dtype == DType::kFp16) return refuse("the engine has no fp16, which needs loss scaling", "dtype.param: bf16");
  if (plan.param_dtype == DType::kFp32 && plan.reduce_dtype != DType::kFp32)
    return refuse("fp32 gradients are reduced in fp32", "dtype.reduce: fp32");
  if (plan.param_dtype == DType::kFp32 && plan.master_dtype != DType::kFp32)
    return refuse("fp32 parameters are stored in fp32", "dtype.master: fp32");
  if (model.tied_embeddings &&
      (plan.units.embedding != UnitPlacement::kRoot || plan.units.head != UnitPlacement::kRoot)) {
    return refuse("embedding and head are one parameter (tied), which is in one unit only",
        "units.embedding: root and units.head: root");
  }
  if (model.numerics.alibi)
    return refuse("the engine's attention has no ALiBi", "a model with rotary or learned positions");
  if (model.numerics.rope_scaling.kind == RopeScaling::Kind::kOther) {
    return refuse(
        "of rope_scaling the engine knows linear and llama3", "the model with one of these, or without rope_scaling");
  }
  return std::nullopt;
}

std::optional<std::string> find_device_problem(const ModelSpec& model, const Plan& plan, bool paced) {
  const auto refuse = [](std::string what, const char* nearest) {
    return std::optional(fmt::format("{}; nearest plan: {}", what, nearest));
  };
  if ((plan.mesh.shard > 1 || plan.mesh.tp > 1) && is_microbatch_order(plan.reduction_order))
    return refuse("on GPUs gradients are summed in NCCL's order", "reduction_order: library");
  if (plan.master_dtype != DType::kFp32 || plan.optimizer.state != DType::kFp32)
    return refuse("the engine's optimizer on GPUs works in fp32", "dtype.master: fp32 and optimizer.state: fp32");
  if (plan.mesh.tp > 1 && plan.reduce_dtype != DType::kFp32)
    return refuse("with tensor parallelism gradients are summed in fp32 on GPUs", "dtype.reduce: fp32");
  if (plan.collectives.kernels != CollectiveKernels::kDefault && !paced)
    return refuse("the engine registers no windows with NCCL", "collectives.kernels: default");
  if (paced && plan.mesh.world() == 1) return refuse("one rank has no peers to be paced", "mesh.shard of 2 or more");
  static_cast<void>(model);
  return std::nullopt;
}

std::optional<std::string> find_graph_problem(const Plan& plan, const World& world) {
  if (plan.host == HostKind::kComputes)
    return "--graph records what a device is given, and CPU ranks compute themselves; leave it out";
  if (plan.offload != Offload::kNone) {
    return "the host does the optimizer of an offloaded plan, which no recording holds; nearest "
           "plan: offload: none, or leave --graph out";
  }
  if (world.one_process() && world.size() > 1)
    return "ranks that share a device meet in every collective, which no recording holds; leave --graph out";
  return std::nullopt;
}

}
