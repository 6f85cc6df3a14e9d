// Drives PyTorch's own caching allocator (libc10_cuda) with random requests on a machine without a
// GPU and writes down what it did: recordings that the model in sim/memory/ is held against.
//
// The CUDA runtime and driver functions that the allocator calls are defined here, in the program, so they win over the
// libraries': device memory is a number, cudaMalloc and cuMemAddressReserve return the lowest free range, an event has
// ended once an operation `finish` of its stream says so.
//
// record.sh beside it builds and runs it.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace c10::cuda::_internal {  // no public header has it
C10_CUDA_API void setHasPrimaryContext(bool (*func)(DeviceIndex));
}

namespace {

constexpr std::uint64_t kBase = std::uint64_t{0x7f} << 40;
std::uint64_t capacity = 0;
std::uint64_t used = 0;
std::map<std::uint64_t, std::uint64_t> ranges;  // address -> size, of cudaMalloc and reservations
std::int64_t operation = 0;
std::map<cudaStream_t, std::int64_t> finished;  // up to which operation
struct Event {
  cudaStream_t stream = nullptr;
  std::int64_t operation = 0;
};

std::uint64_t take_range(std::uint64_t size) {
  std::uint64_t at = kBase;
  for (const auto& [address, length] : ranges) {
    if (address - at >= size) break;
    at = address + length;
  }
  ranges[at] = size;
  return at;
}

CUresult reserve(CUdeviceptr* ptr, size_t size, size_t, CUdeviceptr, unsigned long long) {
  *ptr = take_range(size);
  return CUDA_SUCCESS;
}
CUresult unreserve(CUdeviceptr ptr, size_t) {
  ranges.erase(ptr);
  return CUDA_SUCCESS;
}
CUresult create(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp*, unsigned long long) {
  if (used + size > capacity) return CUDA_ERROR_OUT_OF_MEMORY;
  used += size;
  *handle = size;
  return CUDA_SUCCESS;
}
CUresult release(CUmemGenericAllocationHandle handle) {
  used -= handle;
  return CUDA_SUCCESS;
}
CUresult succeed() { return CUDA_SUCCESS; }
CUresult attribute(int* value, CUdevice_attribute, CUdevice) {
  *value = 1;
  return CUDA_SUCCESS;
}

}

extern "C" {
cudaError_t cudaGetDeviceCount(int* n) { return *n = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* d) { return *d = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* v) { return *v = 13000, cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return *free = capacity - used, *total = capacity, cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int) {
  std::memset(prop, 0, sizeof *prop);
  prop->totalGlobalMem = capacity;
  prop->major = 9;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** ptr, size_t size) {
  if (used + size > capacity) return cudaErrorMemoryAllocation;
  used += size;
  *ptr = reinterpret_cast<void*>(take_range(size));
  return cudaSuccess;
}
cudaError_t cudaFree(void* ptr) {
  const auto at = reinterpret_cast<std::uint64_t>(ptr);
  used -= ranges.at(at);
  ranges.erase(at);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  *e = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = *greatest = 0, cudaSuccess; }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* s, unsigned long long*, cudaGraph_t*,
    const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  return *s = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream) {
  *reinterpret_cast<Event*>(e) = {stream, operation};
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  const Event& event = *reinterpret_cast<Event*>(e);
  return event.operation <= finished[event.stream] ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* s) {
  return *s = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* result) {
  const std::string wanted = name;
  *function = wanted == "cuMemAddressReserve"    ? reinterpret_cast<void*>(reserve)
              : wanted == "cuMemAddressFree"     ? reinterpret_cast<void*>(unreserve)
              : wanted == "cuMemCreate"          ? reinterpret_cast<void*>(create)
              : wanted == "cuMemRelease"         ? reinterpret_cast<void*>(release)
              : wanted == "cuDeviceGetAttribute" ? reinterpret_cast<void*>(attribute)
                                                 : reinterpret_cast<void*>(succeed);
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
}

int main(int argc, char** argv) {
  namespace Allocator = c10::cuda::CUDACachingAllocator;
  if (argc < 3) return 2;
  capacity = std::strtoull(argv[1], nullptr, 10) << 20;
  std::mt19937_64 random(std::strtoull(argv[2], nullptr, 10));
  const auto draw = [&](std::uint64_t below) { return random() % below; };
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  Allocator::init(1);
  const char* conf = std::getenv("PYTORCH_ALLOC_CONF");
  std::printf("# torch 2.11.0, PYTORCH_ALLOC_CONF=%s, device of %s MiB\n", conf ? conf : "", argv[1]);
  std::printf(
      "op,block,bytes,stream,address,allocated,active,reserved,requested,inactive_split,segments,retries,ooms,device_"
      "allocs,device_frees,allocated_peak,reserved_peak\n");
  const auto stream_of = [](std::uint64_t s) { return reinterpret_cast<cudaStream_t>(s * 64); };
  struct Live {
    std::int64_t block;
    void* ptr;
    std::uint64_t stream;
  };
  std::vector<Live> live;
  std::int64_t blocks = 0;
  const std::uint64_t sizes[] = {1, 700, 4096, 300000, 1048576, 1048577, 3000000, 9000000, 10485759, 12000000, 19000000,
      20971520, 30000000, 41943040, 47000000, 64000000, 90000000, 111000000};
  for (operation = 1; operation <= 300; ++operation) {
    const std::uint64_t kind = draw(100);
    std::string op;
    std::int64_t block = -1, address = -1;
    std::uint64_t bytes = 0, stream = 0;
    if (kind < 52 || live.empty()) {
      op = "malloc";
      block = blocks++;
      stream = draw(3);
      bytes = sizes[draw(std::size(sizes))];
      if (draw(2) == 0) bytes += draw(bytes);
      try {
        void* ptr = Allocator::get()->raw_alloc_with_stream(bytes, stream_of(stream));
        address = static_cast<std::int64_t>(reinterpret_cast<std::uint64_t>(ptr) - kBase);
        live.push_back({block, ptr, stream});
      } catch (const c10::OutOfMemoryError&) {
      }
    } else if (kind < 92) {
      op = "free";
      const std::uint64_t i = draw(live.size());
      block = live[i].block;
      Allocator::get()->raw_delete(live[i].ptr);
      live.erase(live.begin() + i);
    } else if (kind < 96) {
      op = "record_stream";
      const Live& l = live[draw(live.size())];
      block = l.block;
      stream = draw(3);
      c10::DataPtr data(l.ptr, l.ptr, Allocator::get()->raw_deleter(), c10::Device(c10::DeviceType::CUDA, 0));
      Allocator::get()->recordStream(data, c10::cuda::getStreamFromExternal(stream_of(stream), 0));
      data.release_context();
    } else if (kind < 99) {
      op = "finish";
      stream = draw(3);
      finished[stream_of(stream)] = operation;
    } else {
      op = "empty_cache";
      Allocator::get()->emptyCache();
    }
    const auto stats = Allocator::getDeviceStats(0);
    const auto now = [](const auto& stat) { return static_cast<long long>(stat[0].current); };
    std::printf("%s,%lld,%llu,%llu,%lld,%lld,%lld,%lld,%lld,%lld,%lld,%lld,%lld,%lld,%lld,%lld,%lld\n", op.c_str(),
        static_cast<long long>(block), static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(stream),
        static_cast<long long>(address), now(stats.allocated_bytes), now(stats.active_bytes), now(stats.reserved_bytes),
        now(stats.requested_bytes), now(stats.inactive_split_bytes), now(stats.segment),
        static_cast<long long>(stats.num_alloc_retries), static_cast<long long>(stats.num_ooms),
        static_cast<long long>(stats.num_device_alloc), static_cast<long long>(stats.num_device_free),
        static_cast<long long>(stats.allocated_bytes[0].peak), static_cast<long long>(stats.reserved_bytes[0].peak));
  }
  std::fflush(stdout);
  std::_Exit(0);  // the allocator would free what is left
}
