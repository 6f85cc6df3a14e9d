// t = max(2mnk / (e*P) * (1 + k0/k) * (1 + c*SM/(mn/128^2)) * (1 + q*max(0, log2(2mnk/1e12))),
// bytes/(h*BW)) + t0
//
// q is the loss of long products: their chip is hot and its clock down. In a training step every
// product runs on a hot chip, so the curve has no q but sustained = 1/(1 + 3.3 q), the rate of a
// product of 10 PFLOP (10 ms), 2^3.3 times 1 TFLOP, applied to all (sim/spec/calibration.h).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "calibration/fit.h"
#include "calibration/least_squares.h"

namespace foreshard {
namespace {

constexpr double kDoublingsToSustained = 3.3;
constexpr double kTileEdge = 128;

struct Constants {
  double efficiency, k_half, tail, overhead, slowdown;
};

double seconds(const Constants& c, const GemmRow& row, const Gpu& gpu, double hbm_fraction) {
  const double flops = 2 * row.m * row.n * row.k;
  const double tiles = row.m * row.n / (kTileEdge * kTileEdge);
  const double long_product = std::max(0.0, std::log2(flops / 1e12));
  const double compute = flops / (c.efficiency * gpu.peak_bf16.value()) * (1 + c.k_half / row.k) *
                         (1 + c.tail * static_cast<double>(gpu.multiprocessors) / tiles) *
                         (1 + c.slowdown * long_product);
  const double bytes = 2 * (row.m * row.k + row.n * row.k + row.m * row.n);
  return std::max(compute, bytes / (hbm_fraction * gpu.memory_bandwidth.value())) + c.overhead;
}

Constants fit_constants(const std::vector<GemmRow>& rows, const Gpu& gpu, double hbm_fraction) {
  LeastSquares problem;
  problem.rows = rows.size();
  problem.ranges = {{0.2, 1.2}, {1, 1000}, {0, 3}, {1e-7, 5e-5}, {0, 0.3}};
  problem.starts = {{0.8, 100, 0.1, 3e-6, 0.03}, {0.7, 50, 0.3, 8e-6, 0}, {0.9, 200, 0, 2e-6, 0.1}};
  problem.residuals = [&](std::span<const double> x, std::span<double> out) {
    const Constants c{x[0], x[1], x[2], x[3], x[4]};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      out[i] = std::log(seconds(c, rows[i], gpu, hbm_fraction) / rows[i].seconds);
    }
  };
  const std::vector<double> x = solve(problem);
  return {x[0], x[1], x[2], x[3], x[4]};
}

FitError error_of(std::string what, const Constants& c, const std::vector<GemmRow>& rows,
                  const Gpu& gpu, double hbm_fraction) {
  std::vector<double> predicted;
  std::vector<double> measured;
  for (const GemmRow& row : rows) {
    predicted.push_back(seconds(c, row, gpu, hbm_fraction));
    measured.push_back(row.seconds);
  }
  return fit_error(std::move(what), predicted, measured);
}

}  // namespace

double burst_seconds(const GemmFit& fit, const GemmRow& row, const Gpu& gpu) {
  const GemmCurve& c = fit.curve;
  return seconds({c.efficiency, c.k_half, c.tail, c.overhead, fit.slowdown}, row, gpu,
                 c.hbm_fraction);
}

GemmFit fit_gemm(const std::vector<GemmRow>& rows, const Gpu& gpu, double hbm_fraction) {
  const Constants c = fit_constants(rows, gpu, hbm_fraction);
  GemmFit fit;
  fit.slowdown = rounded(c.slowdown);
  fit.curve.efficiency = rounded(c.efficiency);
  fit.curve.sustained = rounded(1 / (1 + kDoublingsToSustained * c.slowdown));
  fit.curve.k_half = rounded(c.k_half);
  fit.curve.tail = rounded(c.tail);
  fit.curve.hbm_fraction = rounded(hbm_fraction);
  fit.curve.overhead = rounded(c.overhead);
  fit.curve.evidence = Evidence::kMeasured;

  std::map<std::string, std::int64_t> sources;
  for (const GemmRow& row : rows) ++sources[row.source];
  std::string listed;
  for (const auto& [source, count] : sources) {
    listed += fmt::format("{}{} ({} rows)", listed.empty() ? "" : "; ", source, count);
  }
  fit.curve.source = "gemm_measured.csv: " + listed;
  fit.report.curve = "GEMM bf16";
  fit.report.rows = listed;
  fit.report.constants = fmt::format(
      "e {:.3f}, k0 {:.0f}, c {:.3f}, t0 {:.1f} us, q {:.4f}, sustained {:.3f}", c.efficiency,
      c.k_half, c.tail, c.overhead * 1e6, c.slowdown, fit.curve.sustained);
  fit.report.errors.push_back(error_of("own rows", c, rows, gpu, hbm_fraction));
  if (sources.size() < 2) return fit;
  for (const auto& [source, count] : sources) {
    std::vector<GemmRow> rest;
    std::vector<GemmRow> held;
    for (const GemmRow& row : rows) (row.source == source ? held : rest).push_back(row);
    fit.report.errors.push_back(error_of(
        "left out: " + source, fit_constants(rest, gpu, hbm_fraction), held, gpu, hbm_fraction));
  }
  return fit;
}

}  // namespace foreshard
