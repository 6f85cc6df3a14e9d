// The GPU's shipped curve is the relative towards which few rows are drawn (fit_gemm.cpp). Rows are
// taken as they are: this machine's own way of timing is what its forecasts shall agree with.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "calibration/fit/fit_device.h"
#include "calibration/fit/least_squares.h"
#include "calibration/profile_store.h"
#include "calibration/published.h"
#include "sim/base/error.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

constexpr std::size_t kFolds = 6;

// What no honest table has. Data sheets give peaks at the boost clock, and rates are printed with
// two or three digits; the slowest large products of the published tables reach a quarter of it,
// and a fit of theirs misses half of its rows by a few per cent.
constexpr double kAbovePeak = 1.05;
constexpr double kLeastOfPeak = 0.02;
constexpr double kLargeFlops = 1e11;
constexpr double kMostMedianError = 0.5;

double rate_of(const GemmRow& row) { return 2 * row.m * row.n * row.k / row.seconds; }

// Which line of which table a row is.
struct Placed {
  GemmRow row;
  std::string place;
};

// The rows that a GPU of this peak can have made; the others are noted.
std::vector<GemmRow> below_peak(const std::vector<Placed>& placed, const Gpu& gpu, std::vector<std::string>& notes) {
  std::vector<GemmRow> rows;
  double best = 0;
  for (const auto& [row, place] : placed) {
    if (rate_of(row) > kAbovePeak * gpu.peak_bf16.value()) {
      notes.push_back(fmt::format("{}: {}, above the {} of {}", place, format_flop_rate(FlopsPerSecond(rate_of(row))),
          format_flop_rate(gpu.peak_bf16), gpu.key));
      continue;
    }
    if (2 * row.m * row.n * row.k >= kLargeFlops) best = std::max(best, rate_of(row));
    rows.push_back(row);
  }
  if (2 * rows.size() < placed.size()) {
    throw invalid_input("{}; and {} of {} rows in all: is tflops in TFLOP/s, latency_us in us?", notes.back(),
        placed.size() - rows.size(), placed.size());
  }
  if (best > 0 && best < kLeastOfPeak * gpu.peak_bf16.value()) {
    throw invalid_input(
        "{}: the best of the large products reaches {}, {:.2g} % of {}'s peak: is tflops in TFLOP/s, latency_us in us?",
        placed.front().place, format_flop_rate(FlopsPerSecond(best)), 100 * best / gpu.peak_bf16.value(), gpu.key);
  }
  return rows;
}

// Every sixth row from the fit of the others.
FitError left_out(const std::vector<GemmRow>& rows, const Gpu& gpu, const GemmFitOptions& options) {
  std::vector<double> predicted, measured;
  for (std::size_t fold = 0; fold < kFolds; ++fold) {
    std::vector<GemmRow> rest;
    for (std::size_t i = 0; i < rows.size(); ++i)
      if (i % kFolds != fold) rest.push_back(rows[i]);
    if (rest.empty() || rest.size() == rows.size()) continue;
    const GemmCurve curve = fit_gemm_curve(rest, gpu, options);
    for (std::size_t i = fold; i < rows.size(); i += kFolds) {
      predicted.push_back(gemm_seconds(curve, rows[i], gpu));
      measured.push_back(rows[i].seconds);
    }
  }
  return fit_error("every sixth row left out", predicted, measured);
}

}

bool is_gemm_table(const CsvTable& table) {
  return table.has("m") && table.has("n") && table.has("k") && (table.has("tflops") || table.has("latency_us"));
}

CsvFit fit_gemm_csv(const std::vector<CsvTable>& tables, const std::string& id) {
  const std::vector<Machine> machines = list_machines();
  CsvFit fit;
  std::vector<Placed> placed;
  std::set<std::string> gpus;
  for (const CsvTable& table : tables) {
    const std::vector<ReadGemm> read = read_gemm_rows(table, machines);
    for (std::size_t i = 0; i < read.size(); ++i) {
      std::string problem = read[i].problem;
      if (problem.empty() && read[i].row.type != GemmType::k16Bit) problem = "not a 16 bit product";
      if (!problem.empty()) {
        fit.notes.push_back(fmt::format("{}:{}: {}", table.file_name(), table.line(i), problem));
        continue;
      }
      gpus.insert(read[i].row.gpu);
      placed.push_back({read[i].row, fmt::format("{}:{}", table.file_name(), table.line(i))});
    }
  }
  if (placed.empty()) {
    throw ConfigError({tables.front().file_name(), 1, 0, ""},
        fmt::format("no row is a 16 bit product of a known GPU{}{}",
            fit.notes.empty() ? "" : "; the first: ", fit.notes.empty() ? "" : fit.notes.front()));
  }
  if (gpus.size() > 1) {
    throw ConfigError({tables.front().file_name(), 1, 0, ""},
        fmt::format("rows of several GPUs ({})", fmt::join(gpus, ", ")), "one profile's");
  }
  const auto machine = std::ranges::find_if(machines, [&](const Machine& m) { return m.key == *gpus.begin(); });
  const Gpu& gpu = machine->node.gpu;
  const std::vector<GemmRow> rows = below_peak(placed, gpu, fit.notes);
  Calibration& c = fit.calibration;
  c = load_profile(gpu.key);
  const GemmCurve shipped = c.gemm_bf16;
  GemmFitOptions options;
  options.hbm_fraction = shipped.hbm_fraction;
  options.relative = &shipped;
  GemmFit found = fit_gemm(rows, gpu, options);
  if (!found.report.errors.empty() && found.report.errors.front().median > kMostMedianError) {
    throw invalid_input(
        "{}: the fit misses half of its {} rows by more than {:.0f} %: they are not products of one {}, timed alone",
        tables.front().file_name(), rows.size(), 100 * found.report.errors.front().median, gpu.key);
  }
  found.curve.sustained = shipped.sustained;
  found.curve.misaligned = shipped.misaligned;
  found.report.constants = constants_text(found.curve);
  found.curve.source =
      fmt::format("{} products of this machine, drawn towards {}'s shipped curve", rows.size(), gpu.key);
  if (rows.size() >= kFolds) {
    found.report.errors.push_back(left_out(rows, gpu, options));
    FactorSpread& spread = c.spread[at(Factor::kGemm)];
    constexpr double kLeast = 0.02;
    spread.log_sd = rounded(std::max(kLeast, std::abs(found.report.errors.back().log_bias)));
    spread.source = "every sixth product of this machine left out";
  }
  c.id = id;
  // Products in fp8 and fp32 keep their relation to these.
  const double change = found.curve.efficiency / shipped.efficiency;
  for (GemmCurve* other : {&c.gemm_fp8, &c.gemm_fp32}) {
    if (other->efficiency <= 0) continue;
    other->efficiency = rounded(std::min(1.9, other->efficiency * change));
    other->source += fmt::format("; times {:.3f}, as 16 bit products of this machine", change);
  }
  c.gemm_bf16 = found.curve;
  fit.report = found.report;
  fit.notes.push_back("attention, memory-bound work, collectives and the rate on a hot chip are the shipped profile's");
  return fit;
}

}
