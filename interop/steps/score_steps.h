// Forecasts of measured training steps, row by row, each from its own columns alone.
#pragma once

#include <string>
#include <vector>

#include "calibration/csv_table.h"
#include "reports/accuracy/accuracy.h"

namespace foreshard {

// One AccuracyRow for each measured quantity of each row, in the table's order: step_time_s (of
// tokens_per_s_per_gpu where it is empty), peak_mem_alloc_GiB, peak_mem_reserved_GiB; a row that
// measured none has one, not scored. What cannot be forecast, and what `score` says no to, is not
// scored, with the reason. Groups: family (the id up to its first '-') x GPU, family, gpu,
// runtime, size (parameters), nodes.
std::vector<AccuracyRow> score_training_steps(const CsvTable& table);

// "n_gpus: '0': expected ...", with file and line, of every row that breaks the grammar.
std::vector<std::string> grammar_problems(const CsvTable& table);

}  // namespace foreshard
