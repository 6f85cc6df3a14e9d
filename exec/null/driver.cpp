// CUDA's driver, NVML and CUPTI. This library is also found as libcuda.so.1 and libnvidia-ml.so.1;
// Triton, Inductor and PyTorch's expandable segments call the driver themselves.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "exec/null/abi.h"
#include "exec/null/device.h"
#include "exec/null/log.h"
#include "exec/null/races.h"
#include "exec/null/record.h"
#include "exec/null/state.h"
#include "exec/null/stream_capture.h"
#include "exec/null/unanswered.h"

namespace foreshard::null {
namespace {

struct State {
  std::mutex mutex;
  std::map<void*, std::string> functions;        // of modules that were loaded
  std::map<std::uint64_t, std::uint64_t> sizes;  // of memory without addresses
};

std::string function_name(void* function) {
  const Held<State> s;
  const auto it = s->functions.find(function);
  return it == s->functions.end() ? "a kernel without a name" : it->second;
}

void* context() {
  static void* const c = new_handle();
  return c;
}

}
}

using namespace foreshard::null;

DONE(cuInit)
ANSWERS(cuDriverGetVersion, *version = 13000, int* version)
ANSWERS(cuDeviceGetCount, *count = properties().devices, int* count)
ANSWERS(cuDeviceGet, *device = ordinal, int* device, int ordinal)
API Status cuDeviceGetName(char* text, int length, int) {
  std::snprintf(text, static_cast<std::size_t>(length), "%s", properties().name.c_str());
  return kSuccess;
}
ANSWERS(cuDeviceGetAttribute, *value = attribute(which), int* value, int which, int)
ANSWERS(cuDeviceTotalMem_v2, *bytes = properties().memory, std::size_t* bytes, int)
API Status cuDeviceGetUuid(void* uuid, int) {
  std::memset(uuid, 7, 16);
  return kSuccess;
}
API Status cuDeviceComputeCapability(int* major, int* minor, int) {
  *major = properties().major;
  *minor = properties().minor;
  return kSuccess;
}
API Status cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  if (flags != nullptr) *flags = 0;
  if (active != nullptr) *active = 1;
  return kSuccess;
}
ANSWERS(cuDevicePrimaryCtxRetain, *c = context(), void** c, int)
DONE(cuDevicePrimaryCtxRelease_v2)
ANSWERS(cuCtxGetCurrent, *c = context(), void** c)
DONE(cuCtxSetCurrent)
DONE(cuCtxPushCurrent_v2)
ANSWERS(cuCtxPopCurrent_v2, *c = context(), void** c)
ANSWERS(cuCtxGetDevice, *device = current_device(), int* device)
ANSWERS(cuCtxGetApiVersion, *version = 13000, void*, unsigned* version)
ANSWERS(cuCtxGetLimit, *value = 0, std::size_t* value, int)
DONE(cuCtxSetLimit)
API Status cuCtxSynchronize() {
  if (const Status status = refuse_unsafe(__func__)) return status;
  await_device();
  order_host_all();
  record_wait('d', nullptr);
  return kSuccess;
}
ANSWERS(cuStreamGetCtx, *c = context(), StreamHandle, void** c)
API Status cuStreamSynchronize(StreamHandle stream) {
  if (const Status status = refuse_on_captured(__func__, stream)) return status;
  await_stream(stream);
  order_host_stream(stream);
  record_wait('s', stream);
  return kSuccess;
}
ANSWERS(cuStreamIsCapturing, *status = is_captured(stream) ? 1 : 0, StreamHandle stream, int* status)
DONE(cuStreamWriteValue32_v2)
DONE(cuStreamWaitValue32_v2)
// Tables of undocumented functions begin with their size: there are none. NVRTC looks into one.
API Status cuGetExportTable(const void** table, const void*) {
  static constexpr std::size_t kEmpty[] = {sizeof(std::size_t), 0};
  return *table = kEmpty, kSuccess;
}
// PyTorch 2.15 asks for the driver's messages.
ANSWERS(cuLogsRegisterCallback, *handle = new_handle(), void*, void*, void** handle)
DONE(cuLogsUnregisterCallback)
ANSWERS(cuGetErrorString, *text = "null GPU", Status, const char** text)
ANSWERS(cuGetErrorName, *text = "CUDA_ERROR", Status, const char** text)
API Status cuPointerGetAttribute(void* value, int which, std::uint64_t at) {
  constexpr int kContext = 1, kMemoryType = 2, kDevicePointer = 3, kOrdinal = 9;
  void* const pointer = reinterpret_cast<void*>(at);
  if (which == kContext) std::memcpy(value, &pointer, 0), *static_cast<void**>(value) = context();
  if (which == kMemoryType) *static_cast<int*>(value) = is_device(pointer) ? 2 : 1;
  if (which == kDevicePointer) *static_cast<std::uint64_t*>(value) = at;
  if (which == kOrdinal) *static_cast<int*>(value) = current_device();
  return is_device(pointer) ? kSuccess : kInvalidValue;
}

// ---- modules and launches ----
ANSWERS(cuModuleLoadData, *module = new_handle(), void** module, const void*)
ANSWERS(cuModuleLoadDataEx, *module = new_handle(), void** module, const void*, unsigned, int*, void**)
ANSWERS(cuModuleLoad, *module = new_handle(), void** module, const char*)
DONE(cuModuleUnload)
API Status cuModuleGetFunction(void** function, void*, const char* name) {
  *function = new_handle();
  Held<State>()->functions[*function] = name;
  return kSuccess;
}
API Status cuModuleGetGlobal_v2(std::uint64_t* at, std::size_t* bytes, void*, const char*) {
  *at = reinterpret_cast<std::uint64_t>(allocate(4096));
  if (bytes != nullptr) *bytes = 4096;
  return kSuccess;
}
API Status cuFuncGetAttribute(int* value, int which, void*) {
  constexpr int kMaxThreads = 0, kRegisters = 4;
  return *value = which == kMaxThreads ? 1024 : which == kRegisters ? 32 : 0, kSuccess;
}
DONE(cuFuncSetAttribute)
DONE(cuFuncSetCacheConfig)
ANSWERS(cuFuncGetName, *name = "", const char** name, void*)
ANSWERS(cuOccupancyMaxActiveBlocksPerMultiprocessor,
    *count = threads <= 0 ? 1 : properties().threads_per_multiprocessor / threads, int* count, void*, int threads,
    std::size_t)
ANSWERS(cuOccupancyMaxActiveClusters, *count = properties().multiprocessors / 2, int* count, void*, const void*)
API Status cuTensorMapEncodeTiled(void* map) {
  std::memset(map, 0, 128);
  return kSuccess;
}
API Status cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
    unsigned shared, StreamHandle stream, void** arguments, void**) {
  record_launch(
      {name_id(function_name(function)), {gx, gy, gz}, {bx, by, bz}, shared, stream, arguments, nullptr, false});
  return kSuccess;
}
API Status cuLaunchKernelEx(const DriverLaunchConfig* c, void* function, void** arguments, void**) {
  return cuLaunchKernel(function, c->grid_x, c->grid_y, c->grid_z, c->block_x, c->block_y, c->block_z, c->shared_bytes,
      c->stream, arguments, nullptr);
}
API Status cuLaunchCooperativeKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
    unsigned bz, unsigned shared, StreamHandle stream, void** arguments) {
  return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, nullptr);
}

// ---- memory, and addresses without it (expandable segments) ----
API Status cuMemAlloc_v2(std::uint64_t* at, std::size_t bytes) {
  *at = reinterpret_cast<std::uint64_t>(allocate(bytes));
  return *at == 0 ? kMemoryAllocation : kSuccess;
}
API Status cuMemFree_v2(std::uint64_t at) {
  release(reinterpret_cast<void*>(at));
  return kSuccess;
}
API Status cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  const FreeMemory left = memory_left();
  *free = left.free;
  *total = left.total;
  return kSuccess;
}
API Status cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, StreamHandle stream) {
  copy_bytes(reinterpret_cast<void*>(to), from, bytes);
  record_copy({'h', stream, bytes, reinterpret_cast<void*>(to), from});
  return kSuccess;
}
API Status cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, StreamHandle stream) {
  if (copy_bytes(to, reinterpret_cast<void*>(from), bytes)) record_blind_read(bytes);
  record_copy({'d', stream, bytes, to, reinterpret_cast<void*>(from)});
  return kSuccess;
}
API Status cuMemsetD8Async(std::uint64_t at, unsigned char value, std::size_t bytes, StreamHandle stream) {
  set_bytes(reinterpret_cast<void*>(at), value, bytes);
  record_copy({'s', stream, bytes, reinterpret_cast<void*>(at)});
  return kSuccess;
}
API Status cuMemsetD32Async(std::uint64_t at, unsigned, std::size_t count, StreamHandle stream) {
  forget(reinterpret_cast<void*>(at), 4 * count);
  record_copy({'s', stream, 4 * count, reinterpret_cast<void*>(at)});
  return kSuccess;
}
ANSWERS(cuMemAddressReserve, *at = reinterpret_cast<std::uint64_t>(reserve_addresses(bytes)), std::uint64_t* at,
    std::size_t bytes, std::size_t, std::uint64_t, unsigned long long)
DONE(cuMemAddressFree)
API Status cuMemCreate(std::uint64_t* handle, std::size_t bytes, const void*, unsigned long long) {
  if (!take_memory(bytes)) return kMemoryAllocation;
  *handle = reinterpret_cast<std::uint64_t>(new_handle());
  Held<State>()->sizes[*handle] = bytes;
  return kSuccess;
}
API Status cuMemRelease(std::uint64_t handle) {
  const Held<State> s;
  const auto it = s->sizes.find(handle);
  if (it == s->sizes.end()) return kInvalidValue;
  give_memory(it->second);
  s->sizes.erase(it);
  return kSuccess;
}
DONE(cuMemMap)
DONE(cuMemUnmap)
DONE(cuMemSetAccess)
API Status cuMemGetAllocationGranularity(std::size_t* bytes, const void*, int) {
  return *bytes = std::size_t{2} << 20, kSuccess;
}
API Status cuMemExportToShareableHandle(void*, std::uint64_t, int, unsigned long long) { return kNotSupported; }
API Status cuMemImportFromShareableHandle(std::uint64_t*, void*, int) { return kNotSupported; }
API Status cuMemGetHandleForAddressRange(void*, std::uint64_t, std::size_t, int, unsigned long long) {
  return kNotSupported;
}
API Status cuMulticastCreate(std::uint64_t*, const void*) { return kNotSupported; }

API Status cuGetProcAddress_v2(const char* name, void** function, int, std::uint64_t, int* found) {
  *function = driver_function(name);
  if (found != nullptr) *found = 0;
  return kSuccess;
}
API Status cuGetProcAddress(const char* name, void** function, int version, std::uint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

// PyTorch's own compiler of kernels (Jiterator) links what NVRTC made.
API Status cuLinkCreate_v2(unsigned, int*, void**, void**) { return kNotSupported; }
API Status cuLinkAddData_v2() { return kNotSupported; }
API Status cuLinkComplete(void*, void**, std::size_t*) { return kNotSupported; }

// ---- NVML: how many devices there are and what they are called; clocks and counters are not known.
constexpr Status kNvmlUnknown = 3;  // NVML_ERROR_NOT_SUPPORTED
DONE(nvmlInit)
DONE(nvmlInit_v2)
DONE(nvmlInitWithFlags)
DONE(nvmlShutdown)
ANSWERS(nvmlDeviceGetCount_v2, *count = static_cast<unsigned>(properties().devices), unsigned* count)
API Status nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }
API Status nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  return *device = reinterpret_cast<void*>(std::uint64_t{index} + 1), kSuccess;
}
API Status nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  return *device = reinterpret_cast<void*>(std::uint64_t{1}), kSuccess;
}
API Status nvmlDeviceGetName(void*, char* text, unsigned length) {
  std::snprintf(text, length, "%s", properties().name.c_str());
  return kSuccess;
}
API Status nvmlDeviceGetUUID(void* device, char* text, unsigned length) {
  std::snprintf(text, length, "GPU-00000000-0000-0000-0000-%012llx",
      static_cast<unsigned long long>(reinterpret_cast<std::uint64_t>(device)));
  return kSuccess;
}
API Status nvmlDeviceGetMemoryInfo(void*, std::uint64_t* total_free_used) {
  const FreeMemory left = memory_left();
  total_free_used[0] = left.total;
  total_free_used[1] = left.free;
  total_free_used[2] = left.total - left.free;
  return kSuccess;
}
// PyTorch asks it for the text of an out-of-memory error.
ANSWERS(nvmlDeviceGetComputeRunningProcesses, *count = 0, void*, unsigned* count, void*)
ANSWERS(nvmlDeviceGetComputeRunningProcesses_v2, *count = 0, void*, unsigned* count, void*)
ANSWERS(nvmlDeviceGetComputeRunningProcesses_v3, *count = 0, void*, unsigned* count, void*)
ANSWERS(nvmlSystemGetCudaDriverVersion_v2, *version = 13000, int* version)
ANSWERS(nvmlSystemGetCudaDriverVersion, *version = 13000, int* version)
API Status nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int* type) {
  return *type = 2, kSuccess;  // a switch
}
API Status nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return kNvmlUnknown; }
// Loops log them.
ANSWERS(nvmlDeviceGetPowerUsage, *milliwatts = 0, void*, unsigned* milliwatts)
ANSWERS(nvmlDeviceGetTemperature, *degrees = 0, void*, int, unsigned* degrees)
ANSWERS(nvmlDeviceGetTemperatureV, std::memset(sensor + 2, 0, sizeof *sensor), void*, int* sensor)
ANSWERS(nvmlDeviceGetUtilizationRates, rates[0] = rates[1] = 0, void*, unsigned* rates)
ANSWERS(nvmlDeviceGetClockInfo, *megahertz = 0, void*, int, unsigned* megahertz)
API const char* nvmlErrorString(Status) { return "Not Supported"; }

// ---- CUPTI: there is nothing to trace; profilers go on without the device.
constexpr Status kCuptiNotInitialized = 15;
#define REFUSED(name, ...) \
  API Status name(__VA_ARGS__) { return kCuptiNotInitialized; }
REFUSED(cuptiSubscribe)
REFUSED(cuptiActivityRegisterCallbacks)
REFUSED(cuptiActivityEnable)
REFUSED(cuptiActivityDisable)
REFUSED(cuptiActivityFlushAll)
REFUSED(cuptiActivityRegisterTimestampCallback)
REFUSED(cuptiActivityPushExternalCorrelationId)
REFUSED(cuptiActivityPopExternalCorrelationId)
REFUSED(cuptiActivitySetAttribute)
REFUSED(cuptiFinalize)
