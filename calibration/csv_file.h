// A CSV file as Python's csv module writes it, plain or gzip: a header line, cells quoted with " where they hold a
// comma, a quote or a line break. Lines end with LF, CR LF or CR; empty ones are skipped, as is a byte order mark.
// Cells are views into the text, so that megabytes take milliseconds.
//
// Strict: a ragged row, a quote inside a cell, a cell that is no number are ConfigErrors with file, line and column.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "sim/base/error.h"

namespace foreshard {

class CsvFile {
 public:
  // `name` is what errors call the text.
  CsvFile(std::string_view text, std::string name);
  CsvFile(CsvFile&&) = default;
  CsvFile& operator=(CsvFile&&) = default;
  CsvFile(const CsvFile&) = delete;
  CsvFile& operator=(const CsvFile&) = delete;

  const std::string& name() const { return name_; }
  std::size_t rows() const { return lines_.size(); }
  int line(std::size_t row) const { return lines_[row]; }  // in the file; the header is line 1
  std::size_t columns() const { return header_.size(); }
  std::string_view header(std::size_t column) const { return header_[column]; }
  std::optional<std::size_t> find(std::string_view column) const;
  // Throws ConfigError where there is no such column.
  std::size_t at(std::string_view column) const;

  std::string_view text(std::size_t row, std::size_t column) const {
    return cells_[row * header_.size() + column].text;
  }
  // Throws ConfigError where the cell is not a whole number that fits in 64 bits.
  std::int64_t integer(std::size_t row, std::size_t column) const;
  // The error to throw for a cell that is wrong for a reason that only the caller knows.
  ConfigError error(
      std::size_t row, std::size_t column, const std::string& what_is_wrong, const std::string& expected = "") const;

 private:
  struct Cell {
    std::string_view text;
    std::uint32_t column = 0;  // where it begins in its line, in bytes from 1
  };
  const char* read_row(const char* at, int& line, std::vector<Cell>& cells);

  std::string name_;
  std::vector<char> text_;
  std::deque<std::string> unescaped_;  // cells with "" inside
  std::vector<std::string_view> header_;
  std::vector<Cell> cells_;
  std::vector<int> lines_;  // of each row
};

// Cells of a row as the members of a struct. An empty one leaves a number that is below zero at
// first, which is nothing told. Throws ConfigError where there is no such column.
template <typename Row>
class CsvMembers {
 public:
  using Member = std::variant<std::string Row::*, std::int64_t Row::*>;
  CsvMembers(const CsvFile& file, std::initializer_list<std::pair<std::string_view, Member>> members) : file_(file) {
    for (const auto& [column, member] : members) members_.emplace_back(file.at(column), member);
  }
  void read(std::size_t row, Row& to) const {
    for (const auto& [column, member] : members_) {
      if (const auto* text = std::get_if<std::string Row::*>(&member)) {
        to.** text = file_.text(row, column);
        continue;
      }
      std::int64_t& number = to.*std::get<std::int64_t Row::*>(member);
      if (number >= 0 || !file_.text(row, column).empty()) number = file_.integer(row, column);
    }
  }

 private:
  const CsvFile& file_;
  std::vector<std::pair<std::size_t, Member>> members_;
};

// `folder`/`stem`.csv or, failing that, `stem`.csv.gz; the empty path where there is neither.
std::filesystem::path csv_path(const std::filesystem::path& folder, std::string_view stem);

// Reads the file, unpacking what gzip packed. Throws ConfigError where that fails.
CsvFile read_csv_file(const std::filesystem::path& path);

}
