#include "interop/measured_tables.h"

#include <fstream>
#include <sstream>

#include "calibration/csv_table.h"
#include "interop/score_steps.h"
#include "interop/training_rows.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

std::string read_text(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw ConfigError({path.string(), 0, 0, ""}, "is a folder", "a CSV file");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) throw ConfigError({path.string(), 0, 0, ""}, "cannot be read", "a CSV file");
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

}  // namespace

MeasuredTable score_table(const std::filesystem::path& path) {
  const CsvTable table(read_text(path), path.string());
  if (is_training_table(table)) return {score_training_steps(table), grammar_problems(table)};
  throw ConfigError({path.string(), 1, 1, ""}, "no table of measurements that is known",
                    "columns of training steps (n_layers, seq_len, n_gpus, step_time_s ...)");
}

}  // namespace foreshard
