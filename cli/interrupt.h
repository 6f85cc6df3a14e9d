// Ctrl-C: ends the program at once with exit code 130, except while an InterruptGuard lives; then
// it only makes interrupted() true, and a second one ends the program.
#pragma once

namespace foreshard {

// Once, at the start of main. Also makes a closed pipe an error of write() instead of a death.
void handle_signals();

class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  static bool interrupted();
};

}  // namespace foreshard
