// t = F/(e*P) * (1 + s0/S) * (1 + c0/C) + t0, F of the pass, C = B*h*ceil(S/128)/SM
//
// Which rows: the FlashAttention charts for what training runs (dense, both passes); the serving sweeps only for what
// the charts cannot show (the fill c0, for the charts keep B*S constant, and with it the fixed time), for the ratio of
// two GPUs with the same sweep, and where there is nothing else.
//
//   fa1, triton (of 2022 and 2023), sdpa_efficient   the GPU's fa2 over published ratios
//   math            by the bytes of its scores
//   without a mask  as H100's chart has each kernel with and without
//   fa2, cudnn on H100 (and on H200, heads up to 128)   PyTorch 2.11's, timed
//                   (calibration/measure/torch_rows.py); fa2 forward and
//                   head_dim 256: charts, backward what the forward+backward chart leaves
//   fa2 on A100     only a forward+backward chart: split with H100's ratio of the passes
//   fa3 on H100     forward chart; backward: ThunderKittens' chart of FlashAttention-3, head_dim
//   128 triton      forward chart on H100; backward with the ratio of fa2. H200: H100
//   times the ratio of the two GPUs' sweeps B200            cudnn from the sweep of trtllm-gen;
//   fa2, whose instructions are older than the
//                   chip, at H100's rate per multiprocessor
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "calibration/fit/least_squares.h"
#include "sim/base/lookup.h"
#include "tools/profiles/attention_fits.h"
#include "tools/profiles/published_fit.h"

namespace foreshard {
namespace {

using namespace attention_fits;

constexpr int kHeadDims[] = {64, 128, 256};
constexpr std::size_t kFewest = 4;       // rows of one kernel and pass that make a curve
constexpr double kChartOverhead = 5e-6;  // s; see AttentionFixed: it only shifts s0 by a few tokens

constexpr const char* kForwardChart = "flash3_fp16_fwd";
constexpr const char* kBothChart = "fwd_bwd_benchmark";
constexpr const char* kSweep = "aiconfigurator";
constexpr const char* kKittens = "ThunderKittens";
constexpr const char* kOwn = "calibration/measure/torch_rows.py";

// The curves that all chips draw on, fitted once.
struct Base {
  double fa2_c_half = 0;                   // A100's sweep
  std::map<int, AttentionCurve> forward;   // fa2 on H100 by head_dim
  std::map<int, AttentionCurve> backward;  // same; 256 has no rows of its own
  PassRatio fa2_ratio;                     // head_dim 128
  PassRatio fa3_ratio;                     // head_dim 128
  double fa3_c_half = 0;                   // H100's sweep
};

AttentionCurve sweep_curve(const Rows& rows, const Gpu& gpu) { return fit_attention(rows, gpu, {}); }

Base fit_base(const std::vector<Chip>& chips) {
  const Gpu& a100 = chip_named("a100", chips).gpu;
  const Gpu& h100 = chip_named("h100", chips).gpu;
  const Rows a = attention_rows("a100");
  const Rows h = attention_rows("h100");
  Base base;
  base.fa2_c_half = sweep_curve(pick(a, kSweep, "fa2", 128, AttentionPass::kForward), a100).c_half;
  base.fa3_c_half = sweep_curve(pick(h, kSweep, "fa3", 128, AttentionPass::kForward), h100).c_half;
  for (const int d : kHeadDims) {
    base.forward[d] = fit_attention(
        pick(h, kForwardChart, "fa2", d, AttentionPass::kForward), h100, {base.fa2_c_half, kChartOverhead});
    const Rows both = pick(h, kBothChart, "fa2", d, AttentionPass::kBoth);
    if (!both.empty()) base.backward[d] = fit_backward(both, base.forward[d], h100);
  }
  base.fa2_ratio = ratio_of(base.forward.at(128), base.backward.at(128));
  base.backward[256] = backward_of(base.forward.at(256), base.fa2_ratio);
  const AttentionCurve fa3 = fit_attention(
      pick(h, kForwardChart, "fa3", 128, AttentionPass::kForward), h100, {base.fa3_c_half, kChartOverhead});
  const AttentionCurve fa3_backward =
      fit_attention(pick(h, kKittens, "fa3", 128, AttentionPass::kBackward), h100, {base.fa3_c_half, kChartOverhead});
  base.fa3_ratio = ratio_of(fa3, fa3_backward);
  return base;
}

void add_a100(const Base& base, const Gpu& gpu, Collector& out) {
  const Rows rows = attention_rows("a100");
  std::map<int, AttentionCurve> forward;
  for (const int d : {64, 128}) {
    const PassRatio ratio = ratio_of(base.forward.at(d), base.backward.at(d));
    const Rows both = pick(rows, kBothChart, "fa2", d, AttentionPass::kBoth);
    forward[d] = fit_split(both, ratio, {base.fa2_c_half, kChartOverhead}, gpu);
    const AttentionCurve backward = backward_of(forward[d], ratio);
    std::vector<FitError> errors = {error_on_both("own rows, both passes", forward[d], backward, both, gpu)};
    std::vector<FitError> forward_errors = errors;
    const Rows sweep = training_like(pick(rows, kSweep, "fa2", d, AttentionPass::kForward), gpu);
    if (!sweep.empty()) forward_errors.push_back(error_on("serving sweep, S >= 2k, 2 waves", forward[d], sweep, gpu));
    const std::string source =
        "flash2_a100_fwd_bwd_benchmark.png (both passes); split as on H100; c0 from the A100 sweep";
    out.add(forward[d], "fa2", d, Evidence::kInterpolated, source, forward_errors);
    out.add(backward, "fa2", d, Evidence::kInterpolated, source, errors);
  }
  AttentionCurve wide = forward.at(128);
  wide.efficiency *= base.forward.at(256).efficiency / base.forward.at(128).efficiency;
  wide.s_half *= base.forward.at(256).s_half / base.forward.at(128).s_half;
  const std::string source = "no rows; head_dim 128 times H100's ratio of 256 to 128";
  out.add(wide, "fa2", 256, Evidence::kExtrapolated, source);
  out.add(backward_of(wide, base.fa2_ratio), "fa2", 256, Evidence::kExtrapolated, source);
}

void add_h100(const Base& base, const Gpu& gpu, Collector& out) {
  const Rows rows = attention_rows("h100");
  for (const int d : kHeadDims) {
    const Rows chart = pick(rows, kForwardChart, "fa2", d, AttentionPass::kForward);
    const Rows both = pick(rows, kBothChart, "fa2", d, AttentionPass::kBoth);
    out.add(base.forward.at(d), "fa2", d, Evidence::kMeasured, "flash3_fp16_fwd.png; c0 from the A100 sweep",
        {error_on("own rows", base.forward.at(d), chart, gpu)});
    if (both.empty()) {
      out.add(
          base.backward.at(d), "fa2", d, Evidence::kExtrapolated, "no rows; backward over forward as for head_dim 128");
      continue;
    }
    const Rows own = pick(rows, kOwn, "fa2", d, AttentionPass::kBackward);
    if (own.size() >= kFewest) {
      const AttentionCurve backward = fit_attention(own, gpu, {base.fa2_c_half, -1});
      out.add(backward, "fa2", d, Evidence::kMeasured, "PyTorch 2.11's, timed (torch_rows.py)",
          {error_on("own rows", backward, own, gpu),
              error_on_both("chart of both passes", base.forward.at(d), backward, both, gpu)});
      continue;
    }
    std::vector<FitError> errors = {
        error_on_both("own rows, both passes", base.forward.at(d), base.backward.at(d), both, gpu)};
    errors.push_back(error_on_both("from forward and head_dim 128's ratio", base.forward.at(d),
        backward_of(base.forward.at(d), base.fa2_ratio), both, gpu));
    if (d == 128) errors.pop_back();
    out.add(
        base.backward.at(d), "fa2", d, Evidence::kMeasured, "flash2_h100_fwd_bwd_benchmark.png less forward", errors);
  }
  for (const char* kernel : {"fa3", "cudnn", "triton"}) {
    for (const int d : kHeadDims) {
      const Rows chart = pick(rows, kForwardChart, kernel, d, AttentionPass::kForward);
      if (chart.empty()) continue;
      if (const Rows own = pick(rows, kOwn, kernel, d, AttentionPass::kForward); own.size() >= kFewest) {
        const Rows back = pick(rows, kOwn, kernel, d, AttentionPass::kBackward);
        const AttentionCurve ahead = fit_attention(own, gpu, {base.fa3_c_half, -1});
        const AttentionCurve backward = fit_attention(back, gpu, {base.fa3_c_half, -1});
        const std::string source = "PyTorch 2.11's, timed (torch_rows.py)";
        out.add(ahead, kernel, d, Evidence::kMeasured, source,
            {error_on("own rows", ahead, own, gpu), error_on("flash3_fp16_fwd.png", ahead, chart, gpu)});
        out.add(backward, kernel, d, Evidence::kMeasured, source, {error_on("own rows", backward, back, gpu)});
        continue;
      }
      // Another kernel than the Triton flash attention that training codes of 2022 and 2023 ran.
      const char* name = kernel == std::string_view("triton") ? "triton_2024" : kernel;
      const AttentionCurve forward = fit_attention(chart, gpu, {base.fa3_c_half, kChartOverhead});
      std::vector<FitError> errors = {error_on("own rows", forward, chart, gpu)};
      const Rows kittens = pick(rows, kKittens, kernel, d, AttentionPass::kForward);
      if (!kittens.empty()) errors.push_back(error_on("ThunderKittens' chart", forward, kittens, gpu));
      const Rows sweep = training_like(pick(rows, kSweep, kernel, d, AttentionPass::kForward), gpu);
      if (!sweep.empty()) errors.push_back(error_on("serving sweep, S >= 2k, 2 waves", forward, sweep, gpu));
      out.add(forward, name, d, Evidence::kMeasured, "flash3_fp16_fwd.png; c0 from the H100 sweep", errors);
      const Rows back = pick(rows, kKittens, kernel, d, AttentionPass::kBackward);
      if (!back.empty()) {
        const AttentionCurve backward = backward_of(forward, base.fa3_ratio);
        out.add(backward, name, d, Evidence::kMeasured, "ThunderKittens:assets/attn.png",
            {error_on("own rows", backward, back, gpu)});
        continue;
      }
      const bool triton = kernel == std::string_view("triton");
      out.add(backward_of(forward, triton ? base.fa2_ratio : base.fa3_ratio), name, d, Evidence::kExtrapolated,
          fmt::format("no rows; backward over forward as {} head_dim 128", triton ? "fa2" : "fa3"));
    }
  }
}

// Median of what H200 takes over what H100 takes in the same sweep.
double sweep_ratio(int head_dim, const Gpu& h100) {
  using Key = std::tuple<double, double, double>;
  std::map<Key, double> old;
  for (const AttentionRow& row :
      training_like(pick(attention_rows("h100"), kSweep, "fa3", head_dim, AttentionPass::kForward), h100))
    old[{row.batch, row.sequence, row.heads}] = row.seconds;
  std::vector<double> ratios;
  for (const AttentionRow& row : pick(attention_rows("h200"), kSweep, "fa3", head_dim, AttentionPass::kForward)) {
    const auto found = old.find({row.batch, row.sequence, row.heads});
    if (found != old.end()) ratios.push_back(row.seconds / found->second);
  }
  std::ranges::sort(ratios);
  return ratios[ratios.size() / 2];
}

void add_h200(const Base& base, const std::vector<Chip>& chips, Collector& out) {
  const Gpu& h100 = chip_named("h100", chips).gpu;
  const Gpu& gpu = chip_named("h200", chips).gpu;
  Collector donor;
  add_h100(base, h100, donor);
  const Rows rows = attention_rows("h200");
  for (AttentionCurve curve : donor.take().curves) {
    const int d = static_cast<int>(curve.head_dim);
    const AttentionPass pass = curve.pass == Pass::kForward ? AttentionPass::kForward : AttentionPass::kBackward;
    if (const Rows own = pick(rows, kOwn, curve.kernel, d, pass); own.size() >= kFewest) {
      const double c_half = curve.kernel == "fa2" ? base.fa2_c_half : base.fa3_c_half;
      const AttentionCurve fitted = fit_attention(own, gpu, {c_half, -1});
      out.add(fitted, curve.kernel, d, Evidence::kMeasured, "PyTorch 2.11's, timed (torch_rows.py)",
          {error_on("own rows", fitted, own, gpu)});
      continue;
    }
    const double ratio = sweep_ratio(d, h100);
    curve.efficiency *= h100.peak_bf16.value() / (ratio * gpu.peak_bf16.value());
    std::vector<FitError> errors;
    if (curve.kernel == "fa3" && curve.pass == Pass::kForward) {
      errors.push_back(error_on("serving sweep, S >= 2k, 2 waves", curve,
          training_like(pick(rows, kSweep, "fa3", d, AttentionPass::kForward), gpu), gpu));
    }
    out.add(curve, curve.kernel, d, Evidence::kExtrapolated,
        fmt::format("H100's curve, times {:.3f} (H200 over H100 in the fa3 sweeps)", ratio), errors);
  }
}

// SimuMax's measurements of cuDNN through TransformerEngine on B200, 64 heads of 128: 980 TFLOP/s
// forward and 820 backward at 4,096 positions, 1113 and 930 at 131,072.
constexpr double kB200Backward = 0.836;
constexpr const char* kB200BackwardSource =
    "no rows; 0.836 of forward's rate (MooreThreads/SimuMax, cuDNN on B200 at 4k and 131k)";

void add_b200(const Base& base, const std::vector<Chip>& chips, Collector& out) {
  const Gpu& h100 = chip_named("h100", chips).gpu;
  const Gpu& gpu = chip_named("b200", chips).gpu;
  const Rows rows = attention_rows("b200");
  for (const int d : kHeadDims) {
    const Rows sweep = pick(rows, kSweep, "trtllm", d, AttentionPass::kForward);
    const AttentionCurve forward = sweep_curve(sweep, gpu);
    out.add(forward, "cudnn", d, Evidence::kExtrapolated, "sweep of trtllm-gen, another kernel of the same speed class",
        {error_on("own rows", forward, sweep, gpu)});
    AttentionCurve backward = forward;
    backward.pass = Pass::kBackward;
    backward.efficiency *= kB200Backward;
    out.add(backward, "cudnn", d, Evidence::kExtrapolated, kB200BackwardSource);
  }
  const double per_sm =
      as_double(gpu.multiprocessors) / as_double(h100.multiprocessors) * h100.peak_bf16.value() / gpu.peak_bf16.value();
  for (const int d : kHeadDims) {
    for (AttentionCurve curve : {base.forward.at(d), base.backward.at(d)}) {
      curve.efficiency *= per_sm;
      out.add(curve, "fa2", d, Evidence::kAssumed,
          "no rows; H100's rate per multiprocessor (the kernel uses Ampere's instructions)");
    }
  }
}

// --- kernels without rows ---

// Of FlashAttention-2's rates on A100 (arXiv 2307.08691, section 4.1: the first FlashAttention
// is 1.7 to 3.0 times slower over both passes, the Triton one 1.3 to 2.5 times, forward 1.3 to 1.5;
// its introduction: FlashAttention reaches 30 to 50 % of the peak forward, 25 to 35 % backward).
//
// fa1, head_dim 64: measured (arXiv 2205.14135, tables 18 and 19: A100, 16 x 8 heads, no mask): from 8192 tokens on
// 65.6 TFLOP/s forward and 64.9 backward, by 128 blocks, one for each head, that take two rounds of 108
// multiprocessors: 110.7 and 109.5 with all of them busy, 0.355 and 0.351 of the peak, where fa2 reaches 0.668 and
// 0.622: 1.8 times slower, the lower end of the range. So 128, whose blocks are smaller (its appendix E.5), lies
// between that and the other end: both passes 2.4 times, which is 0.385 of the peak forward and 0.276 backward.
//
// triton (flash_attn_triton.py, which MPT ran): "forward is generally faster than CUDA forward,
// backward generally slower, overall slightly slower" (its own header); at head_dim 128, between
// that and the 2 times of the paper's later Triton kernel.
//
// The memory-efficient backend is of fa1's generation and instructions. 256 as 128.
struct OldKernel {
  const char* name;
  int head_dim;
  double forward, backward;  // times slower than fa2 on A100
};
constexpr OldKernel kOldKernels[] = {{"fa1", 64, 1.9, 1.8}, {"fa1", 128, 2.0, 2.6}, {"fa1", 256, 2.0, 2.6},
    {"triton", 64, 1.4, 2.05}, {"triton", 128, 1.4, 2.4}, {"triton", 256, 1.4, 2.4}, {"sdpa_efficient", 64, 1.9, 1.8},
    {"sdpa_efficient", 128, 2.0, 2.6}, {"sdpa_efficient", 256, 2.0, 2.6}};
constexpr const char* kOldSource = "times slower than fa2, within the ranges of arXiv 2307.08691 and 2205.14135";

// Of the same instructions as fa2, so as many times slower on other GPUs as on A100.
void add_old_kernels(Collector& out) {
  for (const AttentionCurve& fa2 : std::vector<AttentionCurve>(out.curves())) {
    if (fa2.kernel != "fa2") continue;
    for (const OldKernel& old : kOldKernels) {
      if (old.head_dim != fa2.head_dim) continue;
      AttentionCurve curve = fa2;
      curve.efficiency /= fa2.pass == Pass::kForward ? old.forward : old.backward;
      out.add(curve, old.name, old.head_dim, Evidence::kAssumed, kOldSource);
    }
  }
}

// Products and softmax one after the other, in fp32 since 2.5: every score passes the memory, the masked ones too
// (aten/src/ATen/native/transformers/attention.cpp). Forward writes the scores, scales, masks and normalises them, each
// reading and writing 4 B, and reads them; backward half as much again.
void add_math(const Gpu& gpu, Collector& out) {
  constexpr double kForwardBytes = 32, kBackwardBytes = 48;
  constexpr double kFraction = 0.85;
  for (const int d : kHeadDims) {
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const bool forward = pass == Pass::kForward;
      const double flops = 2.0 * d * (forward ? 1 : kBackwardFlops);  // of a score, half masked
      AttentionCurve curve;
      curve.pass = pass;
      curve.efficiency = flops * kFraction * gpu.memory_bandwidth.value() /
                         ((forward ? kForwardBytes : kBackwardBytes) * gpu.peak_bf16.value());
      curve.full_efficiency = 2 * curve.efficiency;
      curve.overhead = 6 * kChartOverhead;  // as many kernels
      out.add(curve, "math", d, Evidence::kAssumed, "bytes of the scores at 0.85 of the bandwidth");
    }
  }
}

// --- without a mask ---

// What a chart's rows without a mask say against those with one: of efficiency and s_half.
struct MaskRatio {
  double efficiency = 1;
  double s_half = 0.5;
};

std::map<std::string, MaskRatio> mask_ratios(const std::vector<Chip>& chips) {
  const Gpu& h100 = chip_named("h100", chips).gpu;
  const std::vector<Machine> machines = list_machines();
  std::map<std::string, Rows> full, causal;
  const CsvTable table = published_table("attention_measured.csv");
  for (const ReadAttention& read : read_attention_rows(table, machines)) {
    const AttentionRow& row = read.row;
    const bool is_chart =
        read.problem.empty() && row.gpu == h100.key && row.head_dim == 128 && contains(row.source, kForwardChart);
    if (is_chart) (row.causal ? causal : full)[row.kernel].push_back(row);
  }
  std::map<std::string, MaskRatio> ratios;
  for (const auto& [kernel, rows] : full) {
    const AttentionFixed fixed{0, kChartOverhead};
    const AttentionCurve without = fit_attention(rows, h100, fixed);
    const AttentionCurve with = fit_attention(causal[kernel], h100, fixed);
    ratios[kernel] = {without.efficiency / with.efficiency, without.s_half / with.s_half};
  }
  return ratios;
}

void add_full(std::vector<AttentionCurve>& curves, const std::vector<Chip>& chips) {
  const std::map<std::string, MaskRatio> ratios = mask_ratios(chips);
  for (AttentionCurve& curve : curves) {
    if (curve.full_efficiency > 0) continue;
    const auto own = ratios.find(curve.kernel == "triton_2024" ? "triton" : curve.kernel);
    const MaskRatio ratio = own != ratios.end() ? own->second : ratios.at("fa2");
    curve.full_efficiency = rounded(curve.efficiency * ratio.efficiency);
    curve.full_s_half = rounded(curve.s_half * ratio.s_half);
  }
}

// --- H20 ---

constexpr const char* kH20Rows = "Dao-AILab/flash-attention#1310";

// How many times as fast as `curve` the kernel ran at the curve's head size with a mask and without; none without rows.
struct Faster {
  double causal = 0, full = 0;
};
Faster faster_by(const Rows& rows, const AttentionCurve& curve, std::int64_t head_dim, const Gpu& gpu) {
  Faster faster;
  for (const AttentionRow& row : rows) {
    if (row.kernel != curve.kernel || row.head_dim != head_dim) continue;
    AttentionCurve at = curve;
    if (!row.causal) {
      at.efficiency = curve.full_efficiency;
      at.s_half = curve.full_s_half;
    }
    (row.causal ? faster.causal : faster.full) = attention_seconds(at, row, row.flops, gpu) / row.seconds;
  }
  return faster;
}

}

// A quarter of H100's matrix units to a multiprocessor that is otherwise whole: what else a kernel
// does (exponentials, the memory of the multiprocessor) takes a smaller share, so that kernels come
// nearer to the peak than on H100, those of Ampere's instructions most. Backward has no rows and
// gains what forward does; heads of 256 gain what heads of 128 do.
void use_h20_rows(Calibration& calibration, const Gpu& h20, const std::vector<Machine>& machines) {
  Rows rows;
  for (const ReadAttention& read : read_attention_rows(published_table("attention_measured.csv"), machines))
    if (read.problem.empty() && read.row.source == kH20Rows) rows.push_back(read.row);
  const std::vector<AttentionCurve> borrowed = calibration.attention;
  for (AttentionCurve& curve : calibration.attention) {
    if (curve.kernel == "math") continue;
    const bool is_own = curve.kernel == "fa3" || curve.kernel == "cudnn";
    const std::int64_t head_dim = std::min<std::int64_t>(curve.head_dim, 128);
    const auto forward = std::ranges::find_if(borrowed, [&](const AttentionCurve& each) {
      return each.kernel == (is_own ? curve.kernel : "fa2") && each.pass == Pass::kForward && each.head_dim == head_dim;
    });
    const Faster faster = faster_by(rows, *forward, head_dim, h20);
    const double most = 0.95;
    curve.efficiency = rounded(std::min(most, curve.efficiency * faster.causal));
    curve.full_efficiency = rounded(std::min(most, curve.full_efficiency * faster.full));
    curve.source = fmt::format("{:.2f} times as fast, by {}, as: {}", faster.causal, kH20Rows, curve.source);
  }
}

AttentionFits fit_attention_of(std::string_view chip, const std::vector<Chip>& chips) {
  const Base base = fit_base(chips);
  Collector out;
  if (chip == "a100") add_a100(base, chip_named("a100", chips).gpu, out);
  if (chip == "h100") add_h100(base, chip_named("h100", chips).gpu, out);
  if (chip == "h200") add_h200(base, chips, out);
  if (chip == "b200") add_b200(base, chips, out);
  const Gpu& gpu = chip_named(chip, chips).gpu;
  add_old_kernels(out);
  add_math(gpu, out);
  AttentionFits fits = out.take();
  add_full(fits.curves, chips);
  return fits;
}

}
