// The CUDA runtime's memory.
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "exec/null/abi.h"
#include "exec/null/device.h"
#include "exec/null/log.h"
#include "exec/null/races.h"
#include "exec/null/record.h"
#include "exec/null/stream_capture.h"

namespace foreshard::null {
namespace {

Status copy(void* to, const void* from, std::uint64_t bytes, StreamHandle stream, bool waits) {
  const Recording recording;
  const char kind = is_device(to) ? (is_device(from) ? 'D' : 'h') : is_device(from) ? 'd' : 'H';
  if (copy_bytes(to, from, bytes)) record_blind_read(bytes);
  if (kind == 'D') copied_on_device(from, bytes);
  const Copy made{kind, stream, bytes, to, from};
  if (kind == 'H') return kSuccess;
  waits&& kind != 'D' ? record_copy_and_wait(made) : record_copy(made);
  return kSuccess;
}

Status set(void* to, int value, std::uint64_t bytes, StreamHandle stream) {
  set_bytes(to, value, bytes);
  record_copy({'s', stream, bytes, to});
  return kSuccess;
}

// Host memory that the GPU can reach: allocated here, or registered. Tensor.is_pinned() asks.
class Pinned {
 public:
  void add(const void* at, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    ranges_[static_cast<const char*>(at)] = bytes;
  }
  void remove(const void* at) {
    const std::lock_guard lock(mutex_);
    ranges_.erase(static_cast<const char*>(at));
  }
  bool holds(const void* at) {
    const std::lock_guard lock(mutex_);
    const auto* byte = static_cast<const char*>(at);
    auto range = ranges_.upper_bound(byte);
    return range != ranges_.begin() && byte < (--range)->first + range->second;
  }

 private:
  std::mutex mutex_;
  std::map<const char*, std::size_t> ranges_;
};
Pinned& pinned() {
  static auto& all = *new Pinned;  // libraries free host memory when the process ends
  return all;
}

}
}

using namespace foreshard::null;

API Status cudaMalloc(void** at, std::size_t bytes) {
  *at = nullptr;
  if (const Status status = refuse_unsafe(__func__)) return status;
  *at = allocate(bytes);
  if (*at == nullptr) return kMemoryAllocation;
  hand_out(*at, bytes, Holder::kProgram);
  Line('D') << reinterpret_cast<std::uint64_t>(*at) << static_cast<std::uint64_t>(bytes);
  return kSuccess;
}
API Status cudaFree(void* at) {
  if (const Status status = refuse_unsafe(__func__)) return status;
  order_host_all();  // cudaFree waits for the device
  take_back(at);
  release(at);
  if (at != nullptr) Line('d') << reinterpret_cast<std::uint64_t>(at);
  return kSuccess;
}
API Status cudaMallocAsync(void** at, std::size_t bytes, StreamHandle) { return cudaMalloc(at, bytes); }
API Status cudaFreeAsync(void* at, StreamHandle) { return cudaFree(at); }
API Status cudaMallocManaged(void** at, std::size_t bytes, unsigned) { return cudaMalloc(at, bytes); }
API Status cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const FreeMemory left = memory_left();
  *free = left.free;
  *total = left.total;
  return kSuccess;
}
API Status cudaHostAlloc(void** at, std::size_t bytes, unsigned) {
  *at = nullptr;
  if (const Status status = refuse_unsafe(__func__)) return status;
  *at = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (*at == nullptr) return kMemoryAllocation;
  pinned().add(*at, bytes);
  hand_out(*at, bytes, Holder::kProgram);  // copies from and to it are work of streams
  return kSuccess;
}
API Status cudaMallocHost(void** at, std::size_t bytes) { return cudaHostAlloc(at, bytes, 0); }
API Status cudaFreeHost(void* at) {
  take_back(at);
  pinned().remove(at);
  std::free(at);
  return kSuccess;
}
API Status cudaHostRegister(void* at, std::size_t bytes, unsigned) {
  pinned().add(at, bytes);
  return kSuccess;
}
API Status cudaHostUnregister(void* at) {
  pinned().remove(at);
  return kSuccess;
}
ANSWERS(cudaHostGetDevicePointer, *device = host, void** device, void* host, unsigned)
ANSWERS(cudaHostGetFlags, *flags = 0, unsigned* flags, void*)
API Status cudaMemcpy(void* to, const void* from, std::size_t bytes, int) {
  if (const Status status = refuse_unsafe(__func__)) return status;
  return copy(to, from, bytes, nullptr, true);
}
API Status cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, int, StreamHandle stream) {
  return copy(to, from, bytes, stream, false);
}
API Status cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes, StreamHandle stream) {
  return copy(to, from, bytes, stream, false);
}
API Status cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
    std::size_t width, std::size_t height, int, StreamHandle stream) {
  for (std::size_t row = 0; row < height; ++row)
    copy_bytes(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  record_copy({is_device(to) ? (is_device(from) ? 'D' : 'h') : 'd', stream, width * height, to, from});
  return kSuccess;
}
DONE(cudaMemcpyToSymbol)
DONE(cudaMemcpyToSymbolAsync)
API Status cudaMemset(void* to, int value, std::size_t bytes) { return set(to, value, bytes, nullptr); }
API Status cudaMemsetAsync(void* to, int value, std::size_t bytes, StreamHandle stream) {
  return set(to, value, bytes, stream);
}
API Status cudaGetSymbolAddress(void** at, const void* symbol) {
  // Somewhere on the device; nobody reads it.
  static void* const place = allocate(1 << 20);
  *at = static_cast<char*>(place) + reinterpret_cast<std::uint64_t>(symbol) % 1024 * 16;
  return kSuccess;
}
API Status cudaPointerGetAttributes(PointerAttributes* a, const void* at) {
  std::memset(a, 0, sizeof *a);
  a->type = is_device(at) ? 2 : pinned().holds(at) ? 1 : 0;
  a->device = current_device();
  a->device_pointer = const_cast<void*>(at);
  return kSuccess;
}
ANSWERS(cudaDeviceGetDefaultMemPool, *pool = new_handle(), void** pool, int)
DONE(cudaMemPoolSetAttribute)
API Status cudaMemPoolGetAttribute(void*, int, void* value) {
  std::memset(value, 0, 8);
  return kSuccess;
}
DONE(cudaMemPoolSetAccess)
DONE(cudaMemPoolTrimTo)
