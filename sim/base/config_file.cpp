#include "sim/base/config.h"
#include "sim/base/config_tree.h"
#include "sim/base/text_file.h"

namespace foreshard {
namespace {

// A byte order mark does not count.
constexpr std::size_t kMark = 3;

}  // namespace

ConfigNode read_yaml_file(const std::filesystem::path& path) {
  return parse_yaml(read_text_file(path, kMaxYamlBytes + kMark), path.string());
}

ConfigNode read_json_file(const std::filesystem::path& path) {
  return parse_json(read_text_file(path, kMaxJsonBytes + kMark), path.string());
}

ConfigNode read_config_file(const std::filesystem::path& path) {
  const std::filesystem::path extension = path.extension();
  if (extension == ".json") return read_json_file(path);
  if (extension == ".yaml" || extension == ".yml") return read_yaml_file(path);
  const std::string text = read_text_file(path, kMaxJsonBytes + kMark);
  const std::size_t first = text.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
  const bool is_json = first != std::string::npos && text[first] == '{';
  return is_json ? parse_json(text, path.string()) : parse_yaml(text, path.string());
}

}  // namespace foreshard
