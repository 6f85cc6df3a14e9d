// Lines are written with one write each, so that those of several ranks do not mix.
#include "exec/launch/line_forwarder.h"

#include <unistd.h>

#include <utility>

namespace foreshard {
namespace {

void write_whole(const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::write(STDERR_FILENO, text.data() + done, text.size() - done);
    if (count <= 0) return;  // nobody reads our standard error
    done += at(count);
  }
}

}  // namespace

LineForwarder::LineForwarder(int pipe, std::string prefix)
    : pipe_(pipe), prefix_(std::move(prefix)) {}

LineForwarder::LineForwarder(LineForwarder&& other) noexcept
    : pipe_(std::exchange(other.pipe_, -1)),
      prefix_(std::move(other.prefix_)),
      rest_(std::exchange(other.rest_, "")) {}

LineForwarder::~LineForwarder() {
  forward();
  if (!rest_.empty()) write_whole(prefix_ + rest_ + "\n");
  if (pipe_ >= 0) ::close(pipe_);
}

void LineForwarder::forward() {
  char bytes[4096];
  while (pipe_ >= 0) {
    const ssize_t count = ::read(pipe_, bytes, sizeof bytes);
    if (count < 0) return;  // nothing more for now
    if (count == 0) {
      ::close(std::exchange(pipe_, -1));
      return;
    }
    rest_.append(bytes, at(count));
    std::string lines;
    for (std::size_t end = 0; (end = rest_.find('\n')) != std::string::npos;
         rest_.erase(0, end + 1)) {
      lines += prefix_ + rest_.substr(0, end + 1);
    }
    write_whole(lines);
  }
}

}  // namespace foreshard
