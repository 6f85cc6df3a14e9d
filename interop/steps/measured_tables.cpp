#include "interop/steps/measured_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "interop/steps/training_rows.h"
#include "reports/accuracy/score_kernels.h"
#include "sim/base/error.h"
#include "sim/base/text_file.h"

namespace foreshard {
CsvTable read_table(const std::filesystem::path& path) {
  return CsvTable(read_text_file(path, kMaxTableBytes), path.string());
}

MeasuredTable score_table(const std::filesystem::path& path, const std::vector<std::string>& blanked) {
  CsvTable table = read_table(path);
  constexpr std::size_t kMostRows = 20'000;  // each is forecast
  if (table.rows() > kMostRows) {
    throw ConfigError({path.string(), table.line(kMostRows), 1, ""}, "the table has too many rows",
        fmt::format("at most {}", kMostRows));
  }
  for (const std::string& column : blanked) table.blank(column);
  const auto has = [&](std::initializer_list<std::string_view> columns) {
    return std::ranges::all_of(columns, [&](std::string_view column) { return table.has(column); });
  };
  if (is_training_table(table)) return {score_training_steps(table), grammar_problems(table)};
  if (has({"collective", "bytes"})) return {score_collectives(table), {}};
  if (has({"gpu", "seqlen", "head_dim"})) return {score_attention(table), {}};
  if (has({"gpu", "m", "n", "k"})) return {score_gemm(table), {}};
  if (has({"gpu", "op"})) return {score_memory_bound(table), {}};
  throw ConfigError({path.string(), 1, 1, ""}, "no table of measurements that is known",
      "columns of training steps (n_layers, seq_len, n_gpus, step_time_s, ...), of products (gpu, m, n, k), attention "
      "(gpu, seqlen, head_dim), memory-bound operations (gpu, op) or nccl-tests (collective, bytes)");
}

}
