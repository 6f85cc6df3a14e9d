// Memory in which a rank's parameters, gradients and states live: the host's for a CPU rank, a
// GPU's for a rank that feeds one (exec/device/accelerator.h).
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstring>

namespace foreshard {

class RankMemory {
 public:
  virtual ~RankMemory() = default;
  virtual c10::Device device() const = 0;
  // Zeroed. Throws Error(kInfeasible) or std::runtime_error where there is not that much.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void release(std::byte* memory, std::size_t bytes) noexcept = 0;
  // In the order of what was given to the device before (its current lane); both sides are its, or pinned.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void fill(void* at, int byte, std::size_t bytes) = 0;
  // Done when they return.
  virtual void to_device(void* to, const void* host, std::size_t bytes) = 0;
  virtual void to_host(void* host, const void* from, std::size_t bytes) = 0;
  // Zeroed memory of the host that copy() moves to and from the device without the host waiting. Throws as allocate().
  virtual std::byte* allocate_pinned(std::size_t bytes) = 0;
  virtual void release_pinned(std::byte* memory, std::size_t bytes) noexcept = 0;
};

// What a host's own instructions reach, wherever it comes from: the device's side is this side.
class HostSideMemory : public RankMemory {
 public:
  c10::Device device() const final { return c10::Device(c10::DeviceType::CPU); }
  void copy(void* to, const void* from, std::size_t bytes) final { std::memcpy(to, from, bytes); }
  void fill(void* at, int byte, std::size_t bytes) final { std::memset(at, byte, bytes); }
  void to_device(void* to, const void* host, std::size_t bytes) final { copy(to, host, bytes); }
  void to_host(void* host, const void* from, std::size_t bytes) final { copy(host, from, bytes); }
  std::byte* allocate_pinned(std::size_t bytes) final { return allocate(bytes); }
  void release_pinned(std::byte* memory, std::size_t bytes) noexcept final { release(memory, bytes); }
};

// The memory of this process.
RankMemory& host_memory();

// Host memory that a device copies from and to: states of a rank whose plan offloads them.
class PinnedMemory final : public HostSideMemory {
 public:
  explicit PinnedMemory(RankMemory& device) : device_(device) {}  // a reference is kept
  std::byte* allocate(std::size_t bytes) override { return device_.allocate_pinned(bytes); }
  void release(std::byte* memory, std::size_t bytes) noexcept override { device_.release_pinned(memory, bytes); }

 private:
  RankMemory& device_;
};

}
