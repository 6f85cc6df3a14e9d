// Protocols are keys of their own, in NCCL's words; times in seconds (`_s`), all else ratios.
#include "calibration/profile.h"

#include <algorithm>
#include <array>

#include "calibration/measured_fields.h"
#include "sim/base/config.h"
#include "sim/base/embedded.h"
#include "sim/base/lookup.h"

namespace foreshard {

namespace {

constexpr std::string_view kProfileSchema = "foreshard.profile/1";

constexpr std::array<std::string_view, kMemoryClasses> kMemoryClassNames = {"elementwise", "norm_forward",
    "norm_backward", "eager_norm_forward", "eager_norm_backward", "generated_norm", "loss", "optimizer", "copy",
    "strided", "widening"};
constexpr std::array<std::string_view, 5> kEvidence = {
    "measured", "interpolated", "extrapolated", "datasheet", "assumed"};
constexpr std::array<std::string_view, 3> kProtocols = {"ll", "ll128", "simple"};
constexpr std::array<std::string_view, kFactors> kFactorNames = {
    "gemm", "attention", "memory_bound", "intra_node", "inter_node", "host", "overlap"};

// What a profile has instead that is older than the class.
MemoryClass older_class(MemoryClass which) {
  using enum MemoryClass;
  return value_of(which,
      {{kEagerNormForward, kElementwise}, {kEagerNormBackward, kElementwise}, {kStrided, kElementwise},
          {kGeneratedNorm, kNormForward}, {kWidening, kCopy}},
      which);
}

constexpr double kLongestCost = 1.0;  // s; no launch, hop or hook takes longer

bool is_empty(const MeasuredPoints& points) {
  return points.gemm.empty() && points.attention.empty() && points.functions.empty() && points.collectives.empty();
}

}

void source_fields(auto& io, Evidence& evidence, std::string& source) {
  io("evidence", evidence, kEvidence);
  io("source", source, kNotEmpty);
}

void fields(auto& io, GemmCurve& c) {
  const auto unless_zero = [&](std::string_view key, double& value, double most) {
    io.optional(value > 0, key, value, 0, most);
  };
  io("efficiency", c.efficiency, 1e-3, 2);
  io("sustained", c.sustained, 0.1, 1);
  io("k_half", c.k_half, 0, 1e5);
  io("tail", c.tail, 0, 10);
  io("hbm_fraction", c.hbm_fraction, 0.01, 2);
  io("overhead_s", c.overhead, 0, kLongestCost);
  unless_zero("m_half", c.m_half, 1e5);
  unless_zero("n_half", c.n_half, 1e5);
  unless_zero("wave", c.wave, 1);
  unless_zero("blend", c.blend, 100);
  unless_zero("slowdown", c.slowdown, 1);
  unless_zero("misaligned_8", c.misaligned[0], 20);
  unless_zero("misaligned_4", c.misaligned[1], 20);
  unless_zero("misaligned_2", c.misaligned[2], 20);
  source_fields(io, c.evidence, c.source);
}

void fields(auto& io, HeatCurve& c) {
  io("idle_w", c.idle, 1, 1e4);
  io("joules_per_flop", c.joules_per_flop, 0, 1e-9);
  io("joules_per_byte", c.joules_per_byte, 0, 1e-6);
  io("energy_exponent", c.energy_exponent, 0.1, 10);
  io("rate_exponent", c.rate_exponent, 0, 10);
  io("cool", c.cool, 0.1, 2);
  source_fields(io, c.evidence, c.source);
}

void fields(auto& io, AttentionCurve& c) {
  io("kernel", c.kernel);
  io("head_dim", c.head_dim, 1, kLargestHead);
  io("pass", c.pass, kPassWords);
  io("efficiency", c.efficiency, 1e-3, 2);
  io("s_half", c.s_half, 0, 1e5);
  io("c_half", c.c_half, 0, 1e3);
  io("overhead_s", c.overhead, 0, kLongestCost);
  const bool is_full = c.full_efficiency > 0;
  io.optional(is_full, "full_efficiency", c.full_efficiency, 1e-3, 2);
  io.optional(is_full, "full_s_half", c.full_s_half, 0, 1e5);
  source_fields(io, c.evidence, c.source);
}

void fields(auto& io, MemoryCurve& c) {
  io("fraction", c.fraction, 1e-3, 2);
  io("overhead_s", c.overhead, 0, kLongestCost);
  io.optional(c.timed_overhead > 0, "timed_overhead_s", c.timed_overhead, 0, kLongestCost);
  source_fields(io, c.evidence, c.source);
}

void fields(auto& io, CollectiveCurve& c) {
  io("latency_s", c.latency, 0, kLongestCost);
  io("per_hop_s", c.per_hop, 0, kLongestCost);
  io("link_fraction", c.link_fraction, 1e-3, 2);
  io("network_fraction", c.network_fraction, 0, 2);
  io("per_doubling", c.per_doubling, 0.1, 1);
  source_fields(io, c.evidence, c.source);
}

void fields(auto& io, FabricCurve& c) {
  static const auto kKinds = words_of<FabricKind, kFabricKinds>();
  const auto by_protocol = [&](std::string_view key, std::array<double, 3>& values) {
    io(key, [&](auto& part) {
      for (std::size_t p = 0; p < values.size(); ++p) part(kProtocols[p], values[p], 1e-3, 1000);
    });
  };
  io("kind", c.kind, kKinds);
  by_protocol("hops", c.hops);
  by_protocol("ring", c.ring);
  io("fixed_s", c.fixed, 0, 1);
  io("nvls", c.nvls, 1e-3, 10);
  io("tree", c.tree, 1e-3, 10);
  io("own", c.own, 0, 100);
  io("pipeline", c.pipeline, 0, 100);
  io("per_doubling", c.per_doubling, 0, 10);
  source_fields(io, c.evidence, c.source);
}

void fields(auto& io, CollectiveSweep& s) {
  std::vector<std::vector<double>> pairs;
  for (const SizePoint& point : s.points) pairs.push_back({point.bytes, point.seconds});
  io("operation", s.operation, kOperationWords);
  io("ranks", s.ranks, 2, 1'048'576);
  io("nodes", s.nodes, 1, s.ranks);
  io("points", pairs, 0, kMostBytes);
  io.require(!pairs.empty(), "points", "is empty", "at least one [bytes, seconds]");
  io("source", s.source, kNotEmpty);
  s.points.clear();
  for (const std::vector<double>& pair : pairs) {
    io.require(pair.size() == 2, "points", "has what is no pair", "[bytes, seconds]");
    const SizePoint point{pair[0], pair[1]};
    io.require(point.bytes >= 1 && (s.points.empty() || point.bytes > s.points.back().bytes), "points",
        "has a size that does not ascend", "sizes in ascending order");
    io.require(point.seconds >= 1e-9 && point.seconds <= 3600, "points", "has a time that is none", "1e-9 to 3600 s");
    s.points.push_back(point);
  }
}

template <typename Io>
void fields(Io& io, HostCurve& c) {
  const bool is_python = c.calls != HostCurve().calls;
  io("per_hook_s", c.per_hook, 0, kLongestCost);
  io("per_launch_s", c.per_launch, 0, kLongestCost);
  io.optional(c.per_row > 0, "per_row_s", c.per_row, 0, kLongestCost);
  io.optional(c.per_collective > 0, "per_collective_s", c.per_collective, 0, kLongestCost);
  source_fields(io, c.evidence, c.source);
  io.optional(is_python, "python", [&](auto& part) {
    part("processor", c.processor, 0.01, 100);
    part("per_driver_launch_s", c.per_driver_launch, 0, kLongestCost);
    source_fields(part, c.processor_evidence, c.processor_source);
  });
  if constexpr (Io::kReads) {
    if (io.has("python")) c.calls = published_host_calls("").calls;
  }
}

void fields(auto& io, ContentionCurve& c) {
  io("compute", c.compute, 1, 10);
  io("communication", c.communication, 1, 10);
  io.optional(c.memory > 0, "memory", c.memory, 0, 1);
  source_fields(io, c.evidence, c.source);
}

void fields(auto& io, FactorSpread& s) {
  io("log_sd", s.log_sd, 0, 2);
  io("source", s.source, kNotEmpty);
}

template <typename Io>
void memory_fields(Io& io, std::array<MemoryCurve, kMemoryClasses>& curves) {
  for (std::size_t i = 0; i < kMemoryClasses; ++i) {
    const std::size_t older = at(older_class(static_cast<MemoryClass>(i)));
    if (older == i) {
      io(kMemoryClassNames[i], curves[i]);
      continue;
    }
    io.optional(true, kMemoryClassNames[i], curves[i]);
    if constexpr (Io::kReads) {
      if (!io.has(kMemoryClassNames[i])) curves[i] = curves[older];
    }
  }
}

void fabric_fields(auto& io, Calibration& c) {
  io.optional(!c.fabrics.empty(), "fabrics", c.fabrics);
  for (auto fabric = c.fabrics.begin(); fabric != c.fabrics.end(); ++fabric) {
    io.require(
        std::find_if(
            c.fabrics.begin(), fabric, [&](const FabricCurve& other) { return other.kind == fabric->kind; }) == fabric,
        "fabrics", "has a kind twice", "each kind once");
  }
  for (const auto& [key, curve] : {std::pair{"intra_node", &c.intra_node}, std::pair{"inter_node", &c.inter_node}}) {
    // Older profiles have them beside `fabrics`, which are what is read.
    if (c.fabrics.empty()) io(key, *curve);
    else io.optional(false, key, *curve);
  }
}

void fields(auto& io, Calibration& c) {
  io.schema(kProfileSchema);
  io("gpu", c.gpu);
  io("id", c.id);
  io("gemm_bf16", c.gemm_bf16);
  io("gemm_fp32", c.gemm_fp32);
  io.optional(c.gemm_fp8.efficiency > 0, "gemm_fp8", c.gemm_fp8);
  io.optional(c.power_limit > 0, "power", [&](auto& part) {
    part("limit_w", c.power_limit, 1, 1e5);
    part("exponent", c.power_exponent, 0, 2);
  });
  io.optional(c.heat.idle > 0, "heat", c.heat);
  io("attention", c.attention);
  io(
      "sdpa",
      [&](auto& part) {
        part("kernel", c.sdpa_kernel);
        part("preferred", c.sdpa_preferred);
        part("source", c.sdpa_source);
      });
  io("memory", [&](auto& part) { memory_fields(part, c.memory); });
  fabric_fields(io, c);
  io.optional(!c.sweeps.empty(), "sweeps", c.sweeps);
  io("host", c.host);
  io("contention", c.contention);
  io("spread", [&](auto& part) {
    for (std::size_t i = 0; i < kFactors; ++i) part(kFactorNames[i], c.spread[i]);
  });
  io.optional(!is_empty(c.measured), "measured", c.measured);
}

template void fields(FieldNames& io, Calibration& calibration);
template void fields(FieldWriter& io, Calibration& calibration);
template void fields(FieldReader& io, Calibration& calibration);

Json to_json(const Calibration& calibration) { return fields_json(calibration); }

Calibration parse_calibration(std::string_view json, std::string_view file_name) {
  return read_calibration(parse_json(json, file_name));
}

Calibration read_calibration(const ConfigNode& root) {
  Calibration calibration;
  read_fields(root, calibration);
  return calibration;
}

namespace {

constexpr std::string_view kPath = "calibration/evidence/host_calls.json";
constexpr double kLongestCall = 1.0;  // s

bool is_of(const ConfigNode& processor, std::string_view machine) {
  const ConfigNode machines = processor.at("machines");
  if (machines.elements().empty()) return true;  // of every other one
  return std::ranges::any_of(machines.elements(), [&](const ConfigNode& key) { return key.as_string() == machine; });
}

HostCurve read(const EmbeddedFile& file, std::string_view machine) {
  const ConfigNode root = parse_json(file.content, file.path);
  HostCurve curve;
  const ConfigNode calls = root.at("calls");
  for (std::size_t i = 0; i < kHostCalls; ++i)
    curve.calls[i] = calls.at(to_string(static_cast<HostCall>(i))).as_double(0, kLongestCall);
  const ConfigNode processors = root.at("processors");
  for (const ConfigNode& processor : processors.elements()) {
    if (!is_of(processor, machine)) continue;
    curve.processor = processor.at("ratio").as_double(0.01, 100);
    curve.per_driver_launch = processor.at("per_driver_launch_s").as_double(0, kLongestCall);
    curve.processor_evidence =
        processor.at("evidence").as_string() == "measured" ? Evidence::kMeasured : Evidence::kAssumed;
    curve.processor_source = processor.at("source").as_string();
    return curve;
  }
  throw processors.error("names no processor for other machines", "one with machines: []");
}

}

HostCurve published_host_calls(std::string_view machine) {
  return read(file_named(kPath, calibration_files()), machine);
}

}
