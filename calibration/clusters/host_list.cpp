// A part between commas is plain text with bracketed lists of numbers in between; the last bracket counts fastest.
#include "calibration/clusters/host_list.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "sim/base/lookup.h"
#include "sim/base/parse.h"

namespace foreshard {
namespace {

template <typename... Parts>
[[noreturn]] void fail(fmt::format_string<Parts...> text, Parts&&... parts) {
  throw std::invalid_argument(fmt::format(text, std::forward<Parts>(parts)...));
}

std::string shortened(std::string_view text) { return std::string(text.substr(0, 64)); }

int number_of(std::string_view text, std::string_view range) {
  const int value = parse_number<int>(text).value_or(-1);
  if (value < 0) fail("'{}' is no range of numbers", shortened(range));
  return value;
}

// "1-3,07" as texts.
std::vector<std::string> expand_numbers(std::string_view list, std::size_t most) {
  std::vector<std::string> numbers;
  while (!list.empty()) {
    const std::string_view range = cut(list, ",");
    const std::size_t dash = std::min(range.find('-'), range.size());
    const std::string_view low = range.substr(0, dash);
    const int first = number_of(low, range);
    const int last = dash == range.size() ? first : number_of(range.substr(dash + 1), range);
    if (last < first) fail("'{}' counts backwards", shortened(range));
    for (int i = first; i <= last; ++i) {
      if (numbers.size() >= most) fail("names more than {} nodes", most);
      numbers.push_back(fmt::format("{:0{}}", i, low.size()));
    }
  }
  return numbers;
}

void append_part(std::string_view part, std::size_t most, std::vector<std::string>& names) {
  std::vector<std::string> grown{""};
  while (!part.empty()) {
    const std::size_t open = std::min(part.find('['), part.size());
    const std::string_view plain = part.substr(0, open);
    for (std::string& name : grown) name += plain;
    part.remove_prefix(open);
    if (part.empty()) break;
    const std::size_t close = part.find(']');
    if (close == std::string_view::npos) fail("'{}' is cut off", shortened(part));
    const std::vector<std::string> numbers = expand_numbers(part.substr(1, close - 1), most);
    if (numbers.empty()) fail("has an empty list in brackets");
    if (names.size() + grown.size() * numbers.size() > most) fail("names more than {} nodes", most);
    std::vector<std::string> longer;
    longer.reserve(grown.size() * numbers.size());
    for (const std::string& name : grown)
      for (const std::string& number : numbers) longer.push_back(name + number);
    grown = std::move(longer);
    part.remove_prefix(close + 1);
    if (grown.front().size() > kLongestHostName) fail("has a name that is too long");
  }
  if (grown.front().size() > kLongestHostName) fail("has a name that is too long");
  append(names, grown);
}

}

std::vector<std::string> expand_host_list(std::string_view text, std::size_t most) {
  std::vector<std::string> names;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && (text[i] != ',' || depth > 0)) {
      depth += text[i] == '[' ? 1 : text[i] == ']' ? -1 : 0;
      continue;
    }
    const std::string_view part = text.substr(begin, i - begin);
    begin = i + 1;
    if (part.empty()) continue;
    if (names.size() >= most) fail("names more than {} nodes", most);
    append_part(part, most, names);
  }
  return names;
}

}
