#include "exec/engine/stream.h"

#include <utility>

namespace foreshard {

StreamThread::StreamThread(std::function<void()> begin) : thread_([this, begin = std::move(begin)] { run(begin); }) {}

StreamThread::~StreamThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  issued_.notify_one();
  thread_.join();
}

void StreamThread::issue(std::function<void()> row) {
  {
    const std::lock_guard lock(mutex_);
    rows_.push_back(std::move(row));
    if (busy_) return;  // it looks again before it sleeps
  }
  issued_.notify_one();
}

void StreamThread::drain() {
  std::unique_lock lock(mutex_);
  drained_.wait(lock, [&] { return rows_.empty() && !busy_; });
}

void StreamThread::run(const std::function<void()>& begin) {
  begin();
  std::unique_lock lock(mutex_);
  while (true) {
    issued_.wait(lock, [&] { return stopping_ || !rows_.empty(); });
    if (rows_.empty()) return;
    const std::function<void()> row = std::move(rows_.front());
    rows_.pop_front();
    busy_ = true;
    lock.unlock();
    row();
    lock.lock();
    busy_ = false;
    if (rows_.empty()) drained_.notify_all();
  }
}

}
