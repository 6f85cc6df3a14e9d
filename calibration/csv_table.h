// A table of comma separated values (calibration/csv_file.h) whose cells are asked for by name. Strict: a ragged row, a
// number that is none, more than 1,000 columns or 2,000,000 cells are a ConfigError.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace foreshard {

inline constexpr std::size_t kMaxTableBytes = std::size_t{32} << 20;

class CsvTable {
 public:
  // Throws ConfigError; `file_name` is what errors call the text.
  CsvTable(std::string_view text, std::string file_name);

  std::size_t rows() const { return cells_.size(); }
  const std::string& file_name() const { return file_name_; }
  bool has(std::string_view column) const;
  // In the file; the header is line 1.
  int line(std::size_t row) const { return lines_[row]; }
  // Throws ConfigError where the table has no such column.
  const std::string& text(std::size_t row, std::string_view column) const;
  // Throws ConfigError where the cell is not a finite number.
  double number(std::size_t row, std::string_view column) const;
  bool empty(std::size_t row, std::string_view column) const { return text(row, column).empty(); }
  // Empties the column's cells. Throws ConfigError where the table has no such column.
  void blank(std::string_view column);

 private:
  std::size_t column(std::string_view name) const;

  std::string file_name_;
  std::vector<std::string> columns_;
  std::vector<std::vector<std::string>> cells_;
  std::vector<int> lines_;
};

}
