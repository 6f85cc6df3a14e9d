#include "sim/base/config_tree.h"

#include <fmt/format.h>

#include <utility>

#include "sim/base/spelling.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

constexpr std::size_t kMostLevels = 64;
constexpr std::size_t kMaxYamlNodes = 100'000;
constexpr std::size_t kMaxJsonNodes = 1'000'000;
// A few aliases of a long text must not fill the memory either.
constexpr std::size_t kMaxTextBytes = std::size_t{64} << 20;

// Bytes of the well-formed UTF-8 character that `text` starts with, 0 if there is none (Unicode 15.0, table 3-7).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [text](std::size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto continues = [byte](std::size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continues(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const bool is_overlong = lead == 0xE0 && byte(1) < 0xA0;
    const bool is_surrogate = lead == 0xED && byte(1) > 0x9F;
    return continues(1) && continues(2) && !is_overlong && !is_surrogate ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const bool is_overlong = lead == 0xF0 && byte(1) < 0x90;
    const bool is_beyond = lead == 0xF4 && byte(1) > 0x8F;
    return continues(1) && continues(2) && continues(3) && !is_overlong && !is_beyond ? 4 : 0;
  }
  return 0;
}

}

ConfigTreeBuilder::ConfigTreeBuilder(std::string_view file_name, ConfigFormat format)
    : file_(std::make_shared<const std::string>(file_name)), format_(format) {}

bool ConfigTreeBuilder::is_key_due() const {
  return !open_.empty() && open_.back().data->kind == ConfigNode::Kind::kMapping && !open_.back().has_key;
}

std::shared_ptr<const ConfigPath> ConfigTreeBuilder::next_path() const {
  if (open_.empty()) return nullptr;
  const Open& top = open_.back();
  if (top.data->kind == ConfigNode::Kind::kSequence)
    return std::make_shared<const ConfigPath>(ConfigPath{top.data->path, "", top.data->elements.size(), true});
  if (!top.has_key) return top.data->path;
  return std::make_shared<const ConfigPath>(ConfigPath{top.data->path, top.key, 0, false});
}

Location ConfigTreeBuilder::location(ConfigMark mark) const {
  return {*file_, mark.line, mark.column, to_string(next_path().get())};
}

ConfigMark ConfigTreeBuilder::innermost() const { return open_.empty() ? ConfigMark{1, 1} : open_.back().data->mark; }

std::shared_ptr<ConfigData> ConfigTreeBuilder::make(ConfigMark mark, ConfigNode::Kind kind) {
  const std::size_t max_nodes = format_ == ConfigFormat::kYaml ? kMaxYamlNodes : kMaxJsonNodes;
  if (++nodes_ > max_nodes) {
    throw ConfigError(location(mark), "the file has too many values",
        fmt::format("at most {} with aliases expanded", format_count(static_cast<std::int64_t>(max_nodes))));
  }
  auto data = std::make_shared<ConfigData>();
  data->kind = kind;
  data->format = format_;
  data->mark = mark;
  data->file = file_;
  data->path = next_path();
  if (!open_.empty() && open_.back().has_key) data->key_mark = open_.back().key_mark;
  return data;
}

void ConfigTreeBuilder::begin(ConfigMark mark, ConfigNode::Kind kind) {
  if (is_key_due()) {
    throw ConfigError(location(mark), "a list or mapping is not closed, or stands where a key is due",
        "a word as key, for example shard: 8");
  }
  if (open_.size() >= kMostLevels) {
    throw ConfigError(
        location(mark), "the values are nested too deeply", fmt::format("at most {} levels", kMostLevels));
  }
  Open open = {.data = make(mark, kind)};
  open_.push_back(std::move(open));
}

void ConfigTreeBuilder::end() {
  std::shared_ptr<ConfigData> data = std::move(open_.back().data);
  open_.pop_back();
  attach(std::move(data));
}

void ConfigTreeBuilder::scalar(ConfigMark mark, std::string text, Quoting quoting) {
  text_bytes_ += text.size();
  if (text_bytes_ > kMaxTextBytes)
    throw ConfigError(location(mark), "the text with all aliases expanded exceeds 64 MiB");
  if (is_key_due()) {
    take_key(mark, std::move(text));
    return;
  }
  std::shared_ptr<ConfigData> data = make(mark, ConfigNode::Kind::kScalar);
  data->text = std::move(text);
  data->quoting = quoting;
  attach(std::move(data));
}

void ConfigTreeBuilder::null(ConfigMark mark) {
  if (is_key_due()) throw ConfigError(location(mark), "a key is missing", "a word as key, for example shard: 8");
  // YAML reports an empty value where the next token stands, often lines below.
  if (!open_.empty() && open_.back().has_key) mark = open_.back().key_mark;
  attach(make(mark, ConfigNode::Kind::kNull));
}

void ConfigTreeBuilder::take_key(ConfigMark mark, std::string text) {
  Open& top = open_.back();
  top.has_key = true;
  top.key = std::move(text);
  top.key_mark = mark;
  const auto [first, is_new] = top.lines_of_keys.emplace(top.key, mark.line);
  if (!is_new) {
    throw ConfigError(location(mark),
        fmt::format("the key {} stands here again, after line {}", quote(top.key), first->second), "each key once");
  }
}

void ConfigTreeBuilder::attach(std::shared_ptr<ConfigData> data) {
  if (open_.empty()) {
    root_ = std::move(data);
    return;
  }
  Open& top = open_.back();
  if (top.data->kind == ConfigNode::Kind::kSequence) {
    top.data->elements.emplace_back(std::move(data));
  } else {
    top.data->items.push_back({std::move(top.key), ConfigNode(std::move(data))});
    top.has_key = false;
  }
}

ConfigNode ConfigTreeBuilder::finish() {
  if (root_ == nullptr)
    throw ConfigError({*file_, 0, 0, ""}, "the file has no values, only comments or blanks", "'key: value' lines");
  return ConfigNode(std::move(root_));
}

std::string to_string(const ConfigPath* path) {
  std::vector<const ConfigPath*> steps;
  for (; path != nullptr; path = path->above.get()) steps.push_back(path);
  std::string text;
  for (std::size_t i = steps.size(); i-- > 0;) {
    if (steps[i]->is_index) {
      text += fmt::format("[{}]", steps[i]->index);
      continue;
    }
    if (!text.empty()) text += ".";
    const std::string shown = quote(steps[i]->key);
    text += shown.substr(1, shown.size() - 2);
  }
  return text;
}

std::string_view checked_text(std::string_view text, std::string_view file_name, std::size_t max_bytes) {
  Location location{std::string(file_name), 0, 0, ""};
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  // nlohmann would skip it as well, and then its places would differ from the cursor's.
  if (text.starts_with(kByteOrderMark))
    throw ConfigError(std::move(location), "the text starts with two byte order marks");
  if (text.size() > max_bytes)
    throw ConfigError(std::move(location), "the file is too large", fmt::format("at most {} MiB", max_bytes >> 20));
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos)
    throw ConfigError(std::move(location), "the file is empty");
  location.line = 1;
  location.column = 1;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text.substr(i));
    if (length == 0) throw ConfigError(std::move(location), "the text is not valid UTF-8", "a text file in UTF-8");
    const char c = text[i];
    // yaml-cpp takes 0x04 for the end of the file, so what follows it would be lost.
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r' && c != '\t') {
      throw ConfigError(
          std::move(location), fmt::format("control character 0x{:02x} in the text", c), "a text file in UTF-8");
    }
    if (c == '\n') {
      ++location.line;
      location.column = 0;
    }
    location.column += static_cast<int>(length);
    i += length;
  }
  return text;
}

}
