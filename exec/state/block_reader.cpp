// A range is served from the block it lies in, one block at a time. A block is read into memory,
// hashed there, and copied from there, so that what is handed out is what was verified.

#include "exec/state/block_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "sim/base/error.h"

namespace foreshard {
BlockReader::BlockReader(const std::filesystem::path& path, const WrittenFile& expected)
    : path_(path), expected_(&expected) {
  // Not blocking, so that a pipe in the file's place is refused instead of waited for.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail_checkpoint(file_error(path, errno));
  struct stat status = {};
  std::string wrong;
  if (::fstat(descriptor_, &status) != 0) {
    wrong = file_error(path, errno);
  } else if (!S_ISREG(status.st_mode)) {
    wrong = fmt::format("{}: is no regular file", path.string());
  } else if (status.st_size != expected.bytes) {
    wrong = fmt::format("{}: has {} bytes instead of the {} that were written", path.string(),
                        status.st_size, expected.bytes);
  }
  if (wrong.empty()) return;
  ::close(descriptor_);  // the destructor of a half-made object does not run
  fail_checkpoint(wrong);
}

BlockReader::~BlockReader() { ::close(descriptor_); }

void BlockReader::read(std::int64_t offset, std::span<std::byte> bytes) {
  const auto count = std::ssize(bytes);
  FORESHARD_CHECK(offset >= 0 && count <= expected_->bytes && offset <= expected_->bytes - count,
                  "a range beyond the end of a checkpoint's file");
  while (!bytes.empty()) {
    const std::int64_t block = offset / kChecksumBlock;
    if (block != loaded_) load_block(block);
    const auto begin = at(offset % kChecksumBlock);
    const std::size_t take = std::min(bytes.size(), block_.size() - begin);
    std::memcpy(bytes.data(), block_.data() + begin, take);
    bytes = bytes.subspan(take);
    offset += static_cast<std::int64_t>(take);
  }
}

void BlockReader::load_block(std::int64_t block) {
  loaded_ = -1;
  const std::int64_t begin = block * kChecksumBlock;
  const std::int64_t end = std::min(begin + kChecksumBlock, expected_->bytes);
  block_.resize(at(end - begin));
  for (std::int64_t at = begin; at < end;) {
    const ssize_t count =
        ::pread(descriptor_, block_.data() + (at - begin), static_cast<std::size_t>(end - at), at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_checkpoint(file_error(path_, errno));
    if (count == 0) fail_checkpoint(fmt::format("{}: ends at byte {}", path_.string(), at));
    at += count;
    bytes_read_ += count;
  }
  if (checksum_of(block_) != expected_->checksums.at(at(block))) {
    fail_checkpoint(
        fmt::format("{}: block {} (bytes {} to {}) was altered: its checksum is not the one that "
                    "was written",
                    path_.string(), block, begin, end - 1));
  }
  loaded_ = block;
}

}  // namespace foreshard
