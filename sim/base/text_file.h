// A file as text. Throws ConfigError where there is no such file, it is no regular one (a
// directory, a pipe, a device), or it cannot be read.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace foreshard {

// The whole of it. Throws where it is longer than `most` bytes, which every reader has of its own.
std::string read_text_file(const std::filesystem::path& path, std::size_t most);

// The first `most` bytes: what tells of which form it is.
std::string read_text_start(const std::filesystem::path& path, std::size_t most);

// Throws as above, without opening it: for libraries that open a file themselves.
void expect_regular_file(const std::filesystem::path& path);

// What a text of more than `most` bytes is refused with.
[[noreturn]] void refuse_too_large(const std::filesystem::path& path, std::size_t most);

}
