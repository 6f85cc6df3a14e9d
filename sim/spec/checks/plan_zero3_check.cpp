// What DeepSpeed refuses of ZeRO stage 3, with its own words where it has some, and what of it is
// not modelled.
#include <fmt/format.h>

#include "sim/spec/checks/plan_runtime_check.h"

namespace foreshard {

std::optional<PlanProblem> problem_of_zero3(const Plan& plan) {
  const ZeroOptions& zero = plan.zero;
  const bool quantizes = zero.zero_quantized_weights || zero.zero_quantized_gradients;
  const Knob knobs[] = {
      // Groups of replicas were MiCS'; "MiCS ZeRO-3 sharding has been removed"
      // (deepspeed/runtime/config.py, 0.19.8).
      {plan.mesh.replicate != 1, "mesh.replicate",
       "partitions over all ranks; MiCS, which had groups of replicas, has been removed from "
       "DeepSpeed",
       "mesh.replicate: 1, or zero.zero_hpz_partition_size for gathers inside small groups"},
      {plan.accumulation == AccumulationMode::kKeepUnsharded, "accumulation.mode",
       "refuses no_sync(): \"incompatible with gradient partitioning logic of ZeRO stage 3\"",
       "accumulation.mode: reduce_each"},
      {plan.offload != Offload::kNone, "offload",
       "is told by zero.offload_optimizer and zero.offload_param", "offload: none"},
      {plan.ignored != Ignored::kNone, "ignored", "partitions every parameter", "ignored: none"},
      {plan.master_dtype != DType::kFp32, "dtype.master",
       "keeps its partitions of the parameters in fp32 for the optimizer", "dtype.master: fp32"},
      {quantizes && plan.param_dtype == DType::kFp32, "zero.zero_quantized_weights",
       "quantises 16-bit parameters and gradients (its kernels read fp16)",
       "zero.zero_quantized_weights: false and zero.zero_quantized_gradients: false"},
      {quantizes && zero.offload_param != ZeroOffload::kNone, "zero.offload_param",
       "is modelled with quantised payloads of partitions on the device",
       "zero.offload_param: none"},
  };
  if (auto problem = first_missing(
          knobs, fmt::format("{}@{}", to_string(plan.runtime.kind), plan.runtime.version))) {
    return problem;
  }
  // deepspeed/utils/groups.py, _ensure_divisibility.
  const std::int64_t secondary = zero.zero_hpz_partition_size;
  if (secondary > 1 && secondary < plan.mesh.shard && plan.mesh.shard % secondary != 0) {
    return contradiction("zero.zero_hpz_partition_size",
                         fmt::format("DeepSpeed refuses it: \"{} is not divisible by {}\"",
                                     plan.mesh.shard, secondary),
                         "a divisor of mesh.shard");
  }
  // deepspeed/runtime/zero/config.py: Field(gt=0).
  if (zero.reduce_bucket_size < 1) {
    return contradiction("zero.reduce_bucket_size", "a bucket holds at least one element",
                         "a number above 0");
  }
  // deepspeed/runtime/zero/stage3.py, __init__.
  if (zero.zero_quantized_gradients && !zero.reduce_scatter) {
    return contradiction("zero.reduce_scatter",
                         "DeepSpeed refuses it: \"when enable all_to_all_reduce, reduce_scatter "
                         "should also be enabled for data type checks\"",
                         "true");
  }
  // AsyncPartitionedParameterSwapper and PartitionedOptimizerSwapper need a path for each.
  if (zero.offload_param == ZeroOffload::kNvme && zero.offload_optimizer == ZeroOffload::kNone) {
    return contradiction("zero.offload_optimizer",
                         "partitions on NVMe are updated from the host, so the optimizer's states "
                         "are there too",
                         "cpu or nvme");
  }
  return std::nullopt;
}

}  // namespace foreshard
