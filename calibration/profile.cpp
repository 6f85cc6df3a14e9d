// Writing and reading mirror each other: one function per curve on each side, keys in the same
// order.
#include "calibration/profile.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "calibration/fabric_json.h"
#include "calibration/host_calls.h"
#include "calibration/measured_json.h"
#include "sim/base/error.h"

namespace foreshard {

namespace {

constexpr std::string_view kProfileSchema = "foreshard.profile/1";

constexpr std::array<std::string_view, kMemoryClasses> kMemoryClassNames = {"elementwise",
                                                                            "norm_forward",
                                                                            "norm_backward",
                                                                            "eager_norm_forward",
                                                                            "eager_norm_backward",
                                                                            "generated_norm",
                                                                            "loss",
                                                                            "optimizer",
                                                                            "copy",
                                                                            "strided",
                                                                            "widening"};
constexpr std::array<std::string_view, kFactors> kFactorNames = {
    "gemm", "attention", "memory_bound", "intra_node", "inter_node", "host", "overlap"};

std::string_view name_of(MemoryClass which) {
  return kMemoryClassNames[static_cast<std::size_t>(which)];
}

// What a profile has instead that is older than the class.
MemoryClass older_class(MemoryClass which) {
  switch (which) {
    case MemoryClass::kEagerNormForward:
    case MemoryClass::kEagerNormBackward:
    case MemoryClass::kStrided:
      return MemoryClass::kElementwise;
    case MemoryClass::kGeneratedNorm:
      return MemoryClass::kNormForward;
    case MemoryClass::kWidening:
      return MemoryClass::kCopy;
    default:
      return which;
  }
}

using NamedNumbers = std::vector<std::pair<std::string_view, double>>;

Json curve_json(const NamedNumbers& numbers, Evidence evidence, const std::string& source) {
  Json out = Json::object();
  for (const auto& [name, value] : numbers) out[std::string(name)] = value;
  out["evidence"] = kEvidence[static_cast<std::size_t>(evidence)];
  out["source"] = source;
  return out;
}

Json heat_json(const HeatCurve& c) {
  return curve_json({{"idle_w", c.idle},
                     {"joules_per_flop", c.joules_per_flop},
                     {"joules_per_byte", c.joules_per_byte},
                     {"energy_exponent", c.energy_exponent},
                     {"rate_exponent", c.rate_exponent},
                     {"cool", c.cool}},
                    c.evidence, c.source);
}

Json gemm_json(const GemmCurve& c) {
  NamedNumbers numbers = {{"efficiency", c.efficiency},
                          {"sustained", c.sustained},
                          {"k_half", c.k_half},
                          {"tail", c.tail},
                          {"hbm_fraction", c.hbm_fraction},
                          {"overhead_s", c.overhead}};
  for (const auto& [name, value] : NamedNumbers{{"m_half", c.m_half},
                                                {"n_half", c.n_half},
                                                {"wave", c.wave},
                                                {"blend", c.blend},
                                                {"slowdown", c.slowdown},
                                                {"misaligned_8", c.misaligned[0]},
                                                {"misaligned_4", c.misaligned[1]},
                                                {"misaligned_2", c.misaligned[2]}}) {
    if (value > 0) numbers.emplace_back(name, value);
  }
  return curve_json(numbers, c.evidence, c.source);
}

Json attention_json(const AttentionCurve& c) {
  Json out = {{"kernel", c.kernel}, {"head_dim", c.head_dim}, {"pass", name_of(c.pass)}};
  NamedNumbers numbers = {{"efficiency", c.efficiency},
                          {"s_half", c.s_half},
                          {"c_half", c.c_half},
                          {"overhead_s", c.overhead}};
  if (c.full_efficiency > 0) {
    numbers.insert(numbers.end(),
                   {{"full_efficiency", c.full_efficiency}, {"full_s_half", c.full_s_half}});
  }
  out.update(curve_json(numbers, c.evidence, c.source));
  return out;
}

Json memory_json(const MemoryCurve& c) {
  NamedNumbers numbers = {{"fraction", c.fraction}, {"overhead_s", c.overhead}};
  if (c.timed_overhead > 0) numbers.emplace_back("timed_overhead_s", c.timed_overhead);
  return curve_json(numbers, c.evidence, c.source);
}

Json collective_json(const CollectiveCurve& c) {
  return curve_json({{"latency_s", c.latency},
                     {"per_hop_s", c.per_hop},
                     {"link_fraction", c.link_fraction},
                     {"network_fraction", c.network_fraction},
                     {"per_doubling", c.per_doubling}},
                    c.evidence, c.source);
}

Json host_json(const HostCurve& c) {
  NamedNumbers numbers = {{"per_hook_s", c.per_hook}, {"per_launch_s", c.per_launch}};
  if (c.per_row > 0) numbers.emplace_back("per_row_s", c.per_row);
  if (c.per_collective > 0) numbers.emplace_back("per_collective_s", c.per_collective);
  Json out = curve_json(numbers, c.evidence, c.source);
  if (c.calls != HostCurve().calls) {
    out["python"] =
        curve_json({{"processor", c.processor}, {"per_driver_launch_s", c.per_driver_launch}},
                   c.processor_evidence, c.processor_source);
  }
  return out;
}

bool is_empty(const MeasuredPoints& points) {
  return points.gemm.empty() && points.attention.empty() && points.functions.empty() &&
         points.collectives.empty();
}

// The numbers of one curve, read strictly.
class CurveReader {
 public:
  explicit CurveReader(ConfigNode node) : node_(std::move(node)) {
    if (!node_.is_mapping()) throw node_.error("is not an object", "the numbers of a curve");
  }
  CurveReader& number(std::string_view key, double min, double max, double& out) {
    known_.push_back(key);
    out = node_.at(key).as_double(min, max);
    return *this;
  }
  // Left as it is where it is not there.
  CurveReader& number_if_there(std::string_view key, double min, double max, double& out) {
    return node_.has(key) ? number(key, min, max, out) : *this;
  }
  void evidence(Evidence& evidence, std::string& source) {
    known_.insert(known_.end(), {"evidence", "source"});
    evidence = static_cast<Evidence>(node_.at("evidence").as_choice(std::span(kEvidence)));
    finish(source);
  }
  void finish(std::string& source) {
    known_.push_back("source");
    source = node_.at("source").as_string();
    if (source.empty()) throw node_.at("source").error("is empty", "where the numbers come from");
    node_.allow_only(std::span<const std::string_view>(known_));
  }
  void knows(std::string_view key) { known_.push_back(key); }

 private:
  ConfigNode node_;
  std::vector<std::string_view> known_;
};

constexpr double kLongestCost = 1.0;  // s; no launch, hop or hook takes longer

GemmCurve read_gemm_curve(const ConfigNode& node) {
  GemmCurve c;
  CurveReader(node)
      .number("efficiency", 1e-3, 2, c.efficiency)
      .number("sustained", 0.1, 1, c.sustained)
      .number("k_half", 0, 1e5, c.k_half)
      .number("tail", 0, 10, c.tail)
      .number("hbm_fraction", 0.01, 2, c.hbm_fraction)
      .number("overhead_s", 0, kLongestCost, c.overhead)
      .number_if_there("m_half", 0, 1e5, c.m_half)
      .number_if_there("n_half", 0, 1e5, c.n_half)
      .number_if_there("wave", 0, 1, c.wave)
      .number_if_there("blend", 0, 100, c.blend)
      .number_if_there("slowdown", 0, 1, c.slowdown)
      .number_if_there("misaligned_8", 0, 20, c.misaligned[0])
      .number_if_there("misaligned_4", 0, 20, c.misaligned[1])
      .number_if_there("misaligned_2", 0, 20, c.misaligned[2])
      .evidence(c.evidence, c.source);
  return c;
}

HeatCurve read_heat_curve(const ConfigNode& node) {
  HeatCurve c;
  CurveReader(node)
      .number("idle_w", 1, 1e4, c.idle)
      .number("joules_per_flop", 0, 1e-9, c.joules_per_flop)
      .number("joules_per_byte", 0, 1e-6, c.joules_per_byte)
      .number("energy_exponent", 0.1, 10, c.energy_exponent)
      .number("rate_exponent", 0, 10, c.rate_exponent)
      .number("cool", 0.1, 2, c.cool)
      .evidence(c.evidence, c.source);
  return c;
}

AttentionCurve read_attention_curve(const ConfigNode& node) {
  AttentionCurve c;
  CurveReader reader(node);
  c.kernel = node.at("kernel").as_string();
  c.head_dim = node.at("head_dim").as_int(1, 4096);
  c.pass = pass_of(node);
  reader.knows("kernel");
  reader.knows("head_dim");
  reader.knows("pass");
  reader.number("efficiency", 1e-3, 2, c.efficiency)
      .number("s_half", 0, 1e5, c.s_half)
      .number("c_half", 0, 1e3, c.c_half)
      .number("overhead_s", 0, kLongestCost, c.overhead)
      .number_if_there("full_efficiency", 1e-3, 2, c.full_efficiency)
      .number_if_there("full_s_half", 0, 1e5, c.full_s_half)
      .evidence(c.evidence, c.source);
  return c;
}

MemoryCurve read_memory_curve(const ConfigNode& node) {
  MemoryCurve c;
  CurveReader(node)
      .number("fraction", 1e-3, 2, c.fraction)
      .number("overhead_s", 0, kLongestCost, c.overhead)
      .number_if_there("timed_overhead_s", 0, kLongestCost, c.timed_overhead)
      .evidence(c.evidence, c.source);
  return c;
}

CollectiveCurve read_collective_curve(const ConfigNode& node) {
  CollectiveCurve c;
  CurveReader(node)
      .number("latency_s", 0, kLongestCost, c.latency)
      .number("per_hop_s", 0, kLongestCost, c.per_hop)
      .number("link_fraction", 1e-3, 2, c.link_fraction)
      .number("network_fraction", 0, 2, c.network_fraction)
      .number("per_doubling", 0.1, 1, c.per_doubling)
      .evidence(c.evidence, c.source);
  return c;
}

HostCurve read_host_curve(const ConfigNode& node) {
  HostCurve c;
  const ConfigNode* python = node.find("python");
  if (python != nullptr) {
    c.calls = published_host_calls("").calls;
    CurveReader(*python)
        .number("processor", 0.01, 100, c.processor)
        .number("per_driver_launch_s", 0, kLongestCost, c.per_driver_launch)
        .evidence(c.processor_evidence, c.processor_source);
  }
  CurveReader reader(node);
  if (python != nullptr) reader.knows("python");
  reader.number("per_hook_s", 0, kLongestCost, c.per_hook)
      .number("per_launch_s", 0, kLongestCost, c.per_launch)
      .number_if_there("per_row_s", 0, kLongestCost, c.per_row)
      .number_if_there("per_collective_s", 0, kLongestCost, c.per_collective)
      .evidence(c.evidence, c.source);
  return c;
}

ContentionCurve read_contention_curve(const ConfigNode& node) {
  ContentionCurve c;
  CurveReader(node)
      .number("compute", 1, 10, c.compute)
      .number("communication", 1, 10, c.communication)
      .number_if_there("memory", 0, 1, c.memory)
      .evidence(c.evidence, c.source);
  return c;
}

FactorSpread read_factor_spread(const ConfigNode& node) {
  FactorSpread spread;
  CurveReader reader(node);
  reader.number("log_sd", 0, 2, spread.log_sd);
  reader.finish(spread.source);
  return spread;
}

}  // namespace

Json to_json(const Calibration& calibration) {
  const Calibration& c = calibration;
  Json out = {{"schema", kProfileSchema}, {"gpu", c.gpu}, {"id", c.id}};
  out["gemm_bf16"] = gemm_json(c.gemm_bf16);
  out["gemm_fp32"] = gemm_json(c.gemm_fp32);
  if (c.gemm_fp8.efficiency > 0) out["gemm_fp8"] = gemm_json(c.gemm_fp8);
  if (c.power_limit > 0) {
    out["power"] = {{"limit_w", c.power_limit}, {"exponent", c.power_exponent}};
  }
  if (c.heat.idle > 0) out["heat"] = heat_json(c.heat);
  out["attention"] = Json::array();
  for (const AttentionCurve& curve : c.attention) out["attention"].push_back(attention_json(curve));
  out["sdpa"] = {
      {"kernel", c.sdpa_kernel}, {"preferred", c.sdpa_preferred}, {"source", c.sdpa_source}};
  for (std::size_t i = 0; i < kMemoryClasses; ++i) {
    out["memory"][std::string(kMemoryClassNames[i])] = memory_json(c.memory[i]);
  }
  if (c.fabrics.empty()) {
    out["intra_node"] = collective_json(c.intra_node);
    out["inter_node"] = collective_json(c.inter_node);
  } else {
    out["fabrics"] = fabrics_json(c.fabrics);
  }
  if (!c.sweeps.empty()) out["sweeps"] = sweeps_json(c.sweeps);
  out["host"] = host_json(c.host);
  NamedNumbers contention = {{"compute", c.contention.compute},
                             {"communication", c.contention.communication}};
  if (c.contention.memory > 0) contention.emplace_back("memory", c.contention.memory);
  out["contention"] = curve_json(contention, c.contention.evidence, c.contention.source);
  for (std::size_t i = 0; i < kFactors; ++i) {
    out["spread"][std::string(kFactorNames[i])] = {{"log_sd", c.spread[i].log_sd},
                                                   {"source", c.spread[i].source}};
  }
  if (!is_empty(c.measured)) out["measured"] = to_json(c.measured);
  return out;
}

Calibration parse_calibration(std::string_view json, std::string_view file_name) {
  return read_calibration(parse_json(json, file_name));
}

Calibration read_calibration(const ConfigNode& root) {
  root.allow_only({"schema", "gpu", "id", "gemm_bf16", "gemm_fp32", "gemm_fp8", "power", "heat",
                   "attention", "sdpa", "memory", "intra_node", "inter_node", "fabrics", "sweeps",
                   "host", "contention", "spread", "measured"});
  if (const ConfigNode schema = root.at("schema"); schema.as_string() != kProfileSchema) {
    throw schema.error(fmt::format("unknown schema '{}'", schema.text()),
                       std::string(kProfileSchema));
  }
  Calibration c;
  c.gpu = root.at("gpu").as_string();
  c.id = root.at("id").as_string();
  c.gemm_bf16 = read_gemm_curve(root.at("gemm_bf16"));
  c.gemm_fp32 = read_gemm_curve(root.at("gemm_fp32"));
  if (const ConfigNode* fp8 = root.find("gemm_fp8")) c.gemm_fp8 = read_gemm_curve(*fp8);
  if (const ConfigNode* power = root.find("power")) {
    power->allow_only({"limit_w", "exponent"});
    c.power_limit = power->at("limit_w").as_double(1, 1e5);
    c.power_exponent = power->at("exponent").as_double(0, 2);
  }
  if (const ConfigNode* heat = root.find("heat")) c.heat = read_heat_curve(*heat);
  const ConfigNode attention = root.at("attention");
  for (const ConfigNode& curve : attention.elements())
    c.attention.push_back(read_attention_curve(curve));
  const ConfigNode sdpa = root.at("sdpa");
  sdpa.allow_only({"kernel", "preferred", "source"});
  c.sdpa_kernel = sdpa.at("kernel").as_string();
  c.sdpa_preferred = sdpa.at("preferred").as_string();
  c.sdpa_source = sdpa.at("source").as_string();
  const ConfigNode memory = root.at("memory");
  memory.allow_only(std::span<const std::string_view>(kMemoryClassNames));
  for (std::size_t i = 0; i < kMemoryClasses; ++i) {
    const ConfigNode* given = memory.find(kMemoryClassNames[i]);
    const auto which = static_cast<MemoryClass>(i);
    c.memory[i] =
        read_memory_curve(given != nullptr ? *given : memory.at(name_of(older_class(which))));
  }
  if (const ConfigNode* fabrics = root.find("fabrics")) c.fabrics = read_fabrics(*fabrics);
  for (const auto& [key, curve] :
       {std::pair{"intra_node", &c.intra_node}, std::pair{"inter_node", &c.inter_node}}) {
    // Older profiles have them beside `fabrics`, which are what is read.
    if (c.fabrics.empty() || root.has(key)) *curve = read_collective_curve(root.at(key));
  }
  if (const ConfigNode* sweeps = root.find("sweeps")) c.sweeps = read_sweeps(*sweeps);
  c.host = read_host_curve(root.at("host"));
  c.contention = read_contention_curve(root.at("contention"));
  const ConfigNode spread = root.at("spread");
  spread.allow_only(std::span<const std::string_view>(kFactorNames));
  for (std::size_t i = 0; i < kFactors; ++i)
    c.spread[i] = read_factor_spread(spread.at(kFactorNames[i]));
  if (const ConfigNode* points = root.find("measured")) c.measured = read_measured_points(*points);
  return c;
}

}  // namespace foreshard
