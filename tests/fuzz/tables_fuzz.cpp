// Tables of measurements, as accuracy and calibrate take them: any bytes end in rows, in a fit, or
// in an Error for bad input. Training steps are read and not forecast: that is search's work.
#include <cstddef>
#include <cstdint>

#include "calibration/csv_table.h"
#include "calibration/fit_csv.h"
#include "calibration/prices.h"
#include "interop/score_steps.h"
#include "interop/training_rows.h"
#include "reports/score_collectives.h"
#include "reports/score_kernels.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  expect_answer_or_refusal([&] { parse_prices(text, "prices.csv"); });
  expect_answer_or_refusal([&] {
    const CsvTable table(text, "table.csv");
    if (is_training_table(table)) {
      read_training_rows(table);
      grammar_problems(table);
    } else if (table.has("collective") && table.has("bytes")) {
      score_collectives(table);
    } else if (table.has("seqlen") && table.has("head_dim")) {
      score_attention(table);
    } else if (is_gemm_table(table)) {
      score_gemm(table);
      fit_gemm_csv({table}, "fuzz");
    } else if (table.has("gpu") && table.has("op")) {
      score_memory_bound(table);
    }
  });
  return 0;
}
