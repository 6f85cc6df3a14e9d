// A fallback for every operator that ATen has no kernel of for this device. What it composes itself (zeros, clone,
// `to`, whatever makes its result and calls its own `out=` form) arrives as its parts.
//
//   views          a tensor of the same storage at once
//   item, equal    the host waits for the lane, then reads
//   the others     tensors are taken as addresses and shapes, as a kernel takes them, so that
//   whoever
//                  frees or moves them too early is found; later they are made again over the same
//                  bytes where work may touch them, and ATen's CPU kernel is called. Where an
//                  operator makes its result, its shape is found by calling it on zeros of the same
//                  shapes first.
#include "tests/exec/device/hostile_operators.h"

#include <ATen/Functions.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <optional>
#include <stdexcept>
#include <utility>

#include "tests/exec/device/hostile_arguments.h"

namespace foreshard {

HostilePlace& hostile_place() {
  thread_local HostilePlace place;
  return place;
}

namespace {

HostilePlace& place() {
  if (hostile_place().gpu == nullptr) throw std::runtime_error("this thread has no accelerator for its tensors");
  return hostile_place();
}

// --- memory ---

struct Lent {
  std::shared_ptr<HostileGpu> gpu;
  HostileGpu::Block* block;
};

void give_back(void* context) {
  const std::unique_ptr<Lent> lent(static_cast<Lent*>(context));
  lent->gpu->give_back(lent->block);
}

at::Tensor make(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type) {
  std::size_t elements = 1;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    elements = sizes[d] == 0 ? 0 : elements + static_cast<std::size_t>((sizes[d] - 1) * strides[d]);
    if (elements == 0) break;
  }
  const std::size_t bytes = elements * c10::elementSize(type);
  auto lent = std::make_unique<Lent>(Lent{place().gpu, nullptr});
  lent->block = lent->gpu->lend(bytes, place().lane);
  void* const memory = lent->gpu->memory_of(lent->block);
  at::DataPtr data(memory, lent.release(), &give_back, kHostileDevice);
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), nullptr, false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

std::vector<std::int64_t> packed(at::IntArrayRef sizes) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<std::int64_t>(sizes[d], 1);
  return strides;
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout> /*layout*/,
    std::optional<at::Device> /*device*/, std::optional<bool> /*pinned*/, std::optional<at::MemoryFormat> /*format*/) {
  return make(sizes, packed(sizes), type.value_or(at::kFloat));
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> type,
    std::optional<at::Layout> /*layout*/, std::optional<at::Device> /*device*/, std::optional<bool> /*pinned*/) {
  return make(sizes, strides, type.value_or(at::kFloat));
}

at::Tensor& set_storage(
    at::Tensor& self, at::Storage storage, std::int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides) {
  c10::TensorImpl* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(sizes, strides);
  return self;
}

// --- operators ---

at::Tensor view_like(const at::Tensor& self, const at::Tensor& shape) {
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(self.storage()), self.key_set(), self.dtype());
  view.unsafeGetTensorImpl()->set_storage_offset(shape.storage_offset());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides());
  return view;
}

// The result's place within the storage is found on a tensor of the host that has no memory.
void view(const c10::OperatorHandle& op, torch::jit::Stack* stack, std::size_t count) {
  const at::Tensor self = (*stack)[stack->size() - count].toTensor();
  at::Tensor likeness = at::empty({0}, at::TensorOptions().dtype(self.dtype()));
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), self.storage().nbytes(),
      at::DataPtr(nullptr, c10::DeviceType::CPU), nullptr, false);
  likeness.set_(c10::Storage(std::move(storage)), self.storage_offset(), self.sizes(), self.strides());
  (*stack)[stack->size() - count] = likeness;
  op.callBoxed(stack);
  for (std::size_t r = 0; r < op.schema().returns().size(); ++r) {
    c10::IValue& result = (*stack)[stack->size() - op.schema().returns().size() + r];
    if (result.isTensor()) {
      result = view_like(self, result.toTensor());
    } else {
      c10::List<at::Tensor> views;
      for (const at::Tensor& t : result.toTensorVector()) views.push_back(view_like(self, t));
      result = std::move(views);
    }
  }
}

bool is_view(const c10::FunctionSchema& schema) {
  if (schema.name() == "aten::_unsafe_view" || schema.name() == "aten::_reshape_alias") return true;
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

bool reads_on_host(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    const c10::TypePtr& type = result.type();
    if (!type->isSubtypeOf(*c10::TensorType::get()) && !type->isSubtypeOf(*c10::ListType::ofTensors())) return true;
  }
  return false;
}

// A result without memory gets what the operator would give it.
void resize(const c10::OperatorHandle& op, std::vector<Argument>& arguments, std::size_t i, const at::Tensor& result) {
  std::vector<c10::IValue> made = stack_of(arguments, [](const Shape& s) { return s.zeros(); });
  const at::Tensor like = made[i].toTensor();
  call_on_host(op, made);
  const at::Tensor whole = make(like.sizes(), like.strides(), like.scalar_type());
  result.unsafeGetTensorImpl()->set_storage_keep_dtype(c10::Storage(whole.storage()));
  result.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  arguments[i].shapes.front() = Shape(result);
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::size_t count = schema.arguments().size(), results = schema.returns().size();
  if (is_view(schema)) return view(op, stack, count);
  const HostilePlace where = place();
  const std::shared_ptr<HostileGpu> gpu = where.gpu;
  const auto on_device = [gpu](const Shape& shape) { return shape.over(gpu->body(shape.memory)); };
  const std::vector<c10::IValue> given(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  std::vector<Argument> arguments;
  for (std::size_t i = 0; i < count; ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    arguments.push_back(argument_of(op, given[i], alias != nullptr && alias->isWrite()));
  }
  stack->resize(stack->size() - count);
  const std::string& name = schema.name();

  if (reads_on_host(schema)) {
    gpu->issue_and_wait(where.lane, name, extents_of(arguments), [&] {
      std::vector<c10::IValue> own = stack_of(arguments, on_device);
      call_on_host(op, own);
      stack->insert(stack->end(), own.begin(), own.end());
    });
    return;
  }

  // What it writes is an argument: that is its result.
  if (results == 0 || schema.returns()[0].alias_info() != nullptr) {
    for (std::size_t i = 0; i < count; ++i) {
      Argument& a = arguments[i];
      if (a.writes && !a.is_list && a.shapes.front()->memory == nullptr) resize(op, arguments, i, given[i].toTensor());
    }
    gpu->issue(where.lane, name, extents_of(arguments), [op, arguments, on_device] {
      std::vector<c10::IValue> own = stack_of(arguments, on_device);
      call_on_host(op, own);
    });
    std::size_t written = 0;
    for (std::size_t r = 0; r < results; ++r, ++written) {
      while (!arguments[written].writes) ++written;
      stack->push_back(given[written]);
    }
    return;
  }

  std::vector<c10::IValue> made = stack_of(arguments, [](const Shape& s) { return s.zeros(); });
  call_on_host(op, made);
  std::vector<std::optional<Shape>> targets;
  std::vector<Extent> extents = extents_of(arguments);
  for (const c10::IValue& result : made) {
    if (!result.isTensor()) throw std::runtime_error(name + ": a result of this kind is not known");
    const at::Tensor& like = result.toTensor();
    if (!like.defined()) {
      stack->push_back(result);
      targets.emplace_back();
      continue;
    }
    const at::Tensor target = make(like.sizes(), like.strides(), like.scalar_type());
    stack->emplace_back(target);
    targets.emplace_back(Shape(target));
    extents.push_back(targets.back()->extent(true));
  }
  gpu->issue(where.lane, name, std::move(extents), [op, arguments, targets, on_device] {
    std::vector<c10::IValue> own = stack_of(arguments, on_device);
    call_on_host(op, own);
    for (std::size_t r = 0; r < targets.size(); ++r) {
      if (targets[r]) on_device(*targets[r]).copy_(own[r].toTensor());
    }
  });
}

// Between the sides the host waits, as for memory that is not pinned.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool /*non_blocking*/) {
  const HostilePlace where = place();
  const std::shared_ptr<HostileGpu> gpu = where.gpu;
  const Shape source(from), target(to);
  const std::vector<Extent> extents = {source.extent(false), target.extent(true)};
  const auto work = [gpu, source, target] {
    target.over(gpu->body(target.memory)).copy_(source.over(gpu->body(source.memory)));
  };
  if (is_ours(from) && is_ours(to)) {
    gpu->issue(where.lane, "aten::copy_", extents, work);
  } else {
    gpu->issue_and_wait(where.lane, "aten::copy_ between host and device", extents, work);
  }
  return to;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("_copy_from", &copy_from);
  // ATen would compose it otherwise than the host's kernel computes it.
  m.impl("native_layer_norm", torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

using Guard = c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1>;
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}
}
