#include "sim/base/text_file.h"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

#include "sim/base/error.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what_is_wrong) {
  throw ConfigError({path.string(), 0, 0, ""}, what_is_wrong);
}

}  // namespace

std::string read_text_file(const std::filesystem::path& path, std::size_t most) {
  if (path.empty()) fail(path, "the file name is empty");
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) fail(path, "no such file");
  if (status.type() == fs::file_type::directory) {
    fail(path, "is a directory, not a file");
  }
  // Opening a pipe waits for a writer, and a device may never end.
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    fail(path, "is a pipe or a device, not a regular file");
  }
  const auto reason = [] { return "cannot be read: " + std::generic_category().message(errno); };
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                       &std::fclose);
  if (file == nullptr) fail(path, reason());
  std::string text;
  constexpr std::size_t kBlock = 64 << 10;
  while (text.size() <= most) {
    const std::size_t before = text.size();
    text.resize(before + kBlock);
    const std::size_t count = std::fread(text.data() + before, 1, kBlock, file.get());
    text.resize(before + count);
    if (count < kBlock) {
      if (std::ferror(file.get()) != 0) fail(path, reason());
      break;
    }
  }
  return text;
}

}  // namespace foreshard
