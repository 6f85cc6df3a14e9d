// RMS norm: a row is read once, and stays in registers between its sum and its result.
//
// Backward keeps each thread's columns of the weight's gradient in registers while its block goes
// through rows, then adds up what the blocks have, in their order.

#include "exec/cuda/kernel_parts.cuh"

namespace foreshard::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostPacks = 8;  // of a row in one thread's registers

template <typename T, int kPacks>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(int packs, const Pack<T>* x, const Pack<T>* weight, float epsilon, Pack<T>* y, float* rstd) {
  x += static_cast<std::size_t>(blockIdx.x) * packs;
  y += static_cast<std::size_t>(blockIdx.x) * packs;
  Pack<T> own[kPacks];
  float sum = 0.0F;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int i = static_cast<int>(threadIdx.x) + k * kThreads;
    if (i >= packs) continue;
    own[k] = x[i];
    for (const T value : own[k].values) sum += widen(value) * widen(value);
  }
  sum = sum_over_block(sum);
  const float scale = rsqrtf(sum / static_cast<float>(packs * Pack<T>::kCount) + epsilon);
  if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int i = static_cast<int>(threadIdx.x) + k * kThreads;
    if (i >= packs) continue;
    const Pack<T> w = weight[i];
    for (int j = 0; j < Pack<T>::kCount; ++j)
      own[k].values[j] = narrow<T>(widen(own[k].values[j]) * scale * widen(w.values[j]));
    y[i] = own[k];
  }
}

template <typename T, int kPacks>
__global__ void __launch_bounds__(kThreads)
    rms_norm_backward_kernel(std::int64_t rows, int packs, NormInputs in, Pack<T>* dx, float* parts) {
  constexpr int kCount = Pack<T>::kCount;
  const auto* dy = static_cast<const Pack<T>*>(in.dy);
  const auto* x = static_cast<const Pack<T>*>(in.x);
  const auto* weight = static_cast<const Pack<T>*>(in.weight);
  const auto* addend = static_cast<const Pack<T>*>(in.addend);
  float sums[kPacks][kCount] = {};
  for (std::int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const std::size_t begin = static_cast<std::size_t>(r) * packs;
    const float scale = in.rstd[r];
    Pack<T> value[kPacks], incoming[kPacks];
    float projection = 0.0F;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int i = static_cast<int>(threadIdx.x) + k * kThreads;
      if (i >= packs) continue;
      value[k] = x[begin + i];
      incoming[k] = dy[begin + i];
      const Pack<T> w = weight[i];
      for (int j = 0; j < kCount; ++j) {
        const float normed = widen(value[k].values[j]) * scale;
        const float d = widen(incoming[k].values[j]);
        projection += d * widen(w.values[j]) * normed;
        sums[k][j] += d * normed;
      }
    }
    projection = sum_over_block(projection) / static_cast<float>(packs * kCount);
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int i = static_cast<int>(threadIdx.x) + k * kThreads;
      if (i >= packs) continue;
      const Pack<T> w = weight[i];
      Pack<T> out{};
      if (addend != nullptr) out = addend[begin + i];
      for (int j = 0; j < kCount; ++j) {
        const float normed = widen(value[k].values[j]) * scale;
        const float d = widen(incoming[k].values[j]) * widen(w.values[j]);
        const float sum = addend != nullptr ? widen(out.values[j]) : 0.0F;
        out.values[j] = narrow<T>(sum + scale * (d - normed * projection));
      }
      dx[begin + i] = out;
    }
  }
  parts += static_cast<std::size_t>(blockIdx.x) * packs * kCount;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int i = static_cast<int>(threadIdx.x) + k * kThreads;
    if (i >= packs) continue;
    for (int j = 0; j < kCount; ++j) parts[i * kCount + j] = sums[k][j];
  }
}

// 32 columns a block, whose warps share the rows.
constexpr int kColumns = 32, kRows = 32;
template <typename T>
__global__ void column_sums_kernel(int rows, int width, const float* values, T* sums) {
  __shared__ float parts[kRows][kColumns + 1];
  const int column = static_cast<int>(blockIdx.x) * kColumns + static_cast<int>(threadIdx.x);
  float sum = 0.0F;
  for (int r = static_cast<int>(threadIdx.y); column < width && r < rows; r += kRows)
    sum += values[static_cast<std::size_t>(r) * width + column];
  parts[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  // A warp for every column, now.
  sum = parts[threadIdx.x][threadIdx.y];
  for (int offset = kColumns / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, offset);
  const int own = static_cast<int>(blockIdx.x) * kColumns + static_cast<int>(threadIdx.y);
  if (threadIdx.x == 0 && own < width) sums[own] = narrow<T>(sum);
}

// run(integral_constant): as many packs as a thread's registers hold of a row.
template <typename Run>
cudaError_t with_packs(int packs, const Run& run) {
  const int each = (packs + kThreads - 1) / kThreads;
  if (each <= 1) return run(std::integral_constant<int, 1>());
  if (each <= 2) return run(std::integral_constant<int, 2>());
  if (each <= 4) return run(std::integral_constant<int, 4>());
  return run(std::integral_constant<int, kMostPacks>());
}

template <typename T>
cudaError_t forward(
    const NormRows& rows, const void* x, const void* weight, float epsilon, void* y, float* rstd, cudaStream_t stream) {
  const int packs = static_cast<int>(rows.width / Pack<T>::kCount);
  return with_packs(packs, [&](auto each) {
    rms_norm_kernel<T, decltype(each)::value><<<static_cast<unsigned>(rows.count), kThreads, 0, stream>>>(packs,
        static_cast<const Pack<T>*>(x), static_cast<const Pack<T>*>(weight), epsilon, static_cast<Pack<T>*>(y), rstd);
    return cudaGetLastError();
  });
}

// As many as run at once: each goes through rows until none is left.
template <typename T>
std::int64_t blocks_at_once(int packs) {
  int blocks = 0;
  with_packs(packs, [&](auto each) {
    static const int at_once = [] {
      int device = 0, processors = 0, of_each = 0;
      if (cudaGetDevice(&device) != cudaSuccess ||
          cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
          cudaOccupancyMaxActiveBlocksPerMultiprocessor(
              &of_each, rms_norm_backward_kernel<T, decltype(each)::value>, kThreads, 0) != cudaSuccess)
        return 1;
      return processors * of_each;
    }();
    blocks = at_once;
    return cudaSuccess;
  });
  return blocks;
}

template <typename T>
cudaError_t backward(
    const NormRows& rows, const NormInputs& in, void* dx, void* dw, const NormParts& parts, cudaStream_t stream) {
  const int packs = static_cast<int>(rows.width / Pack<T>::kCount);
  const auto blocks = static_cast<unsigned>(parts.blocks);
  const cudaError_t code = with_packs(packs, [&](auto each) {
    rms_norm_backward_kernel<T, decltype(each)::value>
        <<<blocks, kThreads, 0, stream>>>(rows.count, packs, in, static_cast<Pack<T>*>(dx), parts.sums);
    return cudaGetLastError();
  });
  if (code != cudaSuccess) return code;
  const int width = static_cast<int>(rows.width);
  column_sums_kernel<<<static_cast<unsigned>((width + kColumns - 1) / kColumns), dim3(kColumns, kRows), 0, stream>>>(
      static_cast<int>(blocks), width, parts.sums, static_cast<T*>(dw));
  return cudaGetLastError();
}

}

bool takes_norm(Type type, const NormRows& rows) {
  const int count = type == Type::kFp32 ? Pack<float>::kCount : Pack<__nv_bfloat16>::kCount;
  return rows.width % count == 0 && rows.width <= std::int64_t{kThreads} * kMostPacks * count;
}

std::int64_t norm_backward_blocks(Type type, const NormRows& rows) {
  const std::int64_t at_once =
      type == Type::kFp32 ? blocks_at_once<float>(static_cast<int>(rows.width / Pack<float>::kCount))
                          : blocks_at_once<__nv_bfloat16>(static_cast<int>(rows.width / Pack<__nv_bfloat16>::kCount));
  return rows.count < at_once ? rows.count : at_once;
}

cudaError_t rms_norm(Type type, const NormRows& rows, const void* x, const void* weight, float epsilon, void* y,
    float* rstd, cudaStream_t stream) {
  if (rows.count == 0) return cudaSuccess;
  return type == Type::kFp32 ? forward<float>(rows, x, weight, epsilon, y, rstd, stream)
                             : forward<__nv_bfloat16>(rows, x, weight, epsilon, y, rstd, stream);
}

cudaError_t rms_norm_backward(Type type, const NormRows& rows, const NormInputs& in, void* dx, void* dw,
    const NormParts& parts, cudaStream_t stream) {
  if (rows.count == 0) return cudaSuccess;
  return type == Type::kFp32 ? backward<float>(rows, in, dx, dw, parts, stream)
                             : backward<__nv_bfloat16>(rows, in, dx, dw, parts, stream);
}

}
