#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

namespace foreshard {

// Of ASCII's letters, whatever the locale.
inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_letter(char c) { return c >= 'a' && c <= 'z'; }
inline bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

inline std::string lower(std::string_view text) {
  std::string low(text);
  for (char& c : low) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return low;
}

inline bool has_any(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::ranges::any_of(words,
                             [&](std::string_view word) { return text.find(word) != text.npos; });
}

// What stands in front of the separator, which leaves `text` with it; all where there is none.
inline std::string_view cut(std::string_view& text, std::string_view separator) {
  const std::size_t at = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(std::min(at + separator.size(), text.size()));
  return part;
}

// What an enumerator is called, of words in the order of its enumeration.
template <typename Enum>
constexpr const char* word_at(Enum value, std::initializer_list<const char*> words,
                              const char* beyond = "?") {
  const auto index = at(value);
  return index < words.size() ? words.begin()[index] : beyond;
}

}  // namespace foreshard
