#include "planner/amounts.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/spelling.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

template <typename... Parts>
[[noreturn]] void refuse(
    const std::string& flag, const std::string& text, fmt::format_string<Parts...> why, Parts&&... parts) {
  throw Error(ExitCode::kUsage, "{}: {} {}", flag, quote(text), fmt::format(why, std::forward<Parts>(parts)...));
}

// Digits with at most one point.
bool is_number(const std::string& text) {
  double number = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  return error == std::errc() && end == last;
}

double scale_of(std::string_view suffix) {
  if (suffix.empty()) return 1;
  if (suffix == "k" || suffix == "K") return 1e3;
  if (suffix == "M") return 1e6;
  if (suffix == "B" || suffix == "G") return 1e9;
  if (suffix == "T") return 1e12;
  return 0;
}

}

double parse_amount(const std::string& flag, const std::string& text, const char* example) {
  double number = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  const double scale = error == std::errc() ? scale_of({end, at(last - end)}) : 0;
  const double value = number * scale;
  if (!(value > 0) || !std::isfinite(value) || value > 1e18)
    refuse(flag, text, "is no amount above zero; expected a number, perhaps with k, M, B or T, such as {}", example);
  return value;
}

double parse_duration(const std::string& flag, const std::string& text, const char* example) {
  if (is_number(text)) refuse(flag, text, "has no unit; expected s, min, h, d or w, such as {}", example);
  try {
    const double seconds = parse_time(text).seconds();
    if (seconds > 0) return seconds;
  } catch (const std::invalid_argument&) {
    refuse(flag, text, "is no time; expected a number with s, min, h, d or w, such as {}", example);
  }
  refuse(flag, text, "is no time above zero; expected one such as {}", example);
}

double parse_days(const std::string& flag, const std::string& text) {
  return parse_duration(flag, is_number(text) ? text + "d" : text, "30d");
}

std::string sequence_length(const std::string& text) {
  if (text.size() < 2 || text.size() > 8) return text;
  const char unit = text.back();
  const std::string digits = text.substr(0, text.size() - 1);
  const bool is_count = digits.find_first_not_of("0123456789") == std::string::npos;
  if (!is_count || (unit != 'k' && unit != 'K' && unit != 'M')) return text;
  return std::to_string(std::stoll(digits) * (unit == 'M' ? 1 << 20 : 1 << 10));
}

std::vector<std::int64_t> parse_counts(const std::string& flag, const std::string& text) {
  std::vector<std::int64_t> counts;
  const char* at = text.data();
  const char* last = at + text.size();
  while (true) {
    std::int64_t count = 0;
    const auto [end, error] = std::from_chars(at, last, count);
    if (error != std::errc() || count < 1 || (end != last && *end != ','))
      refuse(flag, text, "is no list of counts; expected one such as 64,128,256");
    counts.push_back(count);
    if (end == last) return counts;
    at = end + 1;
  }
}

}
