// Fits are made when a row first needs them and kept: per GPU and type without a source, or without a fold of (n, k)
// families of the only source. They start from the shipped curve, which costs a few steps of the search.
//
// Intervals: the 90 % quantile of what the shipped curves leave on the published rows of other
// sources in the row's size class, times 1.2, for a source that was left out is missed by that
// much more than own rows (reports/calibration.md). Borrowed curves: the spread of products.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "calibration/fit/fit.h"
#include "calibration/gpu_names.h"
#include "calibration/profile_store.h"
#include "calibration/published.h"
#include "reports/accuracy/score_kernels.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/base/quantile.h"

namespace foreshard {
namespace {

constexpr std::size_t kWholeTable = kFolds;  // no fold: the source is left out
constexpr std::size_t kFewestRows = 6;
constexpr std::size_t kSurface = 100;
constexpr double kLeftOutOverOwn = 1.2;

const char* type_word(GemmType type) { return word_at(type, {"16 bit", "fp8", "fp32", "tf32", "fp4"}, ""); }

double flops_of(const GemmRow& row) { return 2 * row.m * row.n * row.k; }

struct GemmSize {
  double below;
  const char* name;
};
constexpr GemmSize kGemmSizes[] = {{1e10, "below 10 GFLOP"}, {1e11, "10 to 100 GFLOP"}, {1e12, "0.1 to 1 TFLOP"},
    {1e13, "1 to 10 TFLOP"}, {1e300, "above 10 TFLOP"}};

std::size_t size_of(const GemmRow& row) {
  std::size_t i = 0;
  while (flops_of(row) >= kGemmSizes[i].below) ++i;
  return i;
}

class GemmJudge {
 public:
  GemmJudge() {
    for (GemmRow& row : gemm_rows(machines_)) published_[{row.gpu, row.type}].push_back(row);
  }

  const std::vector<Machine>& machines() const { return machines_; }

  AccuracyRow score(AccuracyRow out, const ReadGemm& read) {
    const GemmRow& row = read.row;
    const Machine* machine = machine_of(row.gpu, machines_);
    if ((row.type == GemmType::kFp8 || row.type == GemmType::kFp4) && profile(row.gpu).gemm_fp8.efficiency <= 0)
      return set_aside(std::move(out), fmt::format("{} has no fp8 units", row.gpu));
    const Choice choice = choose(row);
    Gpu gpu = machine->node.gpu;
    // Other types run at multiples of a type that was measured.
    if (row.type == GemmType::kTf32) gpu.peak_bf16 = FlopsPerSecond(gpu.peak_bf16.value() / 2);
    if (row.type == GemmType::kFp4) gpu.peak_fp8 = FlopsPerSecond(gpu.peak_fp8.value() * 2);
    const double predicted = gemm_seconds(choice.curve, row, gpu) * protocols(row.gpu).factor(row);
    const bool is_fp8 = row.type == GemmType::kFp8 || row.type == GemmType::kFp4;
    const FlopsPerSecond peak = is_fp8 ? gpu.peak_fp8 : row.type == GemmType::kFp32 ? gpu.peak_fp32 : gpu.peak_bf16;
    std::string absurd = absurdity(row.seconds, predicted, flops_of(row), peak);
    if (!absurd.empty()) return set_aside(std::move(out), std::move(absurd));
    out.groups.emplace_back("size", kGemmSizes[size_of(row)].name);
    out.groups.emplace_back("rule", choice.rule);
    return with_forecast(std::move(out), row.seconds, predicted, half_width(row, choice));
  }

 private:
  using Key = std::pair<std::string, GemmType>;
  struct Choice {
    GemmCurve curve;
    const char* rule = "";
    bool is_borrowed = false;
  };

  const Calibration& profile(const std::string& gpu) {
    return remembered(
        profiles_, gpu, [&] { return load_profile(gpu); });
  }
  const GemmCurve& shipped(const std::string& gpu, GemmType type) {
    const Calibration& c = profile(gpu);
    if (type == GemmType::kFp8 || type == GemmType::kFp4) return c.gemm_fp8;
    return type == GemmType::kFp32 ? c.gemm_fp32 : c.gemm_bf16;
  }
  const GemmProtocols& protocols(const std::string& gpu) {
    return remembered(
        protocols_, gpu,
        [&] {
          std::vector<GemmRow> rows;
          for (const auto& [key, of_key] : published_) append(rows, of_key);
          return GemmProtocols(rows, gpu);
        });
  }

  Choice choose(const GemmRow& row) {
    const auto found = published_.find({row.gpu, row.type});
    static const std::vector<GemmRow> kNone;
    const std::vector<GemmRow>& rows = found == published_.end() ? kNone : found->second;
    const auto own = at(std::ranges::count(rows, row.source, &GemmRow::source));
    const std::size_t others = rows.size() - own;
    const GemmCurve& curve = shipped(row.gpu, row.type);
    const bool borrowed = rows.size() < kFewestRows;
    if (own < kFewestRows) return {curve, borrowed ? "another GPU" : "other sources", borrowed};
    if (others >= kSurface) return {fit(row, rows, kWholeTable), "source left out", false};
    const std::size_t fold = fold_of(row.n, row.k);
    return {fit(row, rows, fold), "n and k left out", false};
  }

  // Without the row's source, or without a fold of all.
  GemmCurve fit(const GemmRow& row, const std::vector<GemmRow>& rows, std::size_t fold) {
    return remembered(
        fits_, std::tuple(row.gpu, row.type, row.source, fold),
        [&] {
          const auto rest = list_where<GemmRow>(
              rows,
              [&](const GemmRow& each) {
                return fold == kWholeTable ? each.source != row.source : fold_of(each.n, each.k) != fold;
              });
          const GemmCurve& start = shipped(row.gpu, row.type);
          GemmFitOptions options = {
              .hbm_fraction = start.hbm_fraction, .protocols = &protocols(row.gpu), .start = &start};
          GemmCurve curve = fit_gemm_curve(rest, machine_of(row.gpu, machines_)->node.gpu, options);
          curve.misaligned = start.misaligned;
          return curve;
        });
  }

  double half_width(const GemmRow& row, const Choice& choice) {
    if (choice.is_borrowed || row.type == GemmType::kFp32 || row.type == GemmType::kTf32 ||
        row.type == GemmType::kFp4) {
      constexpr double kShape = 0.06;  // median of shapes after one scale
      const double spread = profile(row.gpu).factor(Factor::kGemm).log_sd;
      return kNinetyPercent * std::hypot(spread, kShape);
    }
    const auto key = std::pair(row.source, size_of(row));
    const auto found = halves_.find(key);
    if (found != halves_.end()) return found->second;
    std::vector<double> logs;
    for (const auto& [where, rows] : published_) {
      if (where.second != GemmType::k16Bit || rows.size() < kSurface) continue;
      const Gpu& gpu = machine_of(where.first, machines_)->node.gpu;
      if (is_amd(gpu) != is_amd(machine_of(row.gpu, machines_)->node.gpu)) continue;
      for (const GemmRow& each : rows) {
        if (each.source == row.source || size_of(each) != key.second) continue;
        const double predicted =
            gemm_seconds(shipped(where.first, where.second), each, gpu) * protocols(where.first).factor(each);
        logs.push_back(std::log(predicted / each.seconds));
      }
    }
    constexpr double kNoRows = 0.2;
    const double half = logs.empty() ? kNoRows : kLeftOutOverOwn * log_quantile(logs, 0.9);
    return halves_.emplace(key, half).first->second;
  }

  std::vector<Machine> machines_ = list_machines();
  std::map<Key, std::vector<GemmRow>> published_;
  std::map<std::string, Calibration> profiles_;
  std::map<std::string, GemmProtocols> protocols_;
  std::map<std::tuple<std::string, GemmType, std::string, std::size_t>, GemmCurve> fits_;
  std::map<std::pair<std::string, std::size_t>, double> halves_;
};

}

std::vector<AccuracyRow> score_gemm(const CsvTable& table) {
  GemmJudge judge;
  const std::vector<ReadGemm> read = read_gemm_rows(table, judge.machines());
  return judged(table, std::move(judge), read, [](const ReadGemm& each) {
    const GemmRow& row = each.row;
    return AccuracyGroups{{"gpu", row.gpu}, {"source", row.source}, {"dtype", type_word(row.type)}};
  });
}

}
