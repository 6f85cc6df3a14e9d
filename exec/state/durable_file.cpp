// Pieces are collected into a block of 4 MiB; a full block is hashed and written. Copying costs far
// less than the disk and makes blocks independent of where one tensor ends and the next begins.

#include "exec/state/durable_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/hash.h"
#include "sim/base/held_size_signal.h"
#include "sim/base/integers.h"

namespace foreshard {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, int error_number) {
  throw Error(ExitCode::kInvalidInput, "cannot write " + file_error(path, error_number));
}

class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags)
      : path_(path), value_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (value_ < 0) fail(path_, errno);
  }
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor& operator=(Descriptor&&) = delete;  // nor is it copied

  void write(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = ::write(value_, bytes.data(), bytes.size());
      if (count < 0 && errno != EINTR) fail(path_, errno);
      if (count > 0) bytes.remove_prefix(at(count));
    }
  }
  void sync() const {
    if (::fsync(value_) != 0) fail(path_, errno);
  }
  // A network file system reports some failures of write here only.
  void close() {
    if (::close(std::exchange(value_, -1)) != 0) fail(path_, errno);
  }

 private:
  std::filesystem::path path_;
  int value_;
};

}

std::uint64_t checksum_of(std::string_view block) { return Fingerprint().add(block).value(); }

std::string file_error(const std::filesystem::path& path, int error_number) {
  return fmt::format("{}: {}", path.string(), std::generic_category().message(error_number));
}

WrittenFile write_durable_file(const std::filesystem::path& path, std::span<const std::span<const std::byte>> pieces) {
  const HeldSizeSignal held;
  Descriptor file(path, O_WRONLY | O_CREAT | O_EXCL);
  WrittenFile written;
  std::string block;
  block.reserve(at(kChecksumBlock));
  const auto flush = [&] {
    if (block.empty()) return;
    written.checksums.push_back(checksum_of(block));
    written.bytes += std::ssize(block);
    file.write(block);
    block.clear();
  };
  for (std::span<const std::byte> piece : pieces) {
    while (!piece.empty()) {
      const std::size_t room = at(kChecksumBlock) - block.size();
      const std::size_t count = std::min(room, piece.size());
      block.append(reinterpret_cast<const char*>(piece.data()), count);
      piece = piece.subspan(count);
      if (count == room) flush();
    }
  }
  flush();
  file.sync();
  file.close();
  return written;
}

WrittenFile write_durable_file(const std::filesystem::path& path, std::string_view text) {
  const std::span<const std::byte> piece = std::as_bytes(std::span(text.data(), text.size()));
  return write_durable_file(path, std::span(&piece, 1));
}

void sync_folder(const std::filesystem::path& folder) {
  const Descriptor descriptor(folder, O_RDONLY | O_DIRECTORY);
  descriptor.sync();
}

}
