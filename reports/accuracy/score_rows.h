// What the scores of kernels share (reports/accuracy/score_kernels.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "calibration/csv_table.h"
#include "calibration/machines.h"
#include "reports/accuracy/accuracy.h"

namespace foreshard {

// Id, line and quantity of a row.
AccuracyRow begin_row(const CsvTable& table, std::size_t row);

AccuracyRow set_aside(AccuracyRow row, std::string reason);

// Why figures cannot be what was measured: a rate beyond the peak, a unit mistaken; "" where they
// can. `flops` 0: not asked.
std::string absurdity(double measured_s, double predicted_s, double flops, FlopsPerSecond peak);

// In microseconds; `log_half` is half the width of the interval in the logarithm.
AccuracyRow with_forecast(AccuracyRow row, double measured_s, double predicted_s, double log_half);

// The quantile of the absolute logarithms, 0 where there are none.
double log_quantile(std::vector<double> logs, double q);

const Machine* machine_of(std::string_view key, const std::vector<Machine>& machines);

inline constexpr std::size_t kFolds = 6;
// Folds so that rows of a family are in one; the same on every machine.
std::size_t fold_of(double a, double b, std::size_t folds);

}  // namespace foreshard
