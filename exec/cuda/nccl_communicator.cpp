// The communicator of the world is made with config.blocking = 0: calls return ncclInProgress and are polled through
// ncclCommGetAsyncError until they are done or the time is over (NCCL's user guide, "Fault Tolerance"). Its parts are
// made by ncclCommSplit, whose thread stores the part when it is made: the whole's state says nothing of it
// (NVIDIA/nccl:src/init.cc@v2.28.9-1, ncclCommInitChildComm; src/group.cc sets the state of the part). They are
// blocking themselves: every collective of a non-blocking one is launched by a thread made for it
// (ncclGroupEndInternal), tens of microseconds of host each. The first collective of a part connects it to its peers
// and waits for them. A peer that died by then closed its sockets, which ends the wait; for one that is stuck, abort()
// ends it from another thread (exec/device/watched_communicator.h): ncclCommAbort sets the flag that every wait of NCCL
// looks at before it takes the communicator apart. splitShare stays 0: parts run at the same time on several streams.
#include "exec/cuda/nccl_communicator.h"

#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "exec/cuda/checked.h"

namespace foreshard::cuda {
namespace {

using Clock = std::chrono::steady_clock;

ncclDataType_t nccl_type(DType dtype) {
  return dtype == DType::kFp32 ? ncclFloat32 : dtype == DType::kBf16 ? ncclBfloat16 : ncclFloat16;
}

cudaStream_t current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

class NcclCommunicator final : public DeviceCommunicator {
 public:
  // What a communicator is, and how long its calls may take.
  struct Place {
    std::string name;
    int index = 0, size = 1;
    double timeout_s = 60;
  };

  explicit NcclCommunicator(const NcclGroup& group) : place_{group.name, group.index, group.size, group.timeout_s} {
    ncclUniqueId id;
    if (group.unique_id.size() != sizeof id.internal)
      throw std::runtime_error("an NCCL id of " + std::to_string(group.unique_id.size()) + " bytes");
    std::memcpy(id.internal, group.unique_id.data(), sizeof id.internal);
    ncclConfig_t config = config_of(place_.name, group.max_ctas);
    config.blocking = 0;
    const ncclResult_t begun = ncclCommInitRankConfig(&communicator_, place_.size, id, place_.index, &config);
    try {
      settle(begun, "ncclCommInitRankConfig");
    } catch (...) {
      abort();
      throw;
    }
  }
  NcclCommunicator(Place place, ncclComm_t communicator) : place_(std::move(place)), communicator_(communicator) {}

  ~NcclCommunicator() override {
    if (communicator_ == nullptr || aborted_.exchange(true)) return;
    // A peer that is gone would keep ncclCommFinalize waiting; the watchdog aborts then.
    if (ncclCommFinalize(communicator_) == ncclSuccess || poll(Clock::now() + kFinalize))
      ncclCommDestroy(communicator_);
    else ncclCommAbort(communicator_);
  }

  std::unique_ptr<DeviceCommunicator> split(const CommunicatorPart& part) override {
    ncclConfig_t config = config_of(part.name, part.max_ctas);
    config.blocking = 1;
    ncclComm_t communicator = nullptr;
    try {
      settle(ncclCommSplit(communicator_, part.colour, part.index, &communicator, &config), "ncclCommSplit");
      wait_for(
          "ncclCommSplit", [&] { return std::atomic_ref(communicator).load(std::memory_order_acquire) != nullptr; });
      wait_for("ncclCommSplit", [&] { return is_settled(communicator, "ncclCommSplit"); });
    } catch (...) {
      abort();  // also ends the thread that makes the part and writes where it is
      if (communicator != nullptr) ncclCommAbort(communicator);
      throw;
    }
    return std::make_unique<NcclCommunicator>(Place{part.name, part.index, part.size, place_.timeout_s}, communicator);
  }

  int index() const override { return place_.index; }
  int size() const override { return place_.size; }

  void all_gather(void* whole, std::size_t shard_bytes, DType /*dtype*/) override {
    const auto* own = static_cast<std::byte*>(whole) + static_cast<std::size_t>(place_.index) * shard_bytes;
    settle(ncclAllGather(own, whole, shard_bytes, ncclInt8, communicator_, current_stream()), "ncclAllGather");
  }

  void reduce_scatter(const void* whole, void* shard, std::size_t elements, DType dtype) override {
    settle(ncclReduceScatter(whole, shard, elements, nccl_type(dtype), ncclSum, communicator_, current_stream()),
        "ncclReduceScatter");
  }

  void all_reduce(float* values, std::size_t count) override {
    settle(
        ncclAllReduce(values, values, count, ncclFloat32, ncclSum, communicator_, current_stream()), "ncclAllReduce");
  }
  void all_reduce(double* values, std::size_t count) override {
    settle(
        ncclAllReduce(values, values, count, ncclFloat64, ncclSum, communicator_, current_stream()), "ncclAllReduce");
  }

  bool has_peers() const override { return place_.size > 1; }
  std::optional<std::string> failure() override {
    if (aborted_) return place_.name + ": aborted";
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &state);
    if (asked != ncclSuccess) state = asked;
    if (state == ncclSuccess || state == ncclInProgress) return std::nullopt;
    return place_.name + ": " + ncclGetErrorString(state);
  }

  void abort() noexcept override {
    if (communicator_ != nullptr && !aborted_.exchange(true)) ncclCommAbort(communicator_);
  }

 private:
  static constexpr std::chrono::seconds kFinalize{5};
  static constexpr int kEagerPolls = 10'000;  // before the host sleeps between them

  static ncclConfig_t config_of(const std::string& name, int max_ctas) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.commName = name.c_str();  // copied
    if (max_ctas > 0) {
      config.maxCTAs = max_ctas;
      config.minCTAs = 1;
    }
    return config;
  }

  // False: not settled by then, or an error.
  bool poll(Clock::time_point deadline) {
    ncclResult_t state = ncclInProgress;
    while (Clock::now() < deadline) {
      if (ncclCommGetAsyncError(communicator_, &state) != ncclSuccess) return false;
      if (state != ncclInProgress) return state == ncclSuccess;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return false;
  }

  void settle(ncclResult_t result, const char* call) {
    if (aborted_) throw std::runtime_error(std::string(call) + ": " + place_.name + " was aborted");
    if (result == ncclInProgress) wait_for(call, [&] { return is_settled(communicator_, call); });
    else check(result, call, communicator_);
  }

  // Throws where it ended with an error.
  static bool is_settled(ncclComm_t communicator, const char* call) {
    ncclResult_t state = ncclInProgress;
    check(ncclCommGetAsyncError(communicator, &state), call, communicator);
    if (state == ncclInProgress) return false;
    check(state, call, communicator);
    return true;
  }

  void wait_for(const char* call, auto done) {
    const auto patience = std::chrono::duration<double>(place_.timeout_s);
    const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
    for (int polls = 0; !done(); ++polls) {
      if (polls < kEagerPolls) continue;
      if (aborted_ || Clock::now() > deadline) {
        throw std::runtime_error(
            std::string(call) + ": " + place_.name +
            (aborted_ ? " was aborted"
                      : " was not complete within " + std::to_string(static_cast<int>(place_.timeout_s)) + " s"));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  Place place_;
  ncclComm_t communicator_ = nullptr;
  std::atomic<bool> aborted_ = false;
};

}

std::string nccl_unique_id() {
  ncclUniqueId id;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  return {id.internal, sizeof id.internal};
}

std::string nccl_version() {
  int code = 0;
  check(ncclGetVersion(&code), "ncclGetVersion");
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." + std::to_string(code % 100);
}

std::unique_ptr<DeviceCommunicator> make_nccl_communicator(const NcclGroup& group) {
  return std::make_unique<NcclCommunicator>(group);
}

}
