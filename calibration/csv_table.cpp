#include "calibration/csv_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"

namespace foreshard {
namespace {

// A table of measurements has thousands of rows and tens of columns; a cell costs some 40 bytes.
constexpr std::size_t kMostCells = 2'000'000;
constexpr std::size_t kMostColumns = 1'000;

std::vector<std::string> split_line(std::string_view line, const Location& where) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  bool closed = false;  // after the closing quote only a comma may come
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted) {
      if (c != '"') {
        fields.back().push_back(c);
      } else if (i + 1 < line.size() && line[i + 1] == '"') {
        fields.back().push_back('"');
        ++i;
      } else {
        quoted = false;
        closed = true;
      }
    } else if (c == ',') {
      if (fields.size() == kMostColumns) {
        throw ConfigError(where, "the row has too many fields",
                          fmt::format("at most {}", kMostColumns));
      }
      fields.emplace_back();
      closed = false;
    } else if (c == '"' && fields.back().empty() && !closed) {
      quoted = true;
    } else if (c == '"' || closed) {
      throw ConfigError(where, "a quote inside a field", "fields with quotes as \"...\"\"...\"");
    } else {
      fields.back().push_back(c);
    }
  }
  if (quoted) throw ConfigError(where, "a quoted field does not end", "a closing quote");
  return fields;
}

}  // namespace

CsvTable::CsvTable(std::string_view text, std::string file_name)
    : file_name_(std::move(file_name)) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  int line_number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of("\r\n"), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end);
    if (!text.empty()) text.remove_prefix(text.starts_with("\r\n") ? 2 : 1);
    ++line_number;
    if (line.empty()) continue;
    const Location where{file_name_, line_number, 1, ""};
    std::vector<std::string> fields = split_line(line, where);
    if (columns_.empty()) {
      columns_ = std::move(fields);
    } else if (fields.size() != columns_.size()) {
      throw ConfigError(where, fmt::format("{} fields", fields.size()),
                        fmt::format("{} as in the header", columns_.size()));
    } else if ((lines_.size() + 1) * columns_.size() > kMostCells) {
      throw ConfigError(where, "the table has too many cells",
                        fmt::format("at most {} in all", kMostCells));
    } else {
      cells_.push_back(std::move(fields));
      lines_.push_back(line_number);
    }
  }
  if (columns_.empty()) throw ConfigError({file_name_, 1, 1, ""}, "is empty", "a header line");
}

std::size_t CsvTable::column(std::string_view name) const {
  const auto found = std::ranges::find(columns_, name);
  if (found == columns_.end()) {
    throw ConfigError({file_name_, 1, 1, ""}, fmt::format("has no column '{}'", name));
  }
  return at(std::distance(columns_.begin(), found));
}

void CsvTable::blank(std::string_view name) {
  const std::size_t index = column(name);
  for (std::vector<std::string>& cells : cells_) cells[index].clear();
}

bool CsvTable::has(std::string_view name) const { return contains(columns_, name); }

const std::string& CsvTable::text(std::size_t row, std::string_view name) const {
  return cells_.at(row)[column(name)];
}

double CsvTable::number(std::size_t row, std::string_view name) const {
  const std::string& cell = text(row, name);
  const std::optional<double> value = parse_number<double>(cell);
  if (!value || !std::isfinite(*value)) {
    throw ConfigError({file_name_, line(row), 1, std::string(name)},
                      fmt::format("'{}' is not a number", cell), "a number such as 69.3");
  }
  return *value;
}

}  // namespace foreshard
