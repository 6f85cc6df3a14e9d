// A line on standard error that counts while something long runs; nothing where that is no
// terminal. Ctrl-C ends what runs, not the program.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "cli/interrupt.h"

namespace foreshard {

class Progress {
 public:
  explicit Progress(std::string what);       // "search"
  ~Progress();                               // takes the line away
  Progress& operator=(Progress&&) = delete;  // nor is it copied

  // Called with what is done, of all, from any thread: false once Ctrl-C was pressed.
  std::function<bool(std::int64_t, std::int64_t)> until_interrupted();

 private:
  void show(std::int64_t done, std::int64_t all);

  const InterruptGuard guard_;
  std::string what_;
  bool is_terminal_;
  std::chrono::steady_clock::time_point start_;
  std::atomic<std::int64_t> next_ms_ = 100;  // when the line is due again; short work shows none
};

}
