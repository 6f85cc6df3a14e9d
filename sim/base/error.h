// The errors every layer throws, and the exit codes the two programs return for them.
//
// what() of an Error is one sentence for a person. what() of a ConfigError reads
// "file:line:column: key.path: what is wrong; expected ...; did you mean ...?", parts that are not
// known left out. Lines and columns count from 1, columns in bytes; 0 is "unknown".
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace foreshard {

enum class ExitCode : int {
  kOk = 0,
  kInternal = 1,
  kUsage = 2,
  kInvalidInput = 3,
  kInfeasible = 4,
  kOutsideTolerance = 5,
  kMissingCapability = 6,
  kLaunchFailure = 7,
  kNotFinite = 8,  // a run whose loss, gradient norm or parameters are no longer finite
  kInterrupted = 130,
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode exit_code, const std::string& message);
  // As fmt::format has it.
  template <typename First, typename... Rest>
  Error(ExitCode exit_code, fmt::format_string<First, Rest...> text, First&& first, Rest&&... rest)
      : Error(exit_code, fmt::format(text, std::forward<First>(first), std::forward<Rest>(rest)...)) {}
  ExitCode exit_code() const { return exit_code_; }

 private:
  ExitCode exit_code_;
};

template <typename... Parts>
Error invalid_input(fmt::format_string<Parts...> text, Parts&&... parts) {
  return Error(ExitCode::kInvalidInput, fmt::format(text, std::forward<Parts>(parts)...));
}

// Where in an input file something stands. `key_path` is dotted, for example `units[2].value`.
struct Location {
  std::string file;
  int line = 0;
  int column = 0;
  std::string key_path;
};

// Something in an input file is wrong: exit code kInvalidInput.
class ConfigError : public Error {
 public:
  // `expected` follows the word "expected", `did_you_mean` the words "did you mean".
  ConfigError(Location location, const std::string& what_is_wrong, const std::string& expected = "",
      const std::string& did_you_mean = "");
  const Location& location() const { return location_; }

 private:
  Location location_;
};

// Throws the Error of a failed FORESHARD_CHECK.
[[noreturn]] void fail_check(std::string_view message, std::string_view file, int line);

}

// Always on. Throws Error(kInternal, "internal error: message (file:line)") when `condition` is
// false; `message` is anything a std::string_view can be made of, evaluated only then.
#define FORESHARD_CHECK(condition, message)                   \
  do {                                                        \
    if (!(condition)) [[unlikely]]                            \
      ::foreshard::fail_check((message), __FILE__, __LINE__); \
  } while (false)
