#include "calibration/fit/fit_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "calibration/fit/fit_local.h"
#include "calibration/fit/least_squares.h"
#include "calibration/gpu_names.h"
#include "calibration/profile_store.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

double upper_median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Data sheets give peaks at the boost clock. fp32 products may run on tensor cores (TF32), which
// are slower than those of 16 bit.
constexpr double kAboveSheet = 1.05;

// Throws where a product was faster than this GPU can be.
void check_rates(const Measurements& measurements, const Gpu& gpu) {
  for (const auto& row : measurements.gemm) {
    const GemmPoint& p = row.point;
    const double flops = 2 * as_double(p.m) * as_double(p.n) * as_double(p.k);
    if (flops / p.seconds <= kAboveSheet * gpu.peak_bf16.value()) continue;
    throw ConfigError({measurements.files.front(), 0, 0, ""},
        fmt::format("a product of {} x {} x {} ran at {}, above the {} of {}", p.m, p.n, p.k,
            format_flop_rate(FlopsPerSecond(flops / p.seconds)), format_flop_rate(gpu.peak_bf16), gpu.key),
        "measurements of the GPU that device.name says");
  }
}

// A kernel of the device takes the same time again and again: where the quartiles are far apart some repeats hold a
// wait, for the host or for what a layer's first kernel needs, and the lower one is the kernel's.
std::vector<MeasuredRow<FunctionTime>> without_waits(std::vector<MeasuredRow<FunctionTime>> rows) {
  constexpr double kFarApart = 1.5;
  for (MeasuredRow<FunctionTime>& row : rows)
    if (row.spread.low > 0 && row.spread.high > kFarApart * row.spread.low) row.spread.median = row.spread.low;
  return rows;
}

// The quartiles of the repeats: what a class may be off as a whole where it was measured.
template <typename Point>
void set_spread(Calibration& c, Factor factor, const std::vector<MeasuredRow<Point>>& rows) {
  std::vector<double> repeats = repeats_of(rows);
  if (repeats.empty()) return;
  FactorSpread& spread = c.spread[at(factor)];
  spread.log_sd = rounded(std::max(kLeastSpread, upper_median(std::move(repeats))));
  spread.source = fmt::format("quartiles of the repeats of {} measured rows, at least {}", rows.size(), kLeastSpread);
}

void set_host(Calibration& c, const std::vector<MeasuredRow<HostWork>>& rows) {
  std::vector<double> row, collective;
  for (const auto& work : rows) {
    if (work.point == HostWork::kRow) row.push_back(work.spread.median);
    if (work.point == HostWork::kCollective) collective.push_back(work.spread.median);
  }
  if (row.empty()) return;
  c.host.per_hook = c.host.per_launch = 0;
  c.host.per_row = rounded(upper_median(row));
  // A collective's row costs what it costs, not that of a row on top.
  c.host.per_collective = collective.empty() ? 0 : rounded(std::max(0.0, upper_median(collective) - c.host.per_row));
  c.host.evidence = Evidence::kMeasured;
  c.host.source = "measured: from the issue of a row to that of the next, launches included";
}

// Curves between GPUs, one per operation, group and nodes.
std::vector<CollectiveSweep> sweeps_of(const Measurements& measurements) {
  using Key = std::tuple<CollectiveOperation, std::int64_t, std::int64_t>;
  std::map<Key, std::vector<SizePoint>> curves;
  for (const auto& row : measurements.collectives) {
    const CollectiveTime& t = row.point;
    curves[{t.operation, t.group, t.nodes}].push_back({t.bytes, row.spread.median});
  }
  std::vector<CollectiveSweep> sweeps;
  for (auto& [key, points] : curves) {
    CollectiveSweep sweep;
    std::tie(sweep.operation, sweep.ranks, sweep.nodes) = key;
    sweep.points = smoothed(std::move(points));
    for (SizePoint& point : sweep.points) point.seconds = rounded(point.seconds);
    sweep.source = fmt::format("foreshard-exec measure on {}", measurements.host.name);
    sweeps.push_back(std::move(sweep));
  }
  return sweeps;
}

}

DeviceFit fit_device(const Measurements& measurements) {
  FORESHARD_CHECK(measurements.device.has_value(), "no measurements of a device");
  const std::vector<Machine> machines = list_machines();
  const Machine* machine = match_gpu(measurements.device->name, machines);
  if (machine == nullptr) {
    throw invalid_input("{}: the catalogue has no GPU '{}' (foreshard machines lists them)", measurements.files.front(),
        measurements.device->name);
  }
  std::vector<CollectiveSweep> sweeps = sweeps_of(measurements);
  const bool nothing = measurements.gemm.empty() && measurements.functions.empty();
  if (nothing && sweeps.empty())
    throw invalid_input("{}: no product, memory-bound function or collective was measured", measurements.files.front());
  check_rates(measurements, machine->node.gpu);
  DeviceFit fit;
  Calibration& c = fit.calibration;
  c = load_profile(machine->key);
  c.id = fmt::format("{}-{}", machine->key, measurements.created);
  const Gpu& gpu = machine->node.gpu;
  LocalGemm gemm = fit_local_gemm(points_of(measurements.gemm), gpu);
  std::vector<AttentionPoint> rows = points_of(measurements.attention);
  for (AttentionPoint& point : rows)
    if (point.kernel.empty() || point.kernel == "flash") point.kernel = c.sdpa_kernel;
  LocalAttention attention = fit_local_attention(rows, gpu);
  c.measured.gemm = std::move(gemm.points);
  c.measured.attention = std::move(attention.points);
  c.measured.functions = by_function(without_waits(measurements.functions));
  for (FunctionPoints& f : c.measured.functions) f.points = smoothed(std::move(f.points));
  set_spread(c, Factor::kGemm, measurements.gemm);
  set_spread(c, Factor::kAttention, measurements.attention);
  set_spread(c, Factor::kMemoryBound, measurements.functions);
  set_host(c, measurements.host_work);
  if (!sweeps.empty()) c.sweeps = std::move(sweeps);
  c.knowledge.reset();  // factors were known of training steps under the shipped curves
  fit.reports = gemm.reports;
  append(fit.reports, attention.reports);
  fit.notes.push_back(fmt::format("{} is {} of the catalogue", measurements.device->name, machine->key));
  fit.notes.push_back(
      c.sweeps.empty()
          ? std::string("collectives and overlap are the shipped profile's")
          : fmt::format("{} curves of collectives were measured; overlap is the shipped profile's", c.sweeps.size()));
  return fit;
}

}
