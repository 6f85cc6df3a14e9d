// CUDA kernels of the engine, without Torch: compiled by nvcc, called by cuda_accelerator.cpp.
//
// All of them return at once; what a launch says is the return value. Pointers are device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace foreshard::cuda {

enum class Type { kFp32, kBf16 };

// --- paced collectives (exec/device/accelerator.h: PacedCollective) ---

// Blocks of as many threads as NCCL's kernels have (ncclDevKernel: up to 640; NCCL_MAX_NTHREADS),
// which move the bytes and then hold their multiprocessors until `nanoseconds` after the first of
// them began. `clock` is two 64 bit words of zeros, zeros again when the kernel is done.
inline constexpr int kPacedThreads = 640;
// Shared memory that each block holds. With nearly all registers, which it holds too, that is what
// a block of NCCL leaves: 96 registers for each of 640 threads, of 65,536 on a multiprocessor
// (nccl/makefiles/common.mk, -maxrregcount=96).
inline constexpr int kPacedSharedBytes = 96 * 1024;
// What one block holds, as compiled for this GPU.
struct PacedBlock {
  int registers = 0, shared_bytes = 0, per_multiprocessor = 0;
  int spilled_bytes = 0;  // of a thread
};
cudaError_t paced_block(PacedBlock* block, int shared_bytes);
struct PacedLaunch {
  int ctas = 1;
  int shared_bytes = 0;  // at most kPacedSharedBytes
  std::int64_t nanoseconds = 0;
  unsigned long long* clock = nullptr;
};
// whole: `ranks` shards of `bytes`; shard `index` is copied into every other one.
cudaError_t paced_gather(const PacedLaunch& launch, void* whole, std::size_t bytes, int ranks,
                         int index, cudaStream_t stream);
// shard[i] = sum over p of whole[p * elements + i], added in fp32.
cudaError_t paced_reduce_scatter(const PacedLaunch& launch, Type type, const void* whole,
                                 void* shard, std::size_t elements, int ranks, cudaStream_t stream);
// Reads and writes every value once, unchanged.
cudaError_t paced_all_reduce(const PacedLaunch& launch, float* values, std::size_t count,
                             cudaStream_t stream);
cudaError_t spin(const PacedLaunch& launch, cudaStream_t stream);
// Smallest step of the device's nanosecond clock that a thread saw, into *step.
// Once per device, before the first paced kernel.
cudaError_t allow_paced_shared(int shared_bytes);
cudaError_t clock_step(unsigned long long* step, cudaStream_t stream);

// --- operations of a layer ---

// Pairs (i, i + head_dim / 2) of every head of every token, in place; token t stands at position
// t % positions of cos and sin ([positions, head_dim / 2], fp32).
struct Rotation {
  std::int64_t tokens = 0, positions = 0, heads = 0, head_dim = 0;
  bool inverse = false;
};
cudaError_t rotate(Type type, const Rotation& rotation, const float* cos, const float* sin,
                   void* values, cudaStream_t stream);

// out = silu(gate) * up
cudaError_t silu_multiply(Type type, std::int64_t count, const void* gate, const void* up,
                          void* out, cudaStream_t stream);
cudaError_t silu_multiply_backward(Type type, std::int64_t count, const void* dy, const void* gate,
                                   const void* up, void* d_gate, void* d_up, cudaStream_t stream);

// table[ids[r]][i] += values[r][i]; the order of additions to one place is not fixed.
cudaError_t add_rows(Type values_type, Type table_type, std::int64_t rows, std::int64_t width,
                     const void* values, const std::int64_t* ids, void* table, cudaStream_t stream);

// Each row of logits becomes (softmax - [is label]) * scale in place; -log softmax[label] is added
// to *loss.
cudaError_t cross_entropy(Type type, std::int64_t rows, std::int64_t width, void* logits,
                          const std::int64_t* labels, float scale, float* loss,
                          cudaStream_t stream);

}  // namespace foreshard::cuda
