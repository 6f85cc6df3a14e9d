// What follows from a GPU's generation, the word that the catalogue states of every GPU
// (Gpu::architecture): one row per word, which all that depends on it reads.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "sim/spec/cluster.h"

namespace foreshard {

enum class GpuVendor : std::uint8_t { kNvidia, kAmd, kUnknown };

struct Generation {
  std::string_view name;  // "hopper"
  GpuVendor vendor = GpuVendor::kUnknown;
  // Major number of CUDA's compute capability; 0 of other vendors and where nobody said.
  int compute_capability = 0;
  // Generations in their order; the distance between two is that of their places, with gaps where
  // matrix units changed much. Vendors are far apart.
  double place = 40;

  bool is_amd() const { return vendor == GpuVendor::kAmd; }
  // No bf16 (PyTorch emulates it), and neither FlashAttention nor bf16 in the memory-efficient kernel of
  // scaled_dot_product_attention (pytorch:aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).
  bool is_before_ampere() const { return vendor == GpuVendor::kNvidia && compute_capability < 8; }
  // A context of 616 MiB, cuDNN's attention preferred.
  bool is_hopper_or_later() const { return compute_capability >= 9; }
  bool is_blackwell_or_later() const { return compute_capability >= 10; }
};

// The words of Gpu::architecture, NVIDIA's in their order, then AMD's.
std::span<const std::string_view> gpu_architectures();

// Of the GPU's architecture; where that is no word of the table, a generation without a name.
const Generation& generation_of(const Gpu& gpu);

// What products take from PyTorch's caching allocator. kept: one for each handle (host thread) and stream, never freed;
// else each product takes one behind its result and gives it back when it has been launched: cublasLt's own where it
// adds a bias or is in fp8 (grouped products take none).
struct ProductWorkspaces {
  std::int64_t cublas = 0, lt = 0;  // bytes
  bool kept = true;
  bool operator==(const ProductWorkspaces&) const = default;
};
// Of PyTorch 2.`minor` on GPUs of that compute capability (major), at the default of CUBLAS_WORKSPACE_CONFIG.
ProductWorkspaces product_workspaces(std::int32_t minor, int compute_capability);

}
