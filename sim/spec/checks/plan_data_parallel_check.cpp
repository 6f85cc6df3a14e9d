// What DDP and ZeRO-1 and 2 have no knob for, or fail on.
//
// DDP: torch/nn/parallel/distributed.py and reducer.cpp of PyTorch 2.11. ZeRO: DeepSpeed 0.19.8,
// deepspeed/runtime/engine.py and zero/stage_1_and_2.py.
#include <fmt/format.h>

#include <algorithm>

#include "sim/spec/checks/plan_runtime_check.h"

namespace foreshard {
namespace {

using Problem = std::optional<PlanProblem>;

std::string name_of(const Plan& plan) {
  return fmt::format("{}@{}", to_string(plan.runtime.kind), plan.runtime.version);
}

// Knobs of units that are gathered and resharded.
Problem problem_of_units(const Plan& plan) {
  const Units& units = plan.units;
  static constexpr const char* kWhole = "holds every parameter whole";
  static constexpr const char* kNoUnits = "knows no units";
  static constexpr const char* kNoSync = "has no switches for single micro-batches but no_sync()";
  const AccumulationDetails& details = plan.accumulation_details;
  const RangedPolicy<bool>& unshard = plan.unshard_in_backward;
  const Knob knobs[] = {
      {units.layers_per_unit > 1, "units.layers_per_unit", kNoUnits, "units.layers_per_unit: 1"},
      {units.experts == UnitPlacement::kOwn, "units.experts", kNoUnits, "units.experts: block"},
      {plan.prefetch.forward > 0, "prefetch.forward", "gathers nothing in forward",
       "prefetch.forward: implicit"},
      {plan.prefetch.backward > 1, "prefetch.backward", "gathers nothing in backward",
       "prefetch.backward: 1"},
      {plan.reshard_after_forward.value.kind == Reshard::Kind::kGroup, "reshard_after_forward",
       kWhole, "reshard_after_forward: always"},
      {!unshard.value || !unshard.ranges.empty(), "unshard_in_backward", kWhole,
       "unshard_in_backward: true"},
      {plan.ignored != Ignored::kNone, "ignored", "replicates every parameter", "ignored: none"},
      {plan.output_dtype.has_value(), "dtype.output", "leaves the outputs as they are",
       "dtype.output: none"},
      {plan.gradient_divide_factor.has_value(), "reduction.divide_factor",
       "divides by the number of ranks", "reduction.divide_factor: none"},
      {plan.force_sum_reduction, "reduction.force_sum", "sums and divides always",
       "reduction.force_sum: false"},
      {plan.reduce_scatter_buffers > 1, "buffers.reduce_scatter", "scatters nothing",
       "buffers.reduce_scatter: 1"},
      {plan.communicators == Communicators::kSeparate, "communicators",
       "has one communicator for all", "communicators: shared"},
      {plan.recompute_wraps != CheckpointWraps::kModule, "recompute_wraps", kNoUnits,
       "recompute_wraps: module"},
      {details.all_reduce != When::kEach, "accumulation.all_reduce", kNoSync,
       "accumulation.all_reduce: each"},
      {details.reshard_after_backward != When::kEach, "accumulation.reshard_after_backward",
       kNoSync, "accumulation.reshard_after_backward: each"},
      {details.is_last_backward != When::kEach, "accumulation.is_last_backward", kNoSync,
       "accumulation.is_last_backward: each"},
  };
  return first_missing(knobs, name_of(plan));
}

// A parameter that no operation of its layer reads gets no gradient.
const ParameterSpec* unused_parameter(const Plan& plan, const ModelSpec& model) {
  for (const LayerSpec& layer : model.kinds) {
    if (layer.operations.empty()) continue;  // not told what is read
    for (std::size_t p = 0; p < layer.parameters.size(); ++p) {
      const bool is_read =
          std::any_of(layer.operations.begin(), layer.operations.end(), [&](const Operation& op) {
            return std::find(op.parameters.begin(), op.parameters.end(),
                             static_cast<std::int16_t>(p)) != op.parameters.end();
          });
      const ParameterSpec& parameter = layer.parameters[p];
      if (!is_read && !parameter.tied && parameter.trainable && !plan.frozen.any()) {
        return &parameter;
      }
    }
  }
  return nullptr;
}

}  // namespace

std::optional<PlanProblem> problem_of_ddp(const Plan& plan) {
  const DdpOptions& ddp = plan.ddp;
  if (plan.mesh.shard != 1) {
    return missing_capability(
        "mesh.shard", name_of(plan) + " replicates the model and shards nothing",
        fmt::format("mesh.shard: 1 and mesh.replicate: {}", plan.mesh.shard * plan.mesh.replicate));
  }
  if (Problem problem = problem_of_units(plan)) return problem;
  const bool copies = ddp.mixed_precision == DdpOptions::MixedPrecision::kParameters &&
                      plan.param_dtype != plan.master_dtype;
  const Knob knobs[] = {
      {plan.offload != Offload::kNone, "offload", "keeps everything on the device",
       "offload: none"},
      // Not PyTorch's limit.
      {copies && ddp.gradient_as_bucket_view, "ddp.gradient_as_bucket_view",
       "is modelled without views where _MixedPrecision swaps gradients",
       "ddp.gradient_as_bucket_view: false"},
  };
  if (Problem problem = first_missing(knobs, name_of(plan))) return problem;
  if (size_of(plan.param_dtype) > size_of(plan.master_dtype)) {
    return missing_capability("dtype.param",
                              name_of(plan) +
                                  " computes in the stored dtype or, with mixed precision, in a "
                                  "narrower one",
                              fmt::format("dtype.param: {}", to_string(plan.master_dtype)));
  }
  const bool no_sync =
      plan.accumulation == AccumulationMode::kKeepUnsharded && plan.batch.accumulation > 1;
  if (ddp.static_graph && no_sync) {
    return contradiction("ddp.static_graph",
                         "DDP fails on a static graph whose first micro-batch is under no_sync() "
                         "(\"expect_autograd_hooks_ INTERNAL ASSERT FAILED\", reducer.cpp:1705)",
                         "false, or accumulation.mode: reduce_each");
  }
  return std::nullopt;
}

std::optional<PlanProblem> problem_of_running_ddp(const Plan& plan, const ModelSpec& model) {
  if (plan.ddp.find_unused_parameters || plan.ddp.static_graph) return std::nullopt;
  const ParameterSpec* unused = unused_parameter(plan, model);
  if (unused == nullptr) return std::nullopt;
  return contradiction(
      "ddp.find_unused_parameters",
      fmt::format("{} takes no part in the loss, and DDP fails in the second step (\"Expected to "
                  "have finished reduction in the prior iteration before starting a new one\")",
                  unused->name),
      "true, or ddp.static_graph: true");
}

std::optional<PlanProblem> problem_of_zero12(const Plan& plan) {
  const ZeroOptions& zero = plan.zero;
  const bool is_stage1 = plan.runtime.kind == RuntimeKind::kZero1;
  if (plan.mesh.replicate != 1 && !zero.partition_in_groups) {
    return missing_capability(
        "mesh.replicate", name_of(plan) + " partitions over all ranks; groups are ZeRO-3's",
        fmt::format("mesh.shard: {} and mesh.replicate: 1", plan.mesh.shard * plan.mesh.replicate));
  }
  if (zero.partition_in_groups && !zero.use_multi_rank_bucket_allreduce) {
    return contradiction("zero.use_multi_rank_bucket_allreduce",
                         "a gradient has an owner in each group, so none can be reduced to alone",
                         "true, or zero.partition_in_groups: false");
  }
  if (zero.gradient_buffer &&
      (zero.fp32_gradient_accumulation || zero.offload_optimizer != ZeroOffload::kNone)) {
    return contradiction("zero.gradient_buffer",
                         "is Megatron-Core's, which has neither DeepSpeed's BF16_Optimizer nor its "
                         "offload",
                         "false, or zero.fp32_gradient_accumulation: false and "
                         "zero.offload_optimizer: none");
  }
  if (Problem problem = problem_of_units(plan)) return problem;
  static constexpr const char* kStage3 = "has no ZeRO++, which is stage 3's";
  const bool no_sync = plan.accumulation == AccumulationMode::kKeepUnsharded;
  const Knob knobs[] = {
      {no_sync && !is_stage1, "accumulation.mode",
       "refuses no_sync(): \"incompatible with gradient partitioning logic of ZeRO stage 2\"",
       "accumulation.mode: reduce_each"},
      {plan.offload != Offload::kNone, "offload", "is told by zero.offload_optimizer",
       "offload: none"},
      {plan.master_dtype != DType::kFp32, "dtype.master",
       "keeps its partition of the parameters in fp32", "dtype.master: fp32"},
      {zero.offload_param != ZeroOffload::kNone, "zero.offload_param",
       "keeps the parameters on the device; stage 3 offloads them", "zero.offload_param: none"},
      {zero.offload_optimizer == ZeroOffload::kNvme, "zero.offload_optimizer",
       "offloads to the CPU; NVMe is stage 3's", "zero.offload_optimizer: cpu"},
      {zero.partition_in_groups && !is_stage1, "zero.partition_in_groups",
       "partitions gradients, too; InternEvo's groups are of the optimizer's states alone",
       "zero.partition_in_groups: false"},
      {zero.gradient_buffer && !is_stage1, "zero.gradient_buffer",
       "partitions gradients, too; a buffer of all is stage 1's", "zero.gradient_buffer: false"},
      {zero.zero_hpz_partition_size != 1, "zero.zero_hpz_partition_size", kStage3,
       "zero.zero_hpz_partition_size: 1"},
      {zero.zero_quantized_weights, "zero.zero_quantized_weights", kStage3,
       "zero.zero_quantized_weights: false"},
      {zero.zero_quantized_gradients, "zero.zero_quantized_gradients", kStage3,
       "zero.zero_quantized_gradients: false"},
  };
  if (Problem problem = first_missing(knobs, name_of(plan))) return problem;
  if (zero.reduce_bucket_size < 1) {
    return contradiction("zero.reduce_bucket_size", "a bucket holds at least one element",
                         "a number above 0");
  }
  if (zero.allgather_bucket_size % 2 != 0) {
    return contradiction("zero.allgather_bucket_size",
                         "DeepSpeed refuses it: \"allgather_bucket_size must be a multiple of "
                         "nccl_start_alignment_factor, 2\"",
                         "an even number");
  }
  return std::nullopt;
}

}  // namespace foreshard
