// The only state of the program that is not passed around: a signal handler can reach nothing else.
#include "cli/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

#include "sim/base/error.h"

namespace foreshard {
namespace {

std::atomic<bool> guarded = false;
std::atomic<bool> requested = false;
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void on_interrupt(int /*signal*/) {
  if (!guarded || requested.exchange(true)) ::_exit(static_cast<int>(ExitCode::kInterrupted));
}

}  // namespace

void handle_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  // What started us in the background may have asked for Ctrl-C to be ignored.
  struct sigaction before = {};
  ::sigaction(SIGINT, nullptr, &before);
  if (before.sa_handler != SIG_IGN) ::sigaction(SIGINT, &action, nullptr);
}

InterruptGuard::InterruptGuard() { guarded = true; }
InterruptGuard::~InterruptGuard() { guarded = false; }
bool InterruptGuard::interrupted() { return requested; }

}  // namespace foreshard
