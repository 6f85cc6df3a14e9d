#include <fmt/format.h>

#include <algorithm>

#include "reports/conform/conform_parts.h"

namespace foreshard {
namespace {

void add(std::string& text, std::string_view word) {
  if (word.empty()) return;
  if (!text.empty()) text += ' ';
  text += word;
}

std::string name_of(std::int32_t unit, const std::vector<std::string>& names) {
  if (unit == HostEvent::kNobody) return "";
  if (unit == HostEvent::kRootModule) return "root";
  return names.at(at(unit));
}

}

std::string describe(const RecordedEvent& event) {
  constexpr std::int64_t kBlank = RecordedEvent::kBlank;
  std::string text = event.kind;
  add(text, event.unit);
  add(text, event.stream);
  if (event.bytes_in != kBlank && event.bytes_out != kBlank)
    add(text, fmt::format("{} -> {}", event.bytes_in, event.bytes_out));
  else if (event.bytes_in != kBlank) add(text, fmt::format("{} ->", event.bytes_in));
  else if (event.bytes_out != kBlank) add(text, fmt::format("-> {}", event.bytes_out));
  add(text, event.dtype);
  add(text, event.group);
  add(text, event.cause);
  add(text, event.state);
  if (!event.on.empty()) add(text, fmt::format("[{}]", event.on));
  if (!event.communicator.empty()) add(text, "on " + event.communicator);
  add(text, event.issue);
  if (event.microbatch >= 0) add(text, fmt::format("mb{}", event.microbatch));
  return text;
}

std::string describe(const RecordedAllocation& a) {
  std::string text = fmt::format("{} {} {} {}", a.freed ? '-' : '+', a.bytes, a.pool, a.category);
  add(text, a.unit);
  return text;
}

RecordedEvent in_recorders_words(const HostEvent& event, const std::vector<std::string>& names) {
  RecordedEvent row;
  row.microbatch = event.microbatch;
  row.kind = event.kind;
  row.unit = name_of(event.unit, names);
  row.stream = event.stream;
  row.bytes_in = event.bytes_in;
  row.bytes_out = event.bytes_out;
  row.dtype = event.dtype;
  row.group = event.group_size > 0 ? fmt::format("{}:{}", event.group, event.group_size) : std::string(event.group);
  row.cause = event.cause;
  row.state = event.state;
  row.on = event.on;
  add(row.on, name_of(event.on_unit, names));
  if (event.on_group_size > 0) add(row.on, fmt::format("{}:{}", event.on_group, event.on_group_size));
  if (!event.splits.empty()) row.on = event.splits;
  if (event.communicator >= 0) row.communicator = fmt::format("{}", event.communicator);
  row.issue = event.issue;
  return row;
}

std::string around(const SideBySide& sides, std::size_t at) {
  constexpr std::size_t kBefore = 3;
  constexpr std::size_t kAfter = 2;
  constexpr std::size_t kWidest = 120;
  const std::size_t first = at > kBefore ? at - kBefore : 0;
  const std::size_t last = std::min(at + kAfter + 1, std::max(sides.recorded, sides.predicted));
  struct Line {
    std::string label, recorded, predicted;
  };
  std::vector<Line> lines = {{"", "recorded", "predicted"}};
  for (std::size_t i = first; i < last; ++i) {
    lines.push_back({sides.label(i), i < sides.recorded ? sides.recorded_row(i) : "(no row)",
        i < sides.predicted ? sides.predicted_row(i) : "(no row)"});
  }
  std::size_t label = 0;
  std::size_t recorded = 0;
  for (const Line& line : lines) {
    label = std::max(label, line.label.size());
    recorded = std::max(recorded, std::min(line.recorded.size(), kWidest));
  }
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Line& line = lines[i];
    const bool differs = i > 0 && line.recorded != line.predicted;
    text += fmt::format("    {} {:<{}}  {:<{}} | {}\n", differs ? '!' : ' ', line.label, label, line.recorded, recorded,
        line.predicted);
  }
  return text;
}

}
