// AMD's GPUs borrow H100's shares of the peaks; where figures of MI300X and MI355X are public, they
// take their place:
//
//   fa2            ROCm/flash-attention#142: both passes at 16,384 positions, head_dim 128, without
//                  a mask. Other head sizes, the mask and older kernels of that generation keep
//                  their proportions to it.
//   fa3, cudnn     what a GPU's best kernel does: aiter's assembly, a table of MI300X and one of
//                  MI355X, head_dim 128; other sizes in proportion.
//   memory-bound   the share of the bandwidth that AMD accepts a MI300X with (BabelStream's copy),
//                  against H100's elementwise kernels: all classes in proportion.
//
// MI325X is MI300X's chip. The MI200s keep H100's shares but for these proportions.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "calibration/fit.h"
#include "calibration/least_squares.h"
#include "calibration/machines.h"

namespace foreshard {
namespace {

// AMD Instinct MI300X customer acceptance guide (instinct.docs.amd.com, system-acceptance, MI300X):
// BabelStream's copy moves at least 4,177,285 MB/s of the data sheet's 5,300,000.
constexpr double kCopy = 4177.285 / 5300;
constexpr const char* kCopySource = "AMD's acceptance of MI300X: BabelStream copy 4,177,285 MB/s";

const Gpu& gpu_named(std::string_view key, const std::vector<Machine>& machines) {
  return std::find_if(machines.begin(), machines.end(),
                      [&](const Machine& machine) { return machine.key == key; })
      ->node.gpu;
}

using Rows = std::vector<AttentionRow>;

Rows pick(const std::vector<ReadAttention>& all, std::string_view gpu, std::string_view source) {
  Rows picked;
  for (const ReadAttention& read : all) {
    const bool is_own = read.problem.empty() && read.row.gpu == gpu;
    if (is_own && read.row.source.find(source) != std::string::npos) picked.push_back(read.row);
  }
  return picked;
}

Rows pick(const Rows& rows, Pass pass, bool causal) {
  Rows picked;
  const AttentionPass wanted =
      pass == Pass::kForward ? AttentionPass::kForward : AttentionPass::kBackward;
  for (const AttentionRow& row : rows) {
    if (row.pass == wanted && row.causal == causal) picked.push_back(row);
  }
  return picked;
}

const AttentionCurve& curve_named(const std::vector<AttentionCurve>& curves,
                                  std::string_view kernel, Pass pass) {
  return *std::find_if(curves.begin(), curves.end(), [&](const AttentionCurve& curve) {
    return curve.kernel == kernel && curve.pass == pass && curve.head_dim == 128;
  });
}

void scale(AttentionCurve& curve, double factor, double full_factor) {
  curve.efficiency = rounded(std::min(0.95, curve.efficiency * factor));
  curve.full_efficiency = rounded(std::min(0.95, curve.full_efficiency * full_factor));
}

// How many times as fast as the borrowed curve fa2 runs without a mask: the median row.
double fa2_factor(const AttentionCurve& curve, const Rows& rows, const Gpu& mi300x) {
  std::vector<double> factors;
  AttentionCurve full = curve;
  full.efficiency = curve.full_efficiency;
  full.s_half = curve.full_s_half;
  for (const AttentionRow& row : pick(rows, curve.pass, false)) {
    factors.push_back(attention_seconds(full, row, row.flops, mi300x) / row.seconds);
  }
  std::sort(factors.begin(), factors.end());
  return factors[factors.size() / 2];
}

// The best kernel's curve at head_dim 128, with a mask and without.
AttentionCurve best_of(Pass pass, const Rows& rows, const Gpu& gpu) {
  constexpr AttentionFixed kTimedInARow{-1, 5e-6};
  AttentionCurve curve = fit_attention(pick(rows, pass, true), gpu, kTimedInARow);
  const AttentionCurve full = fit_attention(pick(rows, pass, false), gpu, {curve.c_half, 5e-6});
  curve.full_efficiency = full.efficiency;
  curve.full_s_half = full.s_half;
  return curve;
}

}  // namespace

void use_cdna_figures(Calibration& calibration, const Gpu& own,
                      const std::vector<Machine>& machines) {
  const Gpu& mi300x = gpu_named("mi300x", machines);
  const Gpu& measured = own.architecture == "cdna4" ? gpu_named("mi355x", machines) : mi300x;
  const std::vector<ReadAttention> all =
      read_attention_rows(published_table("attention_measured.csv"), machines);
  const Rows fa2_rows = pick(all, mi300x.key, "flash-attention#142");
  const Rows best_rows = pick(all, measured.key, "aiter");
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const std::vector<AttentionCurve> borrowed = calibration.attention;
    const double fa2 = fa2_factor(curve_named(borrowed, "fa2", pass), fa2_rows, mi300x);
    const AttentionCurve best = best_of(pass, best_rows, measured);
    for (AttentionCurve& curve : calibration.attention) {
      if (curve.pass != pass || curve.kernel == "math") continue;
      if (curve.kernel != "fa3" && curve.kernel != "cudnn") {
        scale(curve, fa2, fa2);
        curve.source = fmt::format("{:.2f} times as fast, by ROCm/flash-attention#142, as: {}", fa2,
                                   curve.source);
        continue;
      }
      const AttentionCurve& at_128 = curve_named(borrowed, curve.kernel, pass);
      scale(curve, best.efficiency / at_128.efficiency,
            best.full_efficiency / at_128.full_efficiency);
      curve.s_half = rounded(best.s_half);
      curve.c_half = rounded(best.c_half);
      curve.full_s_half = rounded(best.full_s_half);
      curve.evidence = curve.head_dim == 128 && measured.key == own.key ? Evidence::kInterpolated
                                                                        : Evidence::kExtrapolated;
      curve.source = fmt::format("ROCm/aiter's assembly on {}{}", measured.name,
                                 curve.head_dim == 128 ? "" : ", as H100's other head sizes");
    }
  }
  const double share =
      kCopy / calibration.memory[static_cast<std::size_t>(MemoryClass::kElementwise)].fraction;
  for (MemoryCurve& curve : calibration.memory) {
    curve.fraction = rounded(curve.fraction * share);
    curve.source = fmt::format("{:.2f} times, by {}, what {}", share, kCopySource, curve.source);
  }
}

}  // namespace foreshard
