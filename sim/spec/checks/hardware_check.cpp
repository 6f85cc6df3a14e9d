// One table says on which architectures a kernel runs; a kernel that is not in it runs on all.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "sim/base/lookup.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/checks/plan_runtime_check.h"
#include "sim/spec/gpu_generation.h"

namespace foreshard {
namespace {

// `flash` is whichever kernel scaled_dot_product_attention picks, and so runs everywhere.
struct KernelSupport {
  AttentionKernel kernel;
  std::vector<std::string_view> lacking;  // architectures
  const char* source;
};

const std::vector<KernelSupport>& kernel_support() {
  using enum AttentionKernel;
  static const std::vector<KernelSupport> table = {
      // On AMD's GPUs TransformerEngine's switch of this name runs Composable Kernel's.
      {kCudnn, {"volta", "turing"},
          "pytorch:aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, check_cudnn_hardware_support: sm80 and later"},
      {kFa1, {"volta"}, "flash-attention 1.0.9, README: Turing, Ampere, Ada or Hopper"},
      {kFa2, {"volta", "turing"},
          "flash-attention 2, README: Ampere, Ada or Hopper, and CDNA through Composable Kernel"},
      {kFa3, {"volta", "turing", "ampere", "ada", "blackwell", "blackwell-ultra", "cdna2", "cdna3", "cdna4"},
          "flash-attention:hopper, README: H100 and H800"},
  };
  return table;
}

bool lacks(const KernelSupport& support, std::string_view architecture) {
  return contains(support.lacking, architecture);
}

// The newest of flash-attention's kernels that is there, else what PyTorch picks.
const char* nearest_kernel(std::string_view architecture) {
  using enum AttentionKernel;
  const std::vector<KernelSupport>& table = kernel_support();
  for (const AttentionKernel kernel : {kFa2, kFa1}) {
    const bool is_lacking = std::ranges::any_of(
        table, [&](const auto& support) { return support.kernel == kernel && lacks(support, architecture); });
    if (!is_lacking) return to_string(kernel);
  }
  return to_string(kFlash);
}

}

std::optional<PlanProblem> problem_of_hardware(const Plan& plan, const Cluster& cluster) {
  const Gpu& gpu = cluster.gpu;
  if (plan.float8 != Float8::kNone && gpu.peak_fp8.value() <= 0) {
    return contradiction("float8", fmt::format("{} has no fp8 units", gpu.name),
        "none, or a GPU with fp8 units (gpu.peak_fp8 in a cluster file)", "none");
  }
  if (plan.float8 == Float8::kNvfp4 && gpu.peak_fp4.value() <= 0) {
    return contradiction("float8", fmt::format("{} has no units of four bits", gpu.name),
        "mxfp8, or a GPU that has them (gpu.peak_fp4 in a cluster file)", "mxfp8");
  }
  if (plan.float8 != Float8::kNone && plan.compute_dtype() == DType::kFp32) {
    return contradiction("float8", "products in fp8 stand in a bf16 computation, not in an fp32 one",
        "none, dtype.param: bf16, or dtype.autocast: bf16 where the runtime has it", "none");
  }
  for (const KernelSupport& support : kernel_support()) {
    if (plan.attention != support.kernel || !lacks(support, gpu.architecture)) continue;
    auto runs = list_where<std::string_view>(
        gpu_architectures(), [&](const std::string_view each) { return !lacks(support, each); });
    return contradiction("attention",
        fmt::format("{} does not run on {} ({})", to_string(support.kernel), gpu.name, gpu.architecture),
        fmt::format("flash, or a GPU of {} ({})", fmt::join(runs, ", "), support.source),
        nearest_kernel(gpu.architecture));
  }
  return std::nullopt;
}

}
