// The watcher sleeps, and wakes a few times within the limit to see when the call that is under way
// began. A call that began and ended between two looks was not overdue.
#include "exec/device/watched_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

namespace foreshard {

class CallWatch::Watcher {
 public:
  Watcher(Clock::duration limit, std::function<void()> overdue)
      : limit_(limit), overdue_(std::move(overdue)), thread_([this] { look(); }) {}
  ~Watcher() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  Watcher& operator=(Watcher&&) = delete;  // nor is it copied

  void begin() { began_ = Clock::now().time_since_epoch().count(); }
  void end() { began_ = kNone; }
  bool is_overdue() const { return is_overdue_; }
  double limit_s() const { return std::chrono::duration<double>(limit_).count(); }

 private:
  static constexpr Clock::rep kNone = -1;
  static constexpr std::chrono::milliseconds kLongest{250};

  void look() {
    const auto slice = std::min<Clock::duration>(kLongest, limit_ / 4);
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, slice, [this] { return stopped_; })) {
      const Clock::rep began = began_;
      if (began == kNone) continue;
      if (Clock::now().time_since_epoch() - Clock::duration(began) <= limit_) continue;
      is_overdue_ = true;
      lock.unlock();
      overdue_();
      return;
    }
  }

  const Clock::duration limit_;
  const std::function<void()> overdue_;
  std::atomic<Clock::rep> began_ = kNone;
  std::atomic<bool> is_overdue_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  std::thread thread_;  // last: it reads the others
};

CallWatch::CallWatch(Clock::duration limit, std::function<void()> overdue)
    : watcher_(std::make_unique<Watcher>(limit, std::move(overdue))) {}
CallWatch::~CallWatch() = default;

void CallWatch::run(const char* name, const std::function<void()>& call) {
  const auto refuse = [&] {
    throw std::runtime_error(
        fmt::format("{}: no answer from the other ranks within {:g} s", name, watcher_->limit_s()));
  };
  if (watcher_->is_overdue()) refuse();
  watcher_->begin();
  try {
    call();
  } catch (...) {
    watcher_->end();
    if (watcher_->is_overdue()) refuse();  // what it throws then says less
    throw;
  }
  watcher_->end();
  if (watcher_->is_overdue()) refuse();
}

namespace {

class WatchedCommunicator final : public DeviceCommunicator {
 public:
  WatchedCommunicator(std::unique_ptr<DeviceCommunicator> part, const std::string& name, double limit_s)
      : part_(std::move(part)),
        all_gather_(name + ": all_gather"),
        reduce_scatter_(name + ": reduce_scatter"),
        all_reduce_(name + ": all_reduce"),
        watch_(std::chrono::duration_cast<CallWatch::Clock::duration>(std::chrono::duration<double>(limit_s)),
            [communicator = part_.get()] { communicator->abort(); }) {}

  int index() const override { return part_->index(); }
  int size() const override { return part_->size(); }
  void all_gather(void* whole, std::size_t shard_bytes, DType dtype) override {
    watch_.run(
        all_gather_.c_str(), [&] { part_->all_gather(whole, shard_bytes, dtype); });
  }
  void reduce_scatter(const void* whole, void* shard, std::size_t elements, DType dtype) override {
    watch_.run(
        reduce_scatter_.c_str(), [&] { part_->reduce_scatter(whole, shard, elements, dtype); });
  }
  void all_reduce(float* values, std::size_t count) override {
    watch_.run(
        all_reduce_.c_str(), [&] { part_->all_reduce(values, count); });
  }
  void all_reduce(double* values, std::size_t count) override {
    watch_.run(
        all_reduce_.c_str(), [&] { part_->all_reduce(values, count); });
  }
  void pace(std::int64_t nanoseconds, int ctas) override { part_->pace(nanoseconds, ctas); }
  bool has_peers() const override { return part_->has_peers(); }
  std::optional<std::string> failure() override { return part_->failure(); }
  void abort() noexcept override { part_->abort(); }
  std::unique_ptr<DeviceCommunicator> split(const CommunicatorPart& part) override { return part_->split(part); }

 private:
  const std::unique_ptr<DeviceCommunicator> part_;
  const std::string all_gather_, reduce_scatter_, all_reduce_;
  CallWatch watch_;  // goes before the part it aborts
};

}

std::unique_ptr<DeviceCommunicator> watched(
    std::unique_ptr<DeviceCommunicator> part, const std::string& name, double limit_s) {
  return std::make_unique<WatchedCommunicator>(std::move(part), name, limit_s);
}

}
