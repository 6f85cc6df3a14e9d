#include "sim/cost/cost_choices.h"

#include <optional>

#include "sim/spec/fsdp2_version.h"

namespace foreshard {
namespace {

// Versions of fsdp2 and fsdp1 are PyTorch's; of the other runtimes the newest is taken.
std::string attention_kernel(const Plan& plan, const Calibration& calibration) {
  if (plan.attention != AttentionKernel::kFlash) return to_string(plan.attention);
  const bool is_fsdp =
      plan.runtime.kind == RuntimeKind::kFsdp2 || plan.runtime.kind == RuntimeKind::kFsdp1;
  if (!is_fsdp) return "";
  const std::optional<std::int32_t> minor = fsdp2_minor(plan.runtime.version);
  return minor && *minor < 11 ? calibration.sdpa_kernel : "";
}

}  // namespace

CostChoices cost_choices(const Plan& plan, const Calibration& calibration) {
  CostChoices choices;
  choices.order = plan.reduction_order;
  choices.compute = plan.compute_dtype();
  choices.attention_kernel = attention_kernel(plan, calibration);
  return choices;
}

}  // namespace foreshard
