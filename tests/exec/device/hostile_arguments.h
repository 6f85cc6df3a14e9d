// Arguments of an operator as a kernel has them: addresses and shapes instead of tensors, so that
// whoever frees or moves them too early is found.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tests/exec/device/access_log.h"

namespace foreshard {

inline const c10::Device kHostileDevice(c10::DeviceType::PrivateUse1, 0);
inline bool is_ours(const at::Tensor& t) { return t.defined() && t.device() == kHostileDevice; }

struct Shape {
  void* memory = nullptr;
  std::vector<std::int64_t> sizes, strides;
  at::ScalarType type = at::kFloat;

  auto operator<=>(const Shape&) const = default;

  explicit Shape(const at::Tensor& t);

  at::Tensor over(void* bytes) const;  // a tensor of the host
  at::Tensor zeros() const;            // one of its own
  Extent extent(bool writes) const;
};

// An argument without the tensors it holds: those of the device as shapes, copies of the host's scalars.
struct Argument {
  c10::IValue value;                         // where it holds no tensor of the device
  std::vector<std::optional<Shape>> shapes;  // else, nullopt: undefined
  bool is_list = false, is_optional_list = false;
  bool writes = false;
};

// Throws std::runtime_error for a tensor of the host that is no scalar.
Argument argument_of(const c10::OperatorHandle& op, const c10::IValue& value, bool writes);
std::vector<Extent> extents_of(const std::vector<Argument>& arguments);

// Arguments for a call on the host; the same shape is the same tensor, as it was: kernels look for
// arguments that are one.
std::vector<c10::IValue> stack_of(
    const std::vector<Argument>& arguments, const std::function<at::Tensor(const Shape&)>& tensor_of);

// Results take the place of arguments.
void call_on_host(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack);

}
