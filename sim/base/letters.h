#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

#include "sim/base/integers.h"
#include "sim/base/lookup.h"

namespace foreshard {

// Of ASCII's letters, whatever the locale.
inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_letter(char c) { return c >= 'a' && c <= 'z'; }
inline bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

inline char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
// A letter, a digit or one of "._-".
inline bool is_name_letter(char c) { return is_letter(lower(c)) || is_digit(c) || c == '.' || c == '_' || c == '-'; }

inline std::string lower(std::string_view text) {
  std::string low(text);
  for (char& c : low) c = lower(c);
  return low;
}
// Its letters, in lower case, and its digits alone.
inline std::string squeezed(std::string_view text) {
  std::string low = lower(text);
  std::erase_if(low, [](char c) { return !is_letter(c) && !is_digit(c); });
  return low;
}

std::size_t skip(std::string_view text, std::size_t at, auto is) {
  while (at < text.size() && is(text[at])) ++at;
  return at;
}

inline bool has_any(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::ranges::any_of(
      words, [&](std::string_view word) { return contains(text, word); });
}

// What stands in front of the separator, which leaves `text` with it; all where there is none.
inline std::string_view cut(std::string_view& text, std::string_view separator) {
  const std::size_t at = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(std::min(at + separator.size(), text.size()));
  return part;
}

// What an enumerator is called, of words in the order of its enumeration.
constexpr const char* word_at(auto value, std::initializer_list<const char*> words, const char* beyond = "?") {
  const auto index = at(value);
  return index < words.size() ? words.begin()[index] : beyond;
}
template <typename Enum, typename... Words>
constexpr const char* word_at(Enum value, const char* first, Words... others) {
  return word_at(value, {first, others...});
}

}
