// The libraries of CUDA 12 and 13 that PyTorch's builds are linked to, where they are not installed: one library under
// all their names (libraries.txt), found after those that are there. What the null GPU answers is found in its own
// library, which is loaded before; here is what it leaves to the real ones, because they need no GPU, and what a loader
// looks for before anything is called. Any other function of theirs is named and ends the program when it is called
// (exec/null/unanswered.cpp).
#include <cstddef>

#include "exec/null/abi.h"

// ---- NVRTC compiles on the host ----
namespace {
constexpr int kNvrtcError = 11;  // NVRTC_ERROR_INTERNAL_ERROR
}
#define ABSENT(name) \
  API int name() { return kNvrtcError; }
ABSENT(nvrtcAddNameExpression)
ABSENT(nvrtcCompileProgram)
ABSENT(nvrtcCreateProgram)
ABSENT(nvrtcDestroyProgram)
ABSENT(nvrtcGetCUBIN)
ABSENT(nvrtcGetCUBINSize)
ABSENT(nvrtcGetLoweredName)
ABSENT(nvrtcGetPTX)
ABSENT(nvrtcGetPTXSize)
ABSENT(nvrtcGetProgramLog)
ABSENT(nvrtcGetProgramLogSize)
ABSENT(nvrtcGetNumSupportedArchs)
ABSENT(nvrtcGetSupportedArchs)
API const char* nvrtcGetErrorString(int) {
  return "NVRTC is not installed here, and the null GPU has no compiler (pip install nvidia-cuda-nvrtc)";
}
API int nvrtcVersion(int* major, int* minor) {
  *major = 12;
  *minor = 0;
  return 0;
}

// ---- versions and texts ----
// PyTorch wants at least the minor version of cuDNN 9 that it was built with.
constexpr int kCudnn[] = {9, 29, 0};
API std::size_t cudnnGetVersion() { return static_cast<std::size_t>(kCudnn[0] * 10000 + kCudnn[1] * 100 + kCudnn[2]); }
API int cudnnGetProperty(int part, int* value) {  // libraryPropertyType
  if (part < 0 || part > 2) return 1;
  *value = kCudnn[part];
  return 0;
}
API std::size_t cudnnGetCudartVersion() { return 13000; }
API std::size_t cublasLtGetVersion() { return 130200; }
API const char* cudnnGetErrorString(int) { return "the null GPU's cuDNN refuses this"; }
API const char* cusparseGetErrorString(int) { return "the null GPU has no cuSPARSE"; }

// ---- NVTX: marks for a profiler that is not there ----
API void nvtxMarkA(const char*) {}
API int nvtxRangePushA(const char*) { return 0; }
API int nvtxRangePop() { return 0; }
API unsigned long long nvtxRangeStartA(const char*) { return 0; }
API void nvtxRangeEnd(unsigned long long) {}

// ---- NVSHMEM: its device half, in PyTorch's library, refers to these; nothing calls them ----
API int nvshmem_init() { return 1; }
API int nvshmem_selected_device_transport() { return 1; }
API int nvshmemi_get_device_state_ptrs() { return 1; }
API int nvshmemi_get_mem_handle() { return 1; }
extern "C" {
__attribute__((visibility("default"))) std::byte nvshmemi_device_lib_version_d[64] = {};
__attribute__((visibility("default"))) std::byte nvshmemi_device_only_state[4096] = {};
__attribute__((visibility("default"))) std::byte nvshmemi_device_state_d[4096] = {};
__attribute__((visibility("default"))) std::byte nvshmemi_ibgda_device_state_d[4096] = {};
}
