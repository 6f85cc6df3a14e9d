// Interval: the published rows forecast by fits without their source leave residuals; by kind of
// fabric and size the 92 % quantile of their absolute logarithms, the row's own source left out, is
// half an interval of about 90 % on fabrics nobody has seen. A kind that only the own source has
// measured takes three times the widest of the networks, for all that is known is that it differs.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "calibration/fit/fit_fabric.h"
#include "calibration/fit/nccl_rows.h"
#include "reports/accuracy/score_kernels.h"
#include "sim/base/quantile.h"

namespace foreshard {
namespace {

constexpr double kMicro = 1e-6;
constexpr double kLevel = 0.94;
constexpr double kOwnLevel = 0.94;

enum class SizeClass : std::uint8_t { kTiny, kSmall, kMiddle, kLarge };
constexpr std::array<const char*, 4> kSizeNames = {"< 1 MiB", "1 to 16 MiB", "16 to 256 MiB", ">= 256 MiB"};
SizeClass size_class(double bytes) {
  constexpr double kMebi = 1 << 20;
  if (bytes < kMebi) return SizeClass::kTiny;
  if (bytes < 16 * kMebi) return SizeClass::kSmall;
  return bytes < 256 * kMebi ? SizeClass::kMiddle : SizeClass::kLarge;
}

bool is_inside(FabricKind kind) { return kind == FabricKind::kNvlink || kind == FabricKind::kPcie; }

bool is_gather(CollectiveOperation operation) {
  return operation == CollectiveOperation::kAllGather || operation == CollectiveOperation::kReduceScatter;
}

// Curves without one source, made when first asked for. Of all sources that nobody published they are the same.
class Curves {
 public:
  Curves() {
    for (const NcclRow& row : published_nccl_rows()) published_.insert(row.source);
  }

  const FabricCurve& without(const std::string& source, const NcclRow& row) {
    const auto key = std::make_pair(published_.contains(source) ? source : "", row.system.generation);
    auto found = made_.find(key);
    if (found == made_.end()) {
      const auto use = [&](const NcclRow& r) { return r.source != source; };
      found = made_.emplace(key, fit_fabrics(row.system.generation, published_nccl_rows(), use)).first;
    }
    return found->second[at(row.kind)];
  }

 private:
  std::set<std::string> published_;
  std::map<std::pair<std::string, GpuGeneration>, std::vector<FabricCurve>> made_;
};

// Rows of gathers that can be used, by fabric.
using KnownRows = std::map<std::string, std::vector<const NcclRow*>>;

KnownRows by_fabric(const std::vector<NcclRow>& rows) {
  KnownRows known;
  for (const NcclRow& row : rows)
    if (row.problem.empty() && is_gather(*row.collective)) known[row.fabric].push_back(&row);
  return known;
}

CollectivePrice price_of(const NcclRow& row, const FabricCurve& curve, const std::vector<CollectiveSweep>& sweeps) {
  const CollectiveModel model({row.system, row.kind}, {row.system.version}, curve, sweeps);
  return model.price(*row.collective, row.bytes);
}

// The sweep of the other of all_gather and reduce_scatter on the row's fabric.
std::vector<CollectiveSweep> other_sweep(const NcclRow& row, const KnownRows& known) {
  const auto fabric = known.find(row.fabric);
  if (!is_gather(*row.collective) || fabric == known.end()) return {};
  std::map<double, std::vector<double>> seconds;
  for (const NcclRow* other : fabric->second)
    if (*other->collective != *row.collective) seconds[other->bytes].push_back(other->seconds);
  if (seconds.size() < 2) return {};
  CollectiveSweep sweep;
  sweep.operation = *row.collective == CollectiveOperation::kAllGather ? CollectiveOperation::kReduceScatter
                                                                       : CollectiveOperation::kAllGather;
  sweep.ranks = row.system.ranks();
  sweep.nodes = row.system.nodes;
  for (auto& [bytes, all] : seconds) {
    std::ranges::sort(all);
    sweep.points.push_back({bytes, quantile(all, 0.5)});
  }
  return {sweep};
}

// Absolute log residuals of the published rows, each forecast without its source.
class Residuals {
 public:
  Residuals() {
    Curves curves;
    const std::vector<NcclRow>& rows = published_nccl_rows();
    const KnownRows known = by_fabric(rows);
    for (const NcclRow& row : rows) {
      const double form = price_of(row, curves.without(row.source, row), {}).seconds;
      all_.push_back({row.source, row.kind, size_class(row.bytes), std::abs(std::log(form / row.seconds))});
      const std::vector<CollectiveSweep> sweep = other_sweep(row, known);
      if (sweep.empty()) continue;
      const double swept = price_of(row, curves.without(row.source, row), sweep).seconds;
      swept_.push_back({row.source, row.kind, size_class(row.bytes), std::abs(std::log(swept / row.seconds))});
    }
  }

  double half_width(const NcclRow& row) const {
    constexpr double kUnknown = 1.1;  // a factor of three
    const SizeClass size = size_class(row.bytes);
    // Meshes of links and PCIe trees differ from machine to machine, and no rows of them were fitted.
    const bool is_irregular =
        row.system.generation == GpuGeneration::kVolta || row.kind == FabricKind::kPcie || !row.system.nvswitch;
    if (is_inside(row.kind) && is_irregular) return kUnknown;
    const auto is_same = [&](const Residual& r) {
      const bool near = row.kind == r.kind || (is_network(row.kind) && is_network(r.kind));
      return near && r.size == size;
    };
    const std::vector<double> own = residuals(all_, row.source, is_same);
    if (own.size() >= kFewest) return quantile(own, kLevel);
    const std::vector<double> any = residuals(all_, row.source,
        [&](const Residual& r) { return is_inside(r.kind) == is_inside(row.kind) && r.size == size; });
    return any.size() >= kFewest ? std::max(kUnknown, quantile(any, kLevel)) : kUnknown;
  }

  // Of forecasts by the other collective's sweep: every source, for it is the collectives that
  // differ and not the fabrics.
  double swept_half_width(const NcclRow& row) const {
    const SizeClass size = size_class(row.bytes);
    std::vector<double> found = residuals(swept_, row.source,
        [&](const Residual& r) { return r.size == size && is_inside(r.kind) == is_inside(row.kind); });
    if (found.size() < kFewest)
      found = residuals(swept_, row.source, [&](const Residual& r) { return r.size == size; });
    // Run to run on one machine; where protocols change, sizes differ more.
    const double least = size == SizeClass::kLarge ? 0.03 : 0.08;
    constexpr double kUnknown = 0.15;
    return found.size() < kFewest ? kUnknown : std::max(least, quantile(found, kOwnLevel));
  }

 private:
  static constexpr std::size_t kFewest = 8;
  struct Residual {
    std::string source;
    FabricKind kind = FabricKind::kNvlink;
    SizeClass size = SizeClass::kTiny;
    double log = 0;
  };
  static bool is_network(FabricKind kind) { return kind == FabricKind::kRdma || kind == FabricKind::kEfa; }
  static std::vector<double> residuals(const std::vector<Residual>& from, const std::string& source, auto&& accept) {
    std::vector<double> logs;
    for (const Residual& r : from)
      if (r.source != source && accept(r)) logs.push_back(r.log);
    std::ranges::sort(logs);
    return logs;
  }

  std::vector<Residual> all_;
  std::vector<Residual> swept_;
};

AccuracyRow blank_row(const NcclRow& row) {
  return AccuracyRow{.id = row.id, .line = row.line, .quantity = "time_us_oop"};
}

std::vector<AccuracyRow> score(const CsvTable& table, const std::vector<NcclRow>& rows) {
  thread_local Curves curves;  // of the published rows alone
  const KnownRows known = by_fabric(rows);
  static const Residuals residuals;  // of the published rows alone
  std::vector<AccuracyRow> scored;
  for (const NcclRow& row : nccl_rows(table)) {
    AccuracyRow out = blank_row(row);
    if (!row.problem.empty()) {
      out.scored = false;
      out.reason = row.problem;
      scored.push_back(std::move(out));
      continue;
    }
    const FabricCurve& curve = curves.without(row.source, row);
    const std::vector<CollectiveSweep> sweep = other_sweep(row, known);
    const CollectivePrice price = price_of(row, curve, sweep);
    const double width = sweep.empty() ? residuals.half_width(row) : residuals.swept_half_width(row);
    out.measured = row.seconds / kMicro;
    out.predicted = price.seconds / kMicro;
    out.low = out.predicted * std::exp(-width);
    out.high = out.predicted * std::exp(width);
    const std::int64_t nodes = row.system.nodes;
    out.groups = {{"table", row.id.substr(0, row.id.find('_'))}, {"gpu", row.gpu}, {"nodes", std::to_string(row.hosts)},
        {"collective", to_string(*row.collective)}, {"size", kSizeNames[at(size_class(row.bytes))]},
        {"how", !sweep.empty()                                                      ? "other collective"
                : nodes > 1                                                         ? "unseen network"
                : row.system.ranks_per_node == 8 && row.kind == FabricKind::kNvlink ? "unseen 8-GPU node"
                                                                                    : "unseen node"}};
    scored.push_back(std::move(out));
  }
  return scored;
}

}

std::vector<AccuracyRow> score_collectives(const CsvTable& table) {
  return score_collectives(table, CollectiveKnowledge::kOtherCollective);
}

std::vector<AccuracyRow> score_collectives(const CsvTable& table, CollectiveKnowledge knowledge) {
  static const std::vector<NcclRow> kNone;
  return score(table, knowledge == CollectiveKnowledge::kUnseenFabric ? kNone : published_nccl_rows());
}

std::vector<AccuracyRow> score_collectives(const CsvTable& table, const CsvTable& known) {
  std::vector<NcclRow> rows = published_nccl_rows();
  for (NcclRow& row : nccl_rows(known)) rows.push_back(std::move(row));
  return score(table, rows);
}

}
