// Fits of the curves of sim/spec/calibration.h to the published measurements.
//
// Robust least squares in log time. Whole training steps are never looked at: they judge the
// result. Every fit reports how well it does on its own rows and on rows of a source left out of
// it; the spreads of a profile come from the latter. What
// makes the shipped profiles of the published tables is tools/profiles/.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "calibration/published.h"
#include "sim/graph/layers/layer_program.h"
#include "sim/spec/calibration.h"
#include "sim/spec/cluster.h"

namespace foreshard {

// Of predicted/measured - 1 over some rows.
struct FitError {
  std::string what;  // the rows: "own rows", a source left out, another fabric
  std::int64_t rows = 0;
  double median = 0;    // of the absolute error
  double p90 = 0;       // of the absolute error
  double log_bias = 0;  // median of log(predicted/measured)
};
FitError fit_error(std::string what, const std::vector<double>& predicted, const std::vector<double>& measured);
// Of rows that have `seconds`.
template <typename Row, typename Predicted>
FitError fit_error(std::string what, const std::vector<Row>& rows, const Predicted& seconds_of) {
  std::vector<double> predicted, measured;
  for (const Row& row : rows) {
    predicted.push_back(seconds_of(row));
    measured.push_back(row.seconds);
  }
  return fit_error(std::move(what), predicted, measured);
}

struct CurveReport {
  std::string curve;
  std::string rows;       // what was fitted, by source
  std::string constants;  // as printed
  Evidence evidence = Evidence::kMeasured;
  std::vector<FitError> errors;  // the first on the fit's own rows, the others out of sample
};

// --- GEMM (fit_gemm.cpp) ---

// What a program's way of timing does to its rows, as other GPUs show it.
class GemmProtocols {
 public:
  GemmProtocols() = default;
  // From the rows of all GPUs but one.
  GemmProtocols(const std::vector<GemmRow>& rows, std::string_view without_gpu);
  // On the time of a row; 1 where nothing is known.
  double factor(const GemmRow& row) const;
  // Of the protocol that slows long products most.
  double hottest() const;

 private:
  static constexpr std::size_t kBins = 6;  // by size
  static std::size_t bin_of(double flops);
  static bool is_reference(std::string_view protocol);
  std::map<std::string, std::array<double, kBins>, std::less<>> effects_;  // log
};

struct GemmFitOptions {
  std::string name = "bf16";
  double hbm_fraction = 0.9;                    // not fitted: hardly a row is limited by memory
  const GemmCurve* relative = nullptr;          // towards which few rows are drawn; none: usual
  const GemmProtocols* protocols = nullptr;     // none: rows as they are
  const GemmCurve* start = nullptr;             // of the search; none: several
  const std::vector<GemmRow>* apart = nullptr;  // not fitted: what the curve is off on them
};
struct GemmFit {
  GemmCurve curve;
  CurveReport report;
};
// Rows of one type; constants unrounded.
GemmCurve fit_gemm_curve(const std::vector<GemmRow>& rows, const Gpu& gpu, const GemmFitOptions& options);
// With the rate on a hot chip and what every source's rows are off when it is left out.
GemmFit fit_gemm(const std::vector<GemmRow>& rows, const Gpu& gpu, const GemmFitOptions& options);

std::string constants_text(const GemmCurve& curve);  // as reports print them
Kernel kernel_of(const GemmRow& row);
// Seconds of a single product on a cool chip, with quantisation where the row has it.
double gemm_seconds(const GemmCurve& curve, const GemmRow& row, const Gpu& gpu);

// Of a kernel timed by itself.
double memory_seconds(const MemoryCurve& curve, double bytes, const Gpu& gpu);
MemoryCurve fit_memory(const std::vector<MemoryRow>& rows, const Gpu& gpu);

}
