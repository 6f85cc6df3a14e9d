// The settings of one configuration as the recorder's words, checked.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "interop/recordings/recordings.h"
#include "sim/spec/plan.h"

namespace foreshard {

using SettingWords = std::map<std::string, std::string, std::less<>>;
// Of defaults.yaml: "fsdp2" or "stages".
SettingWords recorder_defaults(std::string_view recorder);

// What the index and configs.json do not say is the recorder's default. Failures to understand a
// value are ConfigErrors at its cell.
class SettingsReader {
 public:
  // Throws Error(kMissingCapability) for a setting that the recorder of these words did not have, unless it is off.
  SettingsReader(const RecordingFolder& folder, std::size_t row);

  std::string text(std::string_view name) const;
  std::string text_or(std::string_view name, const std::string& otherwise) const;
  double real(std::string_view name) const;
  std::int64_t number(std::string_view name) const;
  bool flag(std::string_view name) const;
  std::optional<DType> dtype(std::string_view name) const;  // none: None

  // Throws Error(kMissingCapability): no plan has this word.
  [[noreturn]] void unknown(std::string_view name) const;
  [[noreturn]] void fail(std::string_view name, const std::string& what, const std::string& expected) const;

 private:
  const RecordingFolder& folder_;
  std::size_t row_;
};

}
