#include "tests/exec/device/hostile_arguments.h"

#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>

#include <map>
#include <stdexcept>
#include <utility>

namespace foreshard {
namespace {

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  if (value.isTensorList()) return value.toTensorVector();
  std::vector<at::Tensor> found;
  if (value.isList()) {
    for (const c10::IValue& one : value.toListRef()) {
      if (!one.isNone() && !one.isTensor()) return {};
      found.push_back(one.isTensor() ? one.toTensor() : at::Tensor());
    }
  }
  return found;
}

}

Shape::Shape(const at::Tensor& t)
    : memory(const_cast<void*>(t.const_data_ptr())),
      sizes(t.sizes().vec()),
      strides(t.strides().vec()),
      type(t.scalar_type()) {}

at::Tensor Shape::over(void* bytes) const {
  return at::from_blob(bytes, sizes, strides, at::TensorOptions().dtype(type));
}
at::Tensor Shape::zeros() const { return at::empty_strided(sizes, strides, at::TensorOptions().dtype(type)).zero_(); }
Extent Shape::extent(bool writes) const {
  std::int64_t elements = 1;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return {};
    elements += (sizes[d] - 1) * strides[d];
  }
  return {static_cast<std::byte*>(memory), static_cast<std::size_t>(elements) * c10::elementSize(type), writes};
}

Argument argument_of(const c10::OperatorHandle& op, const c10::IValue& value, bool writes) {
  Argument argument;
  const std::vector<at::Tensor> tensors = tensors_of(value);
  bool ours = false;
  for (const at::Tensor& t : tensors) ours = ours || is_ours(t);
  for (const at::Tensor& t : tensors) {
    // A kernel takes a scalar of the host as a number; other tensors of the host it cannot reach.
    if (t.defined() && !is_ours(t) && (t.dim() > 0 || ours)) {
      throw std::runtime_error(c10::toString(op.operator_name()) + " on the device is given a tensor of the host");
    }
  }
  if (!ours) {
    argument.value = value.isTensor() && value.toTensor().defined() ? value.toTensor().clone() : value;
    return argument;
  }
  argument.writes = writes;
  argument.is_list = !value.isTensor();
  argument.is_optional_list = argument.is_list && !value.isTensorList();
  for (const at::Tensor& t : tensors) {
    t.defined() ? argument.shapes.emplace_back(Shape(t)) : argument.shapes.emplace_back();
  }
  return argument;
}

std::vector<c10::IValue> stack_of(
    const std::vector<Argument>& arguments, const std::function<at::Tensor(const Shape&)>& tensor_of) {
  std::map<Shape, at::Tensor> made;
  const auto get = [&](const std::optional<Shape>& shape) {
    if (!shape) return at::Tensor();
    const auto [it, added] = made.try_emplace(*shape);
    if (added) it->second = tensor_of(*shape);
    return it->second;
  };
  std::vector<c10::IValue> stack;
  for (const Argument& a : arguments) {
    if (a.shapes.empty()) {
      stack.push_back(a.value);
    } else if (!a.is_list) {
      stack.emplace_back(get(a.shapes.front()));
    } else if (a.is_optional_list) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& shape : a.shapes) list.push_back(shape ? std::optional<at::Tensor>(get(shape)) : std::nullopt);
      stack.emplace_back(std::move(list));
    } else {
      c10::List<at::Tensor> list;
      for (const auto& shape : a.shapes) list.push_back(get(shape));
      stack.emplace_back(std::move(list));
    }
  }
  return stack;
}

void call_on_host(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack) {
  // Those that name a device name the host's.
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size() && i < stack.size(); ++i) {
    if (stack[i].isDevice()) stack[i] = c10::Device(c10::DeviceType::CPU);
  }
  op.callBoxed(&stack);
}

std::vector<Extent> extents_of(const std::vector<Argument>& arguments) {
  std::vector<Extent> extents;
  for (const Argument& a : arguments) {
    for (const auto& shape : a.shapes) {
      if (shape) extents.push_back(shape->extent(a.writes));
    }
  }
  return extents;
}

}
