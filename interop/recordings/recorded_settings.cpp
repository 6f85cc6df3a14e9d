#include "interop/recordings/recorded_settings.h"

#include <array>

#include "sim/base/config.h"
#include "sim/base/embedded.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"
#include "sim/base/spelling.h"

namespace foreshard {
namespace {

const SettingWords& defaults() {
  static const SettingWords kDefaults = recorder_defaults("fsdp2");
  return kDefaults;
}

[[noreturn]] void fail_unknown(std::string_view name) {
  throw Error(ExitCode::kMissingCapability, "the setting {} is not known", quote(name));
}

}

SettingWords recorder_defaults(std::string_view recorder) {
  constexpr std::string_view kPath = "interop/recordings/defaults.yaml";
  const ConfigNode root = parse_yaml(file_named(kPath, recorder_files()).content, kPath);
  const ConfigNode words = root.at(recorder);
  SettingWords defaults;
  for (const ConfigItem& item : words.items()) defaults.emplace(item.key, item.value.text());
  return defaults;
}

SettingsReader::SettingsReader(const RecordingFolder& folder, std::size_t row) : folder_(folder), row_(row) {
  for (const std::string& name : folder.configured(row))
    if (!defaults().contains(name)) fail_unknown(name);
  // Settings stand before the column `note`, results after it.
  constexpr std::array<std::string_view, 4> kOff = {"", "False", "0", "none"};
  const CsvFile& index = folder.index();
  const std::size_t end = index.find("note").value_or(0);
  for (std::size_t column = 1; column < end; ++column) {
    const bool is_off = contains(kOff, index.text(row, column));
    if (!is_off && !defaults().contains(index.header(column))) fail_unknown(index.header(column));
  }
}

std::string SettingsReader::text(std::string_view name) const { return text_or(name, defaults().find(name)->second); }

std::string SettingsReader::text_or(std::string_view name, const std::string& otherwise) const {
  return folder_.setting(row_, name).value_or(otherwise);
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
  const std::string word = text(name);
  if (word != "True" && word != "False") fail(name, quote(word) + " is no truth value", "True or False");
  return word == "True";
}

std::optional<DType> SettingsReader::dtype(std::string_view name) const {
  const std::string word = text(name);
  if (word.empty()) return std::nullopt;
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp32})
    if (word == to_string(dtype)) return dtype;
  unknown(name);
}

void SettingsReader::unknown(std::string_view name) const {
  throw Error(ExitCode::kMissingCapability, "no plan expresses {} = {}", name, quote(text(name)));
}

void SettingsReader::fail(std::string_view name, const std::string& what, const std::string& expected) const {
  const CsvFile& index = folder_.index();
  if (const auto column = index.find(name)) throw index.error(row_, *column, what, expected);
  throw ConfigError({(folder_.path() / "configs.json").string(), 0, 0, std::string(name)}, what, expected);
}

}
