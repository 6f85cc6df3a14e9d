// Storage whose memory can be swapped: every tensor that is a view of it sees the new memory at once.
//
// A unit's parameters are views of one FlatStorage. Attaching it to a slot of the arena before a
// gather replaces resizing and copying; detached, it points nowhere. (research: exec_engine.md 4.2;
// c10's StorageImpl::set_data_ptr_noswap.)
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <span>

#include "sim/spec/plan.h"

namespace foreshard {

at::ScalarType scalar_type(DType dtype);

class FlatStorage {
 public:
  FlatStorage() = default;
  FlatStorage(std::int64_t numel, at::ScalarType type, c10::Device device = c10::Device(c10::DeviceType::CPU));

  at::Tensor view(std::int64_t offset, std::span<const std::int64_t> shape) const;
  void attach(void* memory);  // nullptr detaches

 private:
  at::Tensor flat_;
};

// A tensor over memory that somebody else owns.
at::Tensor tensor_over(
    void* memory, std::int64_t numel, at::ScalarType type, c10::Device device = c10::Device(c10::DeviceType::CPU));

}
