// What FSDP1 and DDP raise once a model is there, and sizes that DeepSpeed refuses.
#include <fmt/format.h>

#include <algorithm>

#include "sim/base/lookup.h"
#include "sim/spec/checks/plan_runtime_check.h"

namespace foreshard {
namespace {

using Problem = std::optional<PlanProblem>;

// FlatParamHandle._validate_tensors_to_flatten raises
//   ValueError: Must flatten tensors with uniform `requires_grad` when `use_orig_params=False`
Problem problem_of_frozen_units(const Plan& plan, const ModelSpec& model) {
  if (plan.runtime.kind != RuntimeKind::kFsdp1 || plan.fsdp1.use_orig_params) return std::nullopt;
  bool trains = false, freezes = false;  // the unit of the whole model
  std::int64_t block = 0;
  for (const LayerInstance& layer : model.order) {
    const LayerSpec& spec = model.kinds[at(layer.kind)];
    const std::int64_t number = spec.role == LayerRole::kBlock && layer.same_as < 0 ? block++ : -1;
    const bool owns = std::ranges::any_of(spec.parameters, [](const ParameterSpec& p) { return !p.tied; });
    if (!owns || layer.same_as >= 0 || !in_root(plan.units, spec.role)) continue;
    (is_frozen(plan.frozen, spec, number) ? freezes : trains) = true;
  }
  if (!trains || !freezes) return std::nullopt;
  return contradiction("fsdp1.use_orig_params",
      "FSDP must flatten tensors with uniform `requires_grad` when "
      "`use_orig_params=False`, and the root has frozen ones beside others",
      "true, or units that are frozen or trained as a whole");
}

// A parameter that no operation of its layer reads gets no gradient.
const ParameterSpec* unused_parameter(const Plan& plan, const ModelSpec& model) {
  for (const LayerSpec& layer : model.kinds) {
    if (layer.operations.empty()) continue;  // not told what is read
    for (std::size_t p = 0; p < layer.parameters.size(); ++p) {
      const bool is_read = !layer.unread && std::ranges::any_of(layer.operations, [&](const Operation& op) {
        return contains(op.parameters, static_cast<std::int16_t>(p));
      });
      const ParameterSpec& parameter = layer.parameters[p];
      const bool waits = parameter.unused || (!is_read && parameter.trainable);
      if (waits && !parameter.tied && !plan.frozen.any() && plan.lora.rank == 0) return &parameter;
    }
  }
  return nullptr;
}

Problem problem_of_unused_parameters(const Plan& plan, const ModelSpec& model) {
  if (plan.ddp.find_unused_parameters || plan.ddp.static_graph) return std::nullopt;
  const ParameterSpec* unused = unused_parameter(plan, model);
  if (unused == nullptr) return std::nullopt;
  return contradiction("ddp.find_unused_parameters",
      fmt::format("{} takes no part in the loss, and DDP fails in the second step (\"Expected to "
                  "have finished reduction in the prior iteration before starting a new one\")",
          unused->name),
      "true, or ddp.static_graph: true");
}

}

std::optional<PlanProblem> problem_of_divisions(const Plan& plan) {
  const ZeroOptions& zero = plan.zero;
  const int stage = zero_stage(plan.runtime.kind);
  if ((stage == 1 || stage == 2) && zero.allgather_bucket_size % 2 != 0) {
    return contradiction("zero.allgather_bucket_size",
        "DeepSpeed refuses it: \"allgather_bucket_size must be a multiple of nccl_start_alignment_factor, 2\"",
        "an even number");
  }
  // deepspeed/utils/groups.py, _ensure_divisibility.
  const std::int64_t secondary = zero.zero_hpz_partition_size;
  if (stage == 3 && secondary > 1 && secondary < plan.mesh.shard && plan.mesh.shard % secondary != 0) {
    return contradiction("zero.zero_hpz_partition_size",
        fmt::format("DeepSpeed refuses it: \"{} is not divisible by {}\"", plan.mesh.shard, secondary),
        "a divisor of mesh.shard");
  }
  return std::nullopt;
}

std::optional<PlanProblem> problem_of_running_library(const Plan& plan, const ModelSpec& model) {
  if (plan.runtime.kind == RuntimeKind::kDdp && plan.mesh.world() > 1)  // (on one nothing is wrapped)
    return problem_of_unused_parameters(plan, model);
  if (plan.runtime.kind == RuntimeKind::kFsdp1) return problem_of_frozen_units(plan, model);
  return std::nullopt;
}

}
