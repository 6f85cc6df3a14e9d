// Protocols are keys of their own, in NCCL's words; times in seconds (`_s`), all else ratios.
#include "calibration/fabric_json.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

namespace foreshard {
namespace {

constexpr std::array<std::string_view, 3> kProtocols = {"ll", "ll128", "simple"};

template <typename Enum, std::size_t count>
std::array<std::string_view, count> names_of() {
  std::array<std::string_view, count> names;
  for (std::size_t i = 0; i < count; ++i) names[i] = to_string(static_cast<Enum>(i));
  return names;
}

struct Number {
  std::string_view key;
  double FabricCurve::*field;
  double low;
  double high;
};
constexpr Number kNumbers[] = {{"fixed_s", &FabricCurve::fixed, 0, 1},
                               {"nvls", &FabricCurve::nvls, 1e-3, 10},
                               {"tree", &FabricCurve::tree, 1e-3, 10},
                               {"own", &FabricCurve::own, 0, 100},
                               {"pipeline", &FabricCurve::pipeline, 0, 100},
                               {"per_doubling", &FabricCurve::per_doubling, 0, 10}};

Json by_protocol(const std::array<double, 3>& values) {
  Json out = Json::object();
  for (std::size_t p = 0; p < kProtocols.size(); ++p) out[std::string(kProtocols[p])] = values[p];
  return out;
}

std::array<double, 3> read_by_protocol(const ConfigNode& node) {
  node.allow_only(std::span<const std::string_view>(kProtocols));
  std::array<double, 3> values{};
  for (std::size_t p = 0; p < kProtocols.size(); ++p) {
    values[p] = node.at(kProtocols[p]).as_double(1e-3, 1000);
  }
  return values;
}

std::string read_source(const ConfigNode& node) {
  std::string source = node.at("source").as_string();
  if (source.empty()) throw node.at("source").error("is empty", "where the numbers come from");
  return source;
}

FabricCurve read_fabric(const ConfigNode& node) {
  static const auto kKinds = names_of<FabricKind, kFabricKinds>();
  node.allow_only({"kind", "fixed_s", "hops", "ring", "nvls", "tree", "own", "pipeline",
                   "per_doubling", "evidence", "source"});
  FabricCurve curve;
  curve.kind = static_cast<FabricKind>(node.at("kind").as_choice(std::span(kKinds)));
  curve.hops = read_by_protocol(node.at("hops"));
  curve.ring = read_by_protocol(node.at("ring"));
  for (const Number& number : kNumbers) {
    curve.*number.field = node.at(number.key).as_double(number.low, number.high);
  }
  curve.evidence = static_cast<Evidence>(node.at("evidence").as_choice(std::span(kEvidence)));
  curve.source = read_source(node);
  return curve;
}

CollectiveSweep read_sweep(const ConfigNode& node) {
  static const auto kOperations = names_of<CollectiveOperation, kCollectiveOperations>();
  node.allow_only({"operation", "ranks", "nodes", "points", "source"});
  CollectiveSweep sweep;
  sweep.operation =
      static_cast<CollectiveOperation>(node.at("operation").as_choice(std::span(kOperations)));
  sweep.ranks = node.at("ranks").as_int(2, 1'048'576);
  sweep.nodes = node.at("nodes").as_int(1, sweep.ranks);
  const ConfigNode points = node.at("points");
  double last = 0;
  for (const ConfigNode& point : points.elements()) {
    const std::span<const ConfigNode> pair = point.elements();
    if (pair.size() != 2) throw point.error("is no pair", "[bytes, seconds]");
    const SizePoint read{pair[0].as_double(1, 1e15), pair[1].as_double(1e-9, 3600)};
    if (read.bytes <= last) throw point.error("does not ascend", "sizes in ascending order");
    last = read.bytes;
    sweep.points.push_back(read);
  }
  if (sweep.points.empty()) throw points.error("is empty", "at least one [bytes, seconds]");
  sweep.source = read_source(node);
  return sweep;
}

}  // namespace

Json fabrics_json(const std::vector<FabricCurve>& fabrics) {
  Json out = Json::array();
  for (const FabricCurve& curve : fabrics) {
    Json one = {{"kind", to_string(curve.kind)},
                {"hops", by_protocol(curve.hops)},
                {"ring", by_protocol(curve.ring)}};
    for (const Number& number : kNumbers) one[std::string(number.key)] = curve.*number.field;
    one["evidence"] = kEvidence[at(curve.evidence)];
    one["source"] = curve.source;
    out.push_back(std::move(one));
  }
  return out;
}

Json sweeps_json(const std::vector<CollectiveSweep>& sweeps) {
  Json out = Json::array();
  for (const CollectiveSweep& sweep : sweeps) {
    Json points = Json::array();
    for (const SizePoint& point : sweep.points) {
      points.push_back(Json::array({point.bytes, point.seconds}));
    }
    out.push_back({{"operation", to_string(sweep.operation)},
                   {"ranks", sweep.ranks},
                   {"nodes", sweep.nodes},
                   {"points", std::move(points)},
                   {"source", sweep.source}});
  }
  return out;
}

std::vector<FabricCurve> read_fabrics(const ConfigNode& node) {
  std::vector<FabricCurve> fabrics;
  for (const ConfigNode& element : node.elements()) {
    FabricCurve curve = read_fabric(element);
    const bool is_twice =
        std::ranges::any_of(fabrics, [&](const FabricCurve& c) { return c.kind == curve.kind; });
    if (is_twice) throw element.at("kind").error("is there twice", "each kind once");
    fabrics.push_back(std::move(curve));
  }
  return fabrics;
}

std::vector<CollectiveSweep> read_sweeps(const ConfigNode& node) {
  std::vector<CollectiveSweep> sweeps;
  for (const ConfigNode& element : node.elements()) sweeps.push_back(read_sweep(element));
  return sweeps;
}

}  // namespace foreshard
