// A shape measured several times becomes one point, the geometric mean. The curve is fitted to the points in log time;
// weak pulls towards round values keep constants that few rows say nothing about where they do no harm. Each point is
// then left out of curve and corrections alike and predicted.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "calibration/fit/fit_local.h"
#include "calibration/fit/least_squares.h"
#include "sim/base/lookup.h"
#include "sim/cost/measured.h"

namespace foreshard {
namespace {

constexpr std::size_t kFewest = 3;  // rows that make leaving one out worth while

struct ShapeRow {
  Kernel kernel;
  double seconds = 0;
};
using ShapeRows = std::vector<ShapeRow>;

template <typename Point>
ShapeRows shape_rows(const std::vector<Point>& points) {
  ShapeRows rows;
  for (const Point& point : points) rows.push_back({kernel_of(point), point.seconds});
  return rows;
}

// A constant: where it may lie, and what it is pulled to.
struct Constant {
  Range range;
  double round = 1;
};

template <typename Curve>
struct Form;

template <>
struct Form<GemmCurve> {
  static std::vector<Constant> constants() {
    return {{{0.005, 2}, 0.8}, {{0.1, 1e4}, 16}, {{1e-4, 10}, 0.01}, {{0.02, 2}, 1}, {{1e-9, 1e-2}, 2e-6}};
  }
  static GemmCurve with(std::span<const double> x) {
    return {.efficiency = x[0], .k_half = x[1], .tail = x[2], .hbm_fraction = x[3], .overhead = x[4]};
  }
  static std::string words(const GemmCurve& c) {
    return fmt::format("e {:.3f}, k0 {:.1f}, c {:.3g}, h {:.2f}, t0 {:.2f} us", c.efficiency, c.k_half, c.tail,
        c.hbm_fraction, c.overhead * 1e6);
  }
};

template <>
struct Form<AttentionCurve> {
  static std::vector<Constant> constants() {
    return {{{0.002, 2}, 0.3}, {{0.1, 1e4}, 16}, {{1e-3, 100}, 0.1}, {{1e-9, 1e-2}, 5e-6}};
  }
  static AttentionCurve with(std::span<const double> x) {
    return {.kernel = "cpu", .efficiency = x[0], .s_half = x[1], .c_half = x[2], .overhead = x[3]};
  }
  static std::string words(const AttentionCurve& c) {
    return fmt::format(
        "e {:.3f}, s0 {:.1f}, c0 {:.3g}, t0 {:.2f} us", c.efficiency, c.s_half, c.c_half, c.overhead * 1e6);
  }
};

template <typename Curve>
std::vector<double> fit_constants(
    const ShapeRows& rows, const Gpu& gpu, const std::vector<std::vector<double>>& starts) {
  const std::vector<Constant> constants = Form<Curve>::constants();
  LeastSquares problem;
  problem.rows = rows.size() + constants.size();
  for (const Constant& constant : constants) problem.ranges.push_back(constant.range);
  problem.starts = starts;
  problem.residuals = [&](std::span<const double> x, std::span<double> out) {
    const Curve curve = Form<Curve>::with(x);
    log_errors(
        rows, [&](auto& row) { return curve_seconds(curve, row.kernel, gpu); }, out);
    for (std::size_t i = 0; i < constants.size(); ++i)
      out[rows.size() + i] = kPull * std::log(x[i] / constants[i].round);
  };
  return solve(problem);
}

template <typename Curve>
std::vector<std::vector<double>> starts() {
  std::vector<double> round, low;
  for (const Constant& constant : Form<Curve>::constants()) {
    round.push_back(constant.round);
    low.push_back(std::sqrt(constant.round * constant.range.low));
  }
  return {round, low};
}

ShapeCorrection corrections(const ShapeRows& rows, const auto& curve, const Gpu& gpu) {
  ShapeCorrection correction;
  for (const ShapeRow& row : rows) correction.add(row.kernel, row.seconds / curve_seconds(curve, row.kernel, gpu));
  return correction;
}

double predicted(const ShapeRow& row, const auto& curve, const ShapeCorrection& correction, const Gpu& gpu) {
  return curve_seconds(curve, row.kernel, gpu) * correction.at(row.kernel).value;
}

template <typename Curve>
struct ShapeFit {
  Curve curve;
  CurveReport report;
  std::vector<double> left_out;
};

// `all` are the rows as measured, `points` each shape once.
template <typename Curve>
ShapeFit<Curve> fit_shapes(const std::string& name, const ShapeRows& all, const ShapeRows& points, const Gpu& gpu) {
  ShapeFit<Curve> fit;
  const std::vector<double> found = fit_constants<Curve>(points, gpu, starts<Curve>());
  auto kept = list_of<double>(found, [&](const double value) { return rounded(value); });
  fit.curve = Form<Curve>::with(kept);
  fit.curve.evidence = Evidence::kMeasured;
  fit.curve.source = fmt::format("fitted to {} measured shapes", points.size());
  fit.report.curve = name;
  fit.report.rows = fmt::format("{} shapes", points.size());
  fit.report.constants = Form<Curve>::words(fit.curve);

  const ShapeCorrection correction = corrections(points, fit.curve, gpu);
  fit.report.errors.push_back(
      fit_error("own rows", all, [&](const ShapeRow& row) { return predicted(row, fit.curve, correction, gpu); }));
  if (points.size() < kFewest) return fit;

  std::vector<double> left, truth;
  for (std::size_t i = 0; i < points.size(); ++i) {
    ShapeRows rest = points;
    rest.erase(rest.begin() + i);
    const Curve curve = Form<Curve>::with(fit_constants<Curve>(rest, gpu, {found}));
    left.push_back(predicted(points[i], curve, corrections(rest, curve, gpu), gpu));
    truth.push_back(points[i].seconds);
    fit.left_out.push_back(std::log(left.back() / truth.back()));
  }
  fit.report.errors.push_back(fit_error("left out", left, truth));
  return fit;
}

// Each key once, with the geometric mean of its times; in the order of the keys.
template <typename Point, typename KeyOf>
std::vector<Point> merged(const std::vector<Point>& rows, KeyOf&& key_of) {
  struct Sum {
    Point point;
    double logs = 0;
    double count = 0;
  };
  std::map<decltype(key_of(rows.front())), Sum> sums;
  for (const Point& row : rows) {
    Sum& sum = sums.try_emplace(key_of(row), Sum{row}).first->second;
    sum.logs += std::log(row.seconds);
    sum.count += 1;
  }
  std::vector<Point> points;
  for (const auto& [key, sum] : sums) {
    points.push_back(sum.point);
    points.back().seconds = rounded(std::exp(sum.logs / sum.count));
  }
  return points;
}

template <typename Point, typename Wanted>
std::vector<Point> picked(const std::vector<Point>& rows, Wanted&& wanted) {
  std::vector<Point> result;
  std::ranges::copy_if(rows, std::back_inserter(result), wanted);
  return result;
}

}

LocalGemm fit_local_gemm(const std::vector<GemmPoint>& rows, const Gpu& gpu) {
  LocalGemm result;
  result.points = merged(rows, [](const GemmPoint& p) { return std::tuple(p.fp32, p.pass, p.m, p.n, p.k); });
  for (const bool fp32 : {true, false}) {
    const auto of_dtype = [&](const GemmPoint& p) { return p.fp32 == fp32; };
    const ShapeRows all = shape_rows(picked(rows, of_dtype));
    if (all.empty()) continue;
    const auto fit =
        fit_shapes<GemmCurve>(fp32 ? "GEMM fp32" : "GEMM bf16", all, shape_rows(picked(result.points, of_dtype)), gpu);
    (fp32 ? result.fp32 : result.bf16) = fit.curve;
    result.reports.push_back(fit.report);
    append(result.left_out, fit.left_out);
  }
  const auto borrow = [](GemmCurve& to, const GemmCurve& from, const char* what) {
    if (!to.source.empty()) return;
    to = from;
    to.evidence = Evidence::kAssumed;
    to.source = fmt::format("no rows; {}'s", what);
  };
  borrow(result.fp32, result.bf16, "bf16");
  borrow(result.bf16, result.fp32, "fp32");
  return result;
}

LocalAttention fit_local_attention(const std::vector<AttentionPoint>& rows, const Gpu& gpu) {
  LocalAttention result;
  result.points = merged(rows, [](const AttentionPoint& p) {
    return std::tuple(p.fp32, p.pass, p.causal, p.batch, p.sequence, p.heads, p.kv_heads, p.head_dim, p.kernel);
  });
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const auto of_pass = [&](const AttentionPoint& p) { return p.pass == pass; };
    const std::vector<AttentionPoint> points = picked(result.points, of_pass);
    AttentionCurve curve;
    if (points.empty()) {
      curve.kernel = "cpu";
      curve.efficiency = 0.2;
      curve.evidence = Evidence::kAssumed;
      curve.source = "no rows; a fifth of the peak";
    } else {
      const auto fit = fit_shapes<AttentionCurve>(pass == Pass::kForward ? "attention forward" : "attention backward",
          shape_rows(picked(rows, of_pass)), shape_rows(points), gpu);
      curve = fit.curve;
      result.reports.push_back(fit.report);
      append(result.left_out, fit.left_out);
    }
    curve.pass = pass;
    curve.head_dim = points.empty() ? 64 : points.front().head_dim;
    result.curves.push_back(std::move(curve));
  }
  return result;
}

}
