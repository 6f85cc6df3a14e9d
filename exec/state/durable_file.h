// Writing files that are whole and on the disk, or not there: what checkpoints are made of.
//
// Every failure is Error(kInvalidInput) "cannot write FILE: reason", full disks and size limits
// (SIGXFSZ is held back while writing) included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace foreshard {

// A checksum covers this many bytes of a file, the last one what is left.
inline constexpr std::int64_t kChecksumBlock = std::int64_t{4} << 20;
std::uint64_t checksum_of(std::string_view block);

struct WrittenFile {
  std::int64_t bytes = 0;
  std::vector<std::uint64_t> checksums;  // one per block
};

// Writes a new file at `path`, the pieces one after another, and syncs it to the disk. A file of
// that name must not be there. On failure a part of it may stay behind.
WrittenFile write_durable_file(const std::filesystem::path& path, std::span<const std::span<const std::byte>> pieces);
WrittenFile write_durable_file(const std::filesystem::path& path, std::string_view text);

// Makes the names in a folder durable.
void sync_folder(const std::filesystem::path& folder);

// "FILE: reason" of errno, as every message of this folder says it.
std::string file_error(const std::filesystem::path& path, int error_number);

}
