#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "reports/validate/run_folder.h"
#include "sim/base/error.h"
#include "sim/base/held_size_signal.h"

namespace foreshard {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what, int error) {
  throw invalid_input("{}: {}: {}", path.string(), what, std::generic_category().message(error));
}

// Closes what is open; removes what was not renamed.
class Draft {
 public:
  explicit Draft(const std::filesystem::path& path)
      : path_(path),
        name_(fmt::format("{}.writing-{}", path.string(), ::getpid())),
        file_(::open(name_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
    if (file_ < 0) fail(path_, "cannot be written", errno);
  }
  ~Draft() {
    if (file_ >= 0) ::close(file_);
    if (!renamed_) ::unlink(name_.c_str());
  }
  Draft& operator=(Draft&&) = delete;  // nor is it copied

  void write(std::string_view text) {
    while (!text.empty()) {
      const ssize_t count = ::write(file_, text.data(), text.size());
      if (count < 0 && errno != EINTR) fail(path_, "cannot be written", errno);
      if (count > 0) text.remove_prefix(at(count));
    }
  }
  void finish() {
    if (::fsync(file_) != 0) fail(path_, "cannot be written", errno);
    // A network file system reports some failures of write here only.
    if (::close(std::exchange(file_, -1)) != 0) fail(path_, "cannot be written", errno);
    if (std::rename(name_.c_str(), path_.c_str()) != 0) fail(path_, "cannot be written", errno);
    renamed_ = true;
  }

 private:
  std::filesystem::path path_;
  std::string name_;
  int file_;
  bool renamed_ = false;
};

}

void write_whole_file(const std::filesystem::path& path, std::string_view text) {
  const HeldSizeSignal held;
  Draft draft(path);
  draft.write(text);
  draft.finish();
}

std::string read_whole_file(const std::filesystem::path& path, std::size_t most_bytes) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail(path, "cannot be read", errno);
  std::string text;
  constexpr std::size_t kBlock = 1 << 20;
  int error = 0;
  while (error == 0 && text.size() <= most_bytes) {
    const std::size_t before = text.size();
    text.resize(before + kBlock);
    const ssize_t count = ::read(file, text.data() + before, kBlock);
    if (count < 0 && errno != EINTR) error = errno;
    text.resize(before + at(std::max<ssize_t>(count, 0)));
    if (count == 0) break;
  }
  ::close(file);
  if (error != 0) fail(path, "cannot be read", error);
  if (text.size() > most_bytes) throw invalid_input("{}: is longer than {} bytes", path.string(), most_bytes);
  return text;
}

}
