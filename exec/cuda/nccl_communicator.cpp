// With config.blocking = 0 every call may return ncclInProgress: it is then polled through
// ncclCommGetAsyncError until it is done or the time is over (NCCL's user guide, "Fault
// Tolerance").
#include "exec/cuda/nccl_communicator.h"

#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "exec/cuda/checked.h"

namespace foreshard::cuda {
namespace {

using Clock = std::chrono::steady_clock;

ncclDataType_t type_of(DType dtype) {
  return dtype == DType::kFp32 ? ncclFloat32 : dtype == DType::kBf16 ? ncclBfloat16 : ncclFloat16;
}

cudaStream_t current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

class NcclCommunicator final : public DeviceCommunicator {
 public:
  explicit NcclCommunicator(const NcclGroup& group) : group_(group) {
    ncclUniqueId id;
    if (group.unique_id.size() != sizeof id.internal) {
      throw std::runtime_error("an NCCL id of " + std::to_string(group.unique_id.size()) +
                               " bytes");
    }
    std::memcpy(id.internal, group.unique_id.data(), sizeof id.internal);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.commName = group_.name.c_str();
    if (group_.max_ctas > 0) {
      config.maxCTAs = group_.max_ctas;
      config.minCTAs = 1;
    }
    const ncclResult_t begun =
        ncclCommInitRankConfig(&communicator_, group_.size, id, group_.index, &config);
    try {
      settle(begun, "ncclCommInitRankConfig");
    } catch (...) {
      abort();
      throw;
    }
  }

  ~NcclCommunicator() override {
    if (aborted_.exchange(true)) return;
    // A peer that is gone would keep ncclCommFinalize waiting; the watchdog aborts then.
    if (ncclCommFinalize(communicator_) == ncclSuccess || poll(Clock::now() + kFinalize)) {
      ncclCommDestroy(communicator_);
    } else {
      ncclCommAbort(communicator_);
    }
  }

  int index() const override { return group_.index; }
  int size() const override { return group_.size; }

  void all_gather(void* whole, std::size_t shard_bytes, DType /*dtype*/) override {
    const auto* own =
        static_cast<std::byte*>(whole) + static_cast<std::size_t>(group_.index) * shard_bytes;
    settle(ncclAllGather(own, whole, shard_bytes, ncclInt8, communicator_, current_stream()),
           "ncclAllGather");
  }

  void reduce_scatter(const void* whole, void* shard, std::size_t elements, DType dtype) override {
    settle(ncclReduceScatter(whole, shard, elements, type_of(dtype), ncclSum, communicator_,
                             current_stream()),
           "ncclReduceScatter");
  }

  void all_reduce(float* values, std::size_t count) override {
    settle(
        ncclAllReduce(values, values, count, ncclFloat32, ncclSum, communicator_, current_stream()),
        "ncclAllReduce");
  }
  void all_reduce(double* values, std::size_t count) override {
    settle(
        ncclAllReduce(values, values, count, ncclFloat64, ncclSum, communicator_, current_stream()),
        "ncclAllReduce");
  }

  bool has_peers() const override { return group_.size > 1; }
  std::optional<std::string> failure() override {
    if (aborted_) return group_.name + ": aborted";
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &state);
    if (asked != ncclSuccess) state = asked;
    if (state == ncclSuccess || state == ncclInProgress) return std::nullopt;
    return group_.name + ": " + ncclGetErrorString(state);
  }

  void abort() noexcept override {
    if (communicator_ != nullptr && !aborted_.exchange(true)) ncclCommAbort(communicator_);
  }

 private:
  static constexpr std::chrono::seconds kFinalize{5};

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
    if (aborted_) throw std::runtime_error(std::string(call) + ": " + group_.name + " was aborted");
    if (result == ncclInProgress) {
      const auto patience = std::chrono::duration<double>(group_.timeout_s);
      const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
      ncclResult_t state = ncclInProgress;
      while (state == ncclInProgress) {
        check(ncclCommGetAsyncError(communicator_, &state), call, communicator_);
        if (state != ncclInProgress) break;
        if (Clock::now() > deadline) {
          throw std::runtime_error(std::string(call) + ": " + group_.name +
                                   " was not complete within " +
                                   std::to_string(static_cast<int>(group_.timeout_s)) + " s");
        }
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
      result = state;
    }
    check(result, call, communicator_);
  }

  NcclGroup group_;
  ncclComm_t communicator_ = nullptr;
  std::atomic<bool> aborted_ = false;
};

}  // namespace

std::string nccl_unique_id() {
  ncclUniqueId id;
  check(ncclGetUniqueId(&id), "ncclGetUniqueId");
  return {id.internal, sizeof id.internal};
}

std::string nccl_version() {
  int code = 0;
  check(ncclGetVersion(&code), "ncclGetVersion");
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." +
         std::to_string(code % 100);
}

std::unique_ptr<DeviceCommunicator> make_nccl_communicator(const NcclGroup& group) {
  return std::make_unique<NcclCommunicator>(group);
}

}  // namespace foreshard::cuda
