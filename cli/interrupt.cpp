// The only state of the program that is not passed around: a signal handler can reach nothing else.
#include "cli/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <string_view>

#include "sim/base/error.h"

namespace foreshard {
namespace {

std::atomic<bool> guarded = false;
std::atomic<bool> requested = false;
std::atomic<std::int64_t> requested_at = 0;  // milliseconds of the steady clock
std::atomic<unsigned> grace_s = 0;           // 0: no end to it
static_assert(std::atomic<bool>::is_always_lock_free);
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

constexpr int kInterruptedCode = static_cast<int>(ExitCode::kInterrupted);

std::int64_t now_ms() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

extern "C" void on_interrupt(int signal) {
  constexpr std::int64_t kRepeated = 1000;
  if (!guarded) ::_exit(kInterruptedCode);
  if (!requested.exchange(true)) {
    requested_at = now_ms();
    if (grace_s > 0) ::alarm(grace_s);
    return;
  }
  if (grace_s > 0 && (signal != SIGINT || now_ms() - requested_at < kRepeated)) return;
  ::_exit(kInterruptedCode);
}

extern "C" void on_grace_over(int /*signal*/) {
  constexpr std::string_view kText =
      "error: interrupted, and not over within --grace; the last checkpoint is what is kept\n";
  static_cast<void>(!::write(STDERR_FILENO, kText.data(), kText.size()));
  ::_exit(kInterruptedCode);
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  // What started us in the background may have asked for the signal to be ignored.
  struct sigaction before = {};
  ::sigaction(signal, nullptr, &before);
  if (before.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
}

}

void handle_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  handle(SIGINT, on_interrupt);
}

void handle_termination() {
  for (const int signal : {SIGTERM, SIGHUP}) handle(signal, on_interrupt);
}

InterruptGuard::InterruptGuard() { guarded = true; }
InterruptGuard::InterruptGuard(std::chrono::seconds grace) {
  grace_s = static_cast<unsigned>(grace.count());
  handle(SIGALRM, on_grace_over);
  guarded = true;
}
InterruptGuard::~InterruptGuard() {
  guarded = false;
  ::alarm(0);
}
bool InterruptGuard::interrupted() { return requested; }

}
