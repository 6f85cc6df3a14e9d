#include "calibration/csv_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "calibration/csv_file.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"

namespace foreshard {
namespace {

// A table of measurements has thousands of rows and tens of columns; a cell costs some 40 bytes.
constexpr std::ptrdiff_t kMostCells = 2'000'000;
constexpr std::size_t kMostColumns = 1'000;

}

CsvTable::CsvTable(std::string_view text, std::string file_name) : file_name_(std::move(file_name)) {
  const auto ends_cell = [](char c) { return c == ',' || c == '\n' || c == '\r'; };
  if (std::ranges::count_if(text, ends_cell) > kMostCells) {
    throw ConfigError(
        {file_name_, 1, 1, ""}, "the table has too many cells", fmt::format("at most {} in all", kMostCells));
  }
  const CsvFile file(text, file_name_);
  if (file.columns() > kMostColumns) {
    throw ConfigError(
        {file_name_, 1, 1, ""}, "the table has too many columns", fmt::format("at most {}", kMostColumns));
  }
  for (std::size_t c = 0; c < file.columns(); ++c) columns_.emplace_back(file.header(c));
  for (std::size_t row = 0; row < file.rows(); ++row) {
    std::vector<std::string>& cells = cells_.emplace_back();
    for (std::size_t c = 0; c < columns_.size(); ++c) cells.emplace_back(file.text(row, c));
    lines_.push_back(file.line(row));
  }
}

std::size_t CsvTable::column(std::string_view name) const {
  const auto found = std::ranges::find(columns_, name);
  if (found == columns_.end()) throw ConfigError({file_name_, 1, 1, ""}, fmt::format("has no column '{}'", name));
  return at(std::distance(columns_.begin(), found));
}

void CsvTable::blank(std::string_view name) {
  const std::size_t index = column(name);
  for (std::vector<std::string>& cells : cells_) cells[index].clear();
}

bool CsvTable::has(std::string_view name) const { return contains(columns_, name); }

const std::string& CsvTable::text(std::size_t row, std::string_view name) const { return cells_.at(row)[column(name)]; }

double CsvTable::number(std::size_t row, std::string_view name) const {
  const std::string& cell = text(row, name);
  const std::optional<double> value = parse_number<double>(cell);
  if (!value || !std::isfinite(*value)) {
    throw ConfigError({file_name_, line(row), 1, std::string(name)}, fmt::format("'{}' is not a number", cell),
        "a number such as 69.3");
  }
  return *value;
}

}
