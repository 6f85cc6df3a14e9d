// Reading ranges of a file whose blocks have known checksums: no byte is handed out before its
// block has been read and compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "exec/state/durable_file.h"

namespace foreshard {

class BlockReader {
 public:
  // Throws Error(kInvalidInput) where the file is missing, no regular file, or has another size
  // than `expected`, which must outlive the reader and have a checksum for every block.
  BlockReader(const std::filesystem::path& path, const WrittenFile& expected);
  ~BlockReader();
  BlockReader(const BlockReader&) = delete;
  BlockReader& operator=(const BlockReader&) = delete;

  // The bytes at `offset`, inside the file. Ascending offsets read each block once: the last block
  // is kept. Throws Error(kInvalidInput) naming file and block where it was altered.
  void read(std::int64_t offset, std::span<std::byte> bytes);

  std::int64_t bytes_read() const { return bytes_read_; }  // from the disk, whole blocks

 private:
  void load_block(std::int64_t block);

  std::filesystem::path path_;
  const WrittenFile* expected_;
  int descriptor_ = -1;
  std::int64_t loaded_ = -1;
  std::string block_;
  std::int64_t bytes_read_ = 0;
};

}  // namespace foreshard
