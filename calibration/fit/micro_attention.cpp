// The prior weighs like one row that fits to 5 %, with the spreads below between GPUs and kernels.
#include "calibration/fit/micro_attention.h"

#include <algorithm>
#include <cmath>

#include "calibration/fit/least_squares.h"

namespace foreshard {

double attention_seconds(const MicroAttention& model, const AttentionRow& row, const Gpu& gpu) {
  constexpr double kQueries = 128, kMostWaste = 4, kBytes = 2;
  const double blocks =
      row.batch * row.heads * std::ceil(row.sequence / kQueries) / as_double(gpu.multiprocessors);
  const double waste = std::min(kMostWaste, std::ceil(blocks - 1e-9) / blocks);
  const double moved = kBytes * row.batch * row.sequence * row.head_dim *
                       (2 * row.heads + 2 * std::max(row.kv_heads, 1.0));
  return row.flops / (model.efficiency * gpu.peak_bf16.value()) *
             (1 + model.s_half / row.sequence) * (1 + model.c_half / blocks) *
             (1 + model.wave * (waste - 1)) +
         model.moves * moved / gpu.memory_bandwidth.value() + model.overhead;
}

MicroAttention fit_micro_attention(std::span<const AttentionRow> rows, const Gpu& gpu) {
  constexpr std::size_t kConstants = 6;
  constexpr double kRowError = 0.05;
  const MicroAttention usual;
  const auto of = [](std::span<const double> x) {
    return MicroAttention{x[0], x[1], x[2], x[3], x[4], x[5]};
  };
  LeastSquares problem;
  problem.rows = rows.size() + kConstants;
  problem.ranges = {{0.02, 1.5}, {1, 5000}, {0, 10}, {0, 1}, {0, 6}, {1e-7, 5e-5}};
  problem.starts = {
      {usual.efficiency, usual.s_half, usual.c_half, usual.wave, usual.moves, usual.overhead}};
  problem.residuals = [&](std::span<const double> x, std::span<double> out) {
    const MicroAttention model = of(x);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      out[i] = std::log(attention_seconds(model, rows[i], gpu) / rows[i].seconds);
    }
    const double off[kConstants] = {std::log(model.efficiency / usual.efficiency) / 1.0,
                                    std::log(model.s_half / usual.s_half) / 1.5,
                                    (model.c_half - usual.c_half) / 1.0,
                                    (model.wave - usual.wave) / 0.3,
                                    (model.moves - usual.moves) / 1.5,
                                    std::log(model.overhead / usual.overhead) / 0.7};
    for (std::size_t i = 0; i < kConstants; ++i) out[rows.size() + i] = kRowError * off[i];
  };
  return of(solve(problem));
}

}  // namespace foreshard
