#include "sim/simulate/cost_choices.h"

#include <optional>

#include "sim/memory/outside_allocator.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/fsdp2_version.h"

namespace foreshard {
namespace {

// The engine runs the flash backend's kernel; PyTorch chooses, by its version: of the runtimes that
// are not PyTorch's own the newest is taken.
std::string attention_kernel(const Plan& plan) {
  if (plan.attention == AttentionKernel::kEfficient) return "sdpa_efficient";
  const bool is_flash = plan.attention == AttentionKernel::kFlash || plan.attention == AttentionKernel::kFlashAllHeads;
  if (!is_flash) return to_string(plan.attention);
  if (plan.runtime.kind == RuntimeKind::kNative) return "sdpa_flash";
  const bool is_fsdp = plan.runtime.kind == RuntimeKind::kFsdp2 || plan.runtime.kind == RuntimeKind::kFsdp1;
  if (!is_fsdp) return "";
  const std::optional<std::int32_t> minor = fsdp2_minor(plan.runtime.version);
  return minor && *minor < 11 ? "sdpa_flash" : "";
}

}

CostChoices cost_choices(const Plan& plan) {
  CostChoices choices;
  choices.order = is_microbatch_order(plan.reduction_order) ? ReductionOrder::kMicrobatch : ReductionOrder::kLibrary;
  choices.compute = plan.compute_dtype();
  choices.attention_kernel = attention_kernel(plan);
  choices.group_by_group = has_engine_modules(plan.runtime);
  choices.collectives.version = nccl_of(plan.runtime);
  choices.collectives.kernels = plan.collectives.kernels;
  choices.collectives.max_ctas = static_cast<int>(plan.collectives.max_ctas);
  return choices;
}

}
