#include "exec/engine/events.h"

#include <algorithm>
#include <utility>

namespace foreshard {

Events::Events(std::size_t rows, std::size_t communicators)
    : done_(rows, false), waiters_(rows, 0), next_ticket_(communicators, 0), serving_(communicators, 0) {}

void Events::begin_step() {
  const std::lock_guard lock(mutex_);
  std::fill(done_.begin(), done_.end(), false);
  std::ranges::fill(next_ticket_, 0);
  std::ranges::fill(serving_, 0);
}

void Events::finish(EventId event) {
  {
    const std::lock_guard lock(mutex_);
    done_[at(event)] = true;
    if (waiters_[at(event)] == 0) return;
  }
  changed_.notify_all();
}

void Events::wait(EventId event) {
  std::unique_lock lock(mutex_);
  const auto row = at(event);
  ++waiters_[row];
  changed_.wait(lock, [&] { return failure_.cause || done_[row]; });
  --waiters_[row];
  if (failure_.cause) throw StepStopped();
}

std::int64_t Events::take_ticket(std::uint8_t communicator) {
  const std::lock_guard lock(mutex_);
  return next_ticket_[communicator]++;
}

void Events::wait_turn(std::uint8_t communicator, std::int64_t ticket) {
  std::unique_lock lock(mutex_);
  ++queuing_;
  changed_.wait(lock, [&] { return failure_.cause || serving_[communicator] == ticket; });
  --queuing_;
  if (failure_.cause) throw StepStopped();
}

void Events::end_turn(std::uint8_t communicator) {
  {
    const std::lock_guard lock(mutex_);
    ++serving_[communicator];
    if (queuing_ == 0) return;
  }
  changed_.notify_all();
}

void Events::fail(EventId event, std::exception_ptr cause) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.cause) failure_ = {event, std::move(cause)};
  }
  changed_.notify_all();
}

bool Events::failed() const {
  const std::lock_guard lock(mutex_);
  return failure_.cause != nullptr;
}

EventFailure Events::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}
