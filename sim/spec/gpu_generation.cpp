#include "sim/spec/gpu_generation.h"

#include <algorithm>
#include <array>

namespace foreshard {
namespace {

using enum GpuVendor;

// Capabilities: NVIDIA, CUDA C++ Programming Guide, "Compute Capabilities" (GeForce's Blackwell is
// 12).
constexpr std::array kGenerations = {
    Generation{"volta", kNvidia, 7, 0},
    Generation{"turing", kNvidia, 7, 1},
    Generation{"ampere", kNvidia, 8, 2},
    Generation{"ada", kNvidia, 8, 2.5},
    Generation{"hopper", kNvidia, 9, 4},
    Generation{"blackwell", kNvidia, 10, 6},
    Generation{"blackwell-ultra", kNvidia, 10, 6.5},
    Generation{"cdna2", kAmd, 0, 20},
    Generation{"cdna3", kAmd, 0, 22},
    Generation{"cdna4", kAmd, 0, 23},
};

// On the null GPU (docs/capture.md), minors 11 to 15; aten/src/ATen/cuda/CublasHandlePool.cpp,
// parseChosenWorkspaceSize.
struct WorkspaceRow {
  std::int32_t minor;  // from which on
  int newest_large;    // capability; 32 MiB from 9 to there, else :4096:2:16:8 in KiB
  bool kept;
};
constexpr std::array kWorkspaceRows = {
    WorkspaceRow{0, 9, true}, WorkspaceRow{12, 12, true}, WorkspaceRow{15, 12, false}};

}

ProductWorkspaces product_workspaces(std::int32_t minor, int compute_capability) {
  constexpr std::int64_t kSmall = (2 * 4096 + 8 * 16) << 10, kLarge = std::int64_t{32} << 20,
                         kLt = std::int64_t{1} << 20;
  WorkspaceRow row = kWorkspaceRows.front();
  for (const WorkspaceRow& each : kWorkspaceRows)
    if (each.minor <= minor) row = each;
  const bool large = compute_capability >= 9 && compute_capability <= row.newest_large;
  return {large ? kLarge : kSmall, kLt, row.kept || compute_capability == 0};
}

std::span<const std::string_view> gpu_architectures() {
  static constexpr auto kNames = [] {
    std::array<std::string_view, kGenerations.size()> names;
    for (std::size_t i = 0; i < names.size(); ++i) names[i] = kGenerations[i].name;
    return names;
  }();
  return kNames;
}

const Generation& generation_of(const Gpu& gpu) {
  static constexpr Generation kUnknown;
  const auto found = std::ranges::find(kGenerations, gpu.architecture, &Generation::name);
  return found == kGenerations.end() ? kUnknown : *found;
}

}
