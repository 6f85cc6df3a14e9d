// CUDA's calls as the programs of these tests make them, declared without its headers, and an
// allocator that speaks as PyTorch's does.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
struct Dim3 {
  unsigned x, y, z;
};
struct UniqueId {
  char bytes[128];
};
int cudaMalloc(void**, std::size_t);
int cudaFree(void*);
struct PointerAttributes {
  int type, device;
  void *device_pointer, *host_pointer;
  long reserved[8];
};
int cudaHostAlloc(void**, std::size_t, unsigned);
int cudaFreeHost(void*);
int cudaPointerGetAttributes(PointerAttributes*, const void*);
int cudaMemGetInfo(std::size_t*, std::size_t*);
int cudaMemcpy(void*, const void*, std::size_t, int);
int cudaMemcpyAsync(void*, const void*, std::size_t, int, void*);
int cudaMemsetAsync(void*, int, std::size_t, void*);
int cudaDeviceSynchronize();
int cudaStreamCreateWithPriority(void**, unsigned, int);
int cudaStreamSynchronize(void*);
int cudaStreamWaitEvent(void*, void*, unsigned);
int cudaStreamBeginCapture(void*, int);
int cudaStreamEndCapture(void*, void**);
int cudaGraphInstantiateWithFlags(void**, void*, unsigned long long);
int cudaGraphLaunch(void*, void*);
int cudaFuncGetAttributes(void*, const void*);
void** __cudaRegisterFatBinary(void*);
int cudnnCreate(void**);
int cudnnCreateTensorDescriptor(void**);
int cudnnGetTensorNdDescriptor(const void*, int, int*, int*, int*, int*);
int cudnnBackendCreateDescriptor(int, void**);
int cudnnBackendSetAttribute(void*, int, int, std::int64_t, const void*);
int cudnnBackendGetAttribute(void*, int, int, std::int64_t, std::int64_t*, void*);
int cudnnBackendExecute(void*, void*, void*);
int cudnnCreateRNNDescriptor(void**);
int cudnnSetRNNDescriptor_v8(void*, int, int, int, int, int, int, int, int, std::int32_t, std::int32_t, std::int32_t,
    std::int32_t, void*, std::uint32_t);
int cudnnCreateRNNDataDescriptor(void**);
int cudnnSetRNNDataDescriptor(void*, int, int, int, int, int, const int*, void*);
int cudnnGetRNNWeightSpaceSize(void*, void*, std::size_t*);
int cudnnGetRNNWeightParams(
    void*, void*, std::int32_t, std::size_t, const void*, std::int32_t, void*, void**, void*, void**);
int cudnnRNNForward(void*, void*, int, const void*, void*);
int cudnnRNNBackwardData_v8(void*, void*, const void*, void*);
int cudnnRNNBackwardWeights_v8(void*, void*, int, const void*, void*);
int cudaThreadExchangeStreamCaptureMode(int*);
int cudaEventCreateWithFlags(void**, unsigned);
int cudaEventRecord(void*, void*);
int cudaEventQuery(void*);
int cudaEventSynchronize(void*);
int cudaEventElapsedTime(float*, void*, void*);
int cudaLaunchKernel(const void*, Dim3, Dim3, void**, std::size_t, void*);
int cudaDeviceGetAttribute(int*, int, int);
int cudaGetDriverEntryPointByVersion(const char*, void**, unsigned, unsigned long long, int*);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*);
int cublasCreate_v2(void**);
int cublasSetStream_v2(void*, void*);
int cublasGemmEx(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*,
    void*, int, int, int, int);
int ncclGetUniqueId(UniqueId*);
int ncclCommInitRank(void**, int, UniqueId, int);
int ncclAllGather(const void*, void*, std::size_t, int, void*, void*);
int ncclReduceScatter(const void*, void*, std::size_t, int, int, void*, void*);
int ncclBroadcast(const void*, void*, std::size_t, int, int, void*, void*);
int ncclSend(const void*, std::size_t, int, int, void*, void*);
int ncclRecv(void*, std::size_t, int, int, void*, void*);
int ncclGroupStart();
int ncclGroupEnd();
void foreshard_null_mark(const char*);
int foreshard_null_known(const void*, void*, std::size_t);
void foreshard_null_know(void*, const void*, std::size_t);
void foreshard_null_answer(std::int64_t);
void foreshard_null_end_operation(std::int64_t);
struct Device {
  std::int8_t type, index;
};
void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void*, std::int64_t, std::size_t, std::size_t, Device);
}

namespace foreshard::null_test {

constexpr std::size_t kElements = 1 << 20, kBytes = 2 * kElements;
constexpr int kHostToDevice = 1, kDeviceToHost = 2, kBf16 = 14, kNcclBf16 = 9, kNcclInt64 = 4;
inline const char kernel_function = 0;
// at::native's addition of two bf16 tensors.
constexpr const char* kKernel =
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIN3c108BFloat16EEESt5arrayIPcLm3EEEEviT0_"
    "T1_";
inline void register_kernel() {
  __cudaRegisterFunction(nullptr, &kernel_function, nullptr, kKernel, -1, nullptr, nullptr, nullptr, nullptr, nullptr);
}

// c = a + b
inline void add(void* a, void* b, void* c, void* stream) {
  int n = kElements;
  float scale = 1;
  void* data[3] = {c, a, b};
  void* arguments[3] = {&n, &scale, data};
  cudaLaunchKernel(&kernel_function, {1024, 1, 1}, {256, 1, 1}, arguments, 0, stream);
}

class Allocator {
 public:
  void* take(std::size_t bytes) {
    void* at = nullptr;
    cudaMalloc(&at, bytes);
    hold(at, bytes);
    return at;
  }
  void give(void* at, std::size_t bytes) {
    leave(at, bytes);
    cudaFree(at);
  }
  // A block of memory that stays reserved.
  void hold(void* at, std::size_t bytes) {
    sizes_ += bytes;
    say(at, static_cast<std::int64_t>(bytes));
  }
  void leave(void* at, std::size_t bytes) {
    sizes_ -= bytes;
    say(at, -static_cast<std::int64_t>(bytes));
  }

 private:
  void say(void* at, std::int64_t bytes) const {
    _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(at, bytes, sizes_, sizes_, {1, 0});
  }
  std::size_t sizes_ = 0;
};

}
