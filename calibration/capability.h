// What a CUDA device reports of itself beside what a Cluster knows of it (calibration/machines/capabilities.csv).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/spec/cluster.h"

namespace foreshard {

struct ComputeCapability {
  std::int64_t major = 0, minor = 0;
  std::int64_t shared_per_multiprocessor = 0;  // bytes
  std::int64_t shared_per_block = 0;           // bytes, what a kernel can ask for
  std::int64_t threads_per_multiprocessor = 0;
  std::int64_t blocks_per_multiprocessor = 0;
  std::int64_t l2_bytes = 0;
};

// By the GPU's key, else by its architecture. Throws Error(kMissingCapability) where neither is CUDA's.
ComputeCapability capability_of(const Gpu& gpu);

// "a100" of "a100-80gb" and of "a800": cards of one chip share their kernels.
std::string chip_of_key(std::string_view key);

}
