#include "interop/measured_tables.h"

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <string_view>

#include "calibration/csv_table.h"
#include "interop/score_steps.h"
#include "interop/training_rows.h"
#include "reports/score_collectives.h"
#include "reports/score_kernels.h"
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

CsvTable read_table(const std::filesystem::path& path) {
  return CsvTable(read_text(path), path.string());
}

MeasuredTable score_table(const std::filesystem::path& path) {
  const CsvTable table = read_table(path);
  const auto has = [&](std::initializer_list<std::string_view> columns) {
    return std::all_of(columns.begin(), columns.end(),
                       [&](std::string_view column) { return table.has(column); });
  };
  if (is_training_table(table)) return {score_training_steps(table), grammar_problems(table)};
  if (has({"collective", "bytes"})) return {score_collectives(table), {}};
  if (has({"gpu", "seqlen", "head_dim"})) return {score_attention(table), {}};
  if (has({"gpu", "m", "n", "k"})) return {score_gemm(table), {}};
  if (has({"gpu", "op"})) return {score_memory_bound(table), {}};
  throw ConfigError({path.string(), 1, 1, ""}, "no table of measurements that is known",
                    "columns of training steps (n_layers, seq_len, n_gpus, step_time_s, ...), of "
                    "products (gpu, m, n, k), attention (gpu, seqlen, head_dim), memory-bound "
                    "operations (gpu, op) or nccl-tests (collective, bytes)");
}

}  // namespace foreshard
