#include "reports/view/exact_seconds.h"

#include <fmt/format.h>

#include "sim/base/parse.h"

namespace foreshard {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::size_t kDecimals = 9;

// All of the text, digits only.
std::optional<std::int64_t> digits(std::string_view text) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos) return {};
  return parse_number<std::int64_t>(text);
}

}

std::string exact_seconds(Time time) {
  const std::int64_t ns = time.nanoseconds();
  const std::int64_t size = ns < 0 ? -ns : ns;
  return fmt::format("{}{}.{:09}", ns < 0 ? "-" : "", size / kSecond, size % kSecond);
}

std::optional<Time> parse_exact_seconds(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  const std::size_t dot = text.find('.');
  const std::optional<std::int64_t> whole = digits(text.substr(0, dot));
  std::int64_t nanoseconds = 0;
  if (dot != std::string_view::npos) {
    std::string decimals(text.substr(dot + 1));
    if (decimals.empty() || decimals.size() > kDecimals) return {};
    decimals.resize(kDecimals, '0');
    const std::optional<std::int64_t> part = digits(decimals);
    if (!part) return {};
    nanoseconds = *part;
  }
  if (!whole || *whole >= kLongestTime.nanoseconds() / kSecond) return {};
  nanoseconds += *whole * kSecond;
  return Time::ns(negative ? -nanoseconds : nanoseconds);
}

}
