// t = latency + per_hop*hops + factor*S/busbw (sim/spec/calibration.h), rows from 16 MiB up: below
// it NCCL's LL protocols are faster than the line through the larger sizes. Smaller rows are
// compared.
//
// Every table (one collective on one group) weighs the same, whatever its number of sizes. Latency
// and hop lean weakly on NCCL's own table (src/graph/tuning.cc@v2.28.9-1, ring, Simple protocol:
// base 8.4 us, NVLink hop 3.4 us, network hop 14 us), for where the group sizes do not tell them
// apart.
//
//   one node       A100: all-reduce, 2 to 8 GPUs (a ring: no NVLS on A100). H100, B200: all-gather
//   and
//                  reduce-scatter. H200: as H100, the same links.
//   several nodes  H100: 10 nodes with 1, 2, 4 and 8 GPUs each, and the scaling to 128 nodes. A100:
//                  latencies of H100, the ports' share from 2 nodes. B200: 2 nodes. H200: as H100.
// All-reduces of H100, H200 and B200 run NVLS or trees: they are compared, not fitted.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "calibration/fit/fit.h"
#include "calibration/fit/least_squares.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

constexpr double kSmallest = 1 << 24;  // B
constexpr double kUnit = 1 << 26;      // B; what FSDP moves at a time is this or more
constexpr double kBaseLatency = 8.4e-6;
constexpr double kHopInside = 3.4e-6;
constexpr double kHopBetween = (7 * 3.4e-6 + 14e-6) / 8;  // rings through nodes of 8
constexpr double kLeaning = 0.02;

// Rate of a group's ports in one node, where the table's network is not the catalogue's.
struct KnownNetwork {
  const char* table;
  double rate;
};
constexpr KnownNetwork kNetworks[] = {
    {"h100_hgx_10n_g1_", 50e9},  {"h100_hgx_10n_g2_", 100e9},    {"h100_hgx_10n_g4_", 200e9},
    {"h100_hgx_10n_g8_", 400e9}, {"h100_scaling_", 400e9},       {"gcp_a3mega_2n_", 200e9},
    {"gcp_a3high_2n_", 100e9},   {"oci_a100_2n_", 200e9},        {"polaris_", 50e9},
    {"b200_vultr_2n_", 400e9},   {"b200_dranet_2n_1gpn_", 50e9}, {"b200_dranet_2n_all", 400e9},
};

double network_of(const CollectiveRow& row) {
  if (row.nodes <= 1) return 0;
  for (const KnownNetwork& known : kNetworks) {
    if (row.table.starts_with(known.table)) return known.rate;
  }
  throw Error(ExitCode::kInternal, fmt::format("no network rate for '{}'", row.table));
}

const Chip& chip_named(std::string_view name, const std::vector<Chip>& chips) {
  for (const Chip& chip : chips) {
    if (chip.name == name) return chip;
  }
  throw Error(ExitCode::kInternal, fmt::format("no chip '{}'", name));
}

using Samples = std::vector<CollectiveSample>;

// Rows of the tables whose name contains one of `names`, every table with the same weight.
Samples samples_of(const Chip& chip, const std::vector<CollectiveRow>& rows,
                   const std::vector<std::string>& names, double smallest = kSmallest) {
  Samples samples;
  std::map<std::string, double> sizes;
  for (const CollectiveRow& row : rows) {
    if (row.bytes < smallest) continue;
    for (const std::string& name : names) {
      if (row.table.find(name) == std::string::npos) continue;
      samples.push_back({row, {chip.node.gpu_link.value(), network_of(row)}, 1});
      sizes[row.table] += 1;
      break;
    }
  }
  for (CollectiveSample& sample : samples) sample.weight = 10 / sizes[sample.row.table];
  return samples;
}

FitError error_on(std::string what, const CollectiveCurve& curve, const Samples& samples) {
  std::vector<double> predicted;
  std::vector<double> measured;
  for (const CollectiveSample& sample : samples) {
    predicted.push_back(collective_seconds(curve, sample.row, sample.fabric));
    measured.push_back(sample.row.seconds);
  }
  return fit_error(std::move(what), predicted, measured);
}

// Rows of 1 to 16 MiB, which no fit sees.
std::vector<FitError> small_sizes(const Chip& chip, const std::vector<CollectiveRow>& rows,
                                  const std::vector<std::string>& names,
                                  const CollectiveCurve& curve) {
  Samples small = samples_of(chip, rows, names, 1 << 20);
  std::erase_if(small, [](const CollectiveSample& s) { return s.row.bytes >= kSmallest; });
  if (small.empty()) return {};
  return {error_on("1 to 16 MiB", curve, small)};
}

Samples without(const Samples& samples, std::string_view name) {
  Samples rest;
  for (const CollectiveSample& sample : samples) {
    if (sample.row.table.find(name) == std::string::npos) rest.push_back(sample);
  }
  return rest;
}
Samples only(const Samples& samples, std::string_view name) {
  Samples held;
  for (const CollectiveSample& sample : samples) {
    if (sample.row.table.find(name) != std::string::npos) held.push_back(sample);
  }
  return held;
}

std::string tables_of(const Samples& samples) {
  std::map<std::string, int> counts;
  for (const CollectiveSample& sample : samples) ++counts[sample.row.table];
  std::string text;
  for (const auto& [table, count] : counts) {
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", table, count);
  }
  return text;
}

CollectiveCurve finished(CollectiveCurve curve, Evidence evidence, std::string source) {
  curve.latency = rounded(curve.latency);
  curve.per_hop = rounded(curve.per_hop);
  curve.link_fraction = rounded(curve.link_fraction);
  curve.network_fraction = rounded(curve.network_fraction);
  curve.per_doubling = rounded(curve.per_doubling);
  curve.evidence = evidence;
  curve.source = std::move(source);
  return curve;
}

CurveReport report_of(std::string name, const CollectiveCurve& curve,
                      std::vector<FitError> errors) {
  CurveReport report;
  report.curve = std::move(name);
  report.rows = curve.source;
  report.evidence = curve.evidence;
  report.constants = fmt::format(
      "latency {:.0f} us, hop {:.1f} us, link {:.3f}, network {:.3f}, per doubling {:.3f}",
      curve.latency * 1e6, curve.per_hop * 1e6, curve.link_fraction, curve.network_fraction,
      curve.per_doubling);
  report.errors = std::move(errors);
  return report;
}

// Small messages and networks without RDMA are reported, but they are not what is being forecast.
void keep_biases(const std::vector<FitError>& errors, std::vector<double>& biases) {
  for (std::size_t i = 1; i < errors.size(); ++i) {
    const std::string& what = errors[i].what;
    if (what.starts_with("1 to 16") || what.starts_with("not counted")) continue;
    biases.push_back(errors[i].log_bias);
  }
}

constexpr CollectiveFixed kInside{-1, -1, -1, 0, 1};

struct Fitted {
  CollectiveCurve curve;
  std::vector<FitError> errors;
};

Fitted fit_inside(const Chip& chip) {
  const std::vector<CollectiveRow> rows = collective_rows(chip.name);
  std::vector<std::string> names = {"h100_hgx_1n_g4_all_gather", "h100_hgx_1n_g8_all_gather",
                                    "h100_hgx_1n_g4_reduce_scatter",
                                    "h100_hgx_1n_g8_reduce_scatter"};
  std::vector<std::string> leave = {"all_gather", "reduce_scatter", "_g4_", "_g8_"};
  if (chip.name == "a100") {
    names = {"vtrain_a100_"};
    leave = {"_2g_", "_4g_", "_8g_"};
  } else if (chip.name == "b200") {
    names = {"b200_vultr_1n_all_gather", "b200_vultr_1n_reduce_scatter"};
    leave = {"all_gather", "reduce_scatter"};
  }
  const Samples samples = samples_of(chip, rows, names);
  Fitted result;
  result.curve =
      finished(fit_collective(samples, kInside), Evidence::kMeasured, tables_of(samples));
  result.errors.push_back(error_on("own rows", result.curve, samples));
  for (const std::string& name : leave) {
    result.errors.push_back(error_on(fmt::format("left out: {}", name),
                                     fit_collective(without(samples, name), kInside),
                                     only(samples, name)));
  }
  for (FitError& error : small_sizes(chip, rows, names, result.curve)) {
    result.errors.push_back(std::move(error));
  }
  if (chip.name == "b200") {
    result.errors.push_back(error_on("another machine: b200_dranet_1n_2g", result.curve,
                                     samples_of(chip, rows, {"b200_dranet_1n_2g"})));
  }
  return result;
}

Fitted fit_between_h100(const Chip& chip) {
  std::vector<CollectiveRow> rows = collective_rows(chip.name);
  const std::vector<CollectiveRow> scaling = scaling_rows();
  rows.insert(rows.end(), scaling.begin(), scaling.end());
  std::vector<std::string> names = {"h100_scaling_"};
  for (const char* ranks : {"g1", "g2", "g4", "g8"}) {
    names.push_back(fmt::format("h100_hgx_10n_{}_all_gather", ranks));
    names.push_back(fmt::format("h100_hgx_10n_{}_reduce_scatter", ranks));
  }
  const Samples samples = samples_of(chip, rows, names);
  Fitted result;
  result.curve = finished(fit_collective(samples, {}), Evidence::kMeasured, tables_of(samples));
  result.errors.push_back(error_on("own rows", result.curve, samples));
  for (const char* name :
       {"all_gather", "reduce_scatter", "_g1_", "_g2_", "_g4_", "_g8_", "scaling"}) {
    result.errors.push_back(error_on(fmt::format("left out: {}", name),
                                     fit_collective(without(samples, name), {}),
                                     only(samples, name)));
  }
  result.errors.push_back(error_on("another fabric: gcp_a3mega_2n, from 64 MiB", result.curve,
                                   samples_of(chip, rows, {"gcp_a3mega_2n"}, kUnit)));
  result.errors.push_back(error_on("not counted (TCP): gcp_a3high_2n, from 64 MiB", result.curve,
                                   samples_of(chip, rows, {"gcp_a3high_2n"}, kUnit)));
  return result;
}

Fitted fit_between_a100(const Chip& chip, const CollectiveCurve& inside,
                        const CollectiveCurve& h100) {
  const std::vector<CollectiveRow> rows = collective_rows(chip.name);
  const Samples samples = samples_of(chip, rows, {"oci_a100_2n"});
  CollectiveFixed fixed;
  fixed.latency = h100.latency;
  fixed.per_hop = h100.per_hop;
  fixed.link_fraction = inside.link_fraction;
  fixed.per_doubling = h100.per_doubling;
  Fitted result;
  result.curve = finished(fit_collective(samples, fixed), Evidence::kInterpolated,
                          tables_of(samples) + "; latency, hop and scaling as H100");
  result.errors.push_back(error_on("own rows", result.curve, samples));
  for (const char* name :
       {"polaris_2n_v218_all_gather", "polaris_8n_v218_all_gather", "polaris_8n_v221_all_gather"}) {
    result.errors.push_back(error_on(fmt::format("another fabric: {}, from 64 MiB", name),
                                     result.curve, samples_of(chip, rows, {name}, kUnit)));
  }
  return result;
}

Fitted fit_between_b200(const Chip& chip, const CollectiveCurve& inside,
                        const CollectiveCurve& h100) {
  const std::vector<CollectiveRow> rows = collective_rows(chip.name);
  const Samples samples =
      samples_of(chip, rows, {"b200_vultr_2n_all_gather", "b200_vultr_2n_reduce_scatter"});
  CollectiveFixed fixed;
  fixed.link_fraction = inside.link_fraction;
  fixed.per_doubling = h100.per_doubling;
  Fitted result;
  result.curve = finished(fit_collective(samples, fixed), Evidence::kInterpolated,
                          tables_of(samples) + "; scaling as H100");
  result.errors.push_back(error_on("own rows", result.curve, samples));
  for (const char* name : {"all_gather", "reduce_scatter"}) {
    result.errors.push_back(error_on(fmt::format("left out: {}", name),
                                     fit_collective(without(samples, name), fixed),
                                     only(samples, name)));
  }
  result.errors.push_back(error_on("another fabric: b200_dranet_2n_1gpn, from 64 MiB", result.curve,
                                   samples_of(chip, rows, {"b200_dranet_2n_1gpn"}, kUnit)));
  return result;
}

void add(std::string name, const Fitted& fitted, CollectiveCurve& curve, CollectiveFits& fits,
         std::vector<double>& biases) {
  curve = fitted.curve;
  fits.reports.push_back(report_of(std::move(name), curve, fitted.errors));
  keep_biases(fitted.errors, biases);
}

}  // namespace

double collective_seconds(const CollectiveCurve& curve, const CollectiveRow& row,
                          const Fabric& fabric) {
  const bool twice = row.collective == "all_reduce";
  const double hops = (twice ? 2 : 1) * (row.ranks - 1);
  double busbw = curve.link_fraction * fabric.link;
  if (row.nodes > 1) {
    busbw = std::min(busbw, curve.network_fraction * fabric.network) *
            std::pow(curve.per_doubling, std::log2(row.nodes / 2));
  }
  return curve.latency + curve.per_hop * hops + hops / row.ranks * row.bytes / busbw;
}

CollectiveCurve fit_collective(const std::vector<CollectiveSample>& samples,
                               const CollectiveFixed& fixed) {
  const bool between = samples.front().row.nodes > 1;
  const double hop = between ? kHopBetween : kHopInside;
  struct Constant {
    double CollectiveCurve::*field;
    double fixed;
    Range range;
    double start;
  };
  const std::vector<Constant> constants = {
      {&CollectiveCurve::latency, fixed.latency, {1e-6, 2e-3}, 20e-6},
      {&CollectiveCurve::per_hop, fixed.per_hop, {1e-7, 5e-5}, 5e-6},
      {&CollectiveCurve::link_fraction, fixed.link_fraction, {0.05, 1}, 0.75},
      {&CollectiveCurve::network_fraction, fixed.network_fraction, {0.05, 1}, 0.95},
      {&CollectiveCurve::per_doubling, fixed.per_doubling, {0.7, 1}, 0.96}};
  LeastSquares problem;
  problem.starts.emplace_back();
  for (const Constant& constant : constants) {
    if (constant.fixed >= 0) continue;
    problem.ranges.push_back(constant.range);
    problem.starts[0].push_back(constant.start);
  }
  const auto with = [&](std::span<const double> x) {
    CollectiveCurve curve;
    std::size_t next = 0;
    for (const Constant& constant : constants) {
      curve.*constant.field = constant.fixed >= 0 ? constant.fixed : x[next++];
    }
    return curve;
  };
  problem.rows = samples.size() + 2;
  problem.residuals = [&](std::span<const double> x, std::span<double> out) {
    const CollectiveCurve curve = with(x);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const CollectiveSample& s = samples[i];
      out[i] = std::sqrt(s.weight) *
               std::log(collective_seconds(curve, s.row, s.fabric) / s.row.seconds);
    }
    out[samples.size()] = kLeaning * std::log(curve.latency / kBaseLatency);
    out[samples.size() + 1] = kLeaning * std::log(curve.per_hop / hop);
  };
  return with(solve(problem));
}

CollectiveFits fit_collectives_of(std::string_view chip, const std::vector<Chip>& chips) {
  CollectiveFits fits;
  const Fitted h100_inside = fit_inside(chip_named("h100", chips));
  const Fitted h100_between = fit_between_h100(chip_named("h100", chips));
  const Chip& own = chip_named(chip, chips);
  Fitted inside = chip == "h200" ? h100_inside : chip == "h100" ? h100_inside : fit_inside(own);
  Fitted between = chip == "a100"   ? fit_between_a100(own, inside.curve, h100_between.curve)
                   : chip == "b200" ? fit_between_b200(own, inside.curve, h100_between.curve)
                                    : h100_between;
  if (chip == "h200") {
    for (Fitted* fitted : {&inside, &between}) {
      fitted->curve.evidence = Evidence::kExtrapolated;
      fitted->curve.source = "no rows; the links and ports are H100's: " + fitted->curve.source;
      fitted->errors.clear();
    }
  }
  add("collectives in a node", inside, fits.intra_node, fits, fits.intra_log_biases);
  add("collectives between nodes", between, fits.inter_node, fits, fits.inter_log_biases);
  return fits;
}

}  // namespace foreshard
