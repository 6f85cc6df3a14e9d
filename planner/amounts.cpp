#include "planner/amounts.h"

#include <fmt/format.h>

#include <algorithm>
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

struct SpelledUnit {
  std::string_view word;
  double scale;
};

constexpr SpelledUnit kScales[] = {{"", 1}, {"k", 1e3}, {"K", 1e3}, {"thousand", 1e3}, {"M", 1e6}, {"million", 1e6},
    {"B", 1e9}, {"G", 1e9}, {"billion", 1e9}, {"T", 1e12}, {"trillion", 1e12}};

constexpr double kDay = 86'400;
constexpr SpelledUnit kSpans[] = {
    {"hour", 3'600}, {"day", kDay}, {"week", 7 * kDay}, {"month", 365.25 / 12 * kDay}, {"year", 365.25 * kDay}};

// As people write amounts: "$500,000", "500k USD", "2 trillion". A comma stands before three digits.
std::string plain_amount(std::string_view text) {
  if (text.starts_with('$')) text.remove_prefix(1);
  if (text.ends_with("USD")) text.remove_suffix(3);
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t digits = text.find_first_not_of("0123456789", i + 1);
    const bool is_group = text[i] == ',' && !plain.empty() && std::min(digits, text.size()) == i + 4;
    if (text[i] != ' ' && !is_group) plain += text[i];
  }
  return plain;
}

}

double parse_amount(const std::string& flag, const std::string& text, const char* example) {
  const std::string plain = plain_amount(text);
  double number = 0;
  const char* last = plain.data() + plain.size();
  const auto [end, error] = std::from_chars(plain.data(), last, number);
  const std::string_view word(end, at(last - end));
  const SpelledUnit* unit = std::ranges::find(kScales, word, &SpelledUnit::word);
  const double value = error == std::errc() && unit != std::end(kScales) ? number * unit->scale : 0;
  if (!(value > 0) || !std::isfinite(value) || value > 1e18)
    refuse(flag, text, "is no amount above zero; expected a number, perhaps with k, M, B or T, such as {}", example);
  return value;
}

double parse_duration(const std::string& flag, const std::string& text, const char* example) {
  double number = 0;
  const char* last = text.data() + text.size();
  std::string_view word(std::from_chars(text.data(), last, number).ptr, last);
  if (word.starts_with(' ')) word.remove_prefix(1);
  if (word.ends_with('s')) word.remove_suffix(1);
  if (const SpelledUnit* unit = std::ranges::find(kSpans, word, &SpelledUnit::word);
      unit != std::end(kSpans) && number > 0)
    return number * unit->scale;
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
