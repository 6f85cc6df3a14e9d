// Ctrl-C: ends the program at once with exit code 130, except while an InterruptGuard lives; then
// it only makes interrupted() true, and a second one ends the program.
#pragma once

#include <chrono>

namespace foreshard {

// Once, at the start of main. Also makes a closed pipe an error of write() instead of a death.
void handle_signals();

// SIGTERM and SIGHUP count as Ctrl-C from now on, where they are not ignored (nohup).
void handle_termination();

class InterruptGuard {
 public:
  InterruptGuard();
  // The program ends, with a sentence, where it is not over `grace` after the first signal. What
  // launchers repeat is no second Ctrl-C: neither SIGTERM and SIGHUP nor a SIGINT within a second.
  explicit InterruptGuard(std::chrono::seconds grace);
  ~InterruptGuard();
  InterruptGuard& operator=(InterruptGuard&&) = delete;  // nor is it copied
  static bool interrupted();
};

}
