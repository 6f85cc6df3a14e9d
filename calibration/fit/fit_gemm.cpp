// Form: sim/spec/calibration.h, a single product on a cool chip (burst_seconds).
//
// Constants of a GPU are fitted to all its rows at once. Programs that time products differ in how
// hot they run the chip and in what their operands hold, by the same sign on every GPU, so each
// row is first cleared of its protocol's effect as the *other* GPUs show it: for shapes that
// several protocols have, the median deviation from their mean in bins of size, averaged over
// GPUs, shrunk by one GPU that shows none.
//
// In a training step every product runs on a hot chip: `sustained` is the rate of a product of
// 10 ms over a short one's under the protocol that slows long products most, for a step gives no pauses to cool. On
// Hopper, where it was measured inside steps, it is kHotShare of that: other kernels than products let it cool.
//
// Few rows (or none) borrow: every constant is drawn towards that of the nearest relative, as if
// it had been measured there with the spread below, efficiency only loosely. So six large products
// set the scale, a surface sets everything.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "calibration/fit/fit.h"
#include "calibration/fit/least_squares.h"
#include "sim/base/lookup.h"
#include "sim/base/quantile.h"
#include "sim/cost/measured.h"

namespace foreshard {
namespace {

constexpr double kTera = 1e12;
constexpr double kSustained = 0.01;  // s
// H100's products inside running layers of 1B and 8B models (calibration/measured/h100-sxm) take
// 0.84 of the time at the hottest protocol's rate, as short ones do; the power limit takes another
// 2 to 4 % off the clocks of a whole step (1,725 to 1,770 MHz beside 1,755 to 1,785).
constexpr double kHotShare = 0.3;
// Of the kernels in front of an fp8 product in a table that times both: TensorRT-LLM scales each tensor by its own
// amax, a pass that reads two bytes, and a second one reads two and writes one. As reductions they reach the share of
// the bandwidth that norms do (fit_memory.cpp). Products alone (pytorch/pytorch#143465, five on H100) show that what
// grows with 1/n is this, not the product's.
constexpr double kQuantisedBytes = 5;
constexpr double kQuantiseFraction = 0.57;
constexpr double kQuantiseOverhead = 2 * 2.5e-6;
// Gradients that are added up in PyTorch: two operands are read and one written, at the share of
// the bandwidth that AMD accepts a MI300X's copy with (fit_cdna.cpp).
constexpr double kAddedBytes = 6;
constexpr double kAddedFraction = 0.79;
constexpr double kAddOverhead = 2 * 2.5e-6;
// MI300X's clock is lower in fp16 than in bf16: 654 TFLOP/s at 1115 MHz, 708 at 1207 (AMD,
// "Measuring Max-Achievable FLOPs", part 2, 2025-02).
constexpr double kHalfOverBf16 = 708.0 / 654;
// A source of fewer rows says too little about its own bias.
constexpr std::int64_t kFewestRows = 6;

double flops_of(const GemmRow& row) { return 2 * row.m * row.n * row.k; }

// How far constants of relatives differ (standard deviations, in the logarithm where relative):
// from the fits of the GPUs that have surfaces.
struct PriorSpread {
  double GemmCurve::*constant;
  double spread;
  bool relative;
};
constexpr PriorSpread kPrior[] = {
    {&GemmCurve::efficiency, 0.5, true},
    {&GemmCurve::k_half, 0.5, true},
    {&GemmCurve::m_half, 30, false},
    {&GemmCurve::n_half, 20, false},
    {&GemmCurve::wave, 0.03, false},
    {&GemmCurve::overhead, 0.4, true},
    {&GemmCurve::slowdown, 0.02, false},
    {&GemmCurve::blend, 0.4, true},
};
constexpr std::size_t kConstants = std::size(kPrior);
// Weight of the prior: of one row that fits to 5 %.
constexpr double kRowError = 0.05;

// What products of any GPU are like: the means over those with surfaces.
GemmCurve usual_curve() {
  GemmCurve curve;
  curve.efficiency = 0.75;
  curve.k_half = 80;
  curve.m_half = 20;
  curve.n_half = 15;
  curve.wave = 0.05;
  curve.overhead = 3e-6;
  curve.slowdown = 0.02;
  curve.blend = 4;
  return curve;
}

GemmCurve with(GemmCurve curve, std::span<const double> x) {
  for (std::size_t i = 0; i < kConstants; ++i) curve.*kPrior[i].constant = x[i];
  return curve;
}

// A row's product, or those of the input's and of the weight's gradient.
struct Products {
  Kernel first;
  std::optional<Kernel> second;
};

Products products_of(const GemmRow& row) {
  if (!row.gradients) return {kernel_of(row), std::nullopt};
  GemmRow input = row, weight = row;
  std::swap(input.n, input.k);
  weight.m = row.n;
  weight.n = row.k;
  weight.k = row.m;
  return {kernel_of(input), kernel_of(weight)};
}

double adding_up(const GemmRow& row, const Gpu& gpu) {
  const double bytes = kAddedBytes * (row.m + row.n) * row.k;
  return bytes / (kAddedFraction * gpu.memory_bandwidth.value()) + kAddOverhead;
}

double predicted(const GemmCurve& curve, const GemmRow& row, const Products& products, const Gpu& gpu) {
  double seconds = burst_seconds(curve, products.first, gpu);
  if (products.second) seconds += burst_seconds(curve, *products.second, gpu) + adding_up(row, gpu);
  if (row.half && gpu.architecture == "cdna3") seconds *= kHalfOverBf16;
  const auto quantise = [&](double elements) {
    seconds += kQuantisedBytes * elements / (kQuantiseFraction * gpu.memory_bandwidth.value()) + kQuantiseOverhead;
  };
  if (row.type == GemmType::kFp8 && row.quantises) quantise(row.m * row.k);
  if (row.type == GemmType::kFp8 && row.quantises_weight) quantise(row.n * row.k);
  return seconds;
}

struct Prepared {
  std::vector<GemmRow> rows;
  std::vector<Products> products;
  std::vector<double> seconds;  // cleared of the protocol's effect
};

Prepared prepare(const std::vector<GemmRow>& rows, const GemmProtocols& protocols) {
  Prepared p;
  p.rows = rows;
  for (const GemmRow& row : rows) {
    p.products.push_back(products_of(row));
    p.seconds.push_back(row.seconds / protocols.factor(row));
  }
  return p;
}

GemmCurve fit_constants(
    const Prepared& p, const Gpu& gpu, const GemmCurve& prior, const std::vector<GemmCurve>& starts) {
  LeastSquares problem;
  problem.rows = p.rows.size() + kConstants;
  problem.ranges = {{0.05, 1.3}, {1, 1000}, {0, 2000}, {0, 2000}, {0, 1}, {1e-7, 5e-5}, {0, 0.3}, {1, 10}};
  for (const GemmCurve& start : starts) {
    auto x = list_of<double>(kPrior, [&](const PriorSpread& each) { return start.*each.constant; });
    problem.starts.push_back(std::move(x));
  }
  problem.residuals = [&](std::span<const double> x, std::span<double> out) {
    const GemmCurve curve = with(prior, x);
    const std::size_t rows = p.rows.size();
    for (std::size_t i = 0; i < rows; ++i)
      out[i] = std::log(predicted(curve, p.rows[i], p.products[i], gpu) / p.seconds[i]);
    for (std::size_t i = 0; i < kConstants; ++i) {
      const double value = x[i], usual = prior.*kPrior[i].constant;
      const double off = kPrior[i].relative ? std::log(value / usual) : value - usual;
      out[rows + i] = kRowError * off / kPrior[i].spread;
    }
  };
  return with(prior, solve(problem));
}

FitError error_of(std::string what, const GemmCurve& curve, const Prepared& p, const Gpu& gpu) {
  std::vector<double> times;
  for (std::size_t i = 0; i < p.rows.size(); ++i) times.push_back(predicted(curve, p.rows[i], p.products[i], gpu));
  return fit_error(std::move(what), times, p.seconds);
}

std::vector<GemmRow> rows_without(const std::vector<GemmRow>& rows, std::string_view source) {
  return list_where<GemmRow>(
      rows, [&](const GemmRow& row) { return row.source != source; });
}

double sustained_of(const GemmCurve& curve, const Gpu& gpu, double hottest) {
  const double flops = kSustained * curve.efficiency * gpu.peak_bf16.value();
  const double slower = (1 + curve.slowdown * std::max(0.0, std::log2(flops / kTera))) * hottest;
  return std::pow(slower, gpu.architecture == "hopper" ? -kHotShare : -1);
}

double sorted_quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return quantile(values, q);
}

}

// --- protocols ---

// Bins of a factor 10^0.8 from 3 GFLOP on.
std::size_t GemmProtocols::bin_of(double flops) {
  const double bin = std::floor((std::log10(flops) - 9.5) * 1.25);
  return static_cast<std::size_t>(std::clamp(bin, 0.0, as_double(kBins - 1)));
}

GemmProtocols::GemmProtocols(const std::vector<GemmRow>& rows, std::string_view without_gpu) {
  // Per GPU and shape: log seconds by protocol.
  using Shape = std::tuple<double, double, double>;
  std::map<std::string, std::map<Shape, std::map<std::string, double>>> shapes;
  for (const GemmRow& row : rows) {
    if (row.gpu == without_gpu || row.type != GemmType::k16Bit) continue;
    if (row.gradients) continue;
    shapes[row.gpu][{row.m, row.n, row.k}][row.protocol] = std::log(row.seconds);
  }
  constexpr std::size_t kFewest = 5;  // shapes of a bin
  std::map<std::string, std::array<std::vector<double>, kBins>> by_gpu;
  for (const auto& [gpu, of_gpu] : shapes) {
    std::map<std::string, std::array<std::vector<double>, kBins>> deviations;
    // The mean is over the protocols that most GPUs have been measured with: two.
    for (const auto& [shape, times] : of_gpu) {
      if (times.size() < 2) continue;
      double mean = 0;
      int references = 0;
      for (const auto& [protocol, time] : times) {
        if (!is_reference(protocol)) continue;
        mean += time;
        ++references;
      }
      if (references < 2) continue;
      mean /= references;
      const auto& [m, n, k] = shape;
      for (const auto& [protocol, time] : times) deviations[protocol][bin_of(2 * m * n * k)].push_back(time - mean);
    }
    for (const auto& [protocol, bins] : deviations) {
      for (std::size_t b = 0; b < kBins; ++b)
        if (bins[b].size() >= kFewest) by_gpu[protocol][b].push_back(sorted_quantile(bins[b], 0.5));
    }
  }
  for (const auto& [protocol, bins] : by_gpu) {
    for (std::size_t b = 0; b < kBins; ++b) {
      double sum = sum_of<double>(bins[b], std::identity());
      effects_[protocol][b] = sum / (as_double(bins[b].size()) + 1);
    }
  }
}

// Uninitialised weights are no usual operands.
bool GemmProtocols::is_reference(std::string_view protocol) { return !contains(protocol, "vllm"); }

double GemmProtocols::factor(const GemmRow& row) const {
  const auto found = effects_.find(row.protocol);
  return found == effects_.end() ? 1 : std::exp(found->second[bin_of(flops_of(row))]);
}

double GemmProtocols::hottest() const {
  double most = 0;
  for (const auto& [protocol, bins] : effects_)
    for (const double effect : bins) most = std::max(most, effect);
  return std::exp(most);
}

// --- fits ---

std::string constants_text(const GemmCurve& c) {
  return fmt::format(
      "e {:.3f}, k0 {:.0f}, m0 {:.0f}, n0 {:.0f}, wave {:.3f}, blend {:.1f}, t0 {:.1f} us, q {:.4f}, sustained {:.3f}",
      c.efficiency, c.k_half, c.m_half, c.n_half, c.wave, c.blend, c.overhead * 1e6, c.slowdown, c.sustained);
}

Kernel kernel_of(const GemmRow& row) {
  GemmPoint point;
  point.fp32 = row.type == GemmType::kFp32;
  point.m = static_cast<std::int64_t>(row.m);
  point.n = static_cast<std::int64_t>(row.n);
  point.k = static_cast<std::int64_t>(row.k);
  Kernel kernel = kernel_of(point);
  kernel.fp8 = row.type == GemmType::kFp8 || row.type == GemmType::kFp4;
  if (kernel.fp8) kernel.bytes = Bytes((point.m + point.n) * point.k + point.m * point.n * size_of(DType::kBf16));
  return kernel;
}

double gemm_seconds(const GemmCurve& curve, const GemmRow& row, const Gpu& gpu) {
  return predicted(curve, row, products_of(row), gpu);
}

GemmCurve fit_gemm_curve(const std::vector<GemmRow>& rows, const Gpu& gpu, const GemmFitOptions& options) {
  const GemmProtocols none;
  const Prepared p = prepare(rows, options.protocols == nullptr ? none : *options.protocols);
  GemmCurve prior = options.relative == nullptr ? usual_curve() : *options.relative;
  prior.hbm_fraction = options.hbm_fraction;
  prior.tail = 0;
  std::vector<GemmCurve> starts = {prior};
  if (options.start != nullptr) {
    starts = {*options.start};
  } else if (options.relative != nullptr) {
    GemmCurve usual = usual_curve();
    usual.efficiency = prior.efficiency;
    starts.push_back(usual);
  }
  return fit_constants(p, gpu, prior, starts);
}

GemmFit fit_gemm(const std::vector<GemmRow>& rows, const Gpu& gpu, const GemmFitOptions& options) {
  const GemmProtocols none;
  const GemmProtocols& protocols = options.protocols == nullptr ? none : *options.protocols;
  const GemmCurve found = fit_gemm_curve(rows, gpu, options);
  GemmFit fit;
  fit.curve = found;
  for (const PriorSpread& each : kPrior) fit.curve.*each.constant = rounded(found.*each.constant);
  fit.curve.sustained = rounded(std::min(1.0, sustained_of(found, gpu, protocols.hottest())));
  fit.curve.hbm_fraction = rounded(found.hbm_fraction);
  fit.curve.evidence = Evidence::kMeasured;

  std::map<std::string, std::int64_t> sources;
  for (const GemmRow& row : rows) ++sources[row.source];
  std::string listed;
  for (const auto& [source, count] : sources)
    listed += fmt::format("{}{} ({} rows)", listed.empty() ? "" : "; ", source, count);
  fit.curve.source = "gemm_measured.csv: " + listed;
  fit.report.curve = fmt::format("GEMM {}", options.name);
  fit.report.rows = listed;
  fit.report.constants = constants_text(fit.curve);
  fit.report.errors.push_back(error_of("own rows", found, prepare(rows, protocols), gpu));
  if (options.apart != nullptr && !options.apart->empty()) {
    fit.report.errors.push_back(
        error_of("not fitted: " + options.apart->front().source, found, prepare(*options.apart, protocols), gpu));
  }
  if (sources.size() < 2) return fit;
  GemmFitOptions again = options;
  again.apart = nullptr;
  again.start = &found;
  for (const auto& [source, count] : sources) {
    if (count < kFewestRows) continue;
    std::vector<GemmRow> held;
    for (const GemmRow& row : rows)
      if (row.source == source) held.push_back(row);
    const std::vector<GemmRow> rest = rows_without(rows, source);
    if (rest.empty()) continue;
    fit.report.errors.push_back(
        error_of("left out: " + source, fit_gemm_curve(rest, gpu, again), prepare(held, protocols), gpu));
  }
  return fit;
}

}
