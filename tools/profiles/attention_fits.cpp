// Robust least squares of log time; forward+backward rows give what forward leaves.
#include "tools/profiles/attention_fits.h"

#include <cmath>

#include "sim/base/lookup.h"

namespace foreshard {

namespace attention_fits {
namespace {

double fill(const AttentionRow& row, const Gpu& gpu) {
  return row.batch * row.heads * std::ceil(row.sequence / 128) / as_double(gpu.multiprocessors);
}

}

Rows pick(const Rows& rows, std::string_view source_part, std::string_view kernel, int head_dim, AttentionPass pass) {
  Rows picked;
  for (const AttentionRow& row : rows)
    if (row.kernel == kernel && row.head_dim == head_dim && row.pass == pass && contains(row.source, source_part))
      picked.push_back(row);
  return picked;
}

double both_seconds(
    const AttentionCurve& forward, const AttentionCurve& backward, const AttentionRow& row, const Gpu& gpu) {
  const double flops = row.flops / (1 + kBackwardFlops);
  return attention_seconds(forward, row, flops, gpu) + attention_seconds(backward, row, kBackwardFlops * flops, gpu);
}

// What forward+backward rows leave for backward when forward is known.
AttentionCurve fit_backward(const Rows& rows, const AttentionCurve& forward, const Gpu& gpu) {
  AttentionCurve backward = forward;
  backward.pass = Pass::kBackward;
  LeastSquares problem;
  problem.rows = rows.size();
  problem.ranges = {{0.05, 1}, {10, 5000}};
  problem.starts = {{forward.efficiency * 0.8, 500}};
  const auto with = [&](std::span<const double> x) {
    AttentionCurve curve = backward;
    curve.efficiency = x[0];
    curve.s_half = x[1];
    return curve;
  };
  problem.residuals = [&](std::span<const double> x, std::span<double> out) {
    log_errors(
        rows, [&](auto& row) { return both_seconds(forward, with(x), row, gpu); }, out);
  };
  return with(solve(problem));
}

PassRatio ratio_of(const AttentionCurve& forward, const AttentionCurve& backward) {
  return {backward.efficiency / forward.efficiency, backward.s_half / forward.s_half};
}
AttentionCurve backward_of(const AttentionCurve& forward, const PassRatio& ratio) {
  AttentionCurve backward = forward;
  backward.pass = Pass::kBackward;
  backward.efficiency *= ratio.efficiency;
  backward.s_half *= ratio.s_half;
  return backward;
}

AttentionCurve fit_split(const Rows& rows, const PassRatio& ratio, const AttentionFixed& fixed, const Gpu& gpu) {
  LeastSquares problem = {.rows = rows.size(), .ranges = {{0.05, 1}, {10, 5000}}, .starts = {{0.6, 500}}};
  const auto with = [&](std::span<const double> x) {
    return AttentionCurve{.efficiency = x[0], .s_half = x[1], .c_half = fixed.c_half, .overhead = fixed.overhead};
  };
  problem.residuals = [&](std::span<const double> x, std::span<double> out) {
    const AttentionCurve forward = with(x);
    const AttentionCurve backward = backward_of(forward, ratio);
    log_errors(
        rows, [&](auto& row) { return both_seconds(forward, backward, row, gpu); }, out);
  };
  return with(solve(problem));
}

FitError error_on(std::string what, const AttentionCurve& curve, const Rows& rows, const Gpu& gpu) {
  return fit_error(
      std::move(what), rows, [&](const AttentionRow& row) { return attention_seconds(curve, row, row.flops, gpu); });
}

FitError error_on_both(
    std::string what, const AttentionCurve& forward, const AttentionCurve& backward, const Rows& rows, const Gpu& gpu) {
  return fit_error(
      std::move(what), rows, [&](const AttentionRow& row) { return both_seconds(forward, backward, row, gpu); });
}

// Rows such as training has: sequences from 2k and two waves of blocks on the chip.
Rows training_like(const Rows& rows, const Gpu& gpu) {
  Rows picked;
  for (const AttentionRow& row : rows)
    if (row.sequence >= 2048 && fill(row, gpu) >= 2) picked.push_back(row);
  return picked;
}

}

double attention_seconds(const AttentionCurve& curve, const AttentionRow& row, double flops, const Gpu& gpu) {
  return flops / (curve.efficiency * gpu.peak_bf16.value()) * (1 + curve.s_half / row.sequence) *
             (1 + curve.c_half / attention_fits::fill(row, gpu)) +
         curve.overhead;
}

AttentionCurve fit_attention(const std::vector<AttentionRow>& rows, const Gpu& gpu, const AttentionFixed& fixed) {
  LeastSquares problem = {.rows = rows.size(), .ranges = {{0.05, 1}, {10, 5000}}, .starts = {{0.5, 500}}};
  const bool fit_c = fixed.c_half < 0;
  const bool fit_overhead = fixed.overhead < 0;
  if (fit_c) {
    problem.ranges.push_back({0, 10});
    problem.starts[0].push_back(0.5);
  }
  if (fit_overhead) {
    problem.ranges.push_back({0, 5e-5});
    problem.starts[0].push_back(5e-6);
  }
  const auto with = [&](std::span<const double> x) {
    return AttentionCurve{.pass = rows.front().pass == AttentionPass::kBackward ? Pass::kBackward : Pass::kForward,
        .efficiency = x[0],
        .s_half = x[1],
        .c_half = fit_c ? x[2] : fixed.c_half,
        .overhead = fit_overhead ? x.back() : fixed.overhead};
  };
  problem.residuals = [&](std::span<const double> x, std::span<double> out) {
    const AttentionCurve curve = with(x);
    log_errors(
        rows, [&](auto& row) { return attention_seconds(curve, row, row.flops, gpu); }, out);
  };
  return with(solve(problem));
}

}
