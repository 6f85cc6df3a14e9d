// One pass over memory per operation; arithmetic in fp32, rounded to the element's type once.
#include <cuda_bf16.h>

#include "exec/cuda/kernels.h"

namespace foreshard::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowThreads = 1024;  // one block per row of logits

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

// One block per token.
template <typename T>
__global__ void rotate_kernel(Rotation r, const float* cos, const float* sin, T* values) {
  const std::int64_t token = blockIdx.x;
  const unsigned half = static_cast<unsigned>(r.head_dim / 2);
  const unsigned pairs = static_cast<unsigned>(r.heads) * half;
  const std::int64_t position = token % r.positions;
  cos += position * half;
  sin += position * half;
  values += token * r.heads * r.head_dim;
  for (unsigned p = threadIdx.x; p < pairs; p += blockDim.x) {
    const unsigned i = p % half;
    T* a = values + static_cast<std::size_t>(p / half) * 2 * half + i;
    T* b = a + half;
    const float c = cos[i];
    const float s = r.inverse ? -sin[i] : sin[i];
    const float first = widen(*a);
    const float second = widen(*b);
    *a = narrow<T>(first * c - second * s);
    *b = narrow<T>(second * c + first * s);
  }
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0F / (1.0F + __expf(-x)); }

template <typename T>
__global__ void silu_kernel(std::int64_t packs, const Pack<T>* gate, const Pack<T>* up,
                            Pack<T>* out) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < packs;
       i += stride) {
    const Pack<T> g = gate[i];
    const Pack<T> u = up[i];
    Pack<T> result;
    for (int j = 0; j < Pack<T>::kCount; ++j) {
      const float x = widen(g.values[j]);
      result.values[j] = narrow<T>(x * sigmoid(x) * widen(u.values[j]));
    }
    out[i] = result;
  }
}

template <typename T>
__global__ void silu_backward_kernel(std::int64_t packs, const Pack<T>* dy, const Pack<T>* gate,
                                     const Pack<T>* up, Pack<T>* d_gate, Pack<T>* d_up) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < packs;
       i += stride) {
    const Pack<T> incoming = dy[i];
    const Pack<T> g = gate[i];
    const Pack<T> u = up[i];
    Pack<T> to_gate, to_up;
    for (int j = 0; j < Pack<T>::kCount; ++j) {
      const float x = widen(g.values[j]);
      const float d = widen(incoming.values[j]);
      const float s = sigmoid(x);
      to_gate.values[j] = narrow<T>(d * widen(u.values[j]) * s * (1.0F + x * (1.0F - s)));
      to_up.values[j] = narrow<T>(d * x * s);
    }
    d_gate[i] = to_gate;
    d_up[i] = to_up;
  }
}

__device__ __forceinline__ void add_to(float* place, float value) { atomicAdd(place, value); }
__device__ __forceinline__ void add_to(__nv_bfloat16* place, float value) {
  atomicAdd(place, __float2bfloat16(value));
}

// One block per row.
template <typename T, typename Table>
__global__ void add_rows_kernel(std::int64_t width, const T* values, const std::int64_t* ids,
                                Table* table) {
  const T* row = values + static_cast<std::int64_t>(blockIdx.x) * width;
  Table* target = table + ids[blockIdx.x] * width;
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) add_to(target + i, widen(row[i]));
}

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

// Three reads of the row (maximum, sum, gradient) and one write; at 256 KiB a row stays in L2.
template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_kernel(std::int64_t width, T* logits, const std::int64_t* labels, float scale,
                         float* loss) {
  T* row = logits + static_cast<std::int64_t>(blockIdx.x) * width;
  const std::int64_t label = labels[blockIdx.x];
  float largest = -INFINITY;
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    largest = fmaxf(largest, widen(row[i]));
  }
  largest = over_block(
      largest, [](float a, float b) { return fmaxf(a, b); }, -INFINITY);
  float sum = 0.0F;
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    sum += __expf(widen(row[i]) - largest);
  }
  sum = over_block(
      sum, [](float a, float b) { return a + b; }, 0.0F);
  if (threadIdx.x == 0) atomicAdd(loss, largest + logf(sum) - widen(row[label]));
  __syncthreads();  // the label's logit is read before it is overwritten
  const float inverse = 1.0F / sum;
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float probability = __expf(widen(row[i]) - largest) * inverse;
    row[i] = narrow<T>((probability - (i == label ? 1.0F : 0.0F)) * scale);
  }
}

unsigned blocks_for(std::int64_t items) {
  constexpr std::int64_t kMost = 65536;
  const std::int64_t blocks = (items + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > kMost ? kMost : blocks);
}

template <typename T>
cudaError_t silu(std::int64_t count, const void* gate, const void* up, void* out,
                 cudaStream_t stream) {
  const std::int64_t packs = count / Pack<T>::kCount;
  silu_kernel<T><<<blocks_for(packs), kThreads, 0, stream>>>(
      packs, static_cast<const Pack<T>*>(gate), static_cast<const Pack<T>*>(up),
      static_cast<Pack<T>*>(out));
  return cudaGetLastError();
}

template <typename T>
cudaError_t silu_backward(std::int64_t count, const void* dy, const void* gate, const void* up,
                          void* d_gate, void* d_up, cudaStream_t stream) {
  const std::int64_t packs = count / Pack<T>::kCount;
  silu_backward_kernel<T><<<blocks_for(packs), kThreads, 0, stream>>>(
      packs, static_cast<const Pack<T>*>(dy), static_cast<const Pack<T>*>(gate),
      static_cast<const Pack<T>*>(up), static_cast<Pack<T>*>(d_gate), static_cast<Pack<T>*>(d_up));
  return cudaGetLastError();
}

}  // namespace

cudaError_t rotate(Type type, const Rotation& r, const float* cos, const float* sin, void* values,
                   cudaStream_t stream) {
  if (r.tokens * r.heads * r.head_dim == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(r.tokens);
  if (type == Type::kFp32) {
    rotate_kernel<<<blocks, kThreads, 0, stream>>>(r, cos, sin, static_cast<float*>(values));
  } else {
    rotate_kernel<<<blocks, kThreads, 0, stream>>>(r, cos, sin,
                                                   static_cast<__nv_bfloat16*>(values));
  }
  return cudaGetLastError();
}

// `count` is a multiple of 8, pointers of 16 bytes: the caller checks.
cudaError_t silu_multiply(Type type, std::int64_t count, const void* gate, const void* up,
                          void* out, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return type == Type::kFp32 ? silu<float>(count, gate, up, out, stream)
                             : silu<__nv_bfloat16>(count, gate, up, out, stream);
}

cudaError_t silu_multiply_backward(Type type, std::int64_t count, const void* dy, const void* gate,
                                   const void* up, void* d_gate, void* d_up, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return type == Type::kFp32
             ? silu_backward<float>(count, dy, gate, up, d_gate, d_up, stream)
             : silu_backward<__nv_bfloat16>(count, dy, gate, up, d_gate, d_up, stream);
}

cudaError_t add_rows(Type values_type, Type table_type, std::int64_t rows, std::int64_t width,
                     const void* values, const std::int64_t* ids, void* table,
                     cudaStream_t stream) {
  if (rows * width == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(rows);
  const auto* fp32 = static_cast<const float*>(values);
  const auto* bf16 = static_cast<const __nv_bfloat16*>(values);
  auto* fp32_table = static_cast<float*>(table);
  auto* bf16_table = static_cast<__nv_bfloat16*>(table);
  if (values_type == Type::kFp32 && table_type == Type::kFp32) {
    add_rows_kernel<<<blocks, kThreads, 0, stream>>>(width, fp32, ids, fp32_table);
  } else if (values_type == Type::kFp32) {
    add_rows_kernel<<<blocks, kThreads, 0, stream>>>(width, fp32, ids, bf16_table);
  } else if (table_type == Type::kFp32) {
    add_rows_kernel<<<blocks, kThreads, 0, stream>>>(width, bf16, ids, fp32_table);
  } else {
    add_rows_kernel<<<blocks, kThreads, 0, stream>>>(width, bf16, ids, bf16_table);
  }
  return cudaGetLastError();
}

cudaError_t cross_entropy(Type type, std::int64_t rows, std::int64_t width, void* logits,
                          const std::int64_t* labels, float scale, float* loss,
                          cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(rows);
  if (type == Type::kFp32) {
    cross_entropy_kernel<<<blocks, kRowThreads, 0, stream>>>(width, static_cast<float*>(logits),
                                                             labels, scale, loss);
  } else {
    cross_entropy_kernel<<<blocks, kRowThreads, 0, stream>>>(
        width, static_cast<__nv_bfloat16*>(logits), labels, scale, loss);
  }
  return cudaGetLastError();
}

}  // namespace foreshard::cuda
