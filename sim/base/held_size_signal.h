// A write beyond `ulimit -f` kills the process unless SIGXFSZ is blocked; then it fails with EFBIG
// and can be told like a full disk. While this lives the signal is held back for the thread; what
// came meanwhile is taken away before it is let through again.
#pragma once

#include <csignal>
#include <ctime>

namespace foreshard {

class HeldSizeSignal {
 public:
  HeldSizeSignal() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~HeldSizeSignal() {
    if (sigismember(&before_, SIGXFSZ) != 0) return;
    const timespec now = {0, 0};
    while (sigtimedwait(&set_, nullptr, &now) > 0) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  HeldSizeSignal& operator=(HeldSizeSignal&&) = delete;  // nor is it copied

 private:
  sigset_t set_ = {};
  sigset_t before_ = {};
};

}
