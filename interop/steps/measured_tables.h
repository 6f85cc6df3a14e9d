// Tables of published or own measurements, scored: their columns decide what they are.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "calibration/csv_table.h"
#include "reports/accuracy/accuracy.h"

namespace foreshard {

struct MeasuredTable {
  std::vector<AccuracyRow> rows;      // in the file's order
  std::vector<std::string> problems;  // rows that break the grammar: "file:line: column: what"
};

// Throws ConfigError for what cannot be read or is no table.
CsvTable read_table(const std::filesystem::path& path);

// `blanked`: columns to forecast without, as if they were not published.
// Throws ConfigError for a file that is no table, or none that is known, naming what is missing;
// Error(kInvalidInput) for a blanked column that the table does not have.
MeasuredTable score_table(const std::filesystem::path& path,
                          const std::vector<std::string>& blanked = {});

}  // namespace foreshard
