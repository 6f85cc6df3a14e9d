// CUDA kernels of the engine, without Torch: compiled by nvcc, called by cuda_accelerator.cpp.
//
// All of them return at once; what a launch says is the return value. Pointers are device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "exec/device/adamw_piece.h"

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
};
cudaError_t paced_block(PacedBlock* block, int shared_bytes);
struct PacedLaunch {
  int ctas = 1;
  int shared_bytes = 0;  // at most kPacedSharedBytes
  std::int64_t nanoseconds = 0;
  unsigned long long* clock = nullptr;
};
// whole: `ranks` shards of `bytes`; shard `index` is copied into every other one.
cudaError_t paced_gather(
    const PacedLaunch& launch, void* whole, std::size_t bytes, int ranks, int index, cudaStream_t stream);
// shard[i] = sum over p of whole[p * elements + i], added in fp32.
cudaError_t paced_reduce_scatter(const PacedLaunch& launch, Type type, const void* whole, void* shard,
    std::size_t elements, int ranks, cudaStream_t stream);
// Reads and writes every value once, unchanged.
cudaError_t paced_all_reduce(const PacedLaunch& launch, float* values, std::size_t count, cudaStream_t stream);
cudaError_t spin(const PacedLaunch& launch, cudaStream_t stream);
// Smallest step of the device's nanosecond clock that a thread saw, into *step.
// Once per device, before the first paced kernel.
cudaError_t allow_paced_shared(int shared_bytes);
cudaError_t clock_step(unsigned long long* step, cudaStream_t stream);

// --- operations of a layer ---

// Pairs (i, i + head_dim / 2) of every head of every token, in place; token t stands at position
// t % positions of cos and sin ([positions, head_dim / 2], fp32). Half a head is whole packs of 16
// bytes: the caller checks.
struct Rotation {
  std::int64_t tokens = 0, positions = 0, heads = 0, head_dim = 0;
  bool inverse = false;
};
cudaError_t rotate(
    Type type, const Rotation& rotation, const float* cos, const float* sin, void* values, cudaStream_t stream);

// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + epsilon) per row. Widths that takes_norm()
// says, pointers of 16 bytes.
struct NormRows {
  std::int64_t count = 0, width = 0;
};
bool takes_norm(Type type, const NormRows& rows);
cudaError_t rms_norm(Type type, const NormRows& rows, const void* x, const void* weight, float epsilon, void* y,
    float* rstd, cudaStream_t stream);
// dx and the weight's gradient, the same whenever it is asked for.
std::int64_t norm_backward_blocks(Type type, const NormRows& rows);
struct NormParts {
  std::int64_t blocks = 0;  // norm_backward_blocks()
  float* sums = nullptr;    // room for a row of each
};
struct NormInputs {
  const void *dy = nullptr, *x = nullptr, *weight = nullptr;
  const float* rstd = nullptr;
  const void* addend = nullptr;  // added to dx; null: nothing
};
cudaError_t rms_norm_backward(Type type, const NormRows& rows, const NormInputs& in, void* dx, void* dw,
    const NormParts& parts, cudaStream_t stream);

// out = silu(gate) * up
cudaError_t silu_multiply(
    Type type, std::int64_t count, const void* gate, const void* up, void* out, cudaStream_t stream);
cudaError_t silu_multiply_backward(Type type, std::int64_t count, const void* dy, const void* gate, const void* up,
    void* d_gate, void* d_up, cudaStream_t stream);

// table[ids[r]][i] += values[r][i]; the order of additions to one place is not fixed.
cudaError_t add_rows(Type values_type, Type table_type, std::int64_t rows, std::int64_t width, const void* values,
    const std::int64_t* ids, void* table, cudaStream_t stream);

// Each row of logits becomes (softmax - [is label]) * scale in place; -log softmax[label] is added to *loss.
cudaError_t cross_entropy(Type type, std::int64_t rows, std::int64_t width, void* logits, const std::int64_t* labels,
    float scale, float* loss, cudaStream_t stream);

// --- the end of a step ---

// From `begin` of a piece kAdamWChunk elements, or what is left.
inline constexpr std::int64_t kAdamWChunk = 16384;
struct AdamWChunk {
  std::int64_t begin = 0;
  unsigned piece = 0;
};
struct AdamWNumbers {
  double beta1 = 0, beta2 = 0, epsilon = 0;
};
// Where gradients of pieces from `first` on are; passed by value.
inline constexpr std::size_t kGradientPlaces = 256;
struct GradientPlaces {
  const float* gradients[kGradientPlaces];
  int first = 0, count = 0;
};
cudaError_t place_gradients(AdamWPiece* pieces, const GradientPlaces& places, cudaStream_t stream);
// Step *number (from 1) at *rate, of gradients times *factor (null: 1). Tables and numbers are device memory.
cudaError_t adamw(const AdamWPiece* pieces, const AdamWChunk* chunks, unsigned count, const AdamWNumbers& numbers,
    const float* number, const float* rate, const float* factor, cudaStream_t stream);

}
