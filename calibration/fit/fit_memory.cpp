// t = bytes / (fraction * bandwidth) + overhead, by least squares of the logarithm.
#include <algorithm>
#include <cmath>

#include "calibration/fit/fit.h"
#include "calibration/fit/least_squares.h"

namespace foreshard {

double memory_seconds(const MemoryCurve& curve, double bytes, const Gpu& gpu) {
  const double overhead = std::max(curve.overhead, curve.timed_overhead);
  return bytes / (curve.fraction * gpu.memory_bandwidth.value()) + overhead;
}

MemoryCurve fit_memory(const std::vector<MemoryRow>& rows, const Gpu& gpu) {
  LeastSquares problem;
  problem.rows = rows.size() + 1;
  problem.ranges = {{0.01, 1}, {1e-6, 3e-5}};
  problem.starts = {{0.5, 3e-6}};
  const auto with = [](std::span<const double> x) { return MemoryCurve{.fraction = x[0], .overhead = x[1]}; };
  problem.residuals = [&](std::span<const double> x, std::span<double> out) {
    const MemoryCurve curve = with(x);
    log_errors(
        rows, [&](auto& row) { return memory_seconds(curve, row.bytes, gpu); }, out);
    // Large tensors alone say nothing about the fixed time; a kernel takes some 3 us.
    out[rows.size()] = 0.02 * std::log(curve.overhead / 3e-6);
  };
  return with(solve(problem));
}

}
