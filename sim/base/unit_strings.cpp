// A quantity is split into its number and its unit word; the word is looked up in the table of the
// dimension. Whole numbers are multiplied in integers, so that bytes and nanoseconds are exact up
// to 2^63; numbers with a fraction or exponent go through a double and are rounded.

#include "sim/base/unit_strings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "sim/base/lookup.h"
#include "sim/base/spelling.h"

namespace foreshard {
namespace {

struct Prefix {
  std::string_view word;
  double scale;  // exact in a double, as all below are
};

constexpr double kKi = 1024.0;
constexpr double kMi = kKi * 1024;
constexpr double kGi = kMi * 1024;
constexpr double kTi = kGi * 1024;
constexpr std::array<Prefix, 7> kDecimal = {
    {{"", 1}, {"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"P", 1e15}, {"E", 1e18}}};
constexpr std::array<Prefix, 6> kBinary = {
    {{"", 1}, {"Ki", kKi}, {"Mi", kMi}, {"Gi", kGi}, {"Ti", kTi}, {"Pi", kTi* kKi}}};
constexpr std::array<Prefix, 8> kTimes = {{{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"min", 6e10},
    {"h", 3.6e12}, {"d", 8.64e13}, {"w", 7 * 8.64e13}}};

// Each prefix in front of one word.
struct PrefixedUnit {
  std::span<const Prefix> prefixes;
  std::string_view word;
  double scale = 1;  // of the word alone
};

constexpr auto kToPeta = std::span(kDecimal).first(6), kToTera = kToPeta.first(5);
constexpr std::array<PrefixedUnit, 2> kByteUnits = {{{kToPeta, "B"}, {kBinary, "B"}}};
constexpr std::array<PrefixedUnit, 4> kBandwidthUnits = {
    {{kToPeta, "B/s"}, {kBinary, "B/s"}, {kToTera, "bit/s", 0.125}, {kToTera, "b/s", 0.125}}};
constexpr std::array<PrefixedUnit, 1> kTimeUnits = {{{kTimes, ""}}};
constexpr std::array<PrefixedUnit, 1> kFlopRateUnits = {{{kToPeta.last(3), "FLOP/s"}}};
constexpr std::array<PrefixedUnit, 1> kPowerUnits = {{{kToPeta.first(2), "W"}}};
constexpr std::array<PrefixedUnit, 1> kFrequencyUnits = {{{kToPeta.subspan(2, 2), "Hz"}}};
constexpr std::array<PrefixedUnit, 1> kPriceUnits = {{{kToPeta.first(1), "USD/h"}}};

struct Dimension {
  std::span<const PrefixedUnit> units;
  std::string_view example;
};

constexpr Dimension kBytes = {kByteUnits, "80GiB"};
constexpr Dimension kBandwidth = {kBandwidthUnits, "400Gbit/s or 450GB/s"};
constexpr Dimension kFlopRate = {kFlopRateUnits, "989TFLOP/s"};
constexpr Dimension kTime = {kTimeUnits, "12us"};
constexpr Dimension kPower = {kPowerUnits, "700W"};
constexpr Dimension kFrequency = {kFrequencyUnits, "1980MHz"};
constexpr Dimension kPrice = {kPriceUnits, "2.95USD/h"};

std::vector<std::string> words_of(const Dimension& dimension) {
  std::vector<std::string> words;
  for (const PrefixedUnit& units : dimension.units)
    for (const Prefix& prefix : units.prefixes) words.push_back(fmt::format("{}{}", prefix.word, units.word));
  return words;
}

// 0: there is no such unit.
double scale_of(std::string_view word, const Dimension& dimension) {
  for (const PrefixedUnit& units : dimension.units) {
    if (!word.ends_with(units.word)) continue;
    const std::string_view front = word.substr(0, word.size() - units.word.size());
    const auto prefix = std::ranges::find(units.prefixes, front, &Prefix::word);
    if (prefix != units.prefixes.end()) return prefix->scale * units.scale;
  }
  return 0;
}

struct Quantity {
  std::optional<std::int64_t> whole;  // the number, where it is written as an integer
  double number = 0;
  double scale = 1;
};

[[noreturn]] void fail(std::string_view text, std::string_view reason, std::string_view example) {
  throw std::invalid_argument(fmt::format("{} {}, for example {}", quote(text), reason, example));
}

// Wrong words people often write, with the one that is right.
std::string_view right_word(std::string_view word) {
  static constexpr std::array<std::array<std::string_view, 2>, 22> kWrong = {{
      {"K", "kB (1000) or KiB (1024)"},
      {"KB", "kB (1000) or KiB (1024)"},
      {"kiB", "KiB"},
      {"G", "GB or GiB"},
      {"Gi", "GiB"},
      {"M", "MB or MiB"},
      {"Mi", "MiB"},
      {"T", "TB or TiB"},
      {"Ti", "TiB"},
      {"b", "B (byte); b is bit"},
      {"kb", "kB; b is bit"},
      {"Mb", "MB; b is bit"},
      {"Gb", "GB; b is bit"},
      {"Tb", "TB; b is bit"},
      {"Gbps", "Gbit/s"},
      {"Mbps", "Mbit/s"},
      {"GBps", "GB/s"},
      {"FLOPS", "TFLOP/s"},
      {"\xC2\xB5s", "us"},
      {"\xCE\xBCs", "us"},
      {"m", "min or ms"},
      {"sec", "s"},
  }};
  for (const auto& [wrong, right] : kWrong)
    if (word == wrong) return right;
  return "";
}

[[noreturn]] void fail_unit(std::string_view text, std::string_view word, const Dimension& dimension) {
  const std::vector<std::string> words = words_of(dimension);
  const std::string rate = std::string(word) + "/s";
  const std::string rate_of_plural = std::string(word.substr(0, word.size() - 1)) + "/s";  // TFLOPS
  std::string hint = contains(words, rate)                                   ? rate
                     : word.back() == 'S' && contains(words, rate_of_plural) ? rate_of_plural
                                                                             : std::string(right_word(word));
  if (hint.empty()) hint = nearest_spelling(word, words);
  const std::string reason =
      fmt::format("has the unknown unit {}{}", quote(word), hint.empty() ? "" : " (did you mean " + hint + "?)");
  fail(text, reason, dimension.example);
}

Quantity parse(std::string_view text, const Dimension& dimension) {
  const std::string_view example = dimension.example;
  if (text.empty()) fail(text, "is empty where a quantity with a unit is due", example);
  if (text.front() == '-') fail(text, "must not be negative", example);
  // from_chars also reads "inf" and "nan".
  if (text.front() < '0' || text.front() > '9') fail(text, "is not a number with a unit", example);
  const char* const end = text.data() + text.size();
  Quantity quantity;
  const auto [rest, status] = std::from_chars(text.data(), end, quantity.number);
  if (status == std::errc::result_out_of_range) fail(text, "is out of range", example);
  std::string_view word(rest, at(end - rest));
  if (word.starts_with(' ')) word.remove_prefix(1);
  if (word.empty()) fail(text, "needs a unit", example);
  quantity.scale = scale_of(word, dimension);
  if (quantity.scale == 0) fail_unit(text, word, dimension);
  std::int64_t whole = 0;
  if (const auto [stop, error] = std::from_chars(text.data(), rest, whole); stop == rest && error == std::errc())
    quantity.whole = whole;
  return quantity;
}

// For the dimensions that are counted in integers.
std::int64_t to_integer(std::string_view text, const Dimension& dimension) {
  const Quantity quantity = parse(text, dimension);
  if (quantity.whole) {
    std::int64_t result = 0;
    if (__builtin_mul_overflow(*quantity.whole, static_cast<std::int64_t>(quantity.scale), &result))
      fail(text, "overflows 64-bit integers", dimension.example);
    return result;
  }
  const double rounded = std::round(quantity.number * quantity.scale);
  if (!(rounded < 0x1p63)) fail(text, "overflows 64-bit integers", dimension.example);
  if (rounded == 0 && quantity.number > 0)
    fail(text, fmt::format("is less than one {}", words_of(dimension).front()), dimension.example);
  return static_cast<std::int64_t>(rounded);
}

double to_rate(std::string_view text, const Dimension& dimension) {
  const Quantity quantity = parse(text, dimension);
  const double rate = quantity.number * quantity.scale;
  if (!std::isfinite(rate)) fail(text, "is out of range", dimension.example);
  return rate;
}

// Three significant digits: "2.18", "84.9", "512", "1005".
std::string three_digits(double value) {
  const double size = std::abs(value);
  return fmt::format("{:.{}f}", value, size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

// With the largest prefix of which there is at least one after rounding; they ascend.
std::string format_in(double value, std::span<const Prefix> prefixes, std::string_view word) {
  const Prefix* chosen = &prefixes.front();
  for (const Prefix& prefix : prefixes)
    if (std::abs(value) >= prefix.scale * (1 - 5e-4)) chosen = &prefix;
  const bool is_whole = chosen == &prefixes.front() && value == std::round(value);
  const std::string number = is_whole ? fmt::format("{:.0f}", value) : three_digits(value / chosen->scale);
  return fmt::format("{} {}{}", number, chosen->word, word);
}

}

Bytes parse_bytes(std::string_view text) { return Bytes(to_integer(text, kBytes)); }

BytesPerSecond parse_bandwidth(std::string_view text) { return BytesPerSecond(to_rate(text, kBandwidth)); }

FlopsPerSecond parse_flop_rate(std::string_view text) { return FlopsPerSecond(to_rate(text, kFlopRate)); }

Time parse_time(std::string_view text) { return Time::ns(to_integer(text, kTime)); }

double parse_power(std::string_view text) { return to_rate(text, kPower); }
double parse_frequency(std::string_view text) { return to_rate(text, kFrequency); }
double parse_price(std::string_view text) { return to_rate(text, kPrice); }

std::string format_bytes(Bytes bytes) { return format_in(as_double(bytes.count()), kBinary, "B"); }

std::string format_time(Time time) {
  const double ns = as_double(time.nanoseconds());
  // Seconds up to two minutes: "90.0 s" compares more easily with "84.9 s" than "1.50 min".
  const double size = std::abs(ns);
  const std::size_t count = size < 1.2e11 ? 4 : size < 7.2e12 ? 5 : size < 1.728e14 ? 6 : 7;
  return format_in(ns, std::span(kTimes).first(count), "");
}

std::string format_count(std::int64_t count) {
  std::string digits = std::to_string(count);
  const std::size_t first = count < 0 ? 1 : 0;
  for (std::size_t i = digits.size(); i > first + 3;) {
    i -= 3;
    digits.insert(i, ",");
  }
  return digits;
}

std::string format_bandwidth(BytesPerSecond rate) { return format_in(rate.value(), kToPeta, "B/s"); }

std::string format_flop_rate(FlopsPerSecond rate) { return format_in(rate.value(), kDecimal, "FLOP/s"); }

}
