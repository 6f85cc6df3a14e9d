// The CUDA runtime as PyTorch and its libraries call it: devices, streams, events, graphs.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "exec/null/abi.h"
#include "exec/null/device.h"
#include "exec/null/log.h"
#include "exec/null/races.h"
#include "exec/null/record.h"
#include "exec/null/stream_capture.h"
#include "exec/null/unanswered.h"

namespace foreshard::null {
namespace {

thread_local Status last_error = kSuccess;

Status failed(Status status) {
  last_error = status;
  return status;
}

constexpr const char* kOther = "cudaErrorNotSupported";

struct ErrorWords {
  Status error;
  const char *name, *says;
};
constexpr ErrorWords kErrors[] = {
    {kSuccess, "cudaSuccess", "no error"},
    {kMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {kNotReady, "cudaErrorNotReady", "device not ready"},
    {kInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {kCaptureUnsupported, kOther, "operation not permitted when stream is capturing"},
    {kCaptureInvalidated, kOther, "operation failed due to a previous error during capture"},
    {kCaptureUnjoined, kOther, "capturing stream has unjoined work"},
    {kCaptureIsolation, kOther, "dependency created on uncaptured work in another stream"},
    {kCaptureImplicit, kOther,
     "operation would make the legacy stream depend on a capturing blocking stream"},
};

ErrorWords words_of(Status error) {
  const auto* found = std::ranges::find(kErrors, error, &ErrorWords::error);
  return found != std::end(kErrors) ? *found
                                    : ErrorWords{error, kOther, "the null GPU refuses this"};
}

}  // namespace
}  // namespace foreshard::null

using namespace foreshard::null;

// ---- devices ----
FORESHARD_NULL_API Status cudaGetDeviceCount(int* count) {
  *count = properties().devices;
  return kSuccess;
}
FORESHARD_NULL_API Status cudaGetDevice(int* device) {
  *device = current_device();
  return kSuccess;
}
FORESHARD_NULL_API Status cudaSetDevice(int device) {
  return set_current_device(device) ? kSuccess : failed(kInvalidDevice);
}
FORESHARD_NULL_API Status cudaInitDevice(int, unsigned, unsigned) { return kSuccess; }
FORESHARD_NULL_API Status cudaSetDeviceFlags(unsigned) { return kSuccess; }
FORESHARD_NULL_API Status cudaDeviceReset() { return kSuccess; }
FORESHARD_NULL_API Status cudaDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
// PyTorch compares it with what it was built with: the version that loaded libraries are linked to.
FORESHARD_NULL_API Status cudaRuntimeGetVersion(int* version) {
  *version = is_needed("libcudart.so.12") ? 12080 : 13000;
  return kSuccess;
}
FORESHARD_NULL_API Status cudaGetLastError() { return std::exchange(last_error, kSuccess); }
FORESHARD_NULL_API Status cudaPeekAtLastError() { return last_error; }
FORESHARD_NULL_API const char* cudaGetErrorString(Status error) { return words_of(error).says; }
FORESHARD_NULL_API const char* cudaGetErrorName(Status error) { return words_of(error).name; }
FORESHARD_NULL_API Status cudaGetDeviceProperties(void* p, int) {
  fill_properties(p, kProperties13);
  return kSuccess;
}
FORESHARD_NULL_API Status cudaGetDeviceProperties_v2(void* p, int) {
  fill_properties(p, kProperties12);
  return kSuccess;
}
FORESHARD_NULL_API Status cudaDeviceGetAttribute(int* value, int which, int) {
  *value = attribute(which);
  return kSuccess;
}
FORESHARD_NULL_API Status cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", device + 1);
  return kSuccess;
}
FORESHARD_NULL_API Status cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return kSuccess;
}
FORESHARD_NULL_API Status cudaDeviceSynchronize() {
  if (const Status status = refuse_unsafe(__func__)) return failed(status);
  await_device();
  order_host_all();
  record_wait('d', nullptr);
  return kSuccess;
}
FORESHARD_NULL_API Status cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return kSuccess;
}
FORESHARD_NULL_API Status cudaDeviceEnablePeerAccess(int, unsigned) { return kSuccess; }
FORESHARD_NULL_API Status cudaDeviceGetLimit(std::size_t* value, int) {
  *value = 0;
  return kSuccess;
}
FORESHARD_NULL_API Status cudaDeviceSetLimit(int, std::size_t) { return kSuccess; }
FORESHARD_NULL_API Status cudaProfilerStart() { return kSuccess; }
FORESHARD_NULL_API Status cudaProfilerStop() { return kSuccess; }

// ---- streams ----
FORESHARD_NULL_API Status cudaStreamCreateWithFlags(StreamHandle* stream, unsigned flags) {
  *stream = new_stream();
  order_stream(*stream, flags);
  return kSuccess;
}
FORESHARD_NULL_API Status cudaStreamCreateWithPriority(StreamHandle* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
FORESHARD_NULL_API Status cudaStreamCreate(StreamHandle* stream) {
  return cudaStreamCreateWithFlags(stream, 0);
}
FORESHARD_NULL_API Status cudaStreamDestroy(StreamHandle stream) {
  delete_stream(stream);
  return kSuccess;
}
FORESHARD_NULL_API Status cudaStreamQuery(StreamHandle stream) {
  if (const Status status = refuse_on_captured(__func__, stream)) return failed(status);
  if (!is_idle(stream)) return kNotReady;
  order_host_stream(stream);
  return kSuccess;
}
FORESHARD_NULL_API Status cudaStreamSynchronize(StreamHandle stream) {
  if (const Status status = refuse_on_captured(__func__, stream)) return failed(status);
  await_stream(stream);
  order_host_stream(stream);
  record_wait('s', stream);
  return kSuccess;
}
constexpr unsigned kExternal = 1;  // cudaEventRecordExternal, cudaEventWaitExternal
FORESHARD_NULL_API Status cudaStreamWaitEvent(StreamHandle stream, EventHandle event,
                                              unsigned flags) {
  if (flags == kExternal) {
    order_outside(stream, event, Outside::kWaits);
  } else if (const Status status = capture_wait(stream, event)) {
    return failed(status);
  }
  wait_event(stream, event);
  order_wait(stream, event);
  Line('W') << handle_id(stream) << handle_id(event);
  return kSuccess;
}
FORESHARD_NULL_API Status cudaStreamGetPriority(StreamHandle, int* priority) {
  *priority = 0;
  return kSuccess;
}

// ---- events ----
FORESHARD_NULL_API Status cudaEventCreate(EventHandle* event) {
  *event = new_event();
  return kSuccess;
}
FORESHARD_NULL_API Status cudaEventCreateWithFlags(EventHandle* event, unsigned) {
  *event = new_event();
  return kSuccess;
}
FORESHARD_NULL_API Status cudaEventDestroy(EventHandle event) {
  delete_event(event);
  return kSuccess;
}
FORESHARD_NULL_API Status cudaEventQuery(EventHandle event) {
  if (const Status status = refuse_on_captured_event(__func__, event)) return failed(status);
  if (!is_done(event)) return kNotReady;
  order_host_event(event);
  return kSuccess;
}
FORESHARD_NULL_API Status cudaEventRecordWithFlags(EventHandle event, StreamHandle stream,
                                                   unsigned flags) {
  record_event(event, stream);
  if (flags == kExternal) {
    order_outside(stream, event, Outside::kRecords);
  } else {
    capture_record(event, stream);
  }
  order_record(event, stream);
  Line('E') << handle_id(stream) << handle_id(event);
  return kSuccess;
}
FORESHARD_NULL_API Status cudaEventRecord(EventHandle event, StreamHandle stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
FORESHARD_NULL_API Status cudaEventSynchronize(EventHandle event) {
  if (const Status status = refuse_on_captured_event(__func__, event)) return failed(status);
  await(event);
  order_host_event(event);
  record_wait('e', event);
  return kSuccess;
}
FORESHARD_NULL_API Status cudaEventElapsedTime(float* ms, EventHandle from, EventHandle to) {
  *ms = static_cast<float>(elapsed_ms(from, to));
  return kSuccess;
}
FORESHARD_NULL_API Status cudaEventElapsedTime_v2(float* ms, EventHandle from, EventHandle to) {
  return cudaEventElapsedTime(ms, from, to);
}

// ---- graphs: work that was captured is written down at every launch ----
FORESHARD_NULL_API Status cudaStreamBeginCapture(StreamHandle stream, int mode) {
  const Status status = begin_capture(stream, mode);
  return status == kSuccess ? status : failed(status);
}
FORESHARD_NULL_API Status cudaStreamEndCapture(StreamHandle stream, void** graph) {
  const Status status = end_capture(stream, graph);
  return status == kSuccess ? status : failed(status);
}
FORESHARD_NULL_API Status cudaStreamIsCapturing(StreamHandle stream, int* status) {
  *status = is_captured(stream) ? 1 : 0;
  return kSuccess;
}
// CUDA 12 has one argument less; what both have comes first.
FORESHARD_NULL_API Status cudaStreamGetCaptureInfo(StreamHandle stream, int* status,
                                                   unsigned long long* id, void** graph,
                                                   const void** dependencies, const void**,
                                                   std::size_t*) {
  *status = is_captured(stream) ? 1 : 0;
  if (id != nullptr) *id = is_captured(stream) ? 1 : 0;
  if (!is_captured(stream)) return kSuccess;
  if (graph != nullptr) *graph = nullptr;
  if (dependencies != nullptr) *dependencies = nullptr;
  return kSuccess;
}
FORESHARD_NULL_API Status cudaStreamGetCaptureInfo_v2(StreamHandle stream, int* status,
                                                      unsigned long long* id, void**, const void**,
                                                      std::size_t*) {
  *status = is_captured(stream) ? 1 : 0;
  if (id != nullptr) *id = is_captured(stream) ? 1 : 0;
  return kSuccess;
}
FORESHARD_NULL_API Status cudaThreadExchangeStreamCaptureMode(int* mode) {
  exchange_capture_mode(mode);
  return kSuccess;
}
FORESHARD_NULL_API Status cudaGraphInstantiate(void** executable, void* graph, unsigned long long) {
  *executable = graph;
  return kSuccess;
}
FORESHARD_NULL_API Status cudaGraphInstantiateWithFlags(void** executable, void* graph,
                                                        unsigned long long) {
  *executable = graph;
  return kSuccess;
}
FORESHARD_NULL_API Status cudaGraphLaunch(void* executable, StreamHandle stream) {
  const std::int64_t graph = reinterpret_cast<std::int64_t>(executable) - 1;
  check_graph(graph, stream);
  launch_graph(graph, stream);
  enqueue(stream, 1e-5);
  return kSuccess;
}
FORESHARD_NULL_API Status cudaGraphDestroy(void*) { return kSuccess; }
FORESHARD_NULL_API Status cudaGraphExecDestroy(void*) { return kSuccess; }
FORESHARD_NULL_API Status cudaGraphGetNodes(void*, void**, std::size_t* count) {
  *count = 1;
  return kSuccess;
}

// ---- the driver's functions, by name ----
FORESHARD_NULL_API Status cudaGetDriverEntryPointByVersion(const char* name, void** function,
                                                           unsigned, unsigned long long,
                                                           int* found) {
  *function = driver_function(name);
  if (found != nullptr) *found = 0;
  return kSuccess;
}
FORESHARD_NULL_API Status cudaGetDriverEntryPoint(const char* name, void** function,
                                                  unsigned long long, int* found) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, 0, found);
}
