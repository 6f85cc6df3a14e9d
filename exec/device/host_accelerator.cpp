#include "exec/device/host_accelerator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "exec/comm/communicator.h"
#include "exec/memory/allocator.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

using Clock = std::chrono::steady_clock;

struct TimedEvent {
  bool recorded = false;
  Clock::time_point time;
};

TimedEvent& event_of(DeviceEvent event) { return *static_cast<TimedEvent*>(event); }

class HostAccelerator final : public Accelerator {
 public:
  HostAccelerator() { install_allocator(); }

  c10::Device device() const override { return host_memory().device(); }
  std::byte* allocate(std::size_t bytes) override { return host_memory().allocate(bytes); }
  void release(std::byte* memory, std::size_t bytes) noexcept override { host_memory().release(memory, bytes); }
  std::byte* allocate_pinned(std::size_t bytes) override { return allocate(bytes); }
  void release_pinned(std::byte* memory, std::size_t bytes) noexcept override { release(memory, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override { std::memmove(to, from, bytes); }
  void fill(void* at, int byte, std::size_t bytes) override { std::memset(at, byte, bytes); }
  void to_device(void* to, const void* from, std::size_t bytes) override { copy(to, from, bytes); }
  void to_host(void* to, const void* from, std::size_t bytes) override { copy(to, from, bytes); }

  AcceleratorInfo info() override { return AcceleratorInfo{.name = "cpu", .globaltimer_step_ns = 1}; }
  AcceleratorMemory memory() override {
    AcceleratorMemory m;
    if (const MemoryAccount* account = current_account()) {
      m.allocated = m.reserved = account->now;
      m.allocated_peak = m.reserved_peak = account->peak;
    }
    return m;
  }
  void reset_peaks() override {
    if (MemoryAccount* account = current_account()) account->peak = account->now;
  }
  bool is_gpu() const override { return false; }

  Lane open_lane(bool /*high_priority*/) override { return lanes_++; }
  void enter(Lane lane) override { FORESHARD_CHECK(lane >= 0 && lane < lanes_, "a lane that was not opened"); }
  DeviceEvent new_event() override { return new TimedEvent; }
  void free_event(DeviceEvent event) noexcept override { delete static_cast<TimedEvent*>(event); }
  void record(DeviceEvent event) override { event_of(event) = {true, Clock::now()}; }
  void wait(DeviceEvent event) override {
    FORESHARD_CHECK(event_of(event).recorded, "a lane waits for an event that was not recorded");
  }
  bool done(DeviceEvent event) override { return event_of(event).recorded; }
  void synchronize(DeviceEvent event) override { wait(event); }
  void synchronize() override {}
  double seconds_between(DeviceEvent from, DeviceEvent until) override {
    return std::chrono::duration<double>(event_of(until).time - event_of(from).time).count();
  }

  DeviceGraph capture(const std::function<void()>& work) override { return new std::function<void()>(work); }
  void replay(DeviceGraph graph) override { (*static_cast<std::function<void()>*>(graph))(); }
  void free_graph(DeviceGraph graph) noexcept override { delete static_cast<std::function<void()>*>(graph); }

  void paced(const PacedCollective& c) override {
    const auto end = Clock::now() + std::chrono::nanoseconds(c.nanoseconds);
    paced_move(c);
    std::this_thread::sleep_until(end);
  }
  void spin(std::int64_t nanoseconds, int /*ctas*/) override {
    std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds));
  }

  std::string nccl_unique_id() override { throw std::runtime_error("the CPU has no NCCL"); }
  std::unique_ptr<DeviceCommunicator> nccl(const NcclGroup& /*group*/) override {
    throw std::runtime_error("the CPU has no NCCL");
  }

 private:
  Lane lanes_ = 0;
};

}

std::unique_ptr<Accelerator> host_accelerator() { return std::make_unique<HostAccelerator>(); }

void paced_move(const PacedCollective& c) {
  const std::size_t bytes = c.shard_elements * at(size_of(c.dtype));
  auto* whole = static_cast<std::byte*>(c.whole);
  if (c.kind == PacedCollective::Kind::kAllGather) {
    const std::byte* own = whole + at(c.index) * bytes;
    for (int p = 0; p < c.ranks; ++p)
      if (p != c.index) std::memcpy(whole + at(p) * bytes, own, bytes);
  } else if (c.kind == PacedCollective::Kind::kReduceScatter) {
    std::vector<const void*> pieces;
    for (int p = 0; p < c.ranks; ++p) pieces.push_back(whole + at(p) * bytes);
    std::vector<float> sum(c.shard_elements);
    add_in_order(pieces, c.dtype, c.shard_elements, sum.data(), FirstPiece::kCopied);
    if (c.dtype == DType::kFp32) {
      std::memcpy(c.shard, sum.data(), bytes);
    } else {
      auto* to = static_cast<c10::BFloat16*>(c.shard);
      std::ranges::copy(sum, to);
    }
  }
}

}
