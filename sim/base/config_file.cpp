#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

#include "sim/base/config.h"
#include "sim/base/config_tree.h"

namespace foreshard {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what_is_wrong) {
  throw ConfigError({path.string(), 0, 0, ""}, what_is_wrong);
}

// Reads at most one byte more than the largest text that any reader takes, so that an endless
// device ends too. Pipes are read like files.
std::string read_text(const std::filesystem::path& path) {
  if (path.empty()) fail(path, "the file name is empty");
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) fail(path, "no such file");
  if (status.type() == std::filesystem::file_type::directory) {
    fail(path, "is a directory, not a file");
  }
  const auto reason = [] { return "cannot be read: " + std::generic_category().message(errno); };
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                       &std::fclose);
  if (file == nullptr) fail(path, reason());
  std::string text;
  constexpr std::size_t kBlock = 64 << 10;
  while (text.size() <= kMaxJsonBytes) {
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

}  // namespace

ConfigNode read_yaml_file(const std::filesystem::path& path) {
  return parse_yaml(read_text(path), path.string());
}

ConfigNode read_json_file(const std::filesystem::path& path) {
  return parse_json(read_text(path), path.string());
}

ConfigNode read_config_file(const std::filesystem::path& path) {
  const std::filesystem::path extension = path.extension();
  if (extension == ".json") return read_json_file(path);
  if (extension == ".yaml" || extension == ".yml") return read_yaml_file(path);
  const std::string text = read_text(path);
  const std::size_t first = text.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
  const bool is_json = first != std::string::npos && text[first] == '{';
  return is_json ? parse_json(text, path.string()) : parse_yaml(text, path.string());
}

}  // namespace foreshard
