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
