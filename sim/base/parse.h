// Texts as numbers and as lists. Numbers are as std::from_chars reads them: no blanks, no plus
// sign, whatever the locale.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "sim/base/letters.h"

namespace foreshard {

// Of all of the text; nothing where it is none.
template <typename Number, typename... Base>
std::optional<Number> parse_number(std::string_view text, Base... base) {
  Number value{};
  const char* const last = text.data() + text.size();
  const auto [end, failure] = std::from_chars(text.data(), last, value, base...);
  return failure == std::errc() && end == last ? std::optional(value) : std::nullopt;
}

// Of what the text begins with.
template <typename Number>
Number leading_number(std::string_view text, Number otherwise = 0) {
  std::from_chars(text.data(), text.data() + text.size(), otherwise);
  return otherwise;
}

// "2.15.0" -> {2, 15}; nothing where no point follows a number.
inline std::optional<std::pair<int, int>> parse_version(std::string_view text) {
  int major = 0;
  const char* const last = text.data() + text.size();
  const auto [point, failure] = std::from_chars(text.data(), last, major);
  if (failure != std::errc() || point == last || *point != '.') return std::nullopt;
  return std::pair(major, leading_number<int>({point + 1, last}));
}

// What stands between separators; nothing behind a last one.
inline std::vector<std::string> parts_of(std::string_view text, std::string_view separator) {
  std::vector<std::string> parts;
  while (!text.empty()) parts.emplace_back(cut(text, separator));
  return parts;
}

}
