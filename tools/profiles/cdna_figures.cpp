// AMD's GPUs borrow H100's shares of the peaks; where figures of MI300X and MI355X are public, they take their place:
//
//   fa2            ROCm/flash-attention#142: both passes at 16,384 positions, head_dim 128, without
//                  a mask. Other head sizes, the mask and older kernels of that generation keep
//                  their proportions to it.
//   fa3, cudnn     what a GPU's best kernel does: aiter's, on MI300X and on MI355X, head_dim 128;
//                  other sizes in proportion.
//   aotriton       PyTorch's flash attention: Triton kernels. Forward on MI300X (PyTorch 2.10,
//                  AOTriton 0.11), head_dim 64 and 128; backward at the rate that MI355X shows.
//   aotriton_asm   the same forward with aiter's backward, which AOTriton calls from 0.11 on.
//   memory-bound   the share of the bandwidth that AMD accepts a MI300X with (BabelStream's copy),
//                  against H100's elementwise kernels: all classes in proportion.
//
// MI325X is MI300X's chip. The MI200s keep H100's shares but for these proportions.
#include <fmt/format.h>

#include <algorithm>

#include "calibration/fit/least_squares.h"
#include "calibration/machines.h"
#include "tools/profiles/published_fit.h"

namespace foreshard {
namespace {

// AMD Instinct MI300X customer acceptance guide (instinct.docs.amd.com, system-acceptance, MI300X):
// BabelStream's copy moves at least 4,177,285 MB/s of the data sheet's 5,300,000.
constexpr double kCopy = 4177.285 / 5300;
constexpr const char* kCopySource = "AMD's acceptance of MI300X: BabelStream copy 4,177,285 MB/s";

// Backward over forward of PyTorch's on MI355X, head_dim 128, causal: 143/422, 224/630 and 259/762 TFLOP/s at 4, 8 and
// 16 thousand positions (HipKittens' comparison, wangye805/HipKittens: analysis/attn@33b50f64).
constexpr double kTritonBackward = 0.345;
// Forward on MI210 without a mask, 4 x 64 heads of 64, 8,192 positions: 94.61 of 181 TFLOP/s
// (ROCm/aotriton#10, 2024-03; MI300X, whose matrix units are the wider, 220.86 of 1,307).
constexpr double kMi200Share = 94.61 / 181, kMi200Positions = 8192;

const Gpu& gpu_named(std::string_view key, const std::vector<Machine>& machines) {
  return std::ranges::find(machines, key, &Machine::key)->node.gpu;
}

using Rows = std::vector<AttentionRow>;

Rows pick(const std::vector<ReadAttention>& all, std::string_view gpu, std::string_view kernel, int head_dim) {
  Rows picked;
  for (const ReadAttention& read : all) {
    const AttentionRow& row = read.row;
    const bool is_own = read.problem.empty() && row.gpu == gpu && row.kernel == kernel;
    if (is_own && row.head_dim == head_dim) picked.push_back(row);
  }
  return picked;
}

Rows pick(const Rows& rows, Pass pass, bool causal) {
  Rows picked;
  const AttentionPass wanted = pass == Pass::kForward ? AttentionPass::kForward : AttentionPass::kBackward;
  for (const AttentionRow& row : rows)
    if (row.pass == wanted && row.causal == causal) picked.push_back(row);
  return picked;
}

const AttentionCurve& curve_named(
    const std::vector<AttentionCurve>& curves, std::string_view kernel, Pass pass, std::int64_t head_dim = 128) {
  return *std::ranges::find_if(
      curves,
      [&](const AttentionCurve& curve) {
        return curve.kernel == kernel && curve.pass == pass && curve.head_dim == head_dim;
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
  for (const AttentionRow& row : pick(rows, curve.pass, false))
    factors.push_back(attention_seconds(full, row, row.flops, mi300x) / row.seconds);
  std::ranges::sort(factors);
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

// PyTorch's kernels for each head size that `fa2` has; those without rows in its proportions.
void add_aotriton(Calibration& calibration, const std::vector<ReadAttention>& all, const Gpu& mi300x, bool is_mi200) {
  const std::vector<AttentionCurve> known = calibration.attention;
  std::vector<AttentionCurve> forward;
  for (const AttentionCurve& fa2 : known) {
    if (fa2.kernel != "fa2" || fa2.pass != Pass::kForward) continue;
    AttentionCurve curve = fa2;
    const Rows rows = pick(all, mi300x.key, "aotriton", static_cast<int>(fa2.head_dim));
    if (!rows.empty()) {
      curve = fit_attention(pick(rows, Pass::kForward, true), mi300x, {fa2.c_half, 5e-6});
      curve.head_dim = fa2.head_dim;
    } else {
      const AttentionCurve& at_128 = curve_named(forward, "aotriton", Pass::kForward);
      curve.efficiency *= at_128.efficiency / curve_named(known, "fa2", Pass::kForward).efficiency;
      curve.s_half = at_128.s_half;
    }
    curve.full_efficiency = rounded(curve.efficiency * fa2.full_efficiency / fa2.efficiency);
    curve.full_s_half = rounded(curve.s_half * fa2.full_s_half / fa2.s_half);
    curve.efficiency = rounded(curve.efficiency);
    curve.s_half = rounded(curve.s_half);
    curve.kernel = "aotriton";
    curve.evidence = Evidence::kExtrapolated;
    curve.source = fmt::format(
        "AOTriton 0.11 on {} (attn-dsl-bench){}", mi300x.name, rows.empty() ? ", in fa2's proportions" : "");
    forward.push_back(curve);
  }
  if (is_mi200) {
    const AttentionCurve& at_64 = curve_named(forward, "aotriton", Pass::kForward, 64);
    const double factor = kMi200Share * (1 + at_64.full_s_half / kMi200Positions) / at_64.full_efficiency;
    for (AttentionCurve& curve : forward) {
      scale(curve, factor, factor);
      curve.source = fmt::format("as fast as on MI210 (ROCm/aotriton#10); shape: {}", curve.source);
    }
  }
  for (const AttentionCurve& curve : forward) {
    AttentionCurve backward = curve;
    backward.pass = Pass::kBackward;
    scale(backward, kTritonBackward, kTritonBackward);
    backward.evidence = Evidence::kAssumed;
    backward.source = fmt::format("{:.2f} of the forward's rate, as on MI355X", kTritonBackward);
    AttentionCurve own = curve;
    own.kernel = "aotriton_asm";
    AttentionCurve assembly = curve_named(known, "fa3", Pass::kBackward, curve.head_dim);
    assembly.kernel = own.kernel;
    for (const AttentionCurve& each : {curve, backward, own, assembly}) calibration.attention.push_back(each);
  }
  calibration.sdpa_kernel = "aotriton";
  calibration.sdpa_preferred = "aotriton_asm";
  calibration.sdpa_source =
      "PyTorch's flash backend on ROCm is AOTriton; from 0.11b on (PyTorch 2.9; told apart here "
      "from 2.11 on) its backward calls aiter's assembly (release notes of ROCm/aotriton)";
}

}

void use_cdna_figures(Calibration& calibration, const Gpu& own, const std::vector<Machine>& machines) {
  const Gpu& mi300x = gpu_named("mi300x", machines);
  const Gpu& measured = own.architecture == "cdna4" ? gpu_named("mi355x", machines) : mi300x;
  const std::vector<ReadAttention> all = read_attention_rows(published_table("attention_measured.csv"), machines);
  const Rows fa2_rows = pick(all, mi300x.key, "fa2", 128);
  const Rows best_rows = pick(all, measured.key, "aiter", 128);
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const std::vector<AttentionCurve> borrowed = calibration.attention;
    const double fa2 = fa2_factor(curve_named(borrowed, "fa2", pass), fa2_rows, mi300x);
    const AttentionCurve best = best_of(pass, best_rows, measured);
    for (AttentionCurve& curve : calibration.attention) {
      if (curve.pass != pass || curve.kernel == "math") continue;
      if (curve.kernel != "fa3" && curve.kernel != "cudnn") {
        scale(curve, fa2, fa2);
        curve.source = fmt::format("{:.2f} times as fast, by ROCm/flash-attention#142, as: {}", fa2, curve.source);
        continue;
      }
      const AttentionCurve& at_128 = curve_named(borrowed, curve.kernel, pass);
      scale(curve, best.efficiency / at_128.efficiency, best.full_efficiency / at_128.full_efficiency);
      curve.s_half = rounded(best.s_half);
      curve.c_half = rounded(best.c_half);
      curve.full_s_half = rounded(best.full_s_half);
      curve.evidence =
          curve.head_dim == 128 && measured.key == own.key ? Evidence::kInterpolated : Evidence::kExtrapolated;
      curve.source =
          fmt::format("aiter on {}{}", measured.name, curve.head_dim == 128 ? "" : ", as H100's other head sizes");
    }
  }
  add_aotriton(calibration, all, mi300x, own.architecture == "cdna2");
  const double share = kCopy / calibration.memory[at(MemoryClass::kElementwise)].fraction;
  for (MemoryCurve& curve : calibration.memory) {
    curve.fraction = rounded(curve.fraction * share);
    curve.source = fmt::format("{:.2f} times, by {}, what {}", share, kCopySource, curve.source);
  }
}

}
