// A stream of the engine on CPU ranks: one thread that does its rows one after the other, in the
// order they were issued. Compute rows have no stream: the thread that issues does them itself.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace foreshard {

class StreamThread {
 public:
  // `begin` runs first on the new thread.
  explicit StreamThread(std::function<void()> begin);
  ~StreamThread();                                   // after everything that was issued
  StreamThread& operator=(StreamThread&&) = delete;  // nor is it copied

  void issue(std::function<void()> row);  // must not throw
  void drain();                           // until nothing is left

 private:
  void run(const std::function<void()>& begin);

  std::mutex mutex_;
  std::condition_variable issued_;   // for the thread
  std::condition_variable drained_;  // for who waits
  std::deque<std::function<void()>> rows_;
  bool busy_ = false;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses the others
};

}
