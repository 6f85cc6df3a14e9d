// Reading and writing mirror each other. Other numbers of ranks than the measured ones take a
// measured variant; with more ranks than cores a rank gets a smaller share of a core, and
// everything takes that much longer, which is what scaled() does to rates, overheads and points
// alike.
#include "calibration/local_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "calibration/profile.h"
#include "sim/base/config.h"
#include "sim/base/error.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

constexpr std::string_view kLocalSchema = "foreshard.local_profile/1";
constexpr double kAnyRate = 1e30;  // of any rate

Json machine_json(const MeasuredHost& host) {
  return {{"name", host.name},
          {"cpu", host.cpu},
          {"cores", host.cores},
          {"memory_bytes", host.memory.count()},
          {"kernel", host.kernel}};
}

LocalVariant read_variant(const ConfigNode& node) {
  node.allow_only({"ranks", "peak_fp32_flop_per_s", "peak_bf16_flop_per_s",
                   "memory_bandwidth_bytes_per_s", "memory_outside_bytes", "memory_outside_source",
                   "calibration"});
  const auto rate = [&](const char* key) { return node.at(key).as_double(1, kAnyRate); };
  LocalVariant variant;
  variant.ranks = node.at("ranks").as_int(1, 1'000'000);
  variant.peak_fp32 = FlopsPerSecond(rate("peak_fp32_flop_per_s"));
  variant.peak_bf16 = FlopsPerSecond(rate("peak_bf16_flop_per_s"));
  variant.memory_bandwidth = BytesPerSecond(rate("memory_bandwidth_bytes_per_s"));
  variant.memory_outside = Bytes(node.at("memory_outside_bytes").as_int(0));
  variant.outside_source = node.at("memory_outside_source").as_string();
  variant.calibration = read_calibration(node.at("calibration"));
  return variant;
}

// Everything takes `factor` times as long. The curves follow from the rates, but for their
// overheads.
LocalVariant scaled(LocalVariant v, double factor) {
  v.peak_fp32 = FlopsPerSecond(v.peak_fp32.value() / factor);
  v.peak_bf16 = FlopsPerSecond(v.peak_bf16.value() / factor);
  v.memory_bandwidth = BytesPerSecond(v.memory_bandwidth.value() / factor);
  Calibration& c = v.calibration;
  for (GemmCurve* curve : {&c.gemm_bf16, &c.gemm_fp32}) curve->overhead *= factor;
  for (AttentionCurve& curve : c.attention) curve.overhead *= factor;
  for (MemoryCurve& curve : c.memory) curve.overhead *= factor;
  for (CollectiveCurve* curve : {&c.intra_node, &c.inter_node}) curve->latency *= factor;
  for (double* part : {&c.host.per_hook, &c.host.per_row, &c.host.per_collective}) *part *= factor;
  for (GemmPoint& point : c.measured.gemm) point.seconds *= factor;
  for (AttentionPoint& point : c.measured.attention) point.seconds *= factor;
  for (FunctionPoints& curve : c.measured.functions) {
    for (SizePoint& point : curve.points) point.seconds *= factor;
  }
  for (CollectivePoints& curve : c.measured.collectives) {
    for (SizePoint& point : curve.points) point.seconds *= factor;
  }
  return v;
}

// No better founded than `evidence`.
void weaken(Calibration& c, Evidence evidence) {
  const auto lower = [&](auto& curve) { curve.evidence = weaker(curve.evidence, evidence); };
  lower(c.gemm_bf16);
  lower(c.gemm_fp32);
  for (AttentionCurve& curve : c.attention) lower(curve);
  for (MemoryCurve& curve : c.memory) lower(curve);
  lower(c.intra_node);
  lower(c.inter_node);
  lower(c.host);
  lower(c.contention);
  lower(c.measured);
}

LocalVariant variant_for(const LocalProfile& profile, std::int64_t ranks) {
  FORESHARD_CHECK(!profile.variants.empty(), "a local profile without variants");
  const auto found = std::ranges::find_if(profile.variants,
                                          [&](const LocalVariant& v) { return v.ranks >= ranks; });
  if (found != profile.variants.end()) {
    LocalVariant variant = *found;
    if (variant.ranks != ranks) weaken(variant.calibration, Evidence::kInterpolated);
    return variant;
  }
  const LocalVariant& largest = profile.variants.back();
  const auto load = [&](std::int64_t count) {
    return std::max(1.0, as_double(count * profile.threads) / as_double(profile.host.cores));
  };
  LocalVariant variant = scaled(largest, load(ranks) / load(largest.ranks));
  weaken(variant.calibration, Evidence::kExtrapolated);
  return variant;
}

std::string for_file_name(std::string text) {
  for (char& c : text) {
    const bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                          (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
    if (!is_plain) c = '-';
  }
  return text;
}

}  // namespace

std::string profile_id(const Measurements& measurements) {
  return for_file_name(measurements.host.name) + "-" + for_file_name(measurements.created);
}

Json to_json(const LocalProfile& profile) {
  Json out = {{"schema", kLocalSchema},     {"id", profile.id},
              {"created", profile.created}, {"machine", machine_json(profile.host)},
              {"versions", Json::object()}, {"command", profile.command},
              {"threads", profile.threads}, {"variants", Json::array()}};
  for (const auto& [name, version] : profile.versions) out["versions"][name] = version;
  for (const LocalVariant& v : profile.variants) {
    out["variants"].push_back({{"ranks", v.ranks},
                               {"peak_fp32_flop_per_s", v.peak_fp32.value()},
                               {"peak_bf16_flop_per_s", v.peak_bf16.value()},
                               {"memory_bandwidth_bytes_per_s", v.memory_bandwidth.value()},
                               {"memory_outside_bytes", v.memory_outside.count()},
                               {"memory_outside_source", v.outside_source},
                               {"calibration", to_json(v.calibration)}});
  }
  return out;
}

namespace {

LocalProfile read_profile(const ConfigNode& root) {
  if (const ConfigNode schema = root.at("schema"); schema.as_string() != kLocalSchema) {
    throw schema.error(fmt::format("unknown schema '{}'", schema.text()),
                       fmt::format("{}, as foreshard calibrate writes it", kLocalSchema));
  }
  root.allow_only(
      {"schema", "id", "created", "machine", "versions", "command", "threads", "variants"});
  LocalProfile profile;
  profile.id = root.at("id").as_string();
  profile.created = root.at("created").as_string();
  profile.host = read_host(root.at("machine"));
  const ConfigNode versions = root.at("versions");
  for (const ConfigItem& item : versions.items()) {
    profile.versions.emplace_back(item.key, item.value.as_string());
  }
  profile.command = root.at("command").as_string();
  profile.threads = root.at("threads").as_int(1, 4096);
  const ConfigNode variants = root.at("variants");
  for (const ConfigNode& node : variants.elements()) {
    profile.variants.push_back(read_variant(node));
    if (profile.variants.size() < 2) continue;
    if (profile.variants.back().ranks <= (profile.variants.end() - 2)->ranks) {
      throw node.at("ranks").error("is not above the variant before", "ascending ranks");
    }
  }
  if (profile.variants.empty()) throw variants.error("is empty", "one variant per number of ranks");
  return profile;
}

}  // namespace

LocalProfile parse_local_profile(std::string_view json, std::string_view file_name) {
  return read_profile(parse_json(json, file_name));
}

LocalProfile read_local_profile(const std::filesystem::path& path) {
  return read_profile(read_json_file(path));
}

LocalProfile nominal_local_profile(const MeasuredHost& host) {
  static constexpr const char* kSource = "round figures of a CPU core; nothing was measured";
  LocalProfile profile;
  profile.id = "nominal";
  profile.host = host;
  LocalVariant v;
  v.ranks = 1;
  v.peak_fp32 = FlopsPerSecond(50e9);
  v.peak_bf16 = FlopsPerSecond(50e9);
  v.memory_bandwidth = BytesPerSecond(10e9);
  v.memory_outside = Bytes(0);
  v.outside_source = kSource;
  Calibration& c = v.calibration;
  c.gpu = "local";
  c.id = profile.id;
  const auto round = [](auto& curve) { curve.source = kSource; };
  for (GemmCurve* curve : {&c.gemm_bf16, &c.gemm_fp32}) {
    curve->efficiency = 0.8;
    curve->hbm_fraction = 1;
    round(*curve);
  }
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    AttentionCurve curve;
    curve.kernel = "cpu";
    curve.head_dim = 64;
    curve.pass = pass;
    curve.efficiency = 0.3;
    round(curve);
    c.attention.push_back(std::move(curve));
  }
  c.sdpa_kernel = c.sdpa_preferred = "cpu";
  c.sdpa_source = kSource;
  for (MemoryCurve& curve : c.memory) {
    curve.fraction = 1;
    round(curve);
  }
  for (CollectiveCurve* curve : {&c.intra_node, &c.inter_node}) {
    curve->latency = 20e-6;
    curve->link_fraction = 0.3;
    curve->network_fraction = 1;
    round(*curve);
  }
  c.host.per_row = 5e-6;
  round(c.host);
  round(c.contention);
  for (FactorSpread& spread : c.spread) spread = {0.5, kSource};
  profile.variants.push_back(std::move(v));
  return profile;
}

LocalMachine local_machine(const LocalProfile& profile, std::int64_t ranks) {
  FORESHARD_CHECK(ranks >= 1, "a machine without ranks");
  LocalVariant variant = variant_for(profile, ranks);
  const std::string source =
      profile.created.empty()
          ? variant.outside_source
          : fmt::format("measured {} with {} ranks at once", profile.created, variant.ranks);
  LocalMachine machine;
  Cluster& cluster = machine.cluster;
  cluster.spec = "local";
  cluster.host_computes = true;
  cluster.gpus = ranks;
  cluster.gpu.key = "local";
  cluster.gpu.name = profile.host.cpu;
  cluster.gpu.multiprocessors = 1;
  cluster.gpu.peak_bf16 = variant.peak_bf16;
  cluster.gpu.peak_fp32 = variant.peak_fp32;
  cluster.gpu.memory = profile.host.memory / ranks;
  cluster.gpu.memory_bandwidth = variant.memory_bandwidth;
  cluster.gpu.source = source;
  cluster.node.key = profile.host.name;
  cluster.node.gpus = ranks;
  cluster.node.gpu_link = variant.memory_bandwidth;
  cluster.node.gpu_link_name =
      fmt::format("{} cores, {} shared", profile.host.cores, format_bytes(profile.host.memory));
  cluster.node.source = source;
  cluster.network.kind = "none";
  cluster.network.nodes_per_leaf = 1;
  cluster.network.source = "one machine";
  // Never all: then nothing fits, and the message says why.
  cluster.memory_outside_allocator = std::min(variant.memory_outside, cluster.gpu.memory);
  cluster.outside_source = variant.outside_source;
  machine.calibration = std::move(variant.calibration);
  return machine;
}

}  // namespace foreshard
