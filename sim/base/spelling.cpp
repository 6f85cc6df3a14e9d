// Optimal string alignment by the usual table of prefix distances, three rows of it at a time.

#include "sim/base/spelling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "sim/base/letters.h"

namespace foreshard {
namespace {

constexpr std::size_t kLongestWord = 100;  // bounds the work; no key or name is longer
constexpr std::size_t kLongestQuote = 60;

std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> above(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(above);
    above.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitution = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}

std::string nearest_spelling(std::string_view word, std::span<const std::string> candidates) {
  if (word.empty() || word.size() > kLongestWord) return "";
  const std::string low = lower(word);
  std::string best;
  std::size_t best_distance = kLongestWord;
  for (const std::string& candidate : candidates) {
    if (candidate.empty() || candidate.size() > kLongestWord) continue;
    const std::size_t d = distance(low, lower(candidate));
    if (d <= std::max(word.size(), candidate.size()) / 3 && d < best_distance) {
      best = candidate;
      best_distance = d;
    }
  }
  return best;
}

std::string quote(std::string_view text) {
  std::size_t end = text.size();
  if (end > kLongestQuote) {
    end = kLongestQuote;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  }
  std::string result = "'";
  for (const char c : text.substr(0, end)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') result += "\\n";
    else if (c == '\t') result += "\\t";
    else if (byte < 0x20 || byte == 0x7F) result += fmt::format("\\x{:02x}", byte);
    else result += c;
  }
  if (end < text.size()) result += "...";
  return result + "'";
}

}
