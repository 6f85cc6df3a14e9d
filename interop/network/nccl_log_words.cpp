#include "interop/network/nccl_log_words.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "sim/base/letters.h"
#include "sim/base/parse.h"

namespace foreshard::nccl_log {
namespace {

// Bytes of the launcher's mark that the text begins with: "[1,0]<stdout>: ", "0: ", or "node-3: "
// where a comment or a row follows.
std::size_t launcher_mark(std::string_view text) {
  if (text.empty()) return 0;
  if (text[0] == '[') {
    std::size_t at = text.find(']');
    if (at == std::string_view::npos) return 0;
    ++at;
    if (at < text.size() && text[at] == '<') {
      const std::size_t end = skip(text, at + 1, [](char c) { return c >= 'a' && c <= 'z'; });
      if (end > at + 1 && end < text.size() && text[end] == '>') at = end + 1;
    }
    if (at < text.size() && text[at] == ':') ++at;
    return skip(text, at, is_space);
  }
  const bool is_number = is_digit(text[0]);
  if (!is_number && std::isalpha(static_cast<unsigned char>(text[0])) == 0) return 0;
  const std::size_t colon =
      skip(text, 0, [&](char c) { return is_number ? is_digit(c) : is_name_letter(c); });
  if (colon >= text.size() || text[colon] != ':') return 0;
  const std::size_t end = skip(text, colon + 1, is_space);
  if (end == colon + 1) return 0;
  const bool follows = end < text.size() && (text[end] == '#' || is_digit(text[end]));
  return is_number || follows ? end : 0;
}

bool is_count(const std::string& word) {
  return !word.empty() && std::ranges::all_of(word, is_digit);
}

}  // namespace

std::optional<double> number_of(const std::string& word) {
  const std::optional<double> value = parse_number<double>(word);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::size_t launcher_prefix(std::string_view line) {
  const std::size_t begin = skip(line, 0, is_space);
  std::size_t at = begin;
  for (int i = 0; i < 2; ++i) at += launcher_mark(line.substr(at));
  return at == begin || at > line.find('#') ? 0 : at;
}

std::optional<CollectiveOperation> operation_in(const std::string& text) {
  std::optional<CollectiveOperation> found;
  std::size_t where = 0;
  const auto look = [&](const char* name, CollectiveOperation operation) {
    const std::size_t at = text.rfind(name);
    // "reduce" is inside "all_reduce" and "reduce_scatter", which begin earlier or there.
    if (at == std::string::npos || (found && at < where)) return;
    found = operation;
    where = at;
  };
  look("reduce_perf", CollectiveOperation::kReduce);
  look("broadcast", CollectiveOperation::kBroadcast);
  look("sendrecv", CollectiveOperation::kSendRecv);
  look("alltoall", CollectiveOperation::kAllToAll);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto operation = static_cast<CollectiveOperation>(i);
    const std::size_t at = text.rfind(to_string(operation));
    if (at != std::string::npos && (!found || at + 4 >= where)) found = operation, where = at;
  }
  return found;
}

std::optional<Device> device_in(std::string_view text, const Words& words) {
  std::size_t at = 0;
  const auto word = [&](std::string_view wanted) {
    const bool same =
        at < words.size() && words[at].size() == wanted.size() &&
        std::equal(wanted.begin(), wanted.end(), words[at].begin(),
                   [](char a, char b) { return a == std::tolower(static_cast<unsigned char>(b)); });
    at += same ? 1 : 0;
    return same;
  };
  const auto count = [&] { return at < words.size() && is_count(words[at]) && ++at != 0; };
  while (at < words.size() && !word("rank")) ++at;
  if (!count()) return std::nullopt;
  if (word("group") && !count()) return std::nullopt;
  if (!word("pid") || !count() || !word("on") || at >= words.size()) return std::nullopt;
  Device device{words[at++], ""};
  if (!word("device") || !count()) return std::nullopt;
  if (at >= words.size() || words[at][0] != '[') return std::nullopt;
  const std::size_t close = text.find(']');
  if (close == std::string_view::npos) return std::nullopt;
  device.name = text.substr(skip(text, close + 1, is_space));
  return device;
}

}  // namespace foreshard::nccl_log
