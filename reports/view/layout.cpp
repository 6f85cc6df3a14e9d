#include "reports/view/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

std::string spaces(std::size_t count) { return std::string(count, ' '); }

// The first `width` characters, the last of them "…"; codes of colours are kept.
std::string beginning(std::string_view line, std::size_t width) {
  std::string result;
  std::size_t characters = 0;
  bool is_coloured = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b') {
      const std::size_t end = std::min(line.find('m', i), line.size() - 1);
      result += line.substr(i, end - i + 1);
      is_coloured = true;
      i = end;
      continue;
    }
    if (!continues(line[i]) && ++characters == width) break;
    result += line[i];
  }
  return result + "…" + (is_coloured ? "\x1b[0m" : "");
}

}

std::string Paint::code(std::string_view number, std::string_view text) const {
  if (color_ == Color::kNever || text.empty()) return std::string(text);
  return fmt::format("\x1b[{}m{}\x1b[0m", number, text);
}

std::size_t display_width(std::string_view utf8) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    if (utf8[i] == '\x1b')
      while (i < utf8.size() && utf8[i] != 'm') ++i;
    else if (!continues(utf8[i])) ++width;
  }
  return width;
}

std::string left(std::string_view text, std::size_t width) {
  const std::size_t used = display_width(text);
  return std::string(text) + spaces(width > used ? width - used : 0);
}

std::string right(std::string_view text, std::size_t width) {
  const std::size_t used = display_width(text);
  return spaces(width > used ? width - used : 0) + std::string(text);
}

std::string bar(double fraction, std::size_t width) {
  static constexpr std::array<const char*, 8> kParts = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double cells = std::clamp(fraction, 0.0, 1.0) * as_double(width);
  auto eighths = at(std::lround(cells * 8));
  if (fraction > 0) eighths = std::max<std::size_t>(eighths, 1);
  std::string result;
  for (std::size_t i = 0; i < eighths / 8; ++i) result += "█";
  return result + kParts[eighths % 8];
}

std::vector<std::string> wrapped(std::string_view text, std::size_t width, std::size_t indent) {
  std::vector<std::string> lines(1);
  bool fresh = true;  // nothing but the indent stands on the line yet
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    begin = end + 1;
    if (word.empty()) continue;
    if (!fresh && display_width(lines.back()) + 1 + display_width(word) > width) {
      lines.push_back(spaces(indent));
      fresh = true;
    }
    if (!fresh) lines.back() += ' ';
    lines.back() += word;
    fresh = false;
  }
  return lines;
}

std::vector<std::string> indented(const std::string& text) {
  std::vector<std::string> lines = wrapped(text, kTextWidth - 2, 2);
  for (std::string& line : lines) line.insert(0, "  ");
  return lines;
}

std::string fitted(std::string_view text, std::size_t width) {
  constexpr std::size_t kNarrowest = 20;
  width = std::max(width, kNarrowest);
  std::string result;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const bool ends = end < text.size();
    text.remove_prefix(ends ? end + 1 : end);
    const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
    const bool is_table = line.find("  ", indent) != std::string_view::npos;
    if (display_width(line) <= width) {
      result += line;
    } else if (is_table) {
      result += beginning(line, width);
    } else {
      const std::size_t room = width - std::min(indent, width / 2);
      bool is_first = true;
      for (const std::string& part : wrapped(line, room, 2)) {
        result += (is_first ? "" : "\n") + spaces(width - room) + part;
        is_first = false;
      }
    }
    if (ends) result += '\n';
  }
  return result;
}

std::vector<std::string> aligned(const std::vector<std::vector<std::string>>& rows, std::size_t left_columns) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], display_width(row[c]));
  }
  std::vector<std::string> lines;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      if (c > 0) line += "  ";
      line += c < left_columns ? left(row[c], widths[c]) : right(row[c], widths[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string seconds_text(double seconds) { return format_time(Time::seconds(seconds)); }

std::string signed_seconds(double seconds) { return (seconds > 0 ? "+" : "") + format_time(Time::seconds(seconds)); }

std::string bytes_text(double bytes) { return format_bytes(Bytes(static_cast<std::int64_t>(bytes))); }

std::string signed_bytes(double bytes) { return (bytes > 0 ? "+" : "") + bytes_text(bytes); }

std::string percent_text(double ratio) { return fmt::format("{:.1f} %", ratio * 100); }

std::string signed_percent(double ratio) { return fmt::format("{:+.1f} %", ratio * 100); }

std::string cardinal(double value) {
  if (std::abs(value) < 100) return fmt::format("{:.3g}", value);
  return format_count(static_cast<std::int64_t>(std::llround(value)));
}

std::string chance_text(double probability) {
  if (probability > 0.995) return ">99 %";
  if (probability < 0.005) return "<1 %";
  return fmt::format("{:.0f} %", probability * 100);
}

}
