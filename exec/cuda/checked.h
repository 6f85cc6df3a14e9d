// Return codes of CUDA and NCCL as exceptions that name the call.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <stdexcept>
#include <string>

namespace foreshard::cuda {

inline void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorName(code) + " (" + cudaGetErrorString(code) + ")");
}

inline void check(ncclResult_t code, const char* call, ncclComm_t communicator = nullptr) {
  if (code == ncclSuccess) return;
  const char* last = ncclGetLastError(communicator);
  throw std::runtime_error(std::string(call) + ": " + ncclGetErrorString(code) +
                           (last == nullptr || *last == '\0' ? "" : std::string("; ") + last));
}

}

// The text of the call is its name in messages.
#define FORESHARD_CUDA(call) ::foreshard::cuda::check((call), #call)
