// CUDA's C interfaces as the null GPU needs them, declared here so that it builds on machines without CUDA: handles are
// opaque, enumerations are ints, structures have the layout of CUDA 12 and 13 on x86-64 Linux (driver_types.h;
// tests/exec/null/abi_test.cpp compares them with CUDA's headers where these are).
#pragma once

#include <cstddef>

#define API extern "C" __attribute__((visibility("default")))
// Calls that have nothing to do, whatever they are given; those that make a handle.
#define DONE(name) \
  API foreshard::null::Status name() { return foreshard::null::kSuccess; }
// Those that say one thing, such as `*version = 13000`.
#define ANSWERS(name, answer, ...) \
  API foreshard::null::Status name(__VA_ARGS__) { return answer, foreshard::null::kSuccess; }
#define CREATED(name) ANSWERS(name, *made = new_handle(), void** made)

namespace foreshard::null {

using Status = int;
inline constexpr Status kSuccess = 0;

// cudaError_t and CUresult, which agree on these.
enum CudaError : Status {
  kInvalidValue = 1,
  kMemoryAllocation = 2,
  kInvalidDevice = 101,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureUnmatched = 903,
  kCaptureUnjoined = 904,
  kCaptureIsolation = 905,
  kCaptureImplicit = 906,
};

struct Dim3 {
  unsigned x, y, z;
};

using StreamHandle = void*;
using EventHandle = void*;

struct LaunchConfig {  // cudaLaunchConfig_t
  Dim3 grid, block;
  std::size_t shared_bytes;
  StreamHandle stream;
  void* attributes;
  unsigned attribute_count;
};

struct DriverLaunchConfig {  // CUlaunchConfig
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  StreamHandle stream;
  void* attributes;
  unsigned attribute_count;
};

struct PointerAttributes {  // cudaPointerAttributes of CUDA 12; 13's has 64 bytes behind it that are reserved
  int type;                 // 0 unregistered, 1 host, 2 device
  int device;
  void* device_pointer;
  void* host_pointer;
};

struct FunctionAttributes {  // cudaFuncAttributes
  std::size_t shared_bytes, const_bytes, local_bytes;
  int max_threads, registers, ptx_version, binary_version, cache_mode, max_dynamic_shared;
  int carveout, cluster[6], reserved[16];
};

// The fields of cudaDeviceProp that PyTorch, its libraries or users read, by their places in the
// structure: CUDA 13 dropped some of CUDA 12's.
struct PropertyLayout {
  std::size_t size, total_memory, shared_per_block, registers_per_block, warp, pitch, max_threads, max_block, max_grid,
      const_memory, major, minor, texture_alignment, multiprocessors, concurrent, bus, asynchronous, unified, l2,
      threads_per_multiprocessor, shared_per_multiprocessor, registers_per_multiprocessor, managed, cooperative,
      shared_optin, blocks_per_multiprocessor, reserved_shared;
};
inline constexpr PropertyLayout kProperties13 = {1008, 288, 296, 304, 308, 312, 320, 324, 336, 352, 360, 364, 368, 384,
    560, 568, 584, 588, 596, 604, 624, 632, 636, 668, 672, 688, 696};
inline constexpr PropertyLayout kProperties12 = {1032, 288, 296, 304, 308, 312, 320, 324, 336, 352, 360, 364, 368, 388,
    576, 584, 600, 604, 616, 624, 640, 648, 652, 688, 696, 712, 720};

}
