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

#include "sim/base/lookup.h"
#include "sim/base/spelling.h"

namespace foreshard {
namespace {

struct NamedUnit {
  std::string_view word;
  double scale;  // of the base unit; all values below are exact in a double
};

constexpr double kKi = 1024.0;
constexpr double kMi = kKi * 1024;
constexpr double kGi = kMi * 1024;
constexpr double kTi = kGi * 1024;
constexpr double kPi = kTi * 1024;

constexpr std::array kByteUnits = {
    NamedUnit{"B", 1},
    NamedUnit{"kB", 1e3},
    NamedUnit{"MB", 1e6},
    NamedUnit{"GB", 1e9},
    NamedUnit{"TB", 1e12},
    NamedUnit{"PB", 1e15},
    NamedUnit{"KiB", kKi},
    NamedUnit{"MiB", kMi},
    NamedUnit{"GiB", kGi},
    NamedUnit{"TiB", kTi},
    NamedUnit{"PiB", kPi},
};

constexpr std::array kBandwidthUnits = {
    NamedUnit{"B/s", 1},
    NamedUnit{"kB/s", 1e3},
    NamedUnit{"MB/s", 1e6},
    NamedUnit{"GB/s", 1e9},
    NamedUnit{"TB/s", 1e12},
    NamedUnit{"PB/s", 1e15},
    NamedUnit{"KiB/s", kKi},
    NamedUnit{"MiB/s", kMi},
    NamedUnit{"GiB/s", kGi},
    NamedUnit{"TiB/s", kTi},
    NamedUnit{"PiB/s", kPi},
    NamedUnit{"bit/s", 0.125},
    NamedUnit{"kbit/s", 125},
    NamedUnit{"Mbit/s", 125e3},
    NamedUnit{"Gbit/s", 125e6},
    NamedUnit{"Tbit/s", 125e9},
    NamedUnit{"b/s", 0.125},
    NamedUnit{"kb/s", 125},
    NamedUnit{"Mb/s", 125e3},
    NamedUnit{"Gb/s", 125e6},
    NamedUnit{"Tb/s", 125e9},
};

constexpr std::array kFlopRateUnits = {
    NamedUnit{"GFLOP/s", 1e9},
    NamedUnit{"TFLOP/s", 1e12},
    NamedUnit{"PFLOP/s", 1e15},
};

constexpr std::array kTimeUnits = {
    NamedUnit{"ns", 1},
    NamedUnit{"us", 1e3},
    NamedUnit{"ms", 1e6},
    NamedUnit{"s", 1e9},
    NamedUnit{"min", 6e10},
    NamedUnit{"h", 3.6e12},
    NamedUnit{"d", 8.64e13},
    NamedUnit{"w", 7 * 8.64e13},
};

constexpr std::array kPowerUnits = {NamedUnit{"W", 1}, NamedUnit{"kW", 1e3}};
constexpr std::array kFrequencyUnits = {NamedUnit{"MHz", 1e6}, NamedUnit{"GHz", 1e9}};
constexpr std::array kPriceUnits = {NamedUnit{"USD/h", 1}};

struct Dimension {
  std::span<const NamedUnit> units;
  std::string_view example;
};

constexpr Dimension kBytes = {kByteUnits, "80GiB"};
constexpr Dimension kBandwidth = {kBandwidthUnits, "400Gbit/s or 450GB/s"};
constexpr Dimension kFlopRate = {kFlopRateUnits, "989TFLOP/s"};
constexpr Dimension kTime = {kTimeUnits, "12us"};
constexpr Dimension kPower = {kPowerUnits, "700W"};
constexpr Dimension kFrequency = {kFrequencyUnits, "1980MHz"};
constexpr Dimension kPrice = {kPriceUnits, "2.95USD/h"};

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
  std::string hint;
  for (const NamedUnit& unit : dimension.units) {
    if (unit.word == std::string(word) + "/s") hint = unit.word;
    if (unit.word == std::string(word.substr(0, word.size() - 1)) + "/s" && word.back() == 'S')
      hint = unit.word;  // TFLOPS
  }
  if (hint.empty()) hint = right_word(word);
  if (hint.empty()) {
    auto words = list_of<std::string>(dimension.units, &NamedUnit::word);
    hint = nearest_spelling(word, words);
  }
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
  const auto unit = std::ranges::find(dimension.units, word, &NamedUnit::word);
  if (unit == dimension.units.end()) fail_unit(text, word, dimension);
  quantity.scale = unit->scale;
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
    fail(text, fmt::format("is less than one {}", dimension.units.front().word), dimension.example);
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

// With the largest unit of which there is at least one after rounding; `units` ascend.
std::string format_in(double value, std::span<const NamedUnit> units) {
  const NamedUnit* chosen = &units.front();
  for (const NamedUnit& unit : units)
    if (std::abs(value) >= unit.scale * (1 - 5e-4)) chosen = &unit;
  if (chosen == &units.front() && value == std::round(value)) return fmt::format("{:.0f} {}", value, chosen->word);
  return three_digits(value / chosen->scale) + " " + std::string(chosen->word);
}

}

Bytes parse_bytes(std::string_view text) { return Bytes(to_integer(text, kBytes)); }

BytesPerSecond parse_bandwidth(std::string_view text) { return BytesPerSecond(to_rate(text, kBandwidth)); }

FlopsPerSecond parse_flop_rate(std::string_view text) { return FlopsPerSecond(to_rate(text, kFlopRate)); }

Time parse_time(std::string_view text) { return Time::ns(to_integer(text, kTime)); }

double parse_power(std::string_view text) { return to_rate(text, kPower); }
double parse_frequency(std::string_view text) { return to_rate(text, kFrequency); }
double parse_price(std::string_view text) { return to_rate(text, kPrice); }

std::string format_bytes(Bytes bytes) {
  static constexpr std::array kUnits = {
      NamedUnit{"B", 1},
      NamedUnit{"KiB", kKi},
      NamedUnit{"MiB", kMi},
      NamedUnit{"GiB", kGi},
      NamedUnit{"TiB", kTi},
      NamedUnit{"PiB", kPi},
  };
  return format_in(as_double(bytes.count()), kUnits);
}

std::string format_time(Time time) {
  const double ns = as_double(time.nanoseconds());
  // Seconds up to two minutes: "90.0 s" compares more easily with "84.9 s" than "1.50 min".
  const double size = std::abs(ns);
  const std::size_t count = size < 1.2e11 ? 4 : size < 7.2e12 ? 5 : size < 1.728e14 ? 6 : 7;
  return format_in(ns, std::span(kTimeUnits).first(count));
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

std::string format_bandwidth(BytesPerSecond rate) {
  return format_in(rate.value(), std::span(kBandwidthUnits).first(6));
}

std::string format_flop_rate(FlopsPerSecond rate) {
  static constexpr std::array kUnits = {
      NamedUnit{"FLOP/s", 1},
      NamedUnit{"kFLOP/s", 1e3},
      NamedUnit{"MFLOP/s", 1e6},
      NamedUnit{"GFLOP/s", 1e9},
      NamedUnit{"TFLOP/s", 1e12},
      NamedUnit{"PFLOP/s", 1e15},
      NamedUnit{"EFLOP/s", 1e18},
  };
  return format_in(rate.value(), kUnits);
}

}
