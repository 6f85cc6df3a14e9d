// One GPU behind exec/device/accelerator.h: c10's stream pool and caching allocator, so that ATen's
// operators and the engine's own kernels share streams and memory.
//
// Every lane has a clock of its own for paced kernels: those of one lane run one after another.
//
// An event is two of CUDA's. One carries the time and is what the host and other steps look at; a
// captured record of it is a node that every replay runs (cudaEventRecordExternal). The other one
// is made when the event is first recorded in a capture: waits in the same capture become edges by
// it. A wait in a capture for an event recorded outside is a node too (cudaEventWaitExternal).
#include <ATen/Context.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/empty.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "exec/cuda/checked.h"
#include "exec/cuda/kernels.h"
#include "exec/cuda/nccl_communicator.h"
#include "exec/device/accelerator.h"

namespace foreshard::cuda {
namespace {

Type type_of(at::ScalarType type) { return type == at::kFloat ? Type::kFp32 : Type::kBf16; }
Type type_of(DType type) { return type == DType::kFp32 ? Type::kFp32 : Type::kBf16; }

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16);
}
bool is_packed(const at::Tensor& tensor) {
  return is_plain(tensor) && tensor.numel() % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
}
bool same_kind(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.numel() == b.numel();
}

// What processes can have, the cache of files included.
std::size_t free_host_memory() {
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu kB", &kib) == 1) return kib * 1024;
  }
  return static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::string dotted(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

// NVML without its header: the driver brings the library, the toolkit may lack it. Values of the
// enums are NVML's documented ones.
class Nvml {
 public:
  explicit Nvml(const std::string& bus_id) {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == nullptr) return;
    const auto init = find<int (*)()>(library, "nvmlInit_v2");
    const auto handle = find<int (*)(const char*, void**)>(library, "nvmlDeviceGetHandleByPciBusId_v2");
    if (init == nullptr || handle == nullptr || init() != 0) return;
    if (handle(bus_id.c_str(), &device_) != 0) {
      device_ = nullptr;
      return;
    }
    clock_ = find<int (*)(void*, int, unsigned*)>(library, "nvmlDeviceGetClockInfo");
    temperature_ = find<int (*)(void*, int, unsigned*)>(library, "nvmlDeviceGetTemperature");
    power_ = find<int (*)(void*, unsigned*)>(library, "nvmlDeviceGetPowerUsage");
    throttle_ = find<int (*)(void*, unsigned long long*)>(library, "nvmlDeviceGetCurrentClocksThrottleReasons");
  }

  AcceleratorClocks read() const {
    AcceleratorClocks clocks;
    if (device_ == nullptr) return clocks;
    unsigned value = 0;
    unsigned long long mask = 0;
    if (clock_ != nullptr && clock_(device_, 1, &value) == 0) clocks.sm_mhz = static_cast<int>(value);
    if (clock_ != nullptr && clock_(device_, 2, &value) == 0) clocks.memory_mhz = static_cast<int>(value);
    if (temperature_ != nullptr && temperature_(device_, 0, &value) == 0)
      clocks.temperature_c = static_cast<int>(value);
    if (power_ != nullptr && power_(device_, &value) == 0) clocks.watts = value / 1000.0;
    if (throttle_ != nullptr && throttle_(device_, &mask) == 0) clocks.throttle_mask = mask;
    return clocks;
  }

 private:
  template <typename Function>
  static Function find(void* library, const char* name) {
    return reinterpret_cast<Function>(dlsym(library, name));
  }
  void* device_ = nullptr;
  int (*clock_)(void*, int, unsigned*) = nullptr;
  int (*temperature_)(void*, int, unsigned*) = nullptr;
  int (*power_)(void*, unsigned*) = nullptr;
  int (*throttle_)(void*, unsigned long long*) = nullptr;
};

class CudaAccelerator final : public Accelerator {
 public:
  explicit CudaAccelerator(int device) : device_(static_cast<c10::DeviceIndex>(device)) {
    if (!at::globalContext().hasCUDA())
      throw std::runtime_error("LibTorch does not see its CUDA half, which was loaded after it");
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    FORESHARD_CUDA(cudaSetDevice(device));
    FORESHARD_CUDA(cudaGetDeviceProperties(&properties_, device));
    // A little is the system's own.
    paced_shared_ = std::clamp(static_cast<int>(properties_.sharedMemPerBlockOptin) - 4096, 0, kPacedSharedBytes);
    check(allow_paced_shared(paced_shared_), "shared memory of paced kernels");
    enter(open_lane(false));
    char bus_id[32] = {};
    FORESHARD_CUDA(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device));
    nvml_ = std::make_unique<Nvml>(bus_id);
  }

  c10::Device device() const override { return {c10::DeviceType::CUDA, device_}; }

  // --- memory ---

  std::byte* allocate(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    void* memory = nullptr;
    const cudaError_t code = cudaMalloc(&memory, bytes);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // not sticky
      std::size_t free = 0, total = 0;
      cudaMemGetInfo(&free, &total);
      throw std::runtime_error("the plan needs " + gib(bytes) + " for parameters and states on this GPU, which has " +
                               gib(free) + " free of " + gib(total));
    }
    check(code, "cudaMalloc");
    FORESHARD_CUDA(cudaMemsetAsync(memory, 0, bytes, stream()));
    FORESHARD_CUDA(cudaStreamSynchronize(stream()));
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory, std::size_t /*bytes*/) noexcept override { cudaFree(memory); }
  std::byte* allocate_pinned(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    void* memory = nullptr;
    const cudaError_t code = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    if (code != cudaSuccess) {
      cudaGetLastError();
      throw std::runtime_error("the plan offloads " + gib(bytes) +
                               " of this rank's states to pinned memory of the host, which it does not give (" +
                               cudaGetErrorString(code) + "); " + gib(free_host_memory()) + " are free");
    }
    std::memset(memory, 0, bytes);
    return static_cast<std::byte*>(memory);
  }
  void release_pinned(std::byte* memory, std::size_t /*bytes*/) noexcept override { cudaFreeHost(memory); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    FORESHARD_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()));
  }
  void fill(void* at, int byte, std::size_t bytes) override {
    FORESHARD_CUDA(cudaMemsetAsync(at, byte, bytes, stream()));
  }
  void to_device(void* to, const void* host, std::size_t bytes) override {
    FORESHARD_CUDA(cudaMemcpyAsync(to, host, bytes, cudaMemcpyDefault, stream()));
    FORESHARD_CUDA(cudaStreamSynchronize(stream()));
  }
  void to_host(void* host, const void* from, std::size_t bytes) override {
    FORESHARD_CUDA(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDefault, stream()));
    FORESHARD_CUDA(cudaStreamSynchronize(stream()));
  }

  // --- what it is ---

  AcceleratorInfo info() override {
    AcceleratorInfo info;
    info.name = properties_.name;
    info.multiprocessors = properties_.multiProcessorCount;
    info.capability = properties_.major * 10 + properties_.minor;
    info.memory_bytes = static_cast<std::int64_t>(properties_.totalGlobalMem);
    int driver = 0, runtime = 0;
    FORESHARD_CUDA(cudaDriverGetVersion(&driver));
    FORESHARD_CUDA(cudaRuntimeGetVersion(&runtime));
    info.versions = {{"cuda_driver", dotted(driver)}, {"cuda_runtime", dotted(runtime)}, {"nccl", nccl_version()},
        {"cudnn", std::to_string(at::detail::getCUDAHooks().versionRuntimeCuDNN())},
        {"paced_block", paced_block_text()}};
    info.globaltimer_step_ns = clock_step_ns();
    return info;
  }

  AcceleratorMemory memory() override {
    using Stat = c10::CachingAllocator::StatType;
    const auto all = static_cast<std::size_t>(Stat::AGGREGATE);
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device_);
    AcceleratorMemory m;
    m.allocated = stats.allocated_bytes[all].current;
    m.allocated_peak = stats.allocated_bytes[all].peak;
    m.reserved = stats.reserved_bytes[all].current;
    m.reserved_peak = stats.reserved_bytes[all].peak;
    m.retries = stats.num_alloc_retries;
    std::size_t free = 0, total = 0;
    FORESHARD_CUDA(cudaMemGetInfo(&free, &total));
    m.free = static_cast<std::int64_t>(free);
    m.total = static_cast<std::int64_t>(total);
    return m;
  }
  void set_allocator(const std::string& settings) override { c10::CachingAllocator::setAllocatorSettings(settings); }
  void reset_peaks() override { c10::cuda::CUDACachingAllocator::resetPeakStats(device_); }
  AcceleratorClocks clocks() override { return nvml_->read(); }

  // --- lanes and events ---

  Lane open_lane(bool high_priority) override {
    LaneState lane{c10::cuda::getStreamFromPool(high_priority, device_), nullptr};
    void* clock = nullptr;
    FORESHARD_CUDA(cudaMalloc(&clock, 2 * sizeof(unsigned long long)));
    // On the lane itself: the lanes do not wait for the default stream.
    FORESHARD_CUDA(cudaMemsetAsync(clock, 0, 2 * sizeof(unsigned long long), lane.stream.stream()));
    lane.clock = static_cast<unsigned long long*>(clock);
    lanes_.push_back(lane);
    return static_cast<Lane>(lanes_.size()) - 1;
  }
  void enter(Lane lane) override {
    current_ = static_cast<std::size_t>(lane);
    c10::cuda::setCurrentCUDAStream(lanes_.at(current_).stream);
  }
  DeviceEvent new_event() override {
    auto event = std::make_unique<Event>();
    FORESHARD_CUDA(cudaEventCreate(&event->timed));  // with timing; spins while the host waits
    return event.release();
  }
  void free_event(DeviceEvent event) noexcept override {
    const std::unique_ptr<Event> owned(static_cast<Event*>(event));
    cudaEventDestroy(owned->timed);
    if (owned->edge != nullptr) cudaEventDestroy(owned->edge);
  }
  void record(DeviceEvent event) override {
    Event& e = event_of(event);
    if (!is_capturing()) {
      e.capture = 0;
      FORESHARD_CUDA(cudaEventRecord(e.timed, stream()));
      return;
    }
    // The edge last: whoever waits for it has waited for the lane's last node.
    FORESHARD_CUDA(cudaEventRecordWithFlags(e.timed, stream(), cudaEventRecordExternal));
    if (e.edge == nullptr) FORESHARD_CUDA(cudaEventCreateWithFlags(&e.edge, cudaEventDisableTiming));
    FORESHARD_CUDA(cudaEventRecord(e.edge, stream()));
    e.capture = capture_;
  }
  void wait(DeviceEvent event) override {
    const Event& e = event_of(event);
    if (capture_open_ && e.capture == capture_) {  // also what brings a lane into the capture
      FORESHARD_CUDA(cudaStreamWaitEvent(stream(), e.edge, cudaEventWaitDefault));
      return;
    }
    FORESHARD_CUDA(
        cudaStreamWaitEvent(stream(), e.timed, is_capturing() ? cudaEventWaitExternal : cudaEventWaitDefault));
  }
  bool done(DeviceEvent event) override {
    const cudaError_t code = cudaEventQuery(event_of(event).timed);
    if (code == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    check(code, "cudaEventQuery");
    return true;
  }
  void synchronize(DeviceEvent event) override { FORESHARD_CUDA(cudaEventSynchronize(event_of(event).timed)); }
  void synchronize() override { FORESHARD_CUDA(cudaDeviceSynchronize()); }
  double seconds_between(DeviceEvent from, DeviceEvent until) override {
    float ms = 0;
    FORESHARD_CUDA(cudaEventElapsedTime(&ms, event_of(from).timed, event_of(until).timed));
    return static_cast<double>(ms) * 1e-3;
  }
  void range_begin(const char* name) override { nvtxRangePushA(name); }
  void range_end() override { nvtxRangePop(); }

  // --- many calls as one ---

  // Tensors that `work` makes come from a pool that the graphs of this device share: they run one
  // after another, and nothing lives from one to the next. What eager steps left in the cache is
  // given back first. Only this thread's calls are watched: NCCL has threads of its own.
  DeviceGraph capture(const std::function<void()>& work) override {
    FORESHARD_CUDA(cudaDeviceSynchronize());
    c10::cuda::CUDACachingAllocator::emptyCache();
    if (pool_ == c10::cuda::MempoolId_t{0, 0}) pool_ = at::cuda::graph_pool_handle();
    const std::size_t origin = current_;
    auto graph = std::make_unique<Graph>();
    graph->captured.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    ++capture_;
    capture_open_ = true;
    try {
      work();
    } catch (...) {
      end_capture(graph->captured, origin, true);
      throw;
    }
    end_capture(graph->captured, origin, false);
    // Kernels keep the priorities of the lanes they were captured on.
    FORESHARD_CUDA(cudaGraphInstantiateWithFlags(&graph->program, graph->captured.raw_cuda_graph(),
        cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUseNodePriority));
    return graph.release();
  }
  void replay(DeviceGraph graph) override {
    FORESHARD_CUDA(cudaGraphLaunch(static_cast<Graph*>(graph)->program, stream()));
  }
  void free_graph(DeviceGraph graph) noexcept override { delete static_cast<Graph*>(graph); }

  // --- kernels ---

  void paced(const PacedCollective& c) override {
    const PacedLaunch launch = pace(c.nanoseconds, c.ctas);
    const std::size_t bytes = c.shard_elements * static_cast<std::size_t>(c.dtype == DType::kFp32 ? 4 : 2);
    switch (c.kind) {
      case PacedCollective::Kind::kAllGather:
        return check(paced_gather(launch, c.whole, bytes, c.ranks, c.index, stream()), "paced all-gather");
      case PacedCollective::Kind::kReduceScatter:
        return check(
            paced_reduce_scatter(launch, type_of(c.dtype), c.whole, c.shard, c.shard_elements, c.ranks, stream()),
            "paced reduce-scatter");
      case PacedCollective::Kind::kAllReduce:
        return check(
            paced_all_reduce(launch, static_cast<float*>(c.whole), c.shard_elements, stream()), "paced all-reduce");
    }
  }
  void spin(std::int64_t nanoseconds, int ctas) override {
    check(foreshard::cuda::spin(pace(nanoseconds, ctas), stream()), "spin");
  }

  bool rotate(const at::Tensor& values, const at::Tensor& cos, const at::Tensor& sin, std::int64_t head_dim,
      bool inverse) override {
    const std::int64_t pack = 16 / static_cast<std::int64_t>(values.element_size());
    if (!is_packed(values) || head_dim % (2 * pack) != 0) return false;
    const Rotation rotation{values.size(0), cos.size(0), values.size(1) / head_dim, head_dim, inverse};
    check(foreshard::cuda::rotate(type_of(values.scalar_type()), rotation, cos.const_data_ptr<float>(),
              sin.const_data_ptr<float>(), values.mutable_data_ptr(), stream()),
        "rotate");
    return true;
  }
  bool rms_norm(const at::Tensor& y, const at::Tensor& rstd, const at::Tensor& x, const at::Tensor& weight,
      double epsilon) override {
    const NormRows rows = rows_of(x, weight);
    for (const at::Tensor* t : {&y, &x, &weight})
      if (!is_packed(*t) || t->scalar_type() != x.scalar_type()) return false;
    if (!takes_norm(type_of(x.scalar_type()), rows)) return false;
    check(foreshard::cuda::rms_norm(type_of(x.scalar_type()), rows, x.const_data_ptr(), weight.const_data_ptr(),
              static_cast<float>(epsilon), y.mutable_data_ptr(), rstd.mutable_data_ptr<float>(), stream()),
        "rms_norm");
    return true;
  }
  bool rms_norm_backward(const at::Tensor& dx, const at::Tensor& dw, const NormGradient& of) override {
    const NormRows rows = rows_of(of.x, of.weight);
    for (const at::Tensor* t : {&dx, &dw, &of.dy, &of.x, &of.weight, &of.addend}) {
      if (!t->defined()) continue;
      if (!is_packed(*t) || t->scalar_type() != of.x.scalar_type()) return false;
    }
    const Type type = type_of(of.x.scalar_type());
    if (!takes_norm(type, rows)) return false;
    const std::int64_t blocks = norm_backward_blocks(type, rows);
    const at::Tensor sums = at::empty({blocks, rows.width}, of.x.options().dtype(at::kFloat));
    check(foreshard::cuda::rms_norm_backward(type, rows,
              {of.dy.const_data_ptr(), of.x.const_data_ptr(), of.weight.const_data_ptr(),
                  of.rstd.const_data_ptr<float>(), of.addend.defined() ? of.addend.const_data_ptr() : nullptr},
              dx.mutable_data_ptr(), dw.mutable_data_ptr(), {blocks, sums.mutable_data_ptr<float>()}, stream()),
        "rms_norm_backward");
    return true;
  }
  bool silu_multiply(const at::Tensor& out, const at::Tensor& gate, const at::Tensor& up) override {
    for (const at::Tensor* t : {&out, &gate, &up})
      if (!is_packed(*t) || !same_kind(*t, out)) return false;
    check(foreshard::cuda::silu_multiply(type_of(out.scalar_type()), out.numel(), gate.const_data_ptr(),
              up.const_data_ptr(), out.mutable_data_ptr(), stream()),
        "silu_multiply");
    return true;
  }
  bool silu_multiply_backward(const at::Tensor& d_gate, const at::Tensor& d_up, const at::Tensor& dy,
      const at::Tensor& gate, const at::Tensor& up) override {
    for (const at::Tensor* t : {&d_gate, &d_up, &dy, &gate, &up})
      if (!is_packed(*t) || !same_kind(*t, dy)) return false;
    check(foreshard::cuda::silu_multiply_backward(type_of(dy.scalar_type()), dy.numel(), dy.const_data_ptr(),
              gate.const_data_ptr(), up.const_data_ptr(), d_gate.mutable_data_ptr(), d_up.mutable_data_ptr(), stream()),
        "silu_multiply_backward");
    return true;
  }
  bool add_rows(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& values) override {
    if (!is_plain(table) || !is_plain(values) || !ids.is_contiguous()) return false;
    check(foreshard::cuda::add_rows(type_of(values.scalar_type()), type_of(table.scalar_type()), values.size(0),
              values.size(1), values.const_data_ptr(), ids.const_data_ptr<std::int64_t>(), table.mutable_data_ptr(),
              stream()),
        "add_rows");
    return true;
  }
  bool cross_entropy(
      const at::Tensor& logits, const at::Tensor& labels, double scale, const at::Tensor& loss) override {
    if (!is_plain(logits) || !labels.is_contiguous()) return false;
    check(foreshard::cuda::cross_entropy(type_of(logits.scalar_type()), logits.size(0), logits.size(1),
              logits.mutable_data_ptr(), labels.const_data_ptr<std::int64_t>(), static_cast<float>(scale),
              loss.mutable_data_ptr<float>(), stream()),
        "cross_entropy");
    return true;
  }

  std::unique_ptr<FusedAdamW> fused_adamw(std::span<const AdamWPiece> pieces, const Optimizer& numbers) override {
    return std::make_unique<CudaAdamW>(*this, pieces, numbers);
  }

  // --- several GPUs ---

  std::string nccl_unique_id() override { return foreshard::cuda::nccl_unique_id(); }
  std::unique_ptr<DeviceCommunicator> nccl(const NcclGroup& group) override { return make_nccl_communicator(group); }

 private:
  // Its tables are memory of the device.
  class CudaAdamW final : public FusedAdamW {
   public:
    CudaAdamW(CudaAccelerator& device, std::span<const AdamWPiece> pieces, const Optimizer& numbers)
        : device_(device), numbers_{numbers.beta1, numbers.beta2, numbers.epsilon} {
      std::vector<AdamWChunk> chunks;
      for (std::size_t p = 0; p < pieces.size(); ++p)
        for (std::int64_t begin = 0; begin < pieces[p].count; begin += kAdamWChunk)
          chunks.push_back({begin, static_cast<unsigned>(p)});
      count_ = static_cast<unsigned>(chunks.size());
      pieces_ = put(pieces);
      chunks_ = put(std::span<const AdamWChunk>(chunks));
    }
    ~CudaAdamW() override {
      device_.release(pieces_, 0);
      device_.release(chunks_, 0);
    }
    CudaAdamW& operator=(CudaAdamW&&) = delete;  // nor is it copied

    // By a kernel's arguments: a recorded step needs no memory of the host later.
    void find_gradients(std::span<const float* const> of_pieces) override {
      for (std::size_t first = 0; first < of_pieces.size(); first += kGradientPlaces) {
        GradientPlaces some{};
        some.first = static_cast<int>(first);
        some.count = static_cast<int>(std::min(of_pieces.size() - first, kGradientPlaces));
        std::copy_n(of_pieces.data() + first, some.count, some.gradients);
        check(place_gradients(reinterpret_cast<AdamWPiece*>(pieces_), some, device_.stream()), "place_gradients");
      }
    }

    void step(const at::Tensor& number, const at::Tensor& rate, const at::Tensor& factor) override {
      check(adamw(reinterpret_cast<const AdamWPiece*>(pieces_), reinterpret_cast<const AdamWChunk*>(chunks_), count_,
                numbers_, number.const_data_ptr<float>(), rate.const_data_ptr<float>(),
                factor.defined() ? factor.const_data_ptr<float>() : nullptr, device_.stream()),
          "adamw");
    }

   private:
    template <typename Row>
    std::byte* put(std::span<const Row> rows) {
      std::byte* memory = device_.allocate(rows.size_bytes());
      if (memory != nullptr) device_.to_device(memory, rows.data(), rows.size_bytes());
      return memory;
    }
    CudaAccelerator& device_;
    AdamWNumbers numbers_;
    unsigned count_ = 0;
    std::byte *pieces_ = nullptr, *chunks_ = nullptr;
  };

  static NormRows rows_of(const at::Tensor& x, const at::Tensor& weight) {
    return {x.numel() / weight.numel(), weight.numel()};
  }

  struct LaneState {
    c10::cuda::CUDAStream stream;
    unsigned long long* clock;
  };
  // LibTorch keeps the graph and the memory of its tensors; it would start every node with the
  // priority of the lane that replays.
  struct Graph {
    at::cuda::CUDAGraph captured{/*keep_graph=*/true};
    cudaGraphExec_t program = nullptr;
    ~Graph() {
      if (program == nullptr) return;
      cudaDeviceSynchronize();  // it may still run
      cudaGraphExecDestroy(program);
    }
  };
  struct Event {
    cudaEvent_t timed = nullptr, edge = nullptr;
    std::uint64_t capture = 0;  // the one it was recorded in last; 0: none
  };
  static Event& event_of(DeviceEvent event) { return *static_cast<Event*>(event); }

  // Whether the current lane is.
  bool is_capturing() const {
    if (!capture_open_) return false;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    FORESHARD_CUDA(cudaStreamIsCapturing(stream(), &status));
    return status != cudaStreamCaptureStatusNone;
  }
  // After a failure the capture is invalid: ending it fails, but sets the lanes free.
  void end_capture(at::cuda::CUDAGraph& graph, std::size_t origin, bool failed) {
    enter(static_cast<Lane>(origin));
    capture_open_ = false;
    try {
      graph.capture_end();
    } catch (...) {
      cudaGetLastError();
      try {
        c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, pool_);
      } catch (...) {  // it was ended before what failed
      }
      if (!failed) throw;
    }
  }

  // What a block of a paced collective, as compiled for this GPU, holds of a multiprocessor.
  std::string paced_block_text() const {
    PacedBlock block;
    check(paced_block(&block, paced_shared_), "paced_block");
    return std::to_string(block.registers) + " of " + std::to_string(properties_.regsPerMultiprocessor) +
           " registers, " + std::to_string(block.shared_bytes >> 10) + " of " +
           std::to_string(properties_.sharedMemPerMultiprocessor >> 10) + " KiB shared, " +
           std::to_string(block.per_multiprocessor) + " at once";
  }

  static std::string gib(std::size_t bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1024.0 * 1024 * 1024));
    return text;
  }
  cudaStream_t stream() const { return lanes_[current_].stream.stream(); }
  PacedLaunch pace(std::int64_t nanoseconds, int ctas) const {
    if (ctas == 0) return {properties_.multiProcessorCount, 0, 0, lanes_[current_].clock};
    return {std::clamp(ctas, 1, properties_.multiProcessorCount), paced_shared_, nanoseconds, lanes_[current_].clock};
  }

  double clock_step_ns() {
    void* place = nullptr;
    FORESHARD_CUDA(cudaMalloc(&place, sizeof(unsigned long long)));
    unsigned long long step = 0;
    check(clock_step(static_cast<unsigned long long*>(place), stream()), "clock_step");
    to_host(&step, place, sizeof step);
    FORESHARD_CUDA(cudaFree(place));
    return static_cast<double>(step);
  }

  c10::DeviceIndex device_;
  cudaDeviceProp properties_ = {};
  std::vector<LaneState> lanes_;
  std::size_t current_ = 0;
  int paced_shared_ = 0;
  bool capture_open_ = false;
  std::uint64_t capture_ = 0;  // number of the capture that is or was the last
  c10::cuda::MempoolId_t pool_{0, 0};
  std::unique_ptr<Nvml> nvml_;
};

}
}

extern "C" __attribute__((visibility("default"))) foreshard::Accelerator* foreshard_accelerator(
    int version, int device, char* reason, std::size_t reason_bytes) {
  const auto say = [&](const std::string& text) {
    std::snprintf(reason, reason_bytes, "%s", text.c_str());
    return static_cast<foreshard::Accelerator*>(nullptr);
  };
  try {
    if (version != foreshard::kAcceleratorVersion)
      return say("libforeshard_cuda.so is of another version than the program");
    int count = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess) return say(std::string("no CUDA device: ") + cudaGetErrorString(code));
    if (device < 0 || device >= count)
      return say("GPU " + std::to_string(device) + " was asked for, this machine has " + std::to_string(count));
    return new foreshard::cuda::CudaAccelerator(device);
  } catch (const std::exception& error) {
    return say(error.what());
  }
}
