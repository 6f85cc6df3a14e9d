#include "exec/memory/flat_storage.h"

#include <ATen/Functions.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StorageImpl.h>

namespace foreshard {

at::ScalarType scalar_type(DType dtype) {
  return dtype == DType::kFp32 ? at::kFloat : dtype == DType::kBf16 ? at::kBFloat16 : at::kHalf;
}

FlatStorage::FlatStorage(std::int64_t numel, at::ScalarType type, c10::Device device) {
  const at::TensorOptions options = at::TensorOptions().dtype(type).device(device);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
      at(numel) * c10::elementSize(type), at::DataPtr(nullptr, device), nullptr, /*resizable=*/false);
  flat_ = at::empty({0}, options).set_(at::Storage(std::move(storage)), 0, {numel}, {1});
}

at::Tensor FlatStorage::view(std::int64_t offset, std::span<const std::int64_t> shape) const {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return at::empty({0}, flat_.options())
      .set_(flat_.storage(), offset, at::IntArrayRef(shape.data(), shape.size()), strides);
}

void FlatStorage::attach(void* memory) {
  flat_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(memory, flat_.device()));
}

at::Tensor tensor_over(void* memory, std::int64_t numel, at::ScalarType type, c10::Device device) {
  // Naming the device keeps ATen from asking the driver whose memory it is.
  return at::for_blob(memory, {numel})
      .options(at::TensorOptions().dtype(type).device(device))
      .target_device(device)
      .make_tensor();
}

}
