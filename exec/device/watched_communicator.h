// A deadline for calls that block the host. A collective of a blocking communicator returns at once
// but where it connects to peers it has not met before, which the first one of every algorithm
// does: there it waits for a rank that is stuck, in a thread that can then look after nothing.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "exec/device/accelerator.h"

namespace foreshard {

// Looks after the calls of one thread from a thread of its own; a call costs two stores.
class CallWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // `overdue` is called once, from the other thread, when a call has taken longer than `limit`: it
  // makes the call return. It must not touch this object.
  CallWatch(Clock::duration limit, std::function<void()> overdue);
  ~CallWatch();  // `overdue` has returned or is never called

  // Throws what `call` throws, and a runtime_error that names it where it was overdue, however it
  // returned. After that every call throws at once.
  void run(const char* name, const std::function<void()>& call);

 private:
  class Watcher;
  std::unique_ptr<Watcher> watcher_;
};

// `part` with `limit` seconds for every call; it is aborted where one takes longer.
std::unique_ptr<DeviceCommunicator> watched(
    std::unique_ptr<DeviceCommunicator> part, const std::string& name, double limit_s);

}
