#include "interop/recordings/recorded_settings.h"

#include <array>

#include "sim/base/embedded.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"
#include "sim/base/spelling.h"
#include "sim/graph/layers/layer_program.h"

namespace foreshard {
namespace {

[[noreturn]] void fail_unknown(std::string_view name) {
  throw Error(ExitCode::kMissingCapability, "the setting {} is not known", quote(name));
}

}

SettingWords recorder_defaults(std::string_view recorder) {
  constexpr std::string_view kPath = "interop/recordings/defaults.yaml";
  static const ConfigNode kRoot = parse_yaml(file_named(kPath, recorder_files()).content, kPath);
  const ConfigNode words = kRoot.at(recorder);
  SettingWords defaults;
  for (const ConfigItem& item : words.items()) defaults.emplace(item.key, item.value.text());
  return defaults;
}

SettingsReader SettingsReader::of_fsdp2(const RecordingFolder& folder, std::size_t row) {
  SettingWords defaults = recorder_defaults("fsdp2");
  for (const std::string& name : folder.configured(row))
    if (!defaults.contains(name)) fail_unknown(name);
  // Settings stand before the column `note`, results after it.
  constexpr std::array<std::string_view, 4> kOff = {"", "False", "0", "none"};
  const CsvFile& index = folder.index();
  const std::size_t end = index.find("note").value_or(0);
  for (std::size_t column = 1; column < end; ++column) {
    const bool is_off = contains(kOff, index.text(row, column));
    if (!is_off && !defaults.contains(index.header(column))) fail_unknown(index.header(column));
  }
  return {&folder, row, std::move(defaults)};
}

std::string SettingsReader::text(std::string_view name) const {
  const auto usual = defaults_.find(name);
  return text_or(name, usual == defaults_.end() ? "" : usual->second);
}

std::string SettingsReader::text_or(std::string_view name, const std::string& otherwise) const {
  return folder_ == nullptr ? otherwise : folder_->setting(row_, name).value_or(otherwise);
}

double SettingsReader::real(std::string_view name) const {
  const std::string word = text(name);
  const auto value = parse_number<double>(word);
  if (!value) fail(name, quote(word) + " is not a number", "for example 2.5");
  return *value;
}

std::int64_t SettingsReader::number(std::string_view name) const {
  const std::string word = text(name);
  const auto value = parse_number<std::int64_t>(word);
  if (!value) fail(name, quote(word) + " is not a whole number", "for example 4");
  return *value;
}

bool SettingsReader::flag(std::string_view name) const {
  const std::string word = lower(text(name));
  if (word != "true" && word != "false" && !word.empty())
    fail(name, quote(text(name)) + " is no truth value", "True or False");
  return word == "true";
}

std::optional<DType> SettingsReader::dtype(std::string_view name) const {
  const std::string word = text(name);
  if (word.empty() || word == "none") return std::nullopt;
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32})
    if (word == to_string(dtype)) return dtype;
  unknown(name);
}

Mesh SettingsReader::mesh(std::string_view name) const {
  const std::string word = text(name);
  const std::size_t cross = word.find('x');
  const auto number = [&](std::string_view part) {
    const auto value = parse_number<std::int64_t>(part).value_or(0);
    if (value < 1) fail(name, quote(word) + " is not a mesh", "for example 8 or 4x8");
    return value;
  };
  if (cross == std::string::npos) return {number(word), 1};
  const std::string_view view = word;
  return {number(view.substr(cross + 1)), number(view.substr(0, cross))};
}

RecordedSettings SettingsReader::model() const {
  return {.layers = number("layers"),
      .dim = number("dim"),
      .ffn = number("ffn"),
      .heads = number("heads"),
      .kv_heads = number("kv_heads"),
      .vocab = number("vocab"),
      .seq = number("seq"),
      .attention = text("attention"),
      .norm = text("norm")};
}

void SettingsReader::unknown(std::string_view name) const {
  throw Error(ExitCode::kMissingCapability, "no plan expresses {} = {}", name, quote(text(name)));
}

void SettingsReader::fail(std::string_view name, const std::string& what, const std::string& expected) const {
  if (folder_ == nullptr) unknown(name);
  const CsvFile& index = folder_->index();
  if (const auto column = index.find(name)) throw index.error(row_, *column, what, expected);
  throw ConfigError({(folder_->path() / "configs.json").string(), 0, 0, std::string(name)}, what, expected);
}

const ConfigNode* KeyWords::find(std::string_view key) const {
  for (const ConfigNode& node : nodes_) {
    const ConfigNode* value = node.is_mapping() ? node.find(key) : nullptr;
    if (value != nullptr && !value->is_null()) return value;
  }
  return nullptr;
}

std::string KeyWords::word(std::string_view key, const char* usual) const {
  const ConfigNode* value = find(key);
  return value == nullptr ? usual : value->as_string();
}

std::int64_t KeyWords::number(std::string_view key, std::int64_t usual) const {
  constexpr std::int64_t kLargest = 1'000'000'000'000;
  const ConfigNode* value = find(key);
  return value == nullptr ? usual : value->as_int(0, kLargest);
}

bool KeyWords::flag(std::string_view key, bool usual) const {
  const ConfigNode* value = find(key);
  return value == nullptr ? usual : value->as_bool();
}

std::int64_t rotary_table_bytes(std::int64_t positions, std::int64_t width) {
  return allocated_size(positions * width * 4).count();
}

}
