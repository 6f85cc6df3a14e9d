// One pass over the text: each row appends its cells to one flat vector. zlib's gzread hands plain
// files through as they are.
#include "calibration/csv_file.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <memory>

#include "sim/base/lookup.h"
#include "sim/base/parse.h"
#include "sim/base/spelling.h"
#include "sim/base/text_file.h"

namespace foreshard {
namespace {

// What comes behind a LF, CR LF or CR; `at` where none of them stands there.
const char* line_end(const char* at, const char* end) {
  if (at == end || (*at != '\r' && *at != '\n')) return at;
  return at + (*at == '\r' && at + 1 != end && at[1] == '\n' ? 2 : 1);
}

}

CsvFile::CsvFile(std::string_view text, std::string name) : name_(std::move(name)), text_(text.begin(), text.end()) {
  if (text.starts_with("\xEF\xBB\xBF")) text_.erase(text_.begin(), text_.begin() + 3);
  const char* at = text_.data();
  const char* end = text_.data() + text_.size();
  int line = 1;
  std::vector<Cell> row;
  while (at != end) {
    const int first_line = line;
    if (const char* next = line_end(at, end); next != at) {  // an empty line
      at = next;
      ++line;
      continue;
    }
    row.clear();
    at = read_row(at, line, row);
    if (header_.empty()) {
      for (const Cell& cell : row) header_.push_back(cell.text);
      continue;
    }
    if (row.size() != header_.size()) {
      throw ConfigError({name_, first_line, 1, ""}, fmt::format("the row has {} cells", row.size()),
          fmt::format("{} as in the header", header_.size()));
    }
    append(cells_, row);
    lines_.push_back(first_line);
  }
  if (header_.empty()) throw ConfigError({name_, 1, 1, ""}, "is empty", "a header line");
}

const char* CsvFile::read_row(const char* at, int& line, std::vector<Cell>& cells) {
  const char* const end = text_.data() + text_.size();
  const char* line_begin = at;
  const int first_line = line;
  const auto column = [&](const char* place) { return static_cast<std::uint32_t>(place - line_begin) + 1; };
  while (true) {
    const char* const begin = at;
    const std::uint32_t begin_column = column(begin);
    if (at != end && *at == '"') {
      bool escaped = false;
      for (++at;; ++at) {
        if (at == end) {
          throw ConfigError(
              {name_, first_line, static_cast<int>(begin_column), ""}, "a quoted cell does not end", "a closing quote");
        }
        if (*at == '\n') ++line;
        if (*at != '"') continue;
        if (at + 1 == end || at[1] != '"') break;
        escaped = true;
        ++at;
      }
      std::string_view text(begin + 1, static_cast<std::size_t>(at - begin) - 1);
      ++at;  // the closing quote
      if (escaped) {
        std::string& plain = unescaped_.emplace_back();
        for (std::size_t i = 0; i < text.size(); ++i) {
          plain.push_back(text[i]);
          if (text[i] == '"') ++i;
        }
        text = plain;
      }
      cells.push_back({text, begin_column});
    } else {
      while (at != end && *at != ',' && *at != '\n' && *at != '\r' && *at != '"') ++at;
      cells.push_back({{begin, static_cast<std::size_t>(at - begin)}, begin_column});
    }
    if (at == end) return at;
    if (const char* next = line_end(at, end); next != at) {
      ++line;
      return next;
    }
    if (*at != ',') {
      throw ConfigError({name_, line, static_cast<int>(column(at)), ""}, "a quote inside a cell",
          "cells with quotes as \"...\"\"...\"");
    }
    ++at;
  }
}

std::optional<std::size_t> CsvFile::find(std::string_view column) const {
  const auto found = std::ranges::find(header_, column);
  if (found == header_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - header_.begin());
}

std::size_t CsvFile::at(std::string_view column) const {
  const std::optional<std::size_t> found = find(column);
  if (found) return *found;
  const std::vector<std::string> known(header_.begin(), header_.end());
  throw ConfigError({name_, 1, 1, std::string(column)}, "there is no such column", "", nearest_spelling(column, known));
}

std::int64_t CsvFile::integer(std::size_t row, std::size_t column) const {
  const std::string_view cell = text(row, column);
  const auto value = parse_number<std::int64_t>(cell);
  if (!value) throw error(row, column, quote(cell) + " is not a whole number", "for example 4096");
  return *value;
}

ConfigError CsvFile::error(
    std::size_t row, std::size_t column, const std::string& what_is_wrong, const std::string& expected) const {
  return ConfigError({name_, lines_[row], static_cast<int>(cells_[row * header_.size() + column].column),
                         std::string(header_[column])},
      what_is_wrong, expected);
}

std::filesystem::path csv_path(const std::filesystem::path& folder, std::string_view stem) {
  for (const char* ending : {".csv", ".csv.gz"}) {
    std::filesystem::path path = folder / (std::string(stem) + ending);
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored)) return path;
  }
  return {};
}

CsvFile read_csv_file(const std::filesystem::path& path) {
  const auto fail = [&](const std::string& what) { throw ConfigError({path.string(), 0, 0, ""}, what); };
  expect_regular_file(path);
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), &gzclose);
  if (file == nullptr) fail("cannot be read");
  std::string text;
  constexpr std::size_t kBlock = 256 << 10;
  constexpr std::size_t kLargest = std::size_t{256} << 20;  // more is no recording
  while (true) {
    const std::size_t before = text.size();
    text.resize(before + kBlock);
    const int count = gzread(file.get(), text.data() + before, kBlock);
    int code = Z_OK;
    const char* message = gzerror(file.get(), &code);
    if (count < 0 || code == Z_BUF_ERROR)
      fail(fmt::format("cannot be unpacked: {}", *message != 0 ? message : "it is cut off"));
    text.resize(before + static_cast<std::size_t>(count));
    if (count == 0) break;
    if (text.size() > kLargest) refuse_too_large(path, kLargest);
  }
  return CsvFile(text, path.string());
}

}
