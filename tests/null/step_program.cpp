// A program as the null GPU's tests run it: it makes the CUDA calls of three small training steps,
// as PyTorch would, and checks the answers. Its argument says which part. Exit status 0: as
// expected.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

extern "C" {
struct Dim3 {
  unsigned x, y, z;
};
struct UniqueId {
  char bytes[128];
};
int cudaMalloc(void**, std::size_t);
int cudaFree(void*);
int cudaMemGetInfo(std::size_t*, std::size_t*);
int cudaMemcpyAsync(void*, const void*, std::size_t, int, void*);
int cudaStreamCreateWithPriority(void**, unsigned, int);
int cudaStreamSynchronize(void*);
int cudaStreamWaitEvent(void*, void*, unsigned);
int cudaEventCreateWithFlags(void**, unsigned);
int cudaEventRecord(void*, void*);
int cudaEventQuery(void*);
int cudaEventSynchronize(void*);
int cudaEventElapsedTime(float*, void*, void*);
int cudaLaunchKernel(const void*, Dim3, Dim3, void**, std::size_t, void*);
int cudaDeviceGetAttribute(int*, int, int);
int cudaGetDriverEntryPointByVersion(const char*, void**, unsigned, unsigned long long, int*);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*,
                            void*, int*);
int cublasCreate_v2(void**);
int cublasSetStream_v2(void*, void*);
int cublasGemmEx(void*, int, int, int, int, int, const void*, const void*, int, int, const void*,
                 int, int, const void*, void*, int, int, int, int);
int ncclGetUniqueId(UniqueId*);
int ncclCommInitRank(void**, int, UniqueId, int);
int ncclAllGather(const void*, void*, std::size_t, int, void*, void*);
int ncclReduceScatter(const void*, void*, std::size_t, int, int, void*, void*);
void foreshard_null_mark(const char*);
struct Device {
  std::int8_t type, index;
};
void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void*, std::int64_t, std::size_t,
                                                           std::size_t, Device);
}

namespace {

int failures = 0;
void expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("expected: %s\n", what);
  ++failures;
}

constexpr std::size_t kElements = 1 << 20, kBytes = 2 * kElements;
constexpr int kHostToDevice = 1, kDeviceToHost = 2, kBf16 = 14, kNcclBf16 = 9;
const char kernel_function = 0;
// at::native's addition of two bf16 tensors.
constexpr const char* kKernel =
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_"
    "addIN3c108BFloat16EEESt5array"
    "IPcLm3EEEEviT0_T1_";

class Allocator {
 public:
  void* take(std::size_t bytes) {
    void* at = nullptr;
    cudaMalloc(&at, bytes);
    sizes_ += bytes;
    say(at, static_cast<std::int64_t>(bytes));
    return at;
  }
  void give(void* at, std::size_t bytes) {
    sizes_ -= bytes;
    say(at, -static_cast<std::int64_t>(bytes));
    cudaFree(at);
  }

 private:
  void say(void* at, std::int64_t bytes) const {
    _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(at, bytes, sizes_, sizes_, {1, 0});
  }
  std::size_t sizes_ = 0;
};

void add(void* a, void* b, void* c, void* stream) {
  int n = kElements;
  float scale = 1;
  void* data[3] = {c, a, b};
  void* arguments[3] = {&n, &scale, data};
  cudaLaunchKernel(&kernel_function, {1024, 1, 1}, {256, 1, 1}, arguments, 0, stream);
}

// The shard is gathered on a stream of its own, two products use it, a gradient is reduced.
void train() {
  __cudaRegisterFunction(nullptr, &kernel_function, nullptr, kKernel, -1, nullptr, nullptr, nullptr,
                         nullptr, nullptr);
  UniqueId id;
  void *communicator = nullptr, *blas = nullptr, *side = nullptr, *gathered = nullptr,
       *ready = nullptr;
  ncclGetUniqueId(&id);
  ncclCommInitRank(&communicator, 8, id, 0);
  cublasCreate_v2(&blas);
  cublasSetStream_v2(blas, nullptr);
  cudaStreamCreateWithPriority(&side, 1, 0);
  cudaEventCreateWithFlags(&gathered, 2);
  cudaEventCreateWithFlags(&ready, 2);
  Allocator allocator;
  void* const shard = allocator.take(kBytes / 8);
  for (int step = 0; step < 3; ++step) {
    void* const whole = allocator.take(kBytes);
    cudaEventRecord(ready, nullptr);
    cudaStreamWaitEvent(side, ready, 0);
    ncclAllGather(shard, whole, kElements / 8, kNcclBf16, communicator, side);
    cudaEventRecord(gathered, side);
    void* const out = allocator.take(kBytes);
    cudaStreamWaitEvent(nullptr, gathered, 0);
    cublasGemmEx(blas, 0, 0, 1024, 512, 2048, nullptr, whole, kBf16, 1024, whole, kBf16, 1024,
                 nullptr, out, kBf16, 1024, 68, 0);
    add(out, whole, out, nullptr);
    ncclReduceScatter(out, shard, kElements / 8, kNcclBf16, 0, communicator, nullptr);
    allocator.give(whole, kBytes);
    allocator.give(out, kBytes);
    float loss = 1;
    cudaMemcpyAsync(&loss, shard, sizeof loss, kDeviceToHost, nullptr);
    cudaStreamSynchronize(nullptr);
    expect(loss == 0, "zeros where a kernel wrote");
    foreshard_null_mark("step 0 SGD");
  }
}

void memory() {
  std::size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  void *all = nullptr, *more = nullptr;
  expect(cudaMalloc(&all, free) == 0, "all of the memory");
  expect(cudaMalloc(&more, 1) == 2 && more == nullptr, "out of memory behind it");
  cudaFree(all);
  expect(cudaMalloc(&more, 1) == 0, "memory again");
  const std::vector<int> sent = {1, 2, 3};
  std::vector<int> read(3);
  cudaMemcpyAsync(more, sent.data(), 12, kHostToDevice, nullptr);
  cudaMemcpyAsync(read.data(), more, 12, kDeviceToHost, nullptr);
  expect(read == sent, "what the host wrote");
}

void events(bool are_pending) {
  void *stream = nullptr, *first = nullptr, *second = nullptr, *on_other = nullptr,
       *other = nullptr;
  cudaStreamCreateWithPriority(&stream, 1, 0);
  cudaStreamCreateWithPriority(&other, 1, 0);
  cudaEventCreateWithFlags(&first, 0);
  cudaEventCreateWithFlags(&second, 0);
  cudaEventCreateWithFlags(&on_other, 0);
  expect(cudaEventQuery(first) == 0, "an event that was never recorded is done");
  add(nullptr, nullptr, nullptr, other);
  cudaEventRecord(on_other, other);
  add(nullptr, nullptr, nullptr, stream);
  cudaEventRecord(first, stream);
  cudaStreamWaitEvent(stream, on_other, 0);
  add(nullptr, nullptr, nullptr, stream);
  cudaEventRecord(second, stream);
  constexpr int kNotReady = 600;
  const int expected = are_pending ? kNotReady : 0;
  expect(cudaEventQuery(first) == expected, "as asked before the host waits");
  cudaEventSynchronize(first);
  expect(cudaEventQuery(first) == 0, "done after a wait");
  expect(cudaEventQuery(on_other) == expected, "the other stream has not been waited for");
  expect(cudaEventQuery(second) == expected, "later work is not done");
  cudaEventSynchronize(second);
  expect(cudaEventQuery(on_other) == 0, "what a stream waited for is done with it");
  float ms = 0;
  cudaEventElapsedTime(&ms, first, second);
  expect(ms > 0, "later events are later");
}

void unanswered() {
  void* function = nullptr;
  cudaGetDriverEntryPointByVersion("cuNobodyKnowsThis", &function, 12000, 0, nullptr);
  reinterpret_cast<int (*)()>(function)();
}

}  // namespace

int main(int, char** argv) {
  const std::string_view part = argv[1];
  if (part == "train") train();
  if (part == "memory") memory();
  if (part == "done") events(false);
  if (part == "pending") events(true);
  if (part == "unanswered") unanswered();
  if (part == "capability") {
    int major = 0;
    cudaDeviceGetAttribute(&major, 75, 0);
    return major;
  }
  return failures == 0 ? 0 : 1;
}
