// The line is written over itself at most ten times a second, by whichever thread finds it due.
#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {
constexpr std::int64_t kIntervalMs = 100;
}

Progress::Progress(std::string what)
    : what_(std::move(what)), is_terminal_(::isatty(STDERR_FILENO) != 0), start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() {
  if (is_terminal_ && next_ms_ > kIntervalMs) std::fputs("\r\x1b[K", stderr);
}

std::function<bool(std::int64_t, std::int64_t)> Progress::until_interrupted() {
  return [this](std::int64_t done, std::int64_t all) {
    show(done, all);
    return !InterruptGuard::interrupted();
  };
}

void Progress::show(std::int64_t done, std::int64_t all) {
  if (!is_terminal_) return;
  const auto passed =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start_).count();
  std::int64_t due = next_ms_;
  // Of the threads that find the line due, one writes it.
  if (passed < due || !next_ms_.compare_exchange_strong(due, passed + kIntervalMs)) return;
  const std::string line = fmt::format("\r\x1b[K{}: {} of {} plans", what_, format_count(done), format_count(all));
  std::fputs(line.c_str(), stderr);
}

}
