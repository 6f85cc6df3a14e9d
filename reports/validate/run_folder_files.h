// Files that are whole or not there.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace foreshard {

// Writes beside the file, syncs it to the disk and renames it; what was there before stays until
// then. Throws Error(kInvalidInput) "FILE: cannot be written: reason", also beyond a size limit
// (SIGXFSZ is held back while writing).
void write_whole_file(const std::filesystem::path& path, std::string_view text);

// Throws Error(kInvalidInput) where the file is missing, not a file, unreadable, or longer than
// `most_bytes`.
std::string read_whole_file(const std::filesystem::path& path, std::size_t most_bytes);

}  // namespace foreshard
