// Fits of one attention curve at a time, which the recipes put together (attention_recipes.cpp).
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "calibration/fit/least_squares.h"
#include "tools/profiles/published_fit.h"

namespace foreshard::attention_fits {

using Rows = std::vector<AttentionRow>;

constexpr double kBackwardFlops = 2.5;  // of forward's

// How backward differs from forward of one kernel.
struct PassRatio {
  double efficiency = 1;
  double s_half = 1;
};

Rows pick(const Rows& rows, std::string_view source_part, std::string_view kernel, int head_dim, AttentionPass pass);
double both_seconds(
    const AttentionCurve& forward, const AttentionCurve& backward, const AttentionRow& row, const Gpu& gpu);
AttentionCurve fit_backward(const Rows& rows, const AttentionCurve& forward, const Gpu& gpu);
PassRatio ratio_of(const AttentionCurve& forward, const AttentionCurve& backward);
AttentionCurve backward_of(const AttentionCurve& forward, const PassRatio& ratio);
AttentionCurve fit_split(const Rows& rows, const PassRatio& ratio, const AttentionFixed& fixed, const Gpu& gpu);
FitError error_on(std::string what, const AttentionCurve& curve, const Rows& rows, const Gpu& gpu);
FitError error_on_both(
    std::string what, const AttentionCurve& forward, const AttentionCurve& backward, const Rows& rows, const Gpu& gpu);
Rows training_like(const Rows& rows, const Gpu& gpu);

// Collects curves and their reports.
class Collector {
 public:
  void add(AttentionCurve curve, std::string kernel, int head_dim, Evidence evidence, std::string source,
      std::vector<FitError> errors = {}) {
    curve.kernel = std::move(kernel);
    curve.head_dim = head_dim;
    curve.evidence = evidence;
    curve.source = std::move(source);
    curve.efficiency = rounded(curve.efficiency);
    curve.s_half = rounded(curve.s_half);
    curve.c_half = rounded(curve.c_half);
    curve.overhead = rounded(curve.overhead);
    curve.full_efficiency = rounded(curve.full_efficiency);
    CurveReport report = {.curve = fmt::format("attention {} {} {}", curve.kernel, curve.head_dim,
                              curve.pass == Pass::kForward ? "forward" : "backward"),
        .rows = curve.source,
        .constants = fmt::format("e {:.3f}, s0 {:.0f}, c0 {:.2f}, t0 {:.1f} us", curve.efficiency, curve.s_half,
            curve.c_half, curve.overhead * 1e6),
        .evidence = evidence};
    for (const FitError& error : errors)
      if (&error != &errors.front()) result_.log_biases.push_back(error.log_bias);
    report.errors = std::move(errors);
    result_.reports.push_back(std::move(report));
    result_.curves.push_back(std::move(curve));
  }
  const std::vector<AttentionCurve>& curves() const { return result_.curves; }
  AttentionFits take() { return std::move(result_); }

 private:
  AttentionFits result_;
};

}
