// Tables of measurements and of prices, as accuracy, calibrate and recommend take them: any bytes
// end in rows, or in an Error for bad input. What is made of the rows (forecasts, fits) takes
// seconds under the sanitizers and is not the reader's.
#include <cstddef>
#include <cstdint>

#include "calibration/csv_table.h"
#include "calibration/fit/nccl_rows.h"
#include "calibration/machines.h"
#include "calibration/prices.h"
#include "calibration/published.h"
#include "interop/steps/measured_tables.h"
#include "interop/steps/training_rows.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace foreshard;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  expect_answer_or_refusal([&] { parse_prices(text, "prices.csv"); });
  expect_answer_or_refusal([&] {
    const CsvTable table(text, "table.csv");
    static const std::vector<Machine> kMachines = list_machines();
    if (is_training_table(table)) {
      read_training_rows(table);
      grammar_problems(table);
    }
    if (table.has("collective") && table.has("bytes")) nccl_rows(table);
    read_attention_rows(table, kMachines);
    read_gemm_rows(table, kMachines);
  });
  return 0;
}
