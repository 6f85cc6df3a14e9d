// Points are kept as they are, apart from noise that would make more bytes cheaper: such neighbours
// are pooled (isotonic regression by the pool-adjacent-violators algorithm, in log time). Inner
// points are then left out one by one and read off the line between their neighbours.
//
// A function that nobody measured takes bytes / (fraction * bandwidth) + overhead, fitted to the
// measured functions of its class, or to all where the class has none.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "calibration/fit/fit_local.h"
#include "calibration/fit/least_squares.h"
#include "sim/base/lookup.h"
#include "sim/cost/measured.h"

namespace foreshard {
namespace {

// Judges the points on the rows they came from, and each inner point on the others.
CurveReport judge(std::string name, const std::vector<SizePoint>& rows, const std::vector<SizePoint>& points,
    std::vector<double>& left_out) {
  CurveReport report;
  report.curve = std::move(name);
  report.rows = fmt::format("{} sizes", points.size());
  report.constants = fmt::format("{:.3g} .. {:.3g} B, {:.3g} GB/s at the largest", points.front().bytes,
      points.back().bytes, points.back().bytes / points.back().seconds * 1e-9);
  report.errors.push_back(
      fit_error("own rows", rows, [&](const SizePoint& row) { return seconds_at(points, row.bytes).value; }));
  std::vector<double> left, truth;
  for (std::size_t i = 1; i + 1 < points.size(); ++i) {
    std::vector<SizePoint> rest = points;
    rest.erase(rest.begin() + i);
    left.push_back(seconds_at(rest, points[i].bytes).value);
    truth.push_back(points[i].seconds);
    left_out.push_back(std::log(left.back() / truth.back()));
  }
  if (!left.empty()) report.errors.push_back(fit_error("left out", left, truth));
  return report;
}

MemoryClass class_of(Function function, Pass pass) {
  using enum Function;
  if (function == kRmsNorm || function == kLayerNorm)
    return pass == Pass::kForward ? MemoryClass::kNormForward : MemoryClass::kNormBackward;
  if (is_among(function, {kLogSoftmax, kNegativeLogLikelihood, kCrossEntropy})) return MemoryClass::kLoss;
  if (is_among(function, {kAdamW, kSgd, kSumOfSquares, kScale})) return MemoryClass::kOptimizer;
  return is_among(function, {kCopy, kCast}) ? MemoryClass::kCopy : MemoryClass::kElementwise;
}

MemoryCurve fit_class(const std::vector<SizePoint>& rows, const Gpu& gpu) {
  LeastSquares problem;
  problem.rows = rows.size() + 2;
  problem.ranges = {{1e-3, 2}, {1e-9, 1e-2}};
  problem.starts = {{0.8, 2e-6}, {0.1, 2e-5}};
  const auto with = [](std::span<const double> x) { return MemoryCurve{.fraction = x[0], .overhead = x[1]}; };
  problem.residuals = [&](std::span<const double> x, std::span<double> out) {
    const MemoryCurve curve = with(x);
    const auto predicted = [&](const SizePoint& row) {
      return curve_seconds(curve, Bytes(std::llround(row.bytes)), gpu);
    };
    log_errors(rows, predicted, out);
    out[rows.size()] = kPull * std::log(x[0] / 0.8);
    out[rows.size() + 1] = kPull * std::log(x[1] / 2e-6);
  };
  MemoryCurve curve = with(solve(problem));
  curve.fraction = rounded(curve.fraction);
  curve.overhead = rounded(curve.overhead);
  return curve;
}

}

std::vector<SizePoint> smoothed(std::vector<SizePoint> rows) {
  std::ranges::stable_sort(rows, {}, &SizePoint::bytes);
  struct Pool {
    double logs = 0;
    double weight = 0;
    std::size_t sizes = 0;  // points that share it
    double mean() const { return logs / weight; }
  };
  std::vector<double> sizes;
  std::vector<Pool> pools;
  for (std::size_t i = 0; i < rows.size();) {
    Pool pool;
    pool.sizes = 1;
    sizes.push_back(rows[i].bytes);
    for (; i < rows.size() && rows[i].bytes == sizes.back(); ++i) {
      pool.logs += std::log(rows[i].seconds);
      pool.weight += 1;
    }
    pools.push_back(pool);
    while (pools.size() > 1 && (pools.end() - 2)->mean() > pools.back().mean()) {
      const Pool last = pools.back();
      pools.pop_back();
      pools.back().logs += last.logs;
      pools.back().weight += last.weight;
      pools.back().sizes += last.sizes;
    }
  }
  std::vector<SizePoint> points;
  std::size_t next = 0;
  for (const Pool& pool : pools)
    for (std::size_t i = 0; i < pool.sizes; ++i) points.push_back({sizes[next++], rounded(std::exp(pool.mean()))});
  return points;
}

LocalFunctions fit_local_functions(const std::vector<FunctionPoints>& rows, const Gpu& gpu) {
  LocalFunctions result;
  std::vector<SizePoint> everything;
  std::array<std::vector<SizePoint>, kMemoryClasses> of_class;
  for (const FunctionPoints& curve : rows) {
    FunctionPoints points = curve;
    points.points = smoothed(curve.points);
    const std::string name = fmt::format("{} {} {}", to_string(curve.function),
        curve.pass == Pass::kForward ? "forward" : "backward", curve.fp32 ? "fp32" : "bf16");
    result.reports.push_back(judge(name, curve.points, points.points, result.left_out));
    auto& own = of_class[at(class_of(curve.function, curve.pass))];
    append(own, points.points);
    append(everything, points.points);
    result.points.push_back(std::move(points));
  }
  for (std::size_t i = 0; i < kMemoryClasses; ++i) {
    const bool is_own = !of_class[i].empty();
    MemoryCurve& curve = result.classes[i];
    curve = fit_class(is_own ? of_class[i] : everything, gpu);
    curve.evidence = Evidence::kExtrapolated;
    curve.source = is_own ? "from the measured functions of the class"
                          : "no function of the class was measured; from all measured ones";
  }
  return result;
}

LocalCollectives fit_local_collectives(const std::vector<CollectivePoints>& rows) {
  LocalCollectives result;
  for (const CollectivePoints& curve : rows) {
    CollectivePoints points = curve;
    points.points = smoothed(curve.points);
    const std::string name = fmt::format("{} of {} ({})", to_string(curve.operation), curve.group,
        curve.order == ReductionOrder::kMicrobatch ? "microbatch" : "library");
    result.reports.push_back(judge(name, curve.points, points.points, result.left_out));
    result.points.push_back(std::move(points));
  }
  return result;
}

}
