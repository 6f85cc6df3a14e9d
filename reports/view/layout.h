// Small things of terminal text: colours, bars, columns, wrapping. Widths are in characters, not bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace foreshard {

using Lines = std::vector<std::string>;

enum class Color : std::uint8_t { kNever, kAlways };

// Of paragraphs. Nothing is cut: a longer line is the terminal's to fit (fitted).
inline constexpr std::size_t kTextWidth = 100;

// Wraps text in ANSI codes where colours are wanted.
class Paint {
 public:
  explicit Paint(Color color) : color_(color) {}
  std::string bold(std::string_view text) const { return code("1", text); }
  std::string dim(std::string_view text) const { return code("2", text); }
  std::string red(std::string_view text) const { return code("31", text); }
  std::string green(std::string_view text) const { return code("32", text); }
  std::string yellow(std::string_view text) const { return code("33", text); }
  std::string cyan(std::string_view text) const { return code("36", text); }

 private:
  std::string code(std::string_view number, std::string_view text) const;
  Color color_;
};

std::size_t display_width(std::string_view utf8);             // without ANSI codes
std::string left(std::string_view text, std::size_t width);   // padded on the right
std::string right(std::string_view text, std::size_t width);  // padded on the left
// A bar of fraction * width cells, in eighths of a cell; at least one eighth where fraction > 0.
std::string bar(double fraction, std::size_t width);

// Lines of at most `width` characters, broken at spaces; lines after the first are indented. A word
// that is longer stands on a line of its own.
std::vector<std::string> wrapped(std::string_view text, std::size_t width, std::size_t indent);
// The same of a paragraph under a heading: every line two in, within kTextWidth.
std::vector<std::string> indented(const std::string& text);
// For a terminal: sentences that are longer than `width` are wrapped, rows of tables (two spaces
// between words) cut, their last character being "…".
std::string fitted(std::string_view text, std::size_t width);

// Columns of cells as wide as the widest, two spaces between them: the first `left_columns` start
// on the left, the others end on the right.
std::vector<std::string> aligned(const std::vector<std::vector<std::string>>& rows, std::size_t left_columns = 1);

std::string seconds_text(double seconds);     // "84.9 ms"
std::string signed_seconds(double seconds);   // "+84.9 ms"
std::string bytes_text(double bytes);         // "2.18 GiB"
std::string signed_bytes(double bytes);       // "-2.18 GiB"
std::string percent_text(double ratio);       // "41.3 %"
std::string signed_percent(double ratio);     // "+4.1 %"
std::string cardinal(double value);           // "9,714"
std::string chance_text(double probability);  // "97 %", ">99 %", "<1 %"

}
