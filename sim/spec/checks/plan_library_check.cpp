// What FSDP1, DDP and DeepSpeed have no knob for, or refuse themselves, runtime by runtime.
#include <fmt/format.h>

#include <algorithm>

#include "sim/spec/checks/plan_runtime_check.h"

namespace foreshard {
namespace {

using Problem = std::optional<PlanProblem>;

std::string name_of(const Plan& plan) {
  return fmt::format("{}@{}", to_string(plan.runtime.kind), plan.runtime.version);
}

// Whether a base of lora.base: param is of the adapters' dtype.
bool has_uniform_base(const Plan& plan) {
  return plan.lora.base == Lora::Base::kParam && plan.param_dtype == plan.master_dtype;
}

// Switches of fully_shard and of the engine that none of them has.
Problem problem_of_shared_keys(const Plan& plan) {
  const Knob knobs[] = {
      {plan.units.shard_dim != 0, "units.shard_dim", "shards flat buffers", "units.shard_dim: 0"},
      {plan.prefetch.backward_lists, "prefetch.backward_lists", "has no lists of modules",
       "prefetch.backward_lists: false"},
      {plan.prefetch.async_unshard, "prefetch.async_unshard", "has no such switch",
       "prefetch.async_unshard: false"},
      {plan.reduction_order != ReductionOrder::kLibrary, "reduction_order",
       "sums as its communication library does; micro-batch order is the engine's",
       "reduction_order: library"},
      {plan.evaluation.in_step, "evaluation.in_step", "is modelled with evaluations between steps",
       "evaluation.in_step: false"},
      // FlatParamHandle._validate_tensors_to_flatten, of a block with adapters.
      {plan.lora.rank > 0 && plan.runtime.kind == RuntimeKind::kFsdp1 &&
           !plan.fsdp1.use_orig_params,
       "fsdp1.use_orig_params",
       "must flatten tensors with uniform `requires_grad` when `use_orig_params=False`, and "
       "adapters lie beside a frozen base",
       "fsdp1.use_orig_params: true"},
      {plan.lora.rank > 0 && plan.runtime.kind == RuntimeKind::kFsdp1 &&
           plan.lora.base != Lora::Base::kMaster && !has_uniform_base(plan),
       "lora.base", "must flatten tensors with uniform dtype, and adapters are in dtype.master",
       "lora.base: master"},
  };
  return first_missing(knobs, name_of(plan));
}

// Sources: the arguments of FullyShardedDataParallel, _exec_order_utils.py (prefetch limits of 1),
// torch/_dynamo/variables/builder.py (2.11).
Problem problem_of_fsdp1(const Plan& plan) {
  static constexpr const char* kOneModule =
      "makes a flat parameter of one module, not of a list of modules";
  const Units& units = plan.units;
  const AccumulationDetails details;
  const Knob knobs[] = {
      {units.layers_per_unit > 1 && units.blocks == UnitPlacement::kOwn, "units.layers_per_unit",
       kOneModule, "units.layers_per_unit: 1"},
      {units.embedding == UnitPlacement::kWithHead, "units.embedding", kOneModule,
       "units.embedding: root and units.head: root"},
      {units.head == UnitPlacement::kWithNorm, "units.head", kOneModule, "units.head: own"},
      // Not PyTorch's limit: nested units are those of a block that is one.
      {units.experts == UnitPlacement::kOwn && units.blocks == UnitPlacement::kRoot,
       "units.experts", "is modelled with units inside of blocks that are units",
       "units.experts: block"},
      {reshards_to_groups(plan), "reshard_after_forward",
       "frees whole flat parameters; groups of ranks are fully_shard's",
       "reshard_after_forward: always"},
      {!unshards_everywhere(plan), "unshard_in_backward", "gathers every unit in backward",
       "unshard_in_backward: true"},
      {plan.prefetch.forward == 0, "prefetch.forward",
       "cannot keep the host from running ahead in forward", "prefetch.forward: implicit"},
      {plan.prefetch.forward > 1, "prefetch.forward", "gathers one unit ahead (forward_prefetch)",
       "prefetch.forward: 1"},
      {plan.prefetch.backward > 1, "prefetch.backward",
       "gathers one unit ahead (backward_prefetch)", "prefetch.backward: 1"},
      {plan.output_dtype.has_value(), "dtype.output", "leaves the outputs as they are",
       "dtype.output: none"},
      {plan.accumulation_details.all_reduce != details.all_reduce, "accumulation.all_reduce",
       "all-reduces whenever it reduces", "accumulation.all_reduce: each"},
      {plan.accumulation_details.reshard_after_backward != details.reshard_after_backward,
       "accumulation.reshard_after_backward",
       "reshards under no_sync() as reshard_after_forward says",
       "accumulation.reshard_after_backward: each"},
      {plan.accumulation_details.is_last_backward != details.is_last_backward,
       "accumulation.is_last_backward", "ends every backward alike",
       "accumulation.is_last_backward: each"},
      {plan.ignored != Ignored::kNone, "ignored", "is modelled without ignored_states",
       "ignored: none"},
      {plan.offload == Offload::kCpuUnpinned, "offload", "pins what it keeps on the host",
       "offload: cpu"},
      {plan.gradient_divide_factor.has_value(), "reduction.divide_factor",
       "divides by the number of ranks", "reduction.divide_factor: none"},
      {plan.force_sum_reduction, "reduction.force_sum", "always sums, and divides before and after",
       "reduction.force_sum: false"},
      {plan.reduce_scatter_buffers > 1, "buffers.reduce_scatter",
       "reduces from gradients, not from buffers of its own", "buffers.reduce_scatter: 1"},
      {plan.communicators == Communicators::kSeparate, "communicators",
       "gathers and reduces in one process group", "communicators: shared"},
  };
  if (Problem problem = first_missing(knobs, name_of(plan))) return problem;
  if (plan.compile != Compile::kNone && !plan.fsdp1.use_orig_params) {
    return contradiction("fsdp1.use_orig_params",
                         "Dynamo only supports FSDP with use_orig_params=True",
                         "true, or compile: none");
  }
  return std::nullopt;
}

// FlatParamHandle._validate_tensors_to_flatten raises
//   ValueError: Must flatten tensors with uniform `requires_grad` when `use_orig_params=False`
Problem problem_of_frozen_units(const Plan& plan, const ModelSpec& model) {
  if (plan.runtime.kind != RuntimeKind::kFsdp1 || plan.fsdp1.use_orig_params) return std::nullopt;
  bool trains = false, freezes = false;  // the unit of the whole model
  std::int64_t block = 0;
  for (const LayerInstance& layer : model.order) {
    const LayerSpec& spec = model.kinds[static_cast<std::size_t>(layer.kind)];
    const std::int64_t number = spec.role == LayerRole::kBlock && layer.same_as < 0 ? block++ : -1;
    const bool owns = std::any_of(spec.parameters.begin(), spec.parameters.end(),
                                  [](const ParameterSpec& p) { return !p.tied; });
    if (!owns || layer.same_as >= 0 || !in_root(plan.units, spec.role)) continue;
    (is_frozen(plan.frozen, spec, number) ? freezes : trains) = true;
  }
  if (!trains || !freezes) return std::nullopt;
  return contradiction("fsdp1.use_orig_params",
                       "FSDP must flatten tensors with uniform `requires_grad` when "
                       "`use_orig_params=False`, and the root has frozen ones beside others",
                       "true, or units that are frozen or trained as a whole");
}

}  // namespace

std::optional<PlanProblem> problem_of_library(const Plan& plan) {
  if (Problem problem = problem_of_shared_keys(plan)) return problem;
  if (plan.runtime.kind == RuntimeKind::kDdp) return problem_of_ddp(plan);
  if (plan.runtime.kind == RuntimeKind::kFsdp1) return problem_of_fsdp1(plan);
  const int stage = zero_stage(plan.runtime.kind);
  if (stage == 1 || stage == 2) return problem_of_zero12(plan);
  if (stage == 3) return problem_of_zero3(plan);
  return std::nullopt;
}

std::optional<PlanProblem> problem_of_running_library(const Plan& plan, const ModelSpec& model) {
  if (plan.runtime.kind == RuntimeKind::kDdp) return problem_of_running_ddp(plan, model);
  if (plan.runtime.kind == RuntimeKind::kFsdp1) return problem_of_frozen_units(plan, model);
  return std::nullopt;
}

}  // namespace foreshard
