// The boundary between the engine and a device that runs what the host feeds it: one GPU (the
// plugin libforeshard_cuda.so, exec/cuda/), or a stand-in on the CPU that does everything at once
// (host_accelerator.h), so that the engine's device half is tested where no GPU is.
//
// The plugin shares no object code with the program: this header, rank_memory.h and plain enums
// are all that both see. Failures are std::runtime_error with one sentence that names the call.
//
// Lanes are streams. Calls that give the device work (copy, fill, paced, fused kernels, ATen
// operators, collectives) go to the calling thread's current lane, which enter() chooses; events
// are recorded and awaited there. One thread per Accelerator.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "exec/device/adamw_piece.h"
#include "exec/memory/rank_memory.h"
#include "sim/spec/plan.h"

namespace foreshard {

// Changes with every change of what this header declares.
inline constexpr int kAcceleratorVersion = 4;

struct AcceleratorInfo {
  std::string name;  // "NVIDIA H100 80GB HBM3"; "cpu" for the stand-in
  int multiprocessors = 0;
  int capability = 0;  // 90 is sm_90
  std::int64_t memory_bytes = 0;
  double globaltimer_step_ns = 0;                             // what the device's clock counts in; 0: not known
  std::vector<std::pair<std::string, std::string>> versions;  // driver, cuda, cudnn, nccl
};

// Bytes. allocated and reserved are the caching allocator's, as torch.cuda.memory_stats counts.
struct AcceleratorMemory {
  std::int64_t allocated = 0, allocated_peak = 0;
  std::int64_t reserved = 0, reserved_peak = 0;
  std::int64_t retries = 0;          // cudaMalloc failed, the cache was given back
  std::int64_t free = 0, total = 0;  // cudaMemGetInfo
};

// Clocks and power as NVML tells them; 0 where it does not.
struct AcceleratorClocks {
  int sm_mhz = 0, memory_mhz = 0, temperature_c = 0;
  double watts = 0;
  std::uint64_t throttle_mask = 0;
};

// An event of the device's own, made by new_event().
using DeviceEvent = void*;
using Lane = int;
// Work that was recorded to be done again, as capture() gives it: a CUDA graph.
using DeviceGraph = void*;

// A collective of one rank that has no peers: moves the bytes this rank would move inside its own
// memory, holds `ctas` multiprocessors, and lasts `nanoseconds` from when its first block runs.
struct PacedCollective {
  enum class Kind : std::uint8_t {
    kAllGather,      // the own shard of `whole` is copied into every other shard
    kReduceScatter,  // shard[i] = sum over shards p of whole[p][i]
    kAllReduce,      // the values are read and written once
  };
  Kind kind = Kind::kAllGather;
  void* whole = nullptr;
  void* shard = nullptr;  // kReduceScatter
  std::size_t shard_elements = 0;
  DType dtype = DType::kBf16;
  int ranks = 1, index = 0;
  std::int64_t nanoseconds = 0;
  int ctas = 1;  // 0: no time to keep; blocks of the whole chip move the bytes, as a copy's do
};

// A part of a communicator: every member of the whole belongs to one part, named by its colour.
struct CommunicatorPart {
  std::string name;
  int colour = 0;  // not negative
  int index = 0, size = 1;
  int max_ctas = 0;  // 0: the library's choice
};

// Collectives over one group on the current lane. Every call returns at once; what fails later is told by failure().
class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;
  virtual int index() const = 0;
  virtual int size() const = 0;
  // In place: this rank's shard lies at index() * shard_bytes of `whole` already.
  virtual void all_gather(void* whole, std::size_t shard_bytes, DType dtype) = 0;
  // shard[i] = sum over ranks, in `dtype`; `whole` is not changed.
  virtual void reduce_scatter(const void* whole, void* shard, std::size_t elements, DType dtype) = 0;
  virtual void all_reduce(float* values, std::size_t count) = 0;
  virtual void all_reduce(double* values, std::size_t count) = 0;
  // Paced communicators only: how long the next call lasts, and what it occupies.
  virtual void pace(std::int64_t /*nanoseconds*/, int /*ctas*/) {}
  virtual bool has_peers() const { return false; }  // that can be lost
  virtual std::optional<std::string> failure() { return std::nullopt; }
  virtual void abort() noexcept {}  // from any thread
  // A communicator of its own for a part of this one. Every member calls it equally often in the
  // same order; the part may outlive the whole. Throws where the library has no such thing, or the
  // members did not come in time: the whole is aborted then.
  virtual std::unique_ptr<DeviceCommunicator> split(const CommunicatorPart& /*part*/) {
    throw std::runtime_error("this communicator cannot be split");
  }
};

// Of an NCCL communicator; every member gives the same id.
struct NcclGroup {
  std::string unique_id;  // nccl_unique_id() of the group's first rank
  std::string name;
  int index = 0, size = 1;
  int max_ctas = 0;  // 0: NCCL's choice
  double timeout_s = 60;
};

// Attention kernels, in the order in which a plan's choice falls back.
enum class DeviceAttention : std::uint8_t { kCudnn, kFlash, kEfficient, kCpu };

// What an RMS norm's gradients are made of.
struct NormGradient {
  at::Tensor dy, x, weight;
  at::Tensor rstd;    // fp32, one per row
  at::Tensor addend;  // undefined, or like x: added to its gradient
};

// AdamW over pieces that are always the same, but for where their gradients are.
class FusedAdamW {
 public:
  virtual ~FusedAdamW() = default;
  // Of all pieces, from what is given to the current lane next.
  virtual void find_gradients(std::span<const float* const> of_pieces) = 0;
  // Step `number` (from 1) at `rate`, of gradients times `factor`: one fp32 element each on the
  // device; an undefined factor is 1.
  virtual void step(const at::Tensor& number, const at::Tensor& rate, const at::Tensor& factor) = 0;
};

class Accelerator : public RankMemory {
 public:
  virtual AcceleratorInfo info() = 0;
  virtual AcceleratorMemory memory() = 0;
  virtual void reset_peaks() = 0;
  // Settings of the caching allocator from here on, as PYTORCH_ALLOC_CONF has them.
  virtual void set_allocator(const std::string& /*settings*/) {}
  virtual AcceleratorClocks clocks() { return {}; }
  virtual bool is_gpu() const { return true; }

  // --- lanes and events ---
  virtual Lane open_lane(bool high_priority) = 0;
  virtual void enter(Lane lane) = 0;
  virtual DeviceEvent new_event() = 0;
  virtual void free_event(DeviceEvent event) noexcept = 0;
  virtual void record(DeviceEvent event) = 0;
  virtual void wait(DeviceEvent event) = 0;  // the lane, not the host
  virtual bool done(DeviceEvent event) = 0;
  virtual void synchronize(DeviceEvent event) = 0;  // the host
  virtual void synchronize() = 0;                   // everything on the device
  // Both recorded and done. Not in order: negative.
  virtual double seconds_between(DeviceEvent from, DeviceEvent until) = 0;
  virtual void range_begin(const char* /*name*/) {}  // NVTX
  virtual void range_end() {}

  // --- many calls as one ---
  // Records what `work` gives to the current lane, and to every lane that waits in it for an event
  // recorded in it; nothing is done yet. `work` begins and ends on the current lane, which has then
  // waited for all others. Memory, events and numbers that the host passes are those of this call
  // for ever: what changes is read from the device's memory. A GPU calls `work` once, the stand-in
  // at every replay, so it must not depend on what the host knows of the step.
  // Throws what `work` throws, or why it cannot be recorded; the lanes work as before then.
  virtual DeviceGraph capture(const std::function<void()>& work) = 0;
  virtual void replay(DeviceGraph graph) = 0;  // on the current lane
  virtual void free_graph(DeviceGraph graph) noexcept = 0;

  // --- kernels ---
  virtual void paced(const PacedCollective& collective) = 0;
  // Holds the lane for a time without moving anything.
  virtual void spin(std::int64_t nanoseconds, int ctas) = 0;
  // Fused kernels. false: there is none for these arguments; ATen's operators do it then.
  virtual bool rotate(const at::Tensor& /*values*/, const at::Tensor& /*cos*/, const at::Tensor& /*sin*/,
      std::int64_t /*head_dim*/, bool /*inverse*/) {
    return false;
  }
  // y = x * rstd * weight over rows as wide as the weight, rstd = 1 / sqrt(mean(x^2) + epsilon).
  virtual bool rms_norm(const at::Tensor& /*y*/, const at::Tensor& /*rstd*/, const at::Tensor& /*x*/,
      const at::Tensor& /*weight*/, double /*epsilon*/) {
    return false;
  }
  virtual bool rms_norm_backward(const at::Tensor& /*dx*/, const at::Tensor& /*dw*/, const NormGradient& /*of*/) {
    return false;
  }
  virtual bool silu_multiply(const at::Tensor& /*out*/, const at::Tensor& /*gate*/, const at::Tensor& /*up*/) {
    return false;
  }
  virtual bool silu_multiply_backward(const at::Tensor& /*d_gate*/, const at::Tensor& /*d_up*/,
      const at::Tensor& /*dy*/, const at::Tensor& /*gate*/, const at::Tensor& /*up*/) {
    return false;
  }
  // table[ids[r]] += values[r]
  virtual bool add_rows(const at::Tensor& /*table*/, const at::Tensor& /*ids*/, const at::Tensor& /*values*/) {
    return false;
  }
  // Logits become (probability - [is label]) * scale; the negative log likelihoods are added to `loss` (one float).
  virtual bool cross_entropy(
      const at::Tensor& /*logits*/, const at::Tensor& /*labels*/, double /*scale*/, const at::Tensor& /*loss*/) {
    return false;
  }

  // nullptr: ATen's operators do it. The pieces' memory outlives it.
  virtual std::unique_ptr<FusedAdamW> fused_adamw(
      std::span<const AdamWPiece> /*pieces*/, const Optimizer& /*numbers*/) {
    return nullptr;
  }

  // --- several GPUs ---
  virtual std::string nccl_unique_id() = 0;
  // Collective over the group; throws when it is not complete in time.
  virtual std::unique_ptr<DeviceCommunicator> nccl(const NcclGroup& group) = 0;
};

// What the plugin exports as "foreshard_accelerator". On failure returns nullptr and writes one sentence to `reason`.
using AcceleratorFactory = Accelerator* (*)(int version, int device, char* reason, std::size_t reason_bytes);

}
