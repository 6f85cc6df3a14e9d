#include "tests/exec/device/hostile_accelerator.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "exec/device/host_accelerator.h"
#include "sim/spec/plan.h"
#include "tests/exec/device/hostile_operators.h"

namespace foreshard {
namespace {

HostileGpu::Event* hostile_event(DeviceEvent event) { return static_cast<HostileGpu::Event*>(event); }

const std::byte* bytes_at(const void* memory) { return static_cast<const std::byte*>(memory); }

class HostileAccelerator final : public Accelerator {
 public:
  explicit HostileAccelerator(std::shared_ptr<HostileGpu> gpu) : gpu_(std::move(gpu)) {
    enter(gpu_->open_lane());  // as a GPU's default stream, until another is chosen
  }
  ~HostileAccelerator() override { hostile_place() = {}; }

  c10::Device device() const override { return {c10::DeviceType::PrivateUse1, 0}; }
  std::byte* allocate(std::size_t bytes) override { return gpu_->allocate(bytes); }
  void release(std::byte* memory, std::size_t /*bytes*/) noexcept override {
    if (memory != nullptr) gpu_->release(memory);
  }
  std::byte* allocate_pinned(std::size_t bytes) override {
    gpu_->not_in_capture("pinning memory");
    return host_memory().allocate(bytes);
  }
  void release_pinned(std::byte* memory, std::size_t bytes) noexcept override { host_memory().release(memory, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    give("copy", {{bytes_at(from), bytes, false}, {bytes_at(to), bytes, true}}, copying(to, from, bytes));
  }
  void fill(void* at, int byte, std::size_t bytes) override {
    give("fill", {{bytes_at(at), bytes, true}}, [to = gpu_->body(at), byte, bytes] { std::memset(to, byte, bytes); });
  }
  void to_device(void* to, const void* from, std::size_t bytes) override {
    gpu_->issue_and_wait(lane_, "copy to the device", {{bytes_at(to), bytes, true}}, copying(to, from, bytes));
  }
  void to_host(void* to, const void* from, std::size_t bytes) override {
    gpu_->issue_and_wait(lane_, "copy to the host", {{bytes_at(from), bytes, false}}, copying(to, from, bytes));
  }

  AcceleratorInfo info() override { return AcceleratorInfo{.name = "cpu, hostile", .globaltimer_step_ns = 1}; }
  AcceleratorMemory memory() override { return {}; }
  void reset_peaks() override {}
  bool is_gpu() const override { return false; }

  Lane open_lane(bool /*high_priority*/) override { return gpu_->open_lane(); }
  void enter(Lane lane) override {
    lane_ = lane;
    hostile_place() = {gpu_, lane};
  }
  DeviceEvent new_event() override { return gpu_->new_event(); }
  void free_event(DeviceEvent event) noexcept override { gpu_->free_event(hostile_event(event)); }
  void record(DeviceEvent event) override { gpu_->record(lane_, hostile_event(event)); }
  void wait(DeviceEvent event) override { gpu_->wait(lane_, hostile_event(event)); }
  bool done(DeviceEvent event) override { return gpu_->done(hostile_event(event)); }
  void synchronize(DeviceEvent event) override { gpu_->synchronize(hostile_event(event)); }
  void synchronize() override { gpu_->synchronize(); }
  double seconds_between(DeviceEvent from, DeviceEvent until) override {
    return gpu_->seconds_between(hostile_event(from), hostile_event(until));
  }

  DeviceGraph capture(const std::function<void()>& work) override {
    const Lane origin = lane_;
    try {
      HostileGpu::Graph* graph = gpu_->capture(lane_, work);
      enter(origin);
      return graph;
    } catch (...) {
      enter(origin);
      throw;
    }
  }
  void replay(DeviceGraph graph) override { gpu_->replay(lane_, static_cast<HostileGpu::Graph*>(graph)); }
  void free_graph(DeviceGraph graph) noexcept override { gpu_->free_graph(static_cast<HostileGpu::Graph*>(graph)); }

  void paced(const PacedCollective& asked) override {
    const auto shard = asked.shard_elements * static_cast<std::size_t>(size_of(asked.dtype));
    const std::size_t whole = static_cast<std::size_t>(asked.ranks) * shard;
    std::vector<Extent> extents;
    switch (asked.kind) {
      case PacedCollective::Kind::kAllGather: extents = {{bytes_at(asked.whole), whole, true}}; break;
      case PacedCollective::Kind::kReduceScatter:
        extents = {{bytes_at(asked.whole), whole, false}, {bytes_at(asked.shard), shard, true}};
        break;
      case PacedCollective::Kind::kAllReduce: extents = {{bytes_at(asked.whole), shard, true}}; break;
    }
    PacedCollective c = asked;
    c.whole = gpu_->body(asked.whole);
    c.shard = asked.shard == nullptr ? nullptr : gpu_->body(asked.shard);
    give("collective", std::move(extents), [c] { paced_move(c); });
  }
  // Time is not what it is hostile about.
  void spin(std::int64_t /*nanoseconds*/, int /*ctas*/) override {
    give("spin", {}, [] {});
  }

  std::string nccl_unique_id() override { throw std::runtime_error("the CPU has no NCCL"); }
  std::unique_ptr<DeviceCommunicator> nccl(const NcclGroup& /*group*/) override {
    throw std::runtime_error("the CPU has no NCCL");
  }

 private:
  void give(const char* name, std::vector<Extent> extents, std::function<void()> work) {
    gpu_->issue(lane_, name, std::move(extents), std::move(work));
  }
  std::function<void()> copying(void* to, const void* from, std::size_t bytes) const {
    return [target = gpu_->body(to), source = gpu_->body(from), bytes] { std::memmove(target, source, bytes); };
  }

  std::shared_ptr<HostileGpu> gpu_;
  Lane lane_ = 0;
};

}

std::unique_ptr<Accelerator> hostile_accelerator(std::shared_ptr<HostileGpu> gpu) {
  return std::make_unique<HostileAccelerator>(std::move(gpu));
}

}
