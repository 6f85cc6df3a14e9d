// A file as text.
#pragma once

#include <cstddef>
#include <filesystem>
#include <limits>
#include <string>

namespace foreshard {

// Stops behind `most` bytes, at the end of the block that passes them; whoever gave a limit refuses
// what is longer. Throws ConfigError where there is no such file, it is no regular one (a
// directory, a pipe, a device), or it cannot be read.
std::string read_text_file(const std::filesystem::path& path,
                           std::size_t most = std::numeric_limits<std::size_t>::max());

}  // namespace foreshard
