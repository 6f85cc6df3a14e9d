#include "reports/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

std::string spaces(std::size_t count) { return std::string(count, ' '); }

}  // namespace

std::string Paint::code(std::string_view number, std::string_view text) const {
  if (color_ == Color::kNever || text.empty()) return std::string(text);
  return fmt::format("\x1b[{}m{}\x1b[0m", number, text);
}

std::size_t display_width(std::string_view utf8) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    if (utf8[i] == '\x1b') {
      while (i < utf8.size() && utf8[i] != 'm') ++i;
    } else if (!continues(utf8[i])) {
      ++width;
    }
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

std::string clipped(std::string_view text, std::size_t width) {
  if (display_width(text) <= width) return std::string(text);
  std::string result;
  std::size_t characters = 0;
  for (char byte : text) {
    if (!continues(byte) && characters++ + 1 == width) break;
    result += byte;
  }
  return result + "…";
}

std::string bar(double fraction, std::size_t width) {
  static constexpr std::array<const char*, 8> kParts = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double cells = std::clamp(fraction, 0.0, 1.0) * static_cast<double>(width);
  auto eighths = static_cast<std::size_t>(std::lround(cells * 8));
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
    const std::size_t taken = display_width(lines.back());
    lines.back() += clipped(word, std::max<std::size_t>(width - std::min(taken, width), 1));
    fresh = false;
  }
  return lines;
}

std::vector<std::string> indented(const std::string& text) {
  std::vector<std::string> lines = wrapped(text, kTextWidth - 2, 2);
  for (std::string& line : lines) line.insert(0, "  ");
  return lines;
}

std::vector<std::string> first_lines(std::vector<std::string> lines, std::size_t most) {
  if (lines.size() <= most) return lines;
  lines.resize(most);
  if (!lines.empty()) lines.back() = clipped(lines.back(), kTextWidth - 2) + " …";
  return lines;
}

std::vector<std::string> aligned(const std::vector<std::vector<std::string>>& rows,
                                 std::size_t left_columns) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], display_width(row[c]));
    }
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

std::string signed_seconds(double seconds) {
  return (seconds > 0 ? "+" : "") + format_time(Time::seconds(seconds));
}

std::string bytes_text(double bytes) {
  return format_bytes(Bytes(static_cast<std::int64_t>(bytes)));
}

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

}  // namespace foreshard
