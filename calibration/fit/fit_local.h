// Fits the raw measurements of a machine (calibration/measurements.h) to its profile.
//
// Per number of ranks that ran at once: the measured points as they are, and the smooth curves that price what lies far
// from them. Every curve is judged twice: on its own rows, where it differs from a measurement only if one shape or
// size was measured several times or noise had to be smoothed, and on rows left out one by one, which is how it does on
// a shape or size that nobody measured. Whole training steps are never looked at.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "calibration/fit/fit.h"
#include "calibration/local_profile.h"
#include "calibration/measurements.h"

namespace foreshard {

struct VariantReport {
  std::vector<CurveReport> curves;  // errors: "own rows", and "left out" where rows suffice
  std::vector<std::string> gaps;    // what was not measured, and what stands in for it
};

struct LocalFit {
  LocalProfile profile;
  std::vector<VariantReport> reports;  // like profile.variants
};

// Throws Error(kInvalidInput), naming the files, where for some number of ranks no product or no
// memory-bound function was measured: there is no rate to start from.
LocalFit fit_local(const Measurements& measurements);

// --- parts of it ---

// The machine of a run is never quite the one that was measured.
inline constexpr double kLeastSpread = 0.02;
// Weight of a pull towards a round value, per factor of e.
inline constexpr double kPull = 0.02;

// Shapes (fit_local_shapes.cpp). Rates of `gpu` are the best measured ones.
struct LocalGemm {
  GemmCurve fp32, bf16;
  std::vector<GemmPoint> points;
  std::vector<CurveReport> reports;
  std::vector<double> left_out;  // log(predicted / measured)
};
LocalGemm fit_local_gemm(const std::vector<GemmPoint>& rows, const Gpu& gpu);

struct LocalAttention {
  std::vector<AttentionCurve> curves;  // forward and backward
  std::vector<AttentionPoint> points;
  std::vector<CurveReport> reports;
  std::vector<double> left_out;
};
LocalAttention fit_local_attention(const std::vector<AttentionPoint>& rows, const Gpu& gpu);

// Sizes (fit_local_sizes.cpp).
struct LocalFunctions {
  std::vector<FunctionPoints> points;
  std::array<MemoryCurve, kMemoryClasses> classes;  // for functions that were not measured
  std::vector<CurveReport> reports;
  std::vector<double> left_out;
};
LocalFunctions fit_local_functions(const std::vector<FunctionPoints>& rows, const Gpu& gpu);

struct LocalCollectives {
  std::vector<CollectivePoints> points;
  std::vector<CurveReport> reports;
  std::vector<double> left_out;
};
LocalCollectives fit_local_collectives(const std::vector<CollectivePoints>& rows);

// Rows of one function, in the order of their first row.
std::vector<FunctionPoints> by_function(const std::vector<MeasuredRow<FunctionTime>>& rows);

// Quartiles of a normal distribution are 1.349 standard deviations apart.
inline constexpr double kQuartiles = 1.349;
// What the repeats of each row are apart, in standard deviations of the logarithm.
template <typename Point>
std::vector<double> repeats_of(const std::vector<MeasuredRow<Point>>& rows) {
  std::vector<double> repeats;
  for (const auto& row : rows)
    if (row.spread.low > 0) repeats.push_back(std::log(row.spread.high / row.spread.low) / kQuartiles);
  return repeats;
}

// Ascending sizes, each once (geometric mean of its times), and times that never fall: neighbours
// that would are pooled to their geometric mean.
std::vector<SizePoint> smoothed(std::vector<SizePoint> rows);

}
