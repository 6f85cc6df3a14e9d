// Tables of published or own measurements, scored: their columns decide what they are.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "calibration/csv_table.h"
#include "calibration/training_evidence.h"
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
MeasuredTable score_table(const std::filesystem::path& path, const std::vector<std::string>& blanked = {});

// Turns a table of training steps into what calibration/training_evidence.h keeps of it.

// Of rows whose `score` is yes and that can be forecast; of each family x GPU at most kMostRows,
// chosen by hash of the id. A group counts as many rows as it has, at most kIndependent, for rows
// of one code on one machine share their errors.
TrainingEvidence gather_evidence(const CsvTable& table);

// Forecasts of measured training steps, row by row, each from its own columns alone.

// One AccuracyRow for each measured quantity of each row, in the table's order: step_time_s (of tokens_per_s_per_gpu
// where it is empty), peak_mem_alloc_GiB, peak_mem_reserved_GiB, peak_mem_total_GiB (nvidia-smi's); a row that measured
// none has one, not scored. What cannot be forecast, and what `score` says no to, is not scored, with the reason.
// Groups: family (the id up to its first '-') x GPU, family, gpu, runtime, size (parameters), nodes.
std::vector<AccuracyRow> score_training_steps(const CsvTable& table);

// "n_gpus: '0': expected ...", with file and line, of every row that breaks the grammar.
std::vector<std::string> grammar_problems(const CsvTable& table);

}
