#include "sim/base/error.h"

namespace foreshard {
namespace {

std::string describe(const Location& location, const std::string& what_is_wrong, const std::string& expected,
    const std::string& did_you_mean) {
  std::string text;
  if (!location.file.empty()) {
    text += location.file;
    if (location.line > 0) {
      text += ":" + std::to_string(location.line);
      if (location.column > 0) text += ":" + std::to_string(location.column);
    }
    text += ": ";
  }
  if (!location.key_path.empty()) text += location.key_path + ": ";
  text += what_is_wrong;
  if (!expected.empty()) text += "; expected " + expected;
  if (!did_you_mean.empty()) text += "; did you mean " + did_you_mean + "?";
  return text;
}

}

Error::Error(ExitCode exit_code, const std::string& message) : std::runtime_error(message), exit_code_(exit_code) {}

ConfigError::ConfigError(
    Location location, const std::string& what_is_wrong, const std::string& expected, const std::string& did_you_mean)
    : Error(ExitCode::kInvalidInput, describe(location, what_is_wrong, expected, did_you_mean)),
      location_(std::move(location)) {}

void fail_check(std::string_view message, std::string_view file, int line) {
  // The base name only: the folders above it are the build machine's, not the user's.
  file.remove_prefix(file.rfind('/') + 1);  // npos + 1 is 0
  throw Error(ExitCode::kInternal,
      "internal error: " + std::string(message) + " (" + std::string(file) + ":" + std::to_string(line) + ")");
}

}
