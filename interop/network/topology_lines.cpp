#include "interop/network/topology_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "calibration/clusters/host_list.h"
#include "sim/base/letters.h"

namespace foreshard {
namespace {

// nvidia-smi underlines its header: without "\x1b[4m" and the like.
std::string without_colours(std::string_view line) {
  std::string plain;
  for (std::size_t at = 0; at < line.size(); ++at) {
    if (line.substr(at, 2) == "\x1b[") {
      const std::size_t end = line.find_first_not_of("0123456789;", at + 2);
      if (end != std::string_view::npos && line[end] == 'm') {
        at = end;
        continue;
      }
    }
    plain.push_back(line[at]);
  }
  return plain;
}

}

Words words_of_line(std::string_view line) {
  Words words;
  for (std::size_t at = 0; at < line.size();) {
    if (is_space(line[at])) {
      ++at;
      continue;
    }
    const std::size_t begin = at;
    while (at < line.size() && !is_space(line[at])) ++at;
    words.emplace_back(line.substr(begin, at - begin));
  }
  return words;
}

std::vector<std::string> text_lines(std::string_view text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find_first_of("\r\n", at), text.size());
    lines.push_back(without_colours(text.substr(at, end - at)));
    at = end + (text.substr(end).starts_with("\r\n") ? 2 : 1);
  }
  return lines;
}

std::string value_of(const Words& words, std::string_view key) {
  for (const std::string& word : words) {
    const std::size_t equal = word.find('=');
    if (equal == std::string::npos) continue;
    if (lower(word.substr(0, equal)) == lower(key)) return word.substr(equal + 1);
  }
  return "";
}

std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name.substr(0, kLongestHostName)) plain.push_back(is_name_letter(c) ? c : '_');
  return plain;
}

void Importer::figure(const std::string& key, const std::string& value, std::string what, int line) {
  out.figures.emplace_back(key, value);
  note(Mapping::kMapped, std::move(what), fmt::format("{}: {}", key, value), "", line);
}

std::vector<std::string> Importer::expanded(std::string_view list, int line, std::size_t most) const {
  try {
    return expand_host_list(list, most);
  } catch (const std::invalid_argument& why) {
    fail(line, std::string("a list of names ") + why.what(), "n[1-16]");
  }
}

}
