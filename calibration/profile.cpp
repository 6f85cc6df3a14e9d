// A curve's numbers are listed once: reading and writing go through the list.
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

std::string_view name_of(MemoryClass which) { return kMemoryClassNames[at(which)]; }

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

// A number of a curve, as it is read and written.
struct CurveNumber {
  std::string_view name;
  double least, most;
  double* value;
  const double* unless_zero = nullptr;  // where this is 0, it is left out
};
using CurveNumbers = std::vector<CurveNumber>;

constexpr double kLongestCost = 1.0;  // s; no launch, hop or hook takes longer

CurveNumbers numbers_of(GemmCurve& c) {
  return {{"efficiency", 1e-3, 2, &c.efficiency},
          {"sustained", 0.1, 1, &c.sustained},
          {"k_half", 0, 1e5, &c.k_half},
          {"tail", 0, 10, &c.tail},
          {"hbm_fraction", 0.01, 2, &c.hbm_fraction},
          {"overhead_s", 0, kLongestCost, &c.overhead},
          {"m_half", 0, 1e5, &c.m_half, &c.m_half},
          {"n_half", 0, 1e5, &c.n_half, &c.n_half},
          {"wave", 0, 1, &c.wave, &c.wave},
          {"blend", 0, 100, &c.blend, &c.blend},
          {"slowdown", 0, 1, &c.slowdown, &c.slowdown},
          {"misaligned_8", 0, 20, &c.misaligned[0], &c.misaligned[0]},
          {"misaligned_4", 0, 20, &c.misaligned[1], &c.misaligned[1]},
          {"misaligned_2", 0, 20, &c.misaligned[2], &c.misaligned[2]}};
}

CurveNumbers numbers_of(HeatCurve& c) {
  return {{"idle_w", 1, 1e4, &c.idle},
          {"joules_per_flop", 0, 1e-9, &c.joules_per_flop},
          {"joules_per_byte", 0, 1e-6, &c.joules_per_byte},
          {"energy_exponent", 0.1, 10, &c.energy_exponent},
          {"rate_exponent", 0, 10, &c.rate_exponent},
          {"cool", 0.1, 2, &c.cool}};
}

CurveNumbers numbers_of(AttentionCurve& c) {
  return {{"efficiency", 1e-3, 2, &c.efficiency},
          {"s_half", 0, 1e5, &c.s_half},
          {"c_half", 0, 1e3, &c.c_half},
          {"overhead_s", 0, kLongestCost, &c.overhead},
          {"full_efficiency", 1e-3, 2, &c.full_efficiency, &c.full_efficiency},
          {"full_s_half", 0, 1e5, &c.full_s_half, &c.full_efficiency}};
}

CurveNumbers numbers_of(MemoryCurve& c) {
  return {{"fraction", 1e-3, 2, &c.fraction},
          {"overhead_s", 0, kLongestCost, &c.overhead},
          {"timed_overhead_s", 0, kLongestCost, &c.timed_overhead, &c.timed_overhead}};
}

CurveNumbers numbers_of(CollectiveCurve& c) {
  return {{"latency_s", 0, kLongestCost, &c.latency},
          {"per_hop_s", 0, kLongestCost, &c.per_hop},
          {"link_fraction", 1e-3, 2, &c.link_fraction},
          {"network_fraction", 0, 2, &c.network_fraction},
          {"per_doubling", 0.1, 1, &c.per_doubling}};
}

CurveNumbers numbers_of(HostCurve& c) {
  return {{"per_hook_s", 0, kLongestCost, &c.per_hook},
          {"per_launch_s", 0, kLongestCost, &c.per_launch},
          {"per_row_s", 0, kLongestCost, &c.per_row, &c.per_row},
          {"per_collective_s", 0, kLongestCost, &c.per_collective, &c.per_collective}};
}
CurveNumbers numbers_of_python(HostCurve& c) {
  return {{"processor", 0.01, 100, &c.processor},
          {"per_driver_launch_s", 0, kLongestCost, &c.per_driver_launch}};
}

CurveNumbers numbers_of(ContentionCurve& c) {
  return {{"compute", 1, 10, &c.compute},
          {"communication", 1, 10, &c.communication},
          {"memory", 0, 1, &c.memory, &c.memory}};
}

Json curve_json(const CurveNumbers& numbers, Evidence evidence, const std::string& source) {
  Json out = Json::object();
  for (const CurveNumber& number : numbers) {
    if (number.unless_zero != nullptr && !(*number.unless_zero > 0)) continue;
    out[std::string(number.name)] = *number.value;
  }
  out["evidence"] = kEvidence[at(evidence)];
  out["source"] = source;
  return out;
}
template <typename Curve>
Json json_of(Curve curve) {
  return curve_json(numbers_of(curve), curve.evidence, curve.source);
}

Json attention_json(const AttentionCurve& c) {
  Json out = {{"kernel", c.kernel}, {"head_dim", c.head_dim}, {"pass", name_of(c.pass)}};
  out.update(json_of(c));
  return out;
}

Json host_json(HostCurve c) {
  Json out = json_of(c);
  if (c.calls != HostCurve().calls) {
    out["python"] = curve_json(numbers_of_python(c), c.processor_evidence, c.processor_source);
  }
  return out;
}

bool is_empty(const MeasuredPoints& points) {
  return points.gemm.empty() && points.attention.empty() && points.functions.empty() &&
         points.collectives.empty();
}

using Keys = std::vector<std::string_view>;

void read_numbers(const ConfigNode& node, const CurveNumbers& numbers, Keys& known) {
  if (!node.is_mapping()) throw node.error("is not an object", "the numbers of a curve");
  for (const CurveNumber& number : numbers) {
    known.push_back(number.name);
    if (number.unless_zero != nullptr && !node.has(number.name)) continue;
    *number.value = node.at(number.name).as_double(number.least, number.most);
  }
}

// What the node has besides `known`, which is nothing else.
void read_source(const ConfigNode& node, std::string& source, Keys known) {
  known.push_back("source");
  source = node.at("source").as_string();
  if (source.empty()) throw node.at("source").error("is empty", "where the numbers come from");
  node.allow_only(std::span<const std::string_view>(known));
}

Evidence read_evidence(const ConfigNode& node, Keys& known) {
  known.push_back("evidence");
  return static_cast<Evidence>(node.at("evidence").as_choice(std::span(kEvidence)));
}

// `known` stands beside the numbers.
template <typename Curve>
Curve read_curve(const ConfigNode& node, Curve curve = {}, Keys known = {}) {
  read_numbers(node, numbers_of(curve), known);
  curve.evidence = read_evidence(node, known);
  read_source(node, curve.source, known);
  return curve;
}

AttentionCurve read_attention_curve(const ConfigNode& node) {
  auto c = read_curve<AttentionCurve>(node, {}, {"kernel", "head_dim", "pass"});
  c.kernel = node.at("kernel").as_string();
  c.head_dim = node.at("head_dim").as_int(1, 4096);
  c.pass = pass_of(node);
  return c;
}

HostCurve read_host_curve(const ConfigNode& node) {
  HostCurve c;
  const ConfigNode* python = node.find("python");
  if (python == nullptr) return read_curve(node, c);
  c.calls = published_host_calls("").calls;
  Keys known;
  read_numbers(*python, numbers_of_python(c), known);
  c.processor_evidence = read_evidence(*python, known);
  read_source(*python, c.processor_source, known);
  return read_curve(node, c, {"python"});
}

FactorSpread read_factor_spread(const ConfigNode& node) {
  FactorSpread spread;
  Keys known;
  read_numbers(node, {{"log_sd", 0, 2, &spread.log_sd}}, known);
  read_source(node, spread.source, known);
  return spread;
}

}  // namespace

Json to_json(const Calibration& calibration) {
  const Calibration& c = calibration;
  Json out = {{"schema", kProfileSchema}, {"gpu", c.gpu}, {"id", c.id}};
  out["gemm_bf16"] = json_of(c.gemm_bf16);
  out["gemm_fp32"] = json_of(c.gemm_fp32);
  if (c.gemm_fp8.efficiency > 0) out["gemm_fp8"] = json_of(c.gemm_fp8);
  if (c.power_limit > 0) {
    out["power"] = {{"limit_w", c.power_limit}, {"exponent", c.power_exponent}};
  }
  if (c.heat.idle > 0) out["heat"] = json_of(c.heat);
  out["attention"] = Json::array();
  for (const AttentionCurve& curve : c.attention) out["attention"].push_back(attention_json(curve));
  out["sdpa"] = {
      {"kernel", c.sdpa_kernel}, {"preferred", c.sdpa_preferred}, {"source", c.sdpa_source}};
  for (std::size_t i = 0; i < kMemoryClasses; ++i) {
    out["memory"][std::string(kMemoryClassNames[i])] = json_of(c.memory[i]);
  }
  if (c.fabrics.empty()) {
    out["intra_node"] = json_of(c.intra_node);
    out["inter_node"] = json_of(c.inter_node);
  } else {
    out["fabrics"] = fabrics_json(c.fabrics);
  }
  if (!c.sweeps.empty()) out["sweeps"] = sweeps_json(c.sweeps);
  out["host"] = host_json(c.host);
  out["contention"] = json_of(c.contention);
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
  c.gemm_bf16 = read_curve<GemmCurve>(root.at("gemm_bf16"));
  c.gemm_fp32 = read_curve<GemmCurve>(root.at("gemm_fp32"));
  if (const ConfigNode* fp8 = root.find("gemm_fp8")) c.gemm_fp8 = read_curve<GemmCurve>(*fp8);
  if (const ConfigNode* power = root.find("power")) {
    power->allow_only({"limit_w", "exponent"});
    c.power_limit = power->at("limit_w").as_double(1, 1e5);
    c.power_exponent = power->at("exponent").as_double(0, 2);
  }
  if (const ConfigNode* heat = root.find("heat")) c.heat = read_curve<HeatCurve>(*heat);
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
        read_curve<MemoryCurve>(given != nullptr ? *given : memory.at(name_of(older_class(which))));
  }
  if (const ConfigNode* fabrics = root.find("fabrics")) c.fabrics = read_fabrics(*fabrics);
  for (const auto& [key, curve] :
       {std::pair{"intra_node", &c.intra_node}, std::pair{"inter_node", &c.inter_node}}) {
    // Older profiles have them beside `fabrics`, which are what is read.
    if (c.fabrics.empty() || root.has(key)) *curve = read_curve<CollectiveCurve>(root.at(key));
  }
  if (const ConfigNode* sweeps = root.find("sweeps")) c.sweeps = read_sweeps(*sweeps);
  c.host = read_host_curve(root.at("host"));
  c.contention = read_curve<ContentionCurve>(root.at("contention"));
  const ConfigNode spread = root.at("spread");
  spread.allow_only(std::span<const std::string_view>(kFactorNames));
  for (std::size_t i = 0; i < kFactors; ++i)
    c.spread[i] = read_factor_spread(spread.at(kFactorNames[i]));
  if (const ConfigNode* points = root.find("measured")) c.measured = read_measured_points(*points);
  return c;
}

}  // namespace foreshard
