// AdamW over all shards in one launch: a block takes one chunk of one piece.
#include "exec/cuda/kernel_parts.cuh"

namespace foreshard::cuda {
namespace {

constexpr int kThreads = 256;

struct alignas(8) Bf16x4 {
  __nv_bfloat16 values[4];
};

__global__ void __launch_bounds__(kThreads) adamw_kernel(const AdamWPiece* pieces, const AdamWChunk* chunks,
    AdamWNumbers numbers, const float* number, const float* rate, const float* factor) {
  const AdamWChunk chunk = chunks[blockIdx.x];
  const AdamWPiece piece = pieces[chunk.piece];
  const std::int64_t begin = chunk.begin;
  const std::int64_t left = piece.count - begin;
  const std::int64_t packs = (left < kAdamWChunk ? left : kAdamWChunk) / 4;
  // As at::_fused_adamw_: corrections in double, the rest in fp32.
  __shared__ float shared[2];
  if (threadIdx.x == 0) {
    const double step = *number;
    shared[0] = static_cast<float>(*rate / (1.0 - pow(numbers.beta1, step)));
    shared[1] = static_cast<float>(1.0 / sqrt(1.0 - pow(numbers.beta2, step)));
  }
  __syncthreads();
  const float step_size = shared[0], correction = shared[1];
  const float kept = 1.0F - *rate * piece.decay;
  const float scale = factor == nullptr ? 1.0F : *factor;
  const auto beta1 = static_cast<float>(numbers.beta1), beta2 = static_cast<float>(numbers.beta2);
  const auto epsilon = static_cast<float>(numbers.epsilon);
  auto* parameters = reinterpret_cast<float4*>(piece.parameter + begin);
  const auto* gradients = reinterpret_cast<const float4*>(piece.gradient + begin);
  auto* first = reinterpret_cast<float4*>(piece.first + begin);
  auto* second = reinterpret_cast<float4*>(piece.second + begin);
  auto* shadow = static_cast<Bf16x4*>(piece.shadow);
  if (shadow != nullptr) shadow += begin / 4;
  const auto update = [&](float& p, float g, float& m, float& v) {
    g *= scale;
    p *= kept;
    m = beta1 * m + (1.0F - beta1) * g;
    v = beta2 * v + (1.0F - beta2) * g * g;
    p -= step_size * m / (sqrtf(v) * correction + epsilon);
  };
#pragma unroll 2
  for (std::int64_t i = threadIdx.x; i < packs; i += kThreads) {
    float4 p = parameters[i], m = first[i], v = second[i];
    const float4 g = gradients[i];
    update(p.x, g.x, m.x, v.x);
    update(p.y, g.y, m.y, v.y);
    update(p.z, g.z, m.z, v.z);
    update(p.w, g.w, m.w, v.w);
    parameters[i] = p;
    first[i] = m;
    second[i] = v;
    if (shadow == nullptr) continue;
    shadow[i] = {{narrow<__nv_bfloat16>(p.x), narrow<__nv_bfloat16>(p.y), narrow<__nv_bfloat16>(p.z),
        narrow<__nv_bfloat16>(p.w)}};
  }
}

__global__ void __launch_bounds__(kGradientPlaces) place_gradients_kernel(AdamWPiece* pieces, GradientPlaces places) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < places.count) pieces[places.first + i].gradient = places.gradients[i];
}

}

cudaError_t place_gradients(AdamWPiece* pieces, const GradientPlaces& places, cudaStream_t stream) {
  place_gradients_kernel<<<1, kGradientPlaces, 0, stream>>>(pieces, places);
  return cudaGetLastError();
}

cudaError_t adamw(const AdamWPiece* pieces, const AdamWChunk* chunks, unsigned count, const AdamWNumbers& numbers,
    const float* number, const float* rate, const float* factor, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  adamw_kernel<<<count, kThreads, 0, stream>>>(pieces, chunks, numbers, number, rate, factor);
  return cudaGetLastError();
}

}
