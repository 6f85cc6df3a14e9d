// The settings of one configuration as its recorder's words, checked.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "interop/recordings/recordings.h"
#include "models/recorded.h"
#include "sim/base/config.h"
#include "sim/spec/plan.h"

namespace foreshard {

using SettingWords = std::map<std::string, std::string, std::less<>>;
// Of defaults.yaml: "fsdp2" or "stages".
SettingWords recorder_defaults(std::string_view recorder);

// What the index and configs.json do not say is the recorder's default, "" where it has none. Failures to understand
// a value are ConfigErrors at its cell.
class SettingsReader {
 public:
  SettingsReader(const RecordingFolder* folder, std::size_t row, SettingWords defaults)
      : folder_(folder), row_(row), defaults_(std::move(defaults)) {}
  // Throws Error(kMissingCapability) for a setting that FSDP2's recorder did not have, unless it is off.
  static SettingsReader of_fsdp2(const RecordingFolder& folder, std::size_t row);

  std::string text(std::string_view name) const;
  std::string text_or(std::string_view name, const std::string& otherwise) const;
  double real(std::string_view name) const;
  std::int64_t number(std::string_view name) const;
  bool flag(std::string_view name) const;
  std::optional<DType> dtype(std::string_view name) const;  // none: None
  Mesh mesh(std::string_view name) const;                   // "8" or "4x8"
  // What every recorder says of its model.
  RecordedSettings model() const;

  // Throws Error(kMissingCapability): no plan has this word.
  [[noreturn]] void unknown(std::string_view name) const;
  [[noreturn]] void fail(std::string_view name, const std::string& what, const std::string& expected) const;

 private:
  const RecordingFolder* folder_;  // nullptr: the defaults are all there is
  std::size_t row_;
  SettingWords defaults_;
};

// What the first of some mappings that has the key says, null being nothing, else what is usual.
class KeyWords {
 public:
  explicit KeyWords(std::vector<ConfigNode> nodes) : nodes_(std::move(nodes)) {}
  const ConfigNode* find(std::string_view key) const;
  std::string word(std::string_view key, const char* usual) const;
  std::int64_t number(std::string_view key, std::int64_t usual) const;
  bool flag(std::string_view key, bool usual) const;

 private:
  std::vector<ConfigNode> nodes_;
};

// A rotary table as models keep it: complex numbers of two fp32, a row for each position.
std::int64_t rotary_table_bytes(std::int64_t positions, std::int64_t width);

}
