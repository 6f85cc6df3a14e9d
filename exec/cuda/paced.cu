// A paced kernel begins when its first block runs: that block writes the device's clock into clock[0] (compare-and-swap
// from 0). Blocks move their part of the bytes in slices spread over the time, as a link would bring them, and wait
// until clock[0] + nanoseconds. The last block to finish puts the two words back to zero, so the same words serve the
// next kernel of the stream. Blocks that a busy device admits late end at once when the time is over: what waits for a
// place is not counted twice.
//
// Blocks hold as many registers as NCCL's: what they need is a third of that, so each thread reads
// numbers when it begins and would use all of them when it ends.
#include <cuda_bf16.h>

#include "exec/cuda/kernels.h"

namespace foreshard::cuda {
namespace {

__device__ unsigned long long now_ns() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// As many as each kernel is short of 96.
constexpr int kGatherHolds = 64, kReduceHolds = 64, kSpinHolds = 84;
template <typename T>
constexpr int kScatterHolds = sizeof(T) == 2 ? 72 : 67;

template <int kCount>
struct Held {
  unsigned numbers[kCount];
};

template <int kCount>
__device__ Held<kCount> take_registers() {
  Held<kCount> held;
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("mov.u32 %0, %%clock;" : "=r"(held.numbers[i]));
  return held;
}

// A polynomial of a number that is known at the end alone: no sum of them can be kept instead. No
// launch has this duration.
template <int kCount>
__device__ void give_registers(const Held<kCount>& held, unsigned long long nanoseconds, unsigned long long* clock) {
  if (nanoseconds != ~0ULL) return;
  const auto at = static_cast<unsigned>(now_ns());
  unsigned sum = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum = sum * at + held.numbers[i];
  clock[1] = sum;
}

__device__ unsigned long long begin(unsigned long long* clock) {
  __shared__ unsigned long long start;
  if (threadIdx.x == 0) {
    const unsigned long long now = now_ns();
    const unsigned long long before = atomicCAS(clock, 0ULL, now);
    start = before == 0ULL ? now : before;
  }
  __syncthreads();
  return start;
}

__device__ void hold(unsigned long long* clock, unsigned long long start, unsigned long long nanoseconds) {
  __syncthreads();
  if (threadIdx.x == 0) {
    while (now_ns() - start < nanoseconds) __nanosleep(100);
    __threadfence();
    const unsigned long long finished = atomicAdd(clock + 1, 1ULL) + 1ULL;
    if (finished == gridDim.x) {
      clock[0] = 0ULL;
      clock[1] = 0ULL;
      __threadfence();
    }
  }
}

// Slices of at least 20 us, so that waiting for each costs nothing that shows, and of work for every thread.
__device__ unsigned slices_of(unsigned long long nanoseconds, std::size_t items, std::size_t threads) {
  unsigned long long slices = nanoseconds / 20000ULL;
  if (slices > items / threads) slices = items / threads;
  return slices < 1ULL ? 1U : slices > 64ULL ? 64U : static_cast<unsigned>(slices);
}

// All threads of the block: until the moment at which slice `done` of `slices` is due.
__device__ void until_due(unsigned long long start, unsigned long long nanoseconds, unsigned done, unsigned slices) {
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned long long due = nanoseconds / slices * done;
    while (now_ns() - start < due) __nanosleep(100);
  }
  __syncthreads();
}

struct alignas(16) Word16 {
  unsigned int parts[4];
};

__global__ void __launch_bounds__(kPacedThreads, 1) gather_kernel(unsigned char* whole, std::size_t bytes, int ranks,
    int index, unsigned long long nanoseconds, unsigned long long* clock) {
  const auto held = take_registers<kGatherHolds>();
  const unsigned long long start = begin(clock);
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const unsigned char* own = whole + static_cast<std::size_t>(index) * bytes;
  const bool aligned = bytes % 16 == 0 && reinterpret_cast<std::size_t>(whole) % 16 == 0;
  const std::size_t words = aligned ? bytes / 16 : 0;
  const unsigned slices = slices_of(nanoseconds, words, stride);
  for (unsigned s = 0; s < slices; ++s) {
    const std::size_t end = words * (s + 1) / slices;
    for (std::size_t i = words * s / slices + first; i < end; i += stride) {
      const Word16 value = reinterpret_cast<const Word16*>(own)[i];
      for (int p = 0; p < ranks; ++p) {
        if (p == index) continue;
        reinterpret_cast<Word16*>(whole + static_cast<std::size_t>(p) * bytes)[i] = value;
      }
    }
    if (s + 1 < slices) until_due(start, nanoseconds, s + 1, slices);
  }
  for (std::size_t i = words * 16 + first; i < bytes; i += stride) {
    for (int p = 0; p < ranks; ++p)
      if (p != index) whole[static_cast<std::size_t>(p) * bytes + i] = own[i];
  }
  hold(clock, start, nanoseconds);
  give_registers(held, nanoseconds, clock);
}

__device__ float widen(float value) { return value; }
__device__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ void narrow(float value, float* to) { *to = value; }
__device__ void narrow(float value, __nv_bfloat16* to) { *to = __float2bfloat16(value); }

// Elements of 16 bytes at a time where the layout allows it.
template <typename T>
__global__ void __launch_bounds__(kPacedThreads, 1) reduce_scatter_kernel(const T* whole, T* shard,
    std::size_t elements, int ranks, unsigned long long nanoseconds, unsigned long long* clock) {
  constexpr int kPack = 16 / sizeof(T);
  const auto held = take_registers<kScatterHolds<T>>();
  const unsigned long long start = begin(clock);
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const bool aligned = elements % kPack == 0 && reinterpret_cast<std::size_t>(whole) % 16 == 0 &&
                       reinterpret_cast<std::size_t>(shard) % 16 == 0;
  const std::size_t packs = aligned ? elements / kPack : 0;
  const unsigned slices = slices_of(nanoseconds, packs, stride);
  for (unsigned s = 0; s < slices; ++s) {
    const std::size_t end = packs * (s + 1) / slices;
    for (std::size_t i = packs * s / slices + first; i < end; i += stride) {
      float sums[kPack];
      for (int j = 0; j < kPack; ++j) sums[j] = 0.0F;
#pragma unroll 8
      for (int p = 0; p < ranks; ++p) {
        const Word16 word = reinterpret_cast<const Word16*>(whole + static_cast<std::size_t>(p) * elements)[i];
        const T* values = reinterpret_cast<const T*>(&word);
        for (int j = 0; j < kPack; ++j) sums[j] += widen(values[j]);
      }
      Word16 word;
      for (int j = 0; j < kPack; ++j) narrow(sums[j], reinterpret_cast<T*>(&word) + j);
      reinterpret_cast<Word16*>(shard)[i] = word;
    }
    if (s + 1 < slices) until_due(start, nanoseconds, s + 1, slices);
  }
  for (std::size_t i = packs * kPack + first; i < elements; i += stride) {
    float sum = 0.0F;
    for (int p = 0; p < ranks; ++p) sum += widen(whole[static_cast<std::size_t>(p) * elements + i]);
    narrow(sum, shard + i);
  }
  hold(clock, start, nanoseconds);
  give_registers(held, nanoseconds, clock);
}

__global__ void __launch_bounds__(kPacedThreads, 1)
    all_reduce_kernel(float* values, std::size_t count, unsigned long long nanoseconds, unsigned long long* clock) {
  const auto held = take_registers<kReduceHolds>();
  const unsigned long long start = begin(clock);
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  // Through the cache operators, or the compiler would leave it out.
  const bool aligned = reinterpret_cast<std::size_t>(values) % 16 == 0;
  const std::size_t quads = aligned ? count / 4 : 0;
  auto* wide = reinterpret_cast<float4*>(values);
#pragma unroll 4
  for (std::size_t i = first; i < quads; i += stride) __stcg(wide + i, __ldcg(wide + i));
  for (std::size_t i = quads * 4 + first; i < count; i += stride) __stcg(values + i, __ldcg(values + i));
  hold(clock, start, nanoseconds);
  give_registers(held, nanoseconds, clock);
}

__global__ void __launch_bounds__(kPacedThreads, 1)
    spin_kernel(unsigned long long nanoseconds, unsigned long long* clock) {
  const auto held = take_registers<kSpinHolds>();
  hold(clock, begin(clock), nanoseconds);
  give_registers(held, nanoseconds, clock);
}

__global__ void clock_step_kernel(unsigned long long* step) {
  unsigned long long smallest = ~0ULL;
  unsigned long long last = now_ns();
  for (int changes = 0, reads = 0; changes < 16 && reads < 4000000; ++reads) {
    const unsigned long long time = now_ns();
    if (time == last) continue;
    if (time - last < smallest) smallest = time - last;
    last = time;
    ++changes;
  }
  *step = smallest;
}

unsigned grid(const PacedLaunch& launch) { return static_cast<unsigned>(launch.ctas < 1 ? 1 : launch.ctas); }
unsigned long long duration(const PacedLaunch& launch) {
  return launch.nanoseconds < 0 ? 0ULL : static_cast<unsigned long long>(launch.nanoseconds);
}

}

cudaError_t paced_gather(
    const PacedLaunch& launch, void* whole, std::size_t bytes, int ranks, int index, cudaStream_t stream) {
  gather_kernel<<<grid(launch), kPacedThreads, launch.shared_bytes, stream>>>(
      static_cast<unsigned char*>(whole), bytes, ranks, index, duration(launch), launch.clock);
  return cudaGetLastError();
}

cudaError_t paced_reduce_scatter(const PacedLaunch& launch, Type type, const void* whole, void* shard,
    std::size_t elements, int ranks, cudaStream_t stream) {
  if (type == Type::kFp32) {
    reduce_scatter_kernel<<<grid(launch), kPacedThreads, launch.shared_bytes, stream>>>(
        static_cast<const float*>(whole), static_cast<float*>(shard), elements, ranks, duration(launch), launch.clock);
  } else {
    reduce_scatter_kernel<<<grid(launch), kPacedThreads, launch.shared_bytes, stream>>>(
        static_cast<const __nv_bfloat16*>(whole), static_cast<__nv_bfloat16*>(shard), elements, ranks, duration(launch),
        launch.clock);
  }
  return cudaGetLastError();
}

cudaError_t paced_all_reduce(const PacedLaunch& launch, float* values, std::size_t count, cudaStream_t stream) {
  all_reduce_kernel<<<grid(launch), kPacedThreads, launch.shared_bytes, stream>>>(
      values, count, duration(launch), launch.clock);
  return cudaGetLastError();
}

cudaError_t spin(const PacedLaunch& launch, cudaStream_t stream) {
  spin_kernel<<<grid(launch), kPacedThreads, launch.shared_bytes, stream>>>(duration(launch), launch.clock);
  return cudaGetLastError();
}

cudaError_t allow_paced_shared(int shared_bytes) {
  const void* kernels[] = {reinterpret_cast<const void*>(gather_kernel),
      reinterpret_cast<const void*>(reduce_scatter_kernel<float>),
      reinterpret_cast<const void*>(reduce_scatter_kernel<__nv_bfloat16>),
      reinterpret_cast<const void*>(all_reduce_kernel), reinterpret_cast<const void*>(spin_kernel)};
  for (const void* kernel : kernels) {
    const cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (code != cudaSuccess) return code;
  }
  return cudaSuccess;
}

cudaError_t paced_block(PacedBlock* block, int shared_bytes) {
  const void* kernel = reinterpret_cast<const void*>(gather_kernel);
  cudaFuncAttributes attributes;
  const cudaError_t code = cudaFuncGetAttributes(&attributes, kernel);
  if (code != cudaSuccess) return code;
  block->registers = attributes.numRegs * kPacedThreads;
  block->shared_bytes = shared_bytes + static_cast<int>(attributes.sharedSizeBytes);
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &block->per_multiprocessor, kernel, kPacedThreads, static_cast<std::size_t>(shared_bytes));
}

cudaError_t clock_step(unsigned long long* step, cudaStream_t stream) {
  clock_step_kernel<<<1, 1, 0, stream>>>(step);
  return cudaGetLastError();
}

}
