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

Status noted(Status status) {
  if (status != kSuccess) last_error = status;
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
    {kCaptureImplicit, kOther, "operation would make the legacy stream depend on a capturing blocking stream"},
};

ErrorWords words_of(Status error) {
  const auto* found = std::ranges::find(kErrors, error, &ErrorWords::error);
  return found != std::end(kErrors) ? *found : ErrorWords{error, kOther, "the null GPU refuses this"};
}

}
}

using namespace foreshard::null;

// ---- devices ----
ANSWERS(cudaGetDeviceCount, *count = properties().devices, int* count)
ANSWERS(cudaGetDevice, *device = current_device(), int* device)
API Status cudaSetDevice(int device) { return set_current_device(device) ? kSuccess : noted(kInvalidDevice); }
DONE(cudaInitDevice)
DONE(cudaSetDeviceFlags)
DONE(cudaDeviceReset)
ANSWERS(cudaDriverGetVersion, *version = 13000, int* version)
// PyTorch compares it with what it was built with: the version that loaded libraries are linked to.
ANSWERS(cudaRuntimeGetVersion, *version = is_needed("libcudart.so.12") ? 12080 : 13000, int* version)
API Status cudaGetLastError() { return std::exchange(last_error, kSuccess); }
API Status cudaPeekAtLastError() { return last_error; }
API const char* cudaGetErrorString(Status error) { return words_of(error).says; }
API const char* cudaGetErrorName(Status error) { return words_of(error).name; }
API Status cudaGetDeviceProperties(void* p, int) {
  fill_properties(p, kProperties13);
  return kSuccess;
}
API Status cudaGetDeviceProperties_v2(void* p, int) {
  fill_properties(p, kProperties12);
  return kSuccess;
}
ANSWERS(cudaDeviceGetAttribute, *value = attribute(which), int* value, int which, int)
API Status cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", device + 1);
  return kSuccess;
}
API Status cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return kSuccess;
}
API Status cudaDeviceSynchronize() {
  if (const Status status = refuse_unsafe(__func__)) return noted(status);
  await_device();
  order_host_all();
  record_wait('d', nullptr);
  return kSuccess;
}
ANSWERS(cudaDeviceCanAccessPeer, *can = 1, int* can, int, int)
DONE(cudaDeviceEnablePeerAccess)
ANSWERS(cudaDeviceGetLimit, *value = 0, std::size_t* value, int)
DONE(cudaDeviceSetLimit)
DONE(cudaProfilerStart)
DONE(cudaProfilerStop)

// ---- streams ----
API Status cudaStreamCreateWithFlags(StreamHandle* stream, unsigned flags) {
  *stream = new_stream();
  order_stream(*stream, flags);
  return kSuccess;
}
API Status cudaStreamCreateWithPriority(StreamHandle* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
API Status cudaStreamCreate(StreamHandle* stream) { return cudaStreamCreateWithFlags(stream, 0); }
API Status cudaStreamDestroy(StreamHandle stream) {
  delete_stream(stream);
  return kSuccess;
}
API Status cudaStreamQuery(StreamHandle stream) {
  if (const Status status = refuse_on_captured(__func__, stream)) return noted(status);
  if (!is_idle(stream)) return kNotReady;
  order_host_stream(stream);
  return kSuccess;
}
API Status cudaStreamSynchronize(StreamHandle stream) {
  if (const Status status = refuse_on_captured(__func__, stream)) return noted(status);
  await_stream(stream);
  order_host_stream(stream);
  record_wait('s', stream);
  return kSuccess;
}
constexpr unsigned kExternal = 1;  // cudaEventRecordExternal, cudaEventWaitExternal
API Status cudaStreamWaitEvent(StreamHandle stream, EventHandle event, unsigned flags) {
  if (flags == kExternal) order_outside(stream, event, Outside::kWaits);
  else if (const Status status = capture_wait(stream, event)) return noted(status);
  wait_event(stream, event);
  order_wait(stream, event);
  Line('W') << handle_id(stream) << handle_id(event);
  return kSuccess;
}
ANSWERS(cudaStreamGetPriority, *priority = 0, StreamHandle, int* priority)

// ---- events ----
ANSWERS(cudaEventCreate, *event = new_event(), EventHandle* event)
ANSWERS(cudaEventCreateWithFlags, *event = new_event(), EventHandle* event, unsigned)
API Status cudaEventDestroy(EventHandle event) {
  delete_event(event);
  return kSuccess;
}
API Status cudaEventQuery(EventHandle event) {
  if (const Status status = refuse_on_captured_event(__func__, event)) return noted(status);
  if (!is_done(event)) return kNotReady;
  order_host_event(event);
  return kSuccess;
}
API Status cudaEventRecordWithFlags(EventHandle event, StreamHandle stream, unsigned flags) {
  record_event(event, stream);
  if (flags == kExternal) order_outside(stream, event, Outside::kRecords);
  else capture_record(event, stream);
  order_record(event, stream);
  Line('E') << handle_id(stream) << handle_id(event);
  return kSuccess;
}
API Status cudaEventRecord(EventHandle event, StreamHandle stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
API Status cudaEventSynchronize(EventHandle event) {
  if (const Status status = refuse_on_captured_event(__func__, event)) return noted(status);
  await(event);
  order_host_event(event);
  record_wait('e', event);
  return kSuccess;
}
ANSWERS(
    cudaEventElapsedTime, *ms = static_cast<float>(elapsed_ms(from, to)), float* ms, EventHandle from, EventHandle to)
API Status cudaEventElapsedTime_v2(float* ms, EventHandle from, EventHandle to) {
  return cudaEventElapsedTime(ms, from, to);
}

// ---- graphs: work that was captured is written down at every launch ----
API Status cudaStreamBeginCapture(StreamHandle stream, int mode) { return noted(begin_capture(stream, mode)); }
API Status cudaStreamEndCapture(StreamHandle stream, void** graph) { return noted(end_capture(stream, graph)); }
ANSWERS(cudaStreamIsCapturing, *status = is_captured(stream) ? 1 : 0, StreamHandle stream, int* status)
// CUDA 12 has one argument less; what both have comes first.
API Status cudaStreamGetCaptureInfo(StreamHandle stream, int* status, unsigned long long* id, void** graph,
    const void** dependencies, const void**, std::size_t*) {
  *status = is_captured(stream) ? 1 : 0;
  if (id != nullptr) *id = is_captured(stream) ? 1 : 0;
  if (!is_captured(stream)) return kSuccess;
  if (graph != nullptr) *graph = nullptr;
  if (dependencies != nullptr) *dependencies = nullptr;
  return kSuccess;
}
API Status cudaStreamGetCaptureInfo_v2(
    StreamHandle stream, int* status, unsigned long long* id, void**, const void**, std::size_t*) {
  *status = is_captured(stream) ? 1 : 0;
  if (id != nullptr) *id = is_captured(stream) ? 1 : 0;
  return kSuccess;
}
API Status cudaThreadExchangeStreamCaptureMode(int* mode) {
  exchange_capture_mode(mode);
  return kSuccess;
}
ANSWERS(cudaGraphInstantiate, *executable = graph, void** executable, void* graph, unsigned long long)
ANSWERS(cudaGraphInstantiateWithFlags, *executable = graph, void** executable, void* graph, unsigned long long)
API Status cudaGraphLaunch(void* executable, StreamHandle stream) {
  const std::int64_t graph = reinterpret_cast<std::int64_t>(executable) - 1;
  check_graph(graph, stream);
  launch_graph(graph, stream);
  enqueue(stream, 1e-5);
  return kSuccess;
}
DONE(cudaGraphDestroy)
DONE(cudaGraphExecDestroy)
// What NCCL's communicators of a graph are kept by.
ANSWERS(cudaUserObjectCreate, *object = new_handle(), void** object, void*, void*, unsigned, unsigned)
DONE(cudaUserObjectRelease)
DONE(cudaGraphRetainUserObject)
DONE(cudaGraphReleaseUserObject)
ANSWERS(cudaGraphGetNodes, *count = 1, void*, void**, std::size_t* count)

// ---- the driver's functions, by name ----
API Status cudaGetDriverEntryPointByVersion(
    const char* name, void** function, unsigned, unsigned long long, int* found) {
  *function = driver_function(name);
  if (found != nullptr) *found = 0;
  return kSuccess;
}
API Status cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long, int* found) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, 0, found);
}
