// Sizes are two lists of one length, `bytes` and `seconds`: a curve fits on a screen.
#include "calibration/measured_json.h"

#include <array>
#include <nlohmann/json.hpp>
#include <span>

namespace foreshard {
namespace {

constexpr std::array<std::string_view, 2> kPasses = {"forward", "backward"};
constexpr std::array<std::string_view, 2> kDTypes = {"bf16", "fp32"};
constexpr std::array<std::string_view, 2> kOrders = {"microbatch", "library"};
constexpr double kMostBytes = 1e15;

template <typename Enum, std::size_t N>
std::array<std::string_view, N> names_of_all() {
  std::array<std::string_view, N> names;
  for (std::size_t i = 0; i < N; ++i) names[i] = to_string(static_cast<Enum>(i));
  return names;
}

const char* dtype_name(bool fp32) { return fp32 ? "fp32" : "bf16"; }

void write_sizes(const std::vector<SizePoint>& points, Json& out) {
  out["bytes"] = Json::array();
  out["seconds"] = Json::array();
  for (const SizePoint& point : points) {
    out["bytes"].push_back(point.bytes);
    out["seconds"].push_back(point.seconds);
  }
}

double seconds(const ConfigNode& node) { return node.as_double(kShortestTime, kLongestTime); }

std::vector<SizePoint> read_sizes(const ConfigNode& node) {
  const ConfigNode bytes = node.at("bytes");
  const ConfigNode times = node.at("seconds");
  if (bytes.elements().empty()) throw bytes.error("is empty", "at least one size");
  if (bytes.elements().size() != times.elements().size()) {
    throw times.error("has another length than bytes", "one time per size");
  }
  std::vector<SizePoint> points;
  for (std::size_t i = 0; i < bytes.elements().size(); ++i) {
    const ConfigNode& size = bytes.elements()[i];
    const ConfigNode& time = times.elements()[i];
    const SizePoint point{size.as_double(1, kMostBytes), seconds(time)};
    if (!points.empty() && point.bytes <= points.back().bytes) {
      throw size.error("is not above the size before", "ascending sizes");
    }
    if (!points.empty() && point.seconds < points.back().seconds) {
      throw time.error("is below the time before", "times that do not fall");
    }
    points.push_back(point);
  }
  return points;
}

GemmPoint read_gemm(const ConfigNode& node) {
  node.allow_only({"pass", "dtype", "m", "n", "k", "seconds"});
  return {pass_of(node),
          is_fp32(node),
          measured_size(node, "m"),
          measured_size(node, "n"),
          measured_size(node, "k"),
          seconds(node.at("seconds"))};
}

AttentionPoint read_attention(const ConfigNode& node) {
  node.allow_only({"pass", "dtype", "causal", "batch", "sequence", "heads", "kv_heads", "head_dim",
                   "seconds", "kernel"});
  const ConfigNode* kernel = node.find("kernel");
  return {pass_of(node),
          is_fp32(node),
          node.at("causal").as_bool(),
          measured_size(node, "batch"),
          measured_size(node, "sequence"),
          measured_size(node, "heads"),
          measured_size(node, "kv_heads"),
          measured_size(node, "head_dim"),
          seconds(node.at("seconds")),
          kernel == nullptr ? "" : kernel->as_string()};
}

FunctionPoints read_function(const ConfigNode& node) {
  node.allow_only({"function", "pass", "dtype", "bytes", "seconds"});
  return {function_of(node), pass_of(node), is_fp32(node), read_sizes(node)};
}

CollectivePoints read_collective(const ConfigNode& node) {
  node.allow_only({"operation", "order", "group", "bytes", "seconds"});
  return {operation_of(node), order_of(node), node.at("group").as_int(2, 1'000'000),
          read_sizes(node)};
}

template <typename Point>
std::vector<Point> read_all(const ConfigNode& list, Point (*read)(const ConfigNode&)) {
  std::vector<Point> points;
  for (const ConfigNode& node : list.elements()) points.push_back(read(node));
  return points;
}

}  // namespace

std::string_view name_of(Pass pass) { return kPasses[at(pass)]; }

std::int64_t measured_size(const ConfigNode& row, std::string_view key) {
  return row.at(key).as_int(1, kLargestSize);
}
Pass pass_of(const ConfigNode& row) {
  return static_cast<Pass>(row.at("pass").as_choice(std::span(kPasses)));
}
bool is_fp32(const ConfigNode& row) { return row.at("dtype").as_choice(std::span(kDTypes)) == 1; }
Function function_of(const ConfigNode& row) {
  static const auto kNames = names_of_all<Function, kFunctions>();
  return static_cast<Function>(row.at("function").as_choice(std::span(kNames)));
}
CollectiveOperation operation_of(const ConfigNode& row) {
  static const auto kNames = names_of_all<CollectiveOperation, kCollectiveOperations>();
  return static_cast<CollectiveOperation>(row.at("operation").as_choice(std::span(kNames)));
}
ReductionOrder order_of(const ConfigNode& row) {
  return row.at("order").as_choice(std::span(kOrders)) == 0 ? ReductionOrder::kMicrobatch
                                                            : ReductionOrder::kLibrary;
}

Json to_json(const MeasuredPoints& points) {
  Json out = {{"gemm", Json::array()},
              {"attention", Json::array()},
              {"memory", Json::array()},
              {"collectives", Json::array()}};
  for (const GemmPoint& p : points.gemm) {
    out["gemm"].push_back({{"pass", name_of(p.pass)},
                           {"dtype", dtype_name(p.fp32)},
                           {"m", p.m},
                           {"n", p.n},
                           {"k", p.k},
                           {"seconds", p.seconds}});
  }
  for (const AttentionPoint& p : points.attention) {
    out["attention"].push_back({{"pass", name_of(p.pass)},
                                {"dtype", dtype_name(p.fp32)},
                                {"causal", p.causal},
                                {"batch", p.batch},
                                {"sequence", p.sequence},
                                {"heads", p.heads},
                                {"kv_heads", p.kv_heads},
                                {"head_dim", p.head_dim},
                                {"seconds", p.seconds}});
    if (!p.kernel.empty()) out["attention"].back()["kernel"] = p.kernel;
  }
  for (const FunctionPoints& p : points.functions) {
    Json curve = {{"function", to_string(p.function)},
                  {"pass", name_of(p.pass)},
                  {"dtype", dtype_name(p.fp32)}};
    write_sizes(p.points, curve);
    out["memory"].push_back(std::move(curve));
  }
  for (const CollectivePoints& p : points.collectives) {
    Json curve = {{"operation", to_string(p.operation)},
                  {"order", kOrders[p.order == ReductionOrder::kMicrobatch ? 0 : 1]},
                  {"group", p.group}};
    write_sizes(p.points, curve);
    out["collectives"].push_back(std::move(curve));
  }
  return out;
}

MeasuredPoints read_measured_points(const ConfigNode& node) {
  node.allow_only({"gemm", "attention", "memory", "collectives"});
  MeasuredPoints points;
  points.gemm = read_all(node.at("gemm"), read_gemm);
  points.attention = read_all(node.at("attention"), read_attention);
  points.functions = read_all(node.at("memory"), read_function);
  points.collectives = read_all(node.at("collectives"), read_collective);
  return points;
}

}  // namespace foreshard
