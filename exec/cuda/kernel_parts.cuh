// What the kernels share: values as fp32, packs of 16 bytes, sums over a block.
#pragma once

#include <cuda_bf16.h>

#include "exec/cuda/kernels.h"

namespace foreshard::cuda {

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
template <typename T>
__device__ __forceinline__ T narrow(float value);
template <>
__device__ __forceinline__ float narrow<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float value) {
  return __float2bfloat16(value);
}

// 16 bytes of values.
template <typename T>
struct alignas(16) Pack {
  static constexpr int kCount = 16 / sizeof(T);
  T values[kCount];
};

// Of all threads of the block; every thread gets it.
template <typename Combine>
__device__ float over_block(float value, Combine combine, float neutral) {
  __shared__ float parts[32];
  for (int offset = 16; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffU, value, offset));
  }
  __syncthreads();  // parts may still be read by the call before
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : neutral;
  for (int offset = 16; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffU, value, offset));
  }
  return value;
}
__device__ __forceinline__ float sum_over_block(float value) {
  return over_block(
      value, [](float a, float b) { return a + b; }, 0.0F);
}

}
