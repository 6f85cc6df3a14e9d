// Memory in which a rank's parameters, gradients and states live: the host's for a CPU rank, a
// GPU's for a rank that feeds one (exec/device/accelerator.h).
#pragma once

#include <c10/core/Device.h>

#include <cstddef>

namespace foreshard {

class RankMemory {
 public:
  virtual ~RankMemory() = default;
  virtual c10::Device device() const = 0;
  // Zeroed. Throws Error(kInfeasible) or std::runtime_error where there is not that much.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void release(std::byte* memory, std::size_t bytes) noexcept = 0;
  // In the order of what was given to the device before (its current lane); both sides are its.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void fill(void* at, int byte, std::size_t bytes) = 0;
  // Done when they return.
  virtual void to_device(void* to, const void* host, std::size_t bytes) = 0;
  virtual void to_host(void* host, const void* from, std::size_t bytes) = 0;
};

// The memory of this process.
RankMemory& host_memory();

}  // namespace foreshard
