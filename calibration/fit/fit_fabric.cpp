// Twelve constants, all positive and searched in their logarithms, from rows of 64 KiB up. Every
// table of a source counts the same whatever its number of sizes, and a source with many tables
// counts as the root of their number. What the rows do not tell apart stays where the curve leans.
//
// Kinds with rows of their own: NVLink domains (not Volta's cube mesh, which has no switch) and networks with RDMA.
// EFA, Slingshot, TCP and its offload lean on the latter's curve: the latency that EFA's plug-in reports (75 us) is an
// opinion for the choice, and one factor on hops for both kinds would take most of every other network's latency away.
// PCIe has no published rows and takes NVLink's, as an assumption.
#include "calibration/fit/fit_fabric.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <set>

#include "calibration/fit/least_squares.h"
#include "calibration/published.h"
#include "sim/base/quantile.h"

namespace foreshard {
namespace {

constexpr double kSmallest = 1 << 16;  // B
constexpr std::size_t kFabricConstants = 12;
using Constants = std::array<double, kFabricConstants>;

// Where a fit leans and how strongly: standard deviations of the logarithm.
struct Leaning {
  double centre = 1;
  double spread = 1;
  Range range;
};
// NCCL's table with 10 us of launch and 5 % less than its rates; a rank's own piece is copied at
// about three times the rate of the ring.
constexpr std::array<Leaning, kFabricConstants> kLeanings = {{
    {10e-6, 1.0, {1e-7, 1e-2}},                                          // fixed
    {1, 0.2, {0.05, 50}},                                                // hops: LL, LL128, Simple
    {1, 0.2, {0.05, 50}}, {1, 0.2, {0.05, 50}}, {0.4, 0.7, {0.01, 10}},  // pipeline
    {1, 0.3, {0.02, 3}},                                                 // ring: LL, LL128, Simple
    {1, 0.3, {0.02, 3}}, {0.95, 0.1, {0.02, 1.3}}, {1, 0.2, {0.02, 2}},  // nvls
    {1, 0.3, {0.02, 3}},                                                 // tree
    {0.3, 0.5, {0.01, 3}},                                               // own
    {0.04, 0.7, {0.001, 0.5}},                                           // per doubling
}};
constexpr double kGeneral = 0.15;    // weight of the leaning of a kind on NCCL's table
constexpr double kParticular = 0.5;  // of a generation on its kind

Constants constants_of(const FabricCurve& c) {
  return {c.fixed, c.hops[0], c.hops[1], c.hops[2], c.pipeline, c.ring[0], c.ring[1], c.ring[2], c.nvls, c.tree, c.own,
      c.per_doubling};
}

FabricCurve curve_of(FabricKind kind, std::span<const double> x) {
  FabricCurve c;
  c.kind = kind;
  c.fixed = x[0];
  c.hops = {x[1], x[2], x[3]};
  c.pipeline = x[4];
  c.ring = {x[5], x[6], x[7]};
  c.nvls = x[8];
  c.tree = x[9];
  c.own = x[10];
  c.per_doubling = x[11];
  return c;
}

struct Sample {
  const NcclRow* row = nullptr;
  FabricTerm term;
  double log_seconds = 0;
  double weight = 1;  // root of it
};

// Whether the fit of a kind sees rows of another.
bool informs(FabricKind kind, const NcclRow& row) {
  if (kind == FabricKind::kNvlink) return row.kind == kind && row.system.generation != GpuGeneration::kVolta;
  return row.kind == kind;
}

using Samples = std::vector<Sample>;

Samples samples_of(FabricKind kind, const std::vector<NcclRow>& rows, const std::function<bool(const NcclRow&)>& use) {
  Samples samples;
  std::map<std::string, double> sizes;
  std::map<std::string, std::set<std::string>> tables;
  for (const NcclRow& row : rows) {
    if (!row.problem.empty() || row.bytes < kSmallest || !informs(kind, row) || !use(row)) continue;
    const CollectiveModel model({row.system, row.kind}, {row.system.version}, FabricCurve{}, {});
    samples.push_back({&row, model.term(*row.collective, row.bytes), std::log(row.seconds), 1});
    sizes[row.id] += 1;
    tables[row.source].insert(row.id);
  }
  for (Sample& s : samples) {
    const double share = std::sqrt(as_double(tables[s.row->source].size()));
    s.weight = std::sqrt(10 / sizes[s.row->id] / share);
  }
  return samples;
}

std::string tables_of(const Samples& samples) {
  std::map<std::string, int> counts;
  for (const Sample& sample : samples) ++counts[sample.row->id];
  std::string text;
  for (const auto& [table, count] : counts) text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", table, count);
  return text;
}

FabricCurve fit_curve(FabricKind kind, const Samples& samples, const Constants& centre, double leaning) {
  LeastSquares problem;
  for (const Leaning& constant : kLeanings) problem.ranges.push_back(constant.range);
  problem.starts.emplace_back(centre.begin(), centre.end());
  problem.rows = samples.size() + kFabricConstants;
  problem.residuals = [&](std::span<const double> x, std::span<double> out) {
    const FabricCurve curve = curve_of(kind, x);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const Sample& s = samples[i];
      out[i] = s.weight * (std::log(fabric_seconds(curve, s.term)) - s.log_seconds);
    }
    for (std::size_t i = 0; i < kFabricConstants; ++i)
      out[samples.size() + i] = leaning * std::log(x[i] / centre[i]) / kLeanings[i].spread;
  };
  std::vector<double> found = solve(problem);
  for (double& value : found) value = rounded(value);
  return curve_of(kind, found);
}

struct Fitted {
  FabricCurve curve;
  bool has_rows = false;
};

Fitted fit_kind(FabricKind kind, GpuGeneration generation, const Samples& samples, const Constants& centre) {
  if (samples.empty()) return {curve_of(kind, centre), false};
  Fitted fitted{fit_curve(kind, samples, centre, kGeneral), true};
  Samples own = samples;
  std::erase_if(own, [&](const Sample& s) { return s.row->system.generation != generation; });
  fitted.curve.evidence = own.empty() ? Evidence::kExtrapolated : Evidence::kInterpolated;
  fitted.curve.source = tables_of(samples);
  if (own.empty() || own.size() == samples.size()) return fitted;
  const Constants kind_constants = constants_of(fitted.curve);
  FabricCurve curve = fit_curve(kind, own, kind_constants, kParticular);
  curve.evidence = fitted.curve.evidence;
  curve.source = fmt::format("{}; leaning on {}", tables_of(own), tables_of(samples));
  fitted.curve = std::move(curve);
  return fitted;
}

}

const std::vector<NcclRow>& published_nccl_rows() {
  static const std::vector<NcclRow> kRows = [] {
    std::vector<NcclRow> rows;
    for (const char* name : {"nccl_measured.csv", "nccl_scaling.csv"}) {
      for (NcclRow& row : nccl_rows(published_table(name)))
        if (row.problem.empty()) rows.push_back(std::move(row));
    }
    return rows;
  }();
  return kRows;
}

std::vector<FabricCurve> fit_fabrics(
    GpuGeneration generation, const std::vector<NcclRow>& rows, const std::function<bool(const NcclRow&)>& use) {
  Constants start;
  for (std::size_t i = 0; i < kFabricConstants; ++i) start[i] = kLeanings[i].centre;
  const auto fit = [&](FabricKind kind, const Constants& centre) {
    return fit_kind(kind, generation, samples_of(kind, rows, use), centre);
  };
  std::vector<FabricCurve> curves;
  const Fitted nvlink = fit(FabricKind::kNvlink, start);
  const Fitted network = fit(FabricKind::kRdma, start);
  curves.push_back(nvlink.curve);
  FabricCurve pcie = nvlink.curve;
  pcie.kind = FabricKind::kPcie;
  pcie.evidence = Evidence::kAssumed;
  pcie.source = "no rows; as NVLink: " + nvlink.curve.source;
  curves.push_back(std::move(pcie));
  curves.push_back(network.curve);
  for (const FabricKind kind : {FabricKind::kEfa, FabricKind::kSlingshot, FabricKind::kTcpOffload, FabricKind::kTcp}) {
    Fitted own = fit(kind, constants_of(network.curve));
    if (!own.has_rows) {
      own.curve.evidence = Evidence::kAssumed;
      own.curve.source = "no rows; as networks with RDMA: " + network.curve.source;
    }
    curves.push_back(std::move(own.curve));
  }
  return curves;
}

std::vector<double> fabric_log_biases(FabricKind kind, const std::vector<NcclRow>& rows) {
  constexpr double kSmallestScored = 1 << 20;  // B
  using Key = std::pair<std::string, GpuGeneration>;
  std::map<Key, FabricCurve> curves;
  std::map<std::string, std::vector<double>> tables;
  for (const NcclRow& row : rows) {
    if (!row.problem.empty() || row.bytes < kSmallestScored || !informs(kind, row)) continue;
    const Key key{row.source, row.system.generation};
    auto found = curves.find(key);
    if (found == curves.end()) {
      const auto use = [&](const NcclRow& r) { return r.source != row.source; };
      const auto all = fit_fabrics(row.system.generation, rows, use);
      found = curves.emplace(key, all[at(kind)]).first;
    }
    const CollectiveModel model({row.system, row.kind}, {row.system.version}, found->second, {});
    const double predicted = model.price(*row.collective, row.bytes).seconds;
    tables[row.id].push_back(std::log(predicted / row.seconds));
  }
  return list_of<double>(tables, [&](auto& each) { return quartiles(std::move(each.second)).median; });
}

}
