#include "sim/base/text_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

#include "sim/base/error.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const std::string& what_is_wrong) {
  throw ConfigError({path.string(), 0, 0, ""}, what_is_wrong);
}

}

void expect_regular_file(const fs::path& path) {
  if (path.empty()) fail(path, "the file name is empty");
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) fail(path, "no such file");
  if (status.type() == fs::file_type::directory) fail(path, "is a directory, not a file");
  // Opening a pipe waits for a writer, and a device may never end.
  if (fs::exists(status) && !fs::is_regular_file(status)) fail(path, "is a pipe or a device, not a regular file");
}

void refuse_too_large(const fs::path& path, std::size_t most) {
  throw ConfigError({path.string(), 0, 0, ""}, "the file is too large",
      most < 1 << 20 ? fmt::format("at most {} bytes", most) : fmt::format("at most {} MiB", most >> 20));
}

std::string read_text_start(const fs::path& path, std::size_t most) {
  expect_regular_file(path);
  const auto reason = [] { return "cannot be read: " + std::generic_category().message(errno); };
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) fail(path, reason());
  std::string text;
  constexpr std::size_t kBlock = 64 << 10;
  while (text.size() < most) {
    const std::size_t before = text.size();
    const std::size_t asked = std::min(kBlock, most - before);
    text.resize(before + asked);
    const std::size_t count = std::fread(text.data() + before, 1, asked, file.get());
    text.resize(before + count);
    if (count < asked) {
      if (std::ferror(file.get()) != 0) fail(path, reason());
      break;
    }
  }
  return text;
}

std::string read_text_file(const fs::path& path, std::size_t most) {
  std::error_code unknown;
  const std::uintmax_t bytes = fs::file_size(path, unknown);
  if (!unknown && bytes > most) {
    expect_regular_file(path);
    refuse_too_large(path, most);
  }
  std::string text = read_text_start(path, most + 1);  // it may have grown
  if (text.size() > most) refuse_too_large(path, most);
  return text;
}

}
