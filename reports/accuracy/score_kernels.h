// How well single kernels are forecast: rows of published files of products, attention and
// memory-bound operations, each by constants that its own source had no part in.
//
// Every row of the table comes back, in its order. `quantity` is latency_us (from tflops where the cell is empty);
// groups: gpu, source, dtype (or kernel), size. A row of a source that is among the published ones is forecast by a fit
// without that source; where the GPU has no other, by one without the row's shape family (products: n and k; attention:
// heads; memory-bound: size). The "rule" group says which. GPUs and kernels are matched as free text; a kernel that no
// name fits takes the GPU's usual one. Rows that hold no usable figures are not scored and say why.
//
// low .. high are 90 % intervals: from the errors of the fit on its rows, and from how far sources
// and GPUs are apart where the row is of another.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "calibration/csv_table.h"
#include "calibration/machines.h"
#include "reports/accuracy/accuracy.h"

namespace foreshard {

// Columns m, n, k, tflops, latency_us and, where there, source, gpu, dtype, notes, id.
std::vector<AccuracyRow> score_gemm(const CsvTable& table);
// Columns batch, seqlen, heads, head_dim, tflops, latency_us and, where there, source, gpu, kernel,
// pass, causal, kv_heads, dtype, id.
std::vector<AccuracyRow> score_attention(const CsvTable& table);
// Columns op, latency_us, bytes_counted and, where there, source, gpu, shape, dtype, gbs, id.
std::vector<AccuracyRow> score_memory_bound(const CsvTable& table);

// Forecasts of published collectives (nccl-tests tables) against what was measured, each from its
// own columns alone: gpu, n_gpus, n_nodes, network, nccl_version, collective, bytes.
//
// Nothing is forecast by what it was fitted on. The curves are refitted without the row's source; where the other of
// all_gather and reduce_scatter of the same fabric was published, its sweep is the forecast ("other collective"), else
// the fabric is unseen. Measured columns of the table that is scored reach no forecast, unless it is given as `known`.

// One row per row of the table, in its order; quantity time_us_oop, in us. Groups: table, gpu,
// nodes, collective, size, how. Rows that say nothing are there with the reason.
// Throws Error(kInvalidInput) where the table is not of nccl-tests' columns, ConfigError where it is no table.
std::vector<AccuracyRow> score_collectives(const CsvTable& table);

enum class CollectiveKnowledge : std::uint8_t {
  kOtherCollective,  // as above
  kUnseenFabric,     // no sweep of the fabric, whoever measured it
};
std::vector<AccuracyRow> score_collectives(const CsvTable& table, CollectiveKnowledge knowledge);

// With the rows of `known` beside the published ones: sweeps of the other collective on the same fabric.
std::vector<AccuracyRow> score_collectives(const CsvTable& table, const CsvTable& known);

// What the scores of kernels share (reports/accuracy/score_kernels.h).

// Id, line and quantity of a row.
AccuracyRow begin_row(const CsvTable& table, std::size_t row);

AccuracyRow set_aside(AccuracyRow row, std::string reason);

// What was read of each row of the table, by the judge.
template <typename Judge, typename Read, typename Groups>
std::vector<AccuracyRow> judged(const CsvTable& table, Judge judge, const std::vector<Read>& read, Groups groups) {
  std::vector<AccuracyRow> rows;
  for (std::size_t i = 0; i < read.size(); ++i) {
    AccuracyRow row = begin_row(table, i);
    row.groups = groups(read[i]);
    rows.push_back(
        read[i].problem.empty() ? judge.score(std::move(row), read[i]) : set_aside(std::move(row), read[i].problem));
  }
  return rows;
}

// Why figures cannot be what was measured: a rate beyond the peak, a unit mistaken; "" where they
// can. `flops` 0: not asked.
std::string absurdity(double measured_s, double predicted_s, double flops, FlopsPerSecond peak);

// In microseconds; `log_half` is half the width of the interval in the logarithm.
AccuracyRow with_forecast(AccuracyRow row, double measured_s, double predicted_s, double log_half);

// The quantile of the absolute logarithms, 0 where there are none.
double log_quantile(std::vector<double> logs, double q);

const Machine* machine_of(std::string_view key, const std::vector<Machine>& machines);

inline constexpr std::size_t kFolds = 6;
// Folds so that rows of a family are in one; the same on every machine.
std::size_t fold_of(double a, double b);

}
