// Other numbers of ranks than the measured ones take a measured variant; with more ranks than cores
// a rank gets a smaller share of a core, and everything takes that much longer, which is what
// scaled() does to rates, overheads and points alike.
#include "calibration/local_profile.h"

#include <fmt/format.h>

#include <algorithm>

#include "calibration/measured_fields.h"
#include "calibration/profile.h"
#include "sim/base/config.h"
#include "sim/base/error.h"
#include "sim/base/letters.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

constexpr std::string_view kLocalSchema = "foreshard.local_profile/1";
constexpr double kAnyRate = 1e30;  // of any rate

// Everything takes `factor` times as long. The curves follow from the rates, but for their overheads.
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
  for (FunctionPoints& curve : c.measured.functions)
    for (SizePoint& point : curve.points) point.seconds *= factor;
  for (CollectivePoints& curve : c.measured.collectives)
    for (SizePoint& point : curve.points) point.seconds *= factor;
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
  const auto found = std::ranges::find_if(profile.variants, [&](const LocalVariant& v) { return v.ranks >= ranks; });
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
  for (char& c : text)
    if (!is_name_letter(c)) c = '-';
  return text;
}

}

std::string profile_id(const Measurements& measurements) {
  return for_file_name(measurements.host.name) + "-" + for_file_name(measurements.created);
}

void fields(auto& io, LocalVariant& v) {
  io("ranks", v.ranks, 1, 1'000'000);
  io("peak_fp32_flop_per_s", v.peak_fp32, 1, kAnyRate);
  io("peak_bf16_flop_per_s", v.peak_bf16, 1, kAnyRate);
  io("memory_bandwidth_bytes_per_s", v.memory_bandwidth, 1, kAnyRate);
  io("memory_outside_bytes", v.memory_outside, 0);
  io("memory_outside_source", v.outside_source);
  io("calibration", v.calibration);
}

void fields(auto& io, LocalProfile& profile) {
  io.schema(kLocalSchema, ", as foreshard calibrate writes it");
  io("id", profile.id);
  io("created", profile.created);
  io("machine", profile.host);
  io("versions", profile.versions);
  io("command", profile.command);
  io("threads", profile.threads, 1, 4096);
  io("variants", profile.variants);
  io.require(!profile.variants.empty(), "variants", "is empty", "one variant per number of ranks");
  io.require(std::ranges::adjacent_find(profile.variants, std::greater_equal(), &LocalVariant::ranks) ==
                 profile.variants.end(),
      "variants", "has one that is not above the variant before", "ascending ranks");
}

Json to_json(const LocalProfile& profile) { return fields_json(profile); }

LocalProfile parse_local_profile(std::string_view json, std::string_view file_name) {
  LocalProfile profile;
  read_fields(parse_json(json, file_name), profile);
  return profile;
}

LocalProfile read_local_profile(const std::filesystem::path& path) {
  LocalProfile profile;
  read_fields(read_json_file(path), profile);
  return profile;
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
  const std::string source = profile.created.empty()
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

}
