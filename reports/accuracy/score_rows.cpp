#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "calibration/published.h"
#include "reports/accuracy/score_kernels.h"
#include "sim/base/quantile.h"

namespace foreshard {

AccuracyRow begin_row(const CsvTable& table, std::size_t row) {
  AccuracyRow out;
  out.line = table.line(row);
  out.id = cell_of(table, row, "id");
  if (out.id.empty()) out.id = fmt::format("line {}", out.line);
  out.quantity = "latency_us";
  return out;
}

AccuracyRow set_aside(AccuracyRow row, std::string reason) {
  row.scored = false;
  row.reason = std::move(reason);
  return row;
}

std::string absurdity(double measured_s, double predicted_s, double flops, FlopsPerSecond peak) {
  // Chips boost beyond the clock of their data-sheet peak: GeForce cards were seen at 1.1 of it.
  constexpr double kMostOfPeak = 1.3;
  constexpr double kUnit = 100;
  if (flops > 0 && flops / measured_s > kMostOfPeak * peak.value()) {
    return fmt::format(
        "{:.0f} TFLOP/s are more than the GPU's peak of {:.0f}", flops / measured_s / 1e12, peak.value() / 1e12);
  }
  const double ratio = measured_s / predicted_s;
  if (ratio > kUnit || ratio < 1 / kUnit)
    return fmt::format("{:.3g} s is {:.3g} times the forecast: another unit?", measured_s, ratio);
  return "";
}

AccuracyRow with_forecast(AccuracyRow row, double measured_s, double predicted_s, double log_half) {
  constexpr double kMicro = 1e6;
  row.measured = measured_s * kMicro;
  row.predicted = predicted_s * kMicro;
  row.low = row.predicted * std::exp(-log_half);
  row.high = row.predicted * std::exp(log_half);
  return row;
}

double log_quantile(std::vector<double> logs, double q) {
  if (logs.empty()) return 0;
  for (double& value : logs) value = std::abs(value);
  std::ranges::sort(logs);
  return quantile(logs, q);
}

const Machine* machine_of(std::string_view key, const std::vector<Machine>& machines) {
  const auto found = std::ranges::find(machines, key, &Machine::key);
  return found == machines.end() ? nullptr : &*found;
}

std::size_t fold_of(double a, double b) {
  std::uint64_t h = static_cast<std::uint64_t>(a) * 0x9E3779B97F4A7C15ULL;
  h = (h ^ static_cast<std::uint64_t>(b)) * 0xC2B2AE3D27D4EB4FULL;
  return at((h >> 33) % kFolds);
}

}
