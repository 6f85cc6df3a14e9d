// Rows are sorted by the number of ranks that ran at once; each number becomes a variant of its own.
//
// The spread of a class is what moves all of it together: the quartiles of the repeats (a busy or throttled machine is
// slow for everything) and the median signed error on rows left out (a class that lies off the measured shapes and
// sizes). It is at least kLeastSpread: the machine of a run is never quite the machine of the measurement.
#include "calibration/fit/fit_local.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "calibration/fit/least_squares.h"
#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/cost/measured.h"

namespace foreshard {
namespace {

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

template <typename Point>
std::vector<MeasuredRow<Point>> of_ranks(const std::vector<MeasuredRow<Point>>& rows, std::int64_t ranks) {
  return list_where<MeasuredRow<Point>>(
      rows, [&](const auto& row) { return row.ranks == ranks; });
}

// Curves of the rows that share a key, in the order of their first row.
template <typename Curve, typename Point, typename Key>
std::vector<Curve> grouped(const std::vector<MeasuredRow<Point>>& rows, Key key) {
  std::vector<Curve> curves;
  for (const auto& row : rows) {
    const auto own = key(row.point);
    auto curve = std::ranges::find_if(curves, [&](const Curve& c) { return key(c) == own; });
    if (curve == curves.end())
      curve = curves.insert(curve, std::apply([](auto... part) { return Curve{part..., {}}; }, own));
    curve->points.push_back({row.point.bytes, row.spread.median});
  }
  return curves;
}

template <typename Point>
FactorSpread spread_of(const std::vector<MeasuredRow<Point>>& rows, const std::vector<double>& left_out) {
  constexpr double kUnknown = 0.3;
  if (rows.empty()) return {kUnknown, "no rows"};
  const std::vector<double> repeats = repeats_of(rows);
  const double repeat = repeats.empty() ? 0 : median(repeats);
  const double bias = left_out.empty() ? 0 : std::abs(median(left_out));
  constexpr double kWidest = 1;  // beyond that the machine was too busy to say anything
  return {rounded(std::clamp(std::hypot(repeat, bias), kLeastSpread, kWidest)),
      fmt::format("quartiles of the repeats ({:.3f}) and the median error on {} rows left out ({:.3f}), at least {}",
          repeat, left_out.size(), bias, kLeastSpread)};
}

struct Rates {
  double fp32 = 0, bf16 = 0, bandwidth = 0;
};

// The best measured ones.
Rates best_rates(const std::vector<GemmPoint>& gemm, const std::vector<FunctionPoints>& functions) {
  Rates rates;
  for (const GemmPoint& point : gemm) {
    double& best = point.fp32 ? rates.fp32 : rates.bf16;
    best = std::max(best, kernel_of(point).flops.count() / point.seconds);
  }
  if (rates.fp32 == 0) rates.fp32 = rates.bf16;
  if (rates.bf16 == 0) rates.bf16 = rates.fp32;
  const auto best_of = [&](auto&& counts) {
    for (const FunctionPoints& curve : functions) {
      if (!counts(curve)) continue;
      for (const SizePoint& point : curve.points)
        rates.bandwidth = std::max(rates.bandwidth, point.bytes / point.seconds);
    }
  };
  best_of([](const FunctionPoints& c) { return c.function == Function::kCopy; });
  if (rates.bandwidth == 0) best_of([](const FunctionPoints&) { return true; });
  return rates;
}

HostCurve host_curve(const std::vector<MeasuredRow<HostWork>>& rows) {
  const auto of = [&](HostWork what) {
    std::vector<double> seconds;
    for (const auto& row : rows)
      if (row.point == what) seconds.push_back(row.spread.median);
    return seconds.empty() ? 0 : rounded(median(seconds));
  };
  HostCurve curve;
  curve.per_row = of(HostWork::kRow);
  curve.per_hook = of(HostWork::kHook);
  curve.per_collective = of(HostWork::kCollective);
  curve.evidence = rows.empty() ? Evidence::kAssumed : Evidence::kMeasured;
  curve.source = rows.empty()
                     ? "no rows: none"
                     : "measured; the time of an operation includes its dispatch, so a launch costs nothing on top";
  return curve;
}

struct ContentionFit {
  ContentionCurve curve;
  FactorSpread spread;
};

ContentionFit fit_contention(const std::vector<ContentionTimes>& rows) {
  constexpr double kMost = 10;
  constexpr double kUnknown = 0.3;
  ContentionFit fit;
  if (rows.empty()) {
    fit.curve.source = "no rows: none";
    fit.spread = {kUnknown, "no rows"};
    return fit;
  }
  std::vector<double> compute, communication;
  for (const ContentionTimes& row : rows) {
    compute.push_back(row.compute_beside / row.compute_alone);
    communication.push_back(row.collective_beside / row.collective_alone);
  }
  const auto factor = [&](const std::vector<double>& ratios) {
    return rounded(std::clamp(median(ratios), 1.0, kMost));
  };
  fit.curve.compute = factor(compute);
  fit.curve.communication = factor(communication);
  fit.curve.evidence = Evidence::kMeasured;
  fit.curve.source = fmt::format("median of {} pairs, alone and beside each other", rows.size());
  auto off = list_of<double>(compute, [&](const double ratio) { return std::abs(std::log(ratio / median(compute))); });
  constexpr double kLeast = 0.1;  // the pairs are a few of many
  fit.spread = {rounded(std::max(kLeast, median(off) * 2 / kQuartiles)),
      fmt::format("scatter of {} pairs, at least {}", rows.size(), kLeast)};
  return fit;
}

CollectiveCurve stand_in_fabric() {
  CollectiveCurve curve;
  curve.latency = 50e-6;
  curve.link_fraction = 0.3;
  curve.network_fraction = 1;
  curve.source = "stands in for operations that were not measured: 50 us, 0.3 of a copy's rate";
  return curve;
}

std::string file_names(const Measurements& measurements) {
  std::string names;
  for (const std::string& file : measurements.files)
    names += (names.empty() ? "" : ", ") + std::filesystem::path(file).filename().string();
  return names;
}

class VariantFitter {
 public:
  VariantFitter(const Measurements& measurements, std::int64_t ranks) : m_(measurements), ranks_(ranks) {
    variant_.ranks = ranks;
  }

  void fit() {
    const auto gemm = of_ranks(m_.gemm, ranks_);
    const auto attention = of_ranks(m_.attention, ranks_);
    const auto functions = of_ranks(m_.functions, ranks_);
    const auto collectives = of_ranks(m_.collectives, ranks_);
    require(!gemm.empty(), "matrix product (kind gemm)");
    require(!functions.empty(), "memory-bound function (kind memory)");

    const std::vector<FunctionPoints> sizes = by_function(functions);
    const Gpu gpu = machine(best_rates(points_of(gemm), sizes));
    Calibration& c = variant_.calibration;
    c.gpu = "local";
    c.id = profile_id(m_);

    LocalGemm products = fit_local_gemm(points_of(gemm), gpu);
    c.gemm_fp32 = products.fp32;
    c.gemm_bf16 = products.bf16;
    c.measured.gemm = std::move(products.points);
    take(products.reports);

    LocalAttention attended = fit_local_attention(points_of(attention), gpu);
    c.attention = attended.curves;
    c.sdpa_kernel = c.sdpa_preferred = "cpu";
    c.sdpa_source = "the engine's attention on CPU";
    c.measured.attention = std::move(attended.points);
    take(attended.reports);
    gap(attention.empty(), "attention: a fifth of the peak is assumed");

    LocalFunctions moved = fit_local_functions(sizes, gpu);
    c.memory = moved.classes;
    c.measured.functions = std::move(moved.points);
    take(moved.reports);

    LocalCollectives sent = fit_local_collectives(grouped<CollectivePoints>(
        collectives, [](const auto& p) { return std::tuple(p.operation, p.order, p.group); }));
    c.intra_node = c.inter_node = stand_in_fabric();
    c.measured.collectives = std::move(sent.points);
    take(sent.reports);
    gap(ranks_ > 1 && collectives.empty(), "collectives: " + c.intra_node.source);

    const auto host = of_ranks(m_.host_work, ranks_);
    c.host = host_curve(host);
    gap(host.empty(), "host work: none is counted");
    const ContentionFit contention = fit_contention(contention_rows());
    c.contention = contention.curve;
    gap(ranks_ > 1 && c.contention.evidence == Evidence::kAssumed, "contention: none is counted");

    const auto spread = [&](Factor f) -> FactorSpread& { return c.spread[at(f)]; };
    spread(Factor::kGemm) = spread_of(gemm, products.left_out);
    spread(Factor::kAttention) = spread_of(attention, attended.left_out);
    spread(Factor::kMemoryBound) = spread_of(functions, moved.left_out);
    spread(Factor::kIntraNode) = spread(Factor::kInterNode) = spread_of(collectives, sent.left_out);
    spread(Factor::kHost) = spread_of(host, {});
    spread(Factor::kOverlap) = contention.spread;
    outside();
  }

  LocalVariant& variant() { return variant_; }
  VariantReport& report() { return report_; }

 private:
  void require(bool there, const char* what) const {
    if (there) return;
    throw invalid_input(
        "{}: no {} was measured with {} rank(s) at once, so there is no rate to start from; measure again with "
        "foreshard-exec measure",
        file_names(m_), what, ranks_);
  }
  void gap(bool is_there, std::string what) {
    if (is_there) report_.gaps.push_back(std::move(what));
  }
  void take(const std::vector<CurveReport>& reports) { append(report_.curves, reports); }

  Gpu machine(const Rates& rates) {
    variant_.peak_fp32 = FlopsPerSecond(rounded(rates.fp32));
    variant_.peak_bf16 = FlopsPerSecond(rounded(rates.bf16));
    variant_.memory_bandwidth = BytesPerSecond(rounded(rates.bandwidth));
    Gpu gpu;
    gpu.multiprocessors = 1;
    gpu.peak_fp32 = variant_.peak_fp32;
    gpu.peak_bf16 = variant_.peak_bf16;
    gpu.memory_bandwidth = variant_.memory_bandwidth;
    return gpu;
  }

  std::vector<ContentionTimes> contention_rows() const {
    std::vector<ContentionTimes> rows;
    for (const auto& [ranks, times] : m_.contention)
      if (ranks == ranks_) rows.push_back(times);
    return rows;
  }

  // Of this number of ranks, else of any: a process is a process.
  void outside() {
    std::int64_t own = -1, any = -1;
    for (const auto& [ranks, bytes] : m_.memory_outside) {
      if (ranks == ranks_) own = std::max(own, bytes);
      any = std::max(any, bytes);
    }
    variant_.memory_outside = Bytes(std::max<std::int64_t>(own >= 0 ? own : any, 0));
    variant_.outside_source = any < 0 ? "not measured: none" : "measured: a rank before its arenas";
    gap(any < 0, "memory outside the allocator: none is counted");
  }

  const Measurements& m_;
  std::int64_t ranks_;
  LocalVariant variant_;
  VariantReport report_;
};

}

std::vector<FunctionPoints> by_function(const std::vector<MeasuredRow<FunctionTime>>& rows) {
  return grouped<FunctionPoints>(
      rows, [](const auto& p) { return std::tuple(p.function, p.pass, p.fp32); });
}

LocalFit fit_local(const Measurements& measurements) {
  std::set<std::int64_t> counts;
  for (const auto& row : measurements.gemm) counts.insert(row.ranks);
  for (const auto& row : measurements.functions) counts.insert(row.ranks);
  if (counts.empty()) counts.insert(1);  // whose rows are then missed
  LocalFit fit;
  fit.profile.id = profile_id(measurements);
  fit.profile.created = measurements.created;
  fit.profile.host = measurements.host;
  fit.profile.versions = measurements.versions;
  fit.profile.command = measurements.command;
  fit.profile.threads = measurements.threads;
  for (const std::int64_t ranks : counts) {
    VariantFitter fitter(measurements, ranks);
    fitter.fit();
    fit.profile.variants.push_back(std::move(fitter.variant()));
    fit.reports.push_back(std::move(fitter.report()));
  }
  return fit;
}

}
