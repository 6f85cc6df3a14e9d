// One pass over memory per operation; arithmetic in fp32, rounded to the element's type once.
#include <cfloat>

#include "exec/cuda/kernel_parts.cuh"

namespace foreshard::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowThreads = 1024;  // one block per row of logits

template <int kCount>
struct alignas(16) Floats {
  float values[kCount];
};

// A thread rotates as many pairs as two packs hold.
template <typename T>
__global__ void rotate_kernel(Rotation r, const float* cos, const float* sin, T* values) {
  constexpr unsigned kCount = Pack<T>::kCount;
  const unsigned half = static_cast<unsigned>(r.head_dim / 2);
  const unsigned packs = half / kCount;
  const unsigned of_token = static_cast<unsigned>(r.heads) * packs;
  const unsigned all = static_cast<unsigned>(r.tokens) * of_token;
  for (unsigned p = blockIdx.x * blockDim.x + threadIdx.x; p < all; p += gridDim.x * blockDim.x) {
    const unsigned token = p / of_token, head = p % of_token / packs, i = p % packs * kCount;
    T* at = values + (static_cast<std::size_t>(token) * r.heads + head) * r.head_dim + i;
    auto* a = reinterpret_cast<Pack<T>*>(at);
    auto* b = reinterpret_cast<Pack<T>*>(at + half);
    const std::size_t place = static_cast<std::size_t>(token % r.positions) * half + i;
    const auto c = *reinterpret_cast<const Floats<kCount>*>(cos + place);
    const auto s = *reinterpret_cast<const Floats<kCount>*>(sin + place);
    Pack<T> first = *a, second = *b;
    for (unsigned j = 0; j < kCount; ++j) {
      const float sine = r.inverse ? -s.values[j] : s.values[j];
      const float x = widen(first.values[j]), y = widen(second.values[j]);
      first.values[j] = narrow<T>(x * c.values[j] - y * sine);
      second.values[j] = narrow<T>(y * c.values[j] + x * sine);
    }
    *a = first;
    *b = second;
  }
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0F / (1.0F + __expf(-x)); }

template <typename T>
__global__ void silu_kernel(std::int64_t packs, const Pack<T>* gate, const Pack<T>* up, Pack<T>* out) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < packs; i += stride) {
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
__global__ void silu_backward_kernel(
    std::int64_t packs, const Pack<T>* dy, const Pack<T>* gate, const Pack<T>* up, Pack<T>* d_gate, Pack<T>* d_up) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < packs; i += stride) {
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
__device__ __forceinline__ void add_to(__nv_bfloat16* place, float value) { atomicAdd(place, __float2bfloat16(value)); }

// One block per row.
template <typename T, typename Table>
__global__ void add_rows_kernel(std::int64_t width, const T* values, const std::int64_t* ids, Table* table) {
  const T* row = values + static_cast<std::int64_t>(blockIdx.x) * width;
  Table* target = table + ids[blockIdx.x] * width;
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) add_to(target + i, widen(row[i]));
}

// A running sum of exponentials from the greatest value so far.
struct Exponentials {
  float greatest = -INFINITY, sum = 0.0F;
  __device__ void raise(float to) {
    if (to > greatest) {
      sum *= __expf(greatest - to);
      greatest = to;
    }
  }
  __device__ void add(float value) {
    raise(value);
    sum += __expf(value - greatest);
  }
};

// Two reads of the row (the second from L2, mostly) and one write. What is before and behind whole
// packs of the row is done value by value.
template <typename T>
__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_kernel(std::int64_t width, T* logits, const std::int64_t* labels, float scale, float* loss) {
  constexpr int kCount = Pack<T>::kCount;
  T* row = logits + static_cast<std::int64_t>(blockIdx.x) * width;
  const std::int64_t label = labels[blockIdx.x];
  const auto misplaced = reinterpret_cast<std::uintptr_t>(row) % sizeof(Pack<T>) / sizeof(T);
  const std::int64_t before = misplaced == 0 ? 0 : min(width, kCount - static_cast<std::int64_t>(misplaced));
  auto* packs = reinterpret_cast<Pack<T>*>(row + before);
  const std::int64_t count = (width - before) / kCount;
  const std::int64_t behind = before + count * kCount;

  Exponentials own;
  for (std::int64_t i = threadIdx.x; i < before; i += blockDim.x) own.add(widen(row[i]));
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    const Pack<T> pack = packs[i];
    float top = widen(pack.values[0]);
    for (int j = 1; j < kCount; ++j) top = fmaxf(top, widen(pack.values[j]));
    own.raise(top);
    for (int j = 0; j < kCount; ++j) own.sum += __expf(widen(pack.values[j]) - own.greatest);
  }
  for (std::int64_t i = behind + threadIdx.x; i < width; i += blockDim.x) own.add(widen(row[i]));
  const float largest = over_block(
      own.greatest, [](float a, float b) { return fmaxf(a, b); }, -INFINITY);
  // A thread without a value has a sum of zero.
  const float sum = sum_over_block(own.sum * __expf(fmaxf(own.greatest, -FLT_MAX) - largest));
  if (threadIdx.x == 0) atomicAdd(loss, largest + logf(sum) - widen(row[label]));
  __syncthreads();  // the label's logit is read before it is overwritten

  const float shift = largest + logf(sum);
  const auto gradient = [&](float value, std::int64_t i) {
    return narrow<T>((__expf(value - shift) - (i == label ? 1.0F : 0.0F)) * scale);
  };
  for (std::int64_t i = threadIdx.x; i < before; i += blockDim.x) row[i] = gradient(widen(row[i]), i);
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    Pack<T> pack = packs[i];
    for (int j = 0; j < kCount; ++j) pack.values[j] = gradient(widen(pack.values[j]), before + i * kCount + j);
    packs[i] = pack;
  }
  for (std::int64_t i = behind + threadIdx.x; i < width; i += blockDim.x) row[i] = gradient(widen(row[i]), i);
}

unsigned blocks_for(std::int64_t items) {
  constexpr std::int64_t kMost = 65536;
  const std::int64_t blocks = (items + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > kMost ? kMost : blocks);
}

template <typename T>
cudaError_t silu(std::int64_t count, const void* gate, const void* up, void* out, cudaStream_t stream) {
  const std::int64_t packs = count / Pack<T>::kCount;
  silu_kernel<T><<<blocks_for(packs), kThreads, 0, stream>>>(
      packs, static_cast<const Pack<T>*>(gate), static_cast<const Pack<T>*>(up), static_cast<Pack<T>*>(out));
  return cudaGetLastError();
}

template <typename T>
cudaError_t silu_backward(std::int64_t count, const void* dy, const void* gate, const void* up, void* d_gate,
    void* d_up, cudaStream_t stream) {
  const std::int64_t packs = count / Pack<T>::kCount;
  silu_backward_kernel<T><<<blocks_for(packs), kThreads, 0, stream>>>(packs, static_cast<const Pack<T>*>(dy),
      static_cast<const Pack<T>*>(gate), static_cast<const Pack<T>*>(up), static_cast<Pack<T>*>(d_gate),
      static_cast<Pack<T>*>(d_up));
  return cudaGetLastError();
}

}

cudaError_t rotate(
    Type type, const Rotation& r, const float* cos, const float* sin, void* values, cudaStream_t stream) {
  const std::int64_t pairs = r.tokens * r.heads * r.head_dim / 2;
  if (pairs == 0) return cudaSuccess;
  if (pairs > std::int64_t{1} << 31) return cudaErrorInvalidValue;
  if (type == Type::kFp32) {
    rotate_kernel<<<blocks_for(pairs / Pack<float>::kCount), kThreads, 0, stream>>>(
        r, cos, sin, static_cast<float*>(values));
  } else {
    rotate_kernel<<<blocks_for(pairs / Pack<__nv_bfloat16>::kCount), kThreads, 0, stream>>>(
        r, cos, sin, static_cast<__nv_bfloat16*>(values));
  }
  return cudaGetLastError();
}

// `count` is a multiple of 8, pointers of 16 bytes: the caller checks.
cudaError_t silu_multiply(
    Type type, std::int64_t count, const void* gate, const void* up, void* out, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return type == Type::kFp32 ? silu<float>(count, gate, up, out, stream)
                             : silu<__nv_bfloat16>(count, gate, up, out, stream);
}

cudaError_t silu_multiply_backward(Type type, std::int64_t count, const void* dy, const void* gate, const void* up,
    void* d_gate, void* d_up, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  return type == Type::kFp32 ? silu_backward<float>(count, dy, gate, up, d_gate, d_up, stream)
                             : silu_backward<__nv_bfloat16>(count, dy, gate, up, d_gate, d_up, stream);
}

cudaError_t add_rows(Type values_type, Type table_type, std::int64_t rows, std::int64_t width, const void* values,
    const std::int64_t* ids, void* table, cudaStream_t stream) {
  if (rows * width == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(rows);
  const auto* fp32 = static_cast<const float*>(values);
  const auto* bf16 = static_cast<const __nv_bfloat16*>(values);
  auto* fp32_table = static_cast<float*>(table);
  auto* bf16_table = static_cast<__nv_bfloat16*>(table);
  if (values_type == Type::kFp32 && table_type == Type::kFp32)
    add_rows_kernel<<<blocks, kThreads, 0, stream>>>(width, fp32, ids, fp32_table);
  else if (values_type == Type::kFp32) add_rows_kernel<<<blocks, kThreads, 0, stream>>>(width, fp32, ids, bf16_table);
  else if (table_type == Type::kFp32) add_rows_kernel<<<blocks, kThreads, 0, stream>>>(width, bf16, ids, fp32_table);
  else add_rows_kernel<<<blocks, kThreads, 0, stream>>>(width, bf16, ids, bf16_table);
  return cudaGetLastError();
}

cudaError_t cross_entropy(Type type, std::int64_t rows, std::int64_t width, void* logits, const std::int64_t* labels,
    float scale, float* loss, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(rows);
  if (type == Type::kFp32) {
    cross_entropy_kernel<<<blocks, kRowThreads, 0, stream>>>(width, static_cast<float*>(logits), labels, scale, loss);
  } else {
    cross_entropy_kernel<<<blocks, kRowThreads, 0, stream>>>(
        width, static_cast<__nv_bfloat16*>(logits), labels, scale, loss);
  }
  return cudaGetLastError();
}

}
