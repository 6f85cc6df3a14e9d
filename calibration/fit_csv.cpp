// The GPU's shipped curve is the relative towards which few rows are drawn (fit_gemm.cpp). Rows are
// taken as they are: this machine's own way of timing is what its forecasts shall agree with.
#include "calibration/fit_csv.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "calibration/least_squares.h"
#include "calibration/profile.h"
#include "calibration/published.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

constexpr std::size_t kFolds = 6;

// Every sixth row from the fit of the others.
FitError left_out(const std::vector<GemmRow>& rows, const Gpu& gpu, const GemmFitOptions& options) {
  std::vector<double> predicted, measured;
  for (std::size_t fold = 0; fold < kFolds; ++fold) {
    std::vector<GemmRow> rest;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i % kFolds != fold) rest.push_back(rows[i]);
    }
    if (rest.empty() || rest.size() == rows.size()) continue;
    const GemmCurve curve = fit_gemm_curve(rest, gpu, options);
    for (std::size_t i = fold; i < rows.size(); i += kFolds) {
      predicted.push_back(gemm_seconds(curve, rows[i], gpu));
      measured.push_back(rows[i].seconds);
    }
  }
  return fit_error("every sixth row left out", predicted, measured);
}

}  // namespace

bool is_gemm_table(const CsvTable& table) {
  return table.has("m") && table.has("n") && table.has("k") &&
         (table.has("tflops") || table.has("latency_us"));
}

CsvFit fit_gemm_csv(const std::vector<CsvTable>& tables, const std::string& id) {
  const std::vector<Machine> machines = list_machines();
  CsvFit fit;
  std::vector<GemmRow> rows;
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
      rows.push_back(read[i].row);
    }
  }
  if (rows.empty()) {
    throw Error(ExitCode::kInvalidInput,
                fmt::format("no row is a 16 bit product of a known GPU{}{}",
                            fit.notes.empty() ? "" : "; the first: ",
                            fit.notes.empty() ? "" : fit.notes.front()));
  }
  if (gpus.size() > 1) {
    throw Error(
        ExitCode::kInvalidInput,
        fmt::format("rows of several GPUs ({}); expected one profile's", fmt::join(gpus, ", ")));
  }
  const auto machine = std::find_if(machines.begin(), machines.end(),
                                    [&](const Machine& m) { return m.key == *gpus.begin(); });
  const Gpu& gpu = machine->node.gpu;
  Calibration& c = fit.calibration;
  c = load_profile(gpu.key);
  const GemmCurve shipped = c.gemm_bf16;
  GemmFitOptions options;
  options.hbm_fraction = shipped.hbm_fraction;
  options.relative = &shipped;
  GemmFit found = fit_gemm(rows, gpu, options);
  found.curve.sustained = shipped.sustained;
  found.curve.misaligned = shipped.misaligned;
  found.report.constants = constants_text(found.curve);
  found.curve.source = fmt::format("{} products of this machine, drawn towards {}'s shipped curve",
                                   rows.size(), gpu.key);
  if (rows.size() >= kFolds) {
    found.report.errors.push_back(left_out(rows, gpu, options));
    FactorSpread& spread = c.spread[static_cast<std::size_t>(Factor::kGemm)];
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
  fit.notes.push_back(
      "attention, memory-bound work, collectives and the rate on a hot chip are the shipped "
      "profile's");
  return fit;
}

}  // namespace foreshard
