// Forms of sim/spec/calibration.h, evaluated.
//
// Draws come from a Halton sequence through the normal quantile: seeded by nothing, spread evenly, the same everywhere.
#include "sim/cost/cost_model.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/integers.h"
#include "sim/base/lookup.h"
#include "sim/cost/host_calls.h"
#include "sim/cost/nccl_tables.h"
#include "sim/graph/capture/captured_kernel.h"
#include "sim/spec/gpu_generation.h"
#include "sim/spec/network/cluster_layout.h"

namespace foreshard {
namespace {

// While a kernel streams memory on a stream of its own: it takes what it can get, as the fastest
// collective does (collective.h).
Slowdown slowdown_beside_copies(const ContentionCurve& curve) {
  constexpr double kMostHeld = 0.6;  // of the bandwidth: neither side is ever starved
  return {1 / (1 - std::min(1.0, curve.memory) * kMostHeld), 1 / (1 - kMostHeld)};
}

// Acklam's rational approximation of the standard normal quantile, relative error below 1.2e-9.
double normal_quantile(double p) {
  constexpr double a[] = {-3.969683028665376e+01, 2.209460984245205e+02, -2.759285104469687e+02, 1.383577518672690e+02,
      -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02, 6.680131188771972e+01,
      -1.328068155288572e+01};
  constexpr double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
      -2.549732539343734e+00, 4.374664141464968e+00, 2.938163982698783e+00};
  constexpr double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00};
  constexpr double kTail = 0.02425;
  if (p < kTail) {
    const double q = std::sqrt(-2 * std::log(p));
    return (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
           ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
  }
  if (p > 1 - kTail) return -normal_quantile(1 - p);
  const double q = p - 0.5;
  const double r = q * q;
  return (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
         (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
}

CollectiveOperation operation_of(EventKind collective) {
  return value_of(collective,
      {{EventKind::kAllToAll, CollectiveOperation::kAllToAll}, {EventKind::kSendRecv, CollectiveOperation::kSendRecv},
          {EventKind::kAllGather, CollectiveOperation::kAllGather},
          {EventKind::kReduceScatter, CollectiveOperation::kReduceScatter},
          {EventKind::kBroadcast, CollectiveOperation::kBroadcast}, {EventKind::kReduce, CollectiveOperation::kReduce}},
      CollectiveOperation::kAllReduce);
}

CollectiveOperation operation_of(const Work& work) {
  return work.to_neighbour ? CollectiveOperation::kSendRecv : operation_of(work.kind);
}

// What a hop of the cluster takes longer than one of NCCL's table, seconds. The catalogue's machines have the table's
// own (the ring's hop of the LL protocol), a cluster file may say otherwise.
struct LatencyGap {
  NcclSystem system;
  double inside = 0;
  double between = 0;
};

LatencyGap latency_gap(const Cluster& cluster, const GroupShape& group, NcclVersion version) {
  constexpr std::size_t kLowLatency = 0;
  const auto beyond = [&](Time latency, NcclHop hop) {
    if (latency == Time()) return 0.0;  // nobody says
    const double usual = nccl_hop(NcclAlgorithm::kRing, hop, {})[kLowLatency] * 1e3;
    return as_double(latency.nanoseconds() - std::llround(usual)) * 1e-9;
  };
  const NodeKind& node = cluster.node;
  const GroupLink link = group_link(cluster, group);
  LatencyGap gap{fabric_system(cluster, link, version).system};
  // The catalogue's AMD nodes have the figure of PCIe.
  const bool is_amd = inside_of(node) == Inside::kXgmi;
  gap.inside = beyond(link.link_latency, gap.system.nvlink && !is_amd ? NcclHop::kNvlink : NcclHop::kPci);
  if (gap.system.nodes > 1) gap.between = beyond(link.network_latency, NcclHop::kNetwork);
  return gap;
}

// With the gap at every hop that the algorithm makes one after the other, as NCCL counts them
// (src/graph/tuning.cc@v2.28.9-1). NCCL does not see the difference, so its choice stays.
CollectivePrice with_gap(CollectivePrice price, const LatencyGap& gap, CollectiveOperation operation) {
  if (gap.inside == 0 && gap.between == 0) return price;
  const double passes = operation == CollectiveOperation::kAllReduce ? 2 : 1;
  const double nodes = as_double(gap.system.nodes);
  const double others = as_double(gap.system.ranks_per_node - 1);
  double inside = std::min(1.0, others);
  double between = std::floor(std::log2(nodes));
  if (price.algorithm == NcclAlgorithm::kRing) {
    between = passes * (nodes - 1);
    inside = passes * as_double(gap.system.ranks() - 1) - between;
  } else if (price.algorithm == NcclAlgorithm::kTree) {
    between *= 2;
    inside = 2 * others;
  } else if (price.algorithm == NcclAlgorithm::kNvls) {
    between = nodes > 1 ? 1 : 0;
  } else if (price.algorithm == NcclAlgorithm::kNvlsTree) {
    between *= 2;
  }
  const double more = inside * gap.inside + between * gap.between;
  const double before = std::exchange(price.seconds, std::max(price.seconds + more, 1e-9));
  price.busbw *= before / price.seconds;
  price.evidence = weaker(price.evidence, Evidence::kExtrapolated);
  return price;
}

// With what other jobs leave of the links between switches added to what networks are off by.
void add_background(const Cluster& cluster, Calibration& calibration) {
  if (!cluster.layout) return;
  double sd = 0;
  for (const SwitchLink& link : cluster.layout->links) sd = std::max(sd, link.background_log_sd);
  double& spread = calibration.spread[at(Factor::kInterNode)].log_sd;
  if (sd > 0) spread = std::hypot(spread, sd);
}

// The power of the card that was measured against the one that is asked about.
double clock_factor(const Calibration& calibration, const Gpu& gpu) {
  if (calibration.power_limit <= 0 || gpu.power_limit <= 0) return 1;
  if (calibration.heat.idle > 0) return 1;
  return std::pow(gpu.power_limit / calibration.power_limit, calibration.power_exponent);
}

// The kernel whose curves stand for the one that is asked for: its own; PyTorch's choice where none
// is named or PyTorch chooses; the next older one that the GPU can run where the profile lacks it.
std::string known_kernel(const Calibration& calibration, const std::string& wanted) {
  const auto has = [&](std::string_view name) {
    return std::ranges::any_of(
        calibration.attention, [&](const AttentionCurve& curve) { return curve.kernel == name; });
  };
  std::vector<std::string> names = {wanted};
  if (wanted == "sdpa_flash") names = {calibration.sdpa_kernel};
  if (wanted == "fa4") append(names, {"cudnn", "fa3"});
  if (wanted == "fa3") append(names, {"cudnn", "fa2"});
  if (wanted == "cudnn") append(names, {"fa3", "fa2"});
  if (wanted == "fa1" || wanted == "triton") names.emplace_back("fa2");
  append(names, {calibration.sdpa_preferred, calibration.sdpa_kernel});
  for (const std::string& name : names)
    if (has(name)) return name;
  return calibration.attention.empty() ? "" : calibration.attention.front().kernel;
}

// Of a stream, as steps with Adafactor took on an H100 and an H200.
constexpr double kQueuedLaunches = 1024;

// What a captured kernel does beside moving bytes, on as many multiprocessors as it starts threads for.
double busy_seconds(const Kernel& kernel, const Gpu& gpu) {
  const double all = as_double(std::max<std::int64_t>(1, gpu.multiprocessors));
  const double full = kernel.threads > 0 ? std::min(all, as_double(kernel.threads) / kBusyThreads) : all;
  return kernel.flops.count() / (kBusyRate * full);
}

std::size_t hash_of(const Kernel& kernel) {
  std::uint64_t h =
      static_cast<std::uint64_t>(kernel.kind) | std::uint64_t{kernel.fp32} << 8 | std::uint64_t{kernel.fp8} << 9 |
      std::uint64_t{kernel.fp4} << 15 | std::uint64_t{kernel.causal} << 10 | std::uint64_t{kernel.masked} << 11 |
      std::uint64_t{kernel.dropout} << 12 | std::uint64_t{kernel.in_tiles} << 13 |
      static_cast<std::uint64_t>(kernel.pass) << 16 | static_cast<std::uint64_t>(kernel.memory_class) << 24 |
      static_cast<std::uint64_t>(kernel.function) << 32;
  for (const std::int64_t value : {kernel.m, kernel.n, kernel.k, kernel.heads, kernel.groups, kernel.kernels,
           kernel.threads, kernel.bytes.count(), static_cast<std::int64_t>(kernel.flops.count())}) {
    h = (h ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15ULL;
    h ^= h >> 29;
  }
  return at(h);
}

// Where they were not measured, broadcast and reduce are one pass over the ring like a reduce_scatter.
CollectiveOperation measured_as(CollectiveOperation operation) {
  const bool one_pass = operation == CollectiveOperation::kBroadcast || operation == CollectiveOperation::kReduce;
  return one_pass ? CollectiveOperation::kReduceScatter : operation;
}

// The slowest of `ranks` GPUs of one kind over their mean, as every collective waits for it.
// Same-model GPUs of five systems spread over 8 % on average (arXiv 2208.11035): of some hundred
// GPUs that is 5.6 standard deviations. Blom's approximation of the largest of a normal sample.
double slowest_of(std::int64_t ranks) {
  constexpr double kSd = 0.08 / 5.6;
  const auto n = static_cast<double>(ranks);
  return ranks <= 1 ? 1 : 1 + kSd * normal_quantile((n - 0.375) / (n + 0.25));
}

double radical_inverse(int index, int base) {
  double result = 0;
  double digit = 1.0 / base;
  for (; index > 0; index /= base, digit /= base) result += digit * (index % base);
  return result;
}

// Coordinate `dimension` of point k of a Halton sequence, as a standard normal variable.
double halton_normal(int k, std::size_t dimension) {
  constexpr std::array<int, kFactors + 1> kBases = {2, 3, 5, 7, 11, 13, 17, 19};
  constexpr int kSkip = 20;  // the first points of a Halton sequence are correlated
  return normal_quantile(radical_inverse(k + kSkip, kBases[dimension]));
}

// Triton's kernels over chunks, priced as kernels over strided rows are.
bool assumes_class(Function function) { return function == Function::kScan || function == Function::kDeltaRule; }

}

// One place per hash; a newer kernel takes the place of an older one. Whoever finds the place in
// use computes: the price is the same.
class PriceCache {
 public:
  std::optional<KernelPrice> find(std::size_t hash, const Kernel& kernel) {
    Place& place = places_[hash % kPlaces];
    if (place.in_use.test_and_set(std::memory_order_acquire)) return std::nullopt;
    std::optional<KernelPrice> found;
    if (place.is_set && place.kernel == kernel) found = place.price;
    place.in_use.clear(std::memory_order_release);
    return found;
  }
  void keep(std::size_t hash, const Kernel& kernel, const KernelPrice& price) {
    Place& place = places_[hash % kPlaces];
    if (place.in_use.test_and_set(std::memory_order_acquire)) return;
    place.kernel = kernel;
    place.price = price;
    place.is_set = true;
    place.in_use.clear(std::memory_order_release);
  }

 private:
  static constexpr std::size_t kPlaces = 1024;
  struct Place {
    std::atomic_flag in_use = ATOMIC_FLAG_INIT;
    bool is_set = false;
    Kernel kernel;
    KernelPrice price;
  };
  std::array<Place, kPlaces> places_;
};

FactorDraw central_draw() {
  FactorDraw draw;
  draw.fill(1);
  return draw;
}

CostModel::CostModel(const Cluster& cluster, const Calibration& calibration, CostChoices choices)
    : cluster_(cluster),
      hot_(cluster.gpu),
      calibration_(calibration),
      choices_(std::move(choices)),
      slowest_(cluster.host_computes ? 1 : slowest_of(cluster.gpus)),
      prices_(std::make_shared<PriceCache>()) {
  add_background(cluster_, calibration_);
  const double clock = clock_factor(calibration_, cluster_.gpu);
  for (FlopsPerSecond* peak : {&hot_.peak_bf16, &hot_.peak_fp32, &hot_.peak_fp8, &hot_.peak_fp4})
    *peak = FlopsPerSecond(peak->value() * clock);
  const std::string wanted = choices_.attention_kernel;
  choices_.attention_kernel = known_kernel(calibration_, wanted);
  is_substitute_ = !wanted.empty() && wanted != "sdpa" && wanted != "sdpa_flash" && wanted != choices_.attention_kernel;
  const auto learn = [&](const auto& points, ShapeCorrection& correction) {
    for (const auto& point : points) {
      const Kernel measured = kernel_of(point);
      correction.add(measured, point.seconds / curve_price(measured).seconds);
    }
  };
  learn(calibration_.measured.gemm, gemm_);
  std::vector<AttentionPoint> attention = calibration_.measured.attention;
  std::erase_if(attention,
      [&](const AttentionPoint& point) { return !point.kernel.empty() && point.kernel != choices_.attention_kernel; });
  learn(attention, attention_);
}

CostModel CostModel::of_one_gpu() const {
  CostModel alone = *this;
  alone.slowest_ = 1;
  return alone;
}

FactorDraw CostModel::draw(int k) const {
  std::array<double, kFactors> z{};
  for (std::size_t f = 0; f < kFactors; ++f) z[f] = halton_normal(k, f);
  FactorDraw draw;
  for (std::size_t f = 0; f < kFactors; ++f) {
    double log_factor = calibration_.spread[f].log_sd * z[f];
    if (const auto& known = calibration_.knowledge) {
      log_factor = known->center[f];
      for (std::size_t j = 0; j <= f; ++j) log_factor += known->mixing[f][j] * z[j];
    }
    draw[f] = std::exp(log_factor);
  }
  return draw;
}

FactorDraw CostModel::center() const {
  FactorDraw draw = central_draw();
  if (!calibration_.knowledge) return draw;
  for (std::size_t f = 0; f < kFactors; ++f) draw[f] = std::exp(calibration_.knowledge->center[f]);
  return draw;
}

double below_half_peak(double mfu) { return mfu > 0 ? std::max(0.0, 1 - 2 * mfu) : 0; }

double CostModel::plan_log_sd(double mfu) const {
  if (!calibration_.knowledge) return 0;
  const FactorKnowledge& known = *calibration_.knowledge;
  return std::hypot(known.plan_log_sd, known.code_log_sd * std::exp(known.code_slope * below_half_peak(mfu)));
}

double CostModel::plan_draw(int k, double mfu) const {
  const double log_sd = plan_log_sd(mfu);
  return log_sd > 0 ? std::exp(log_sd * halton_normal(k, kFactors)) : 1;
}

// Between two head sizes that have curves, in the logarithm; beyond them the nearest.
AttentionCurve CostModel::attention_curve(std::int64_t head_dim, Pass pass) const {
  const AttentionCurve* below = nullptr;
  const AttentionCurve* above = nullptr;
  for (const AttentionCurve& curve : calibration_.attention) {
    if (curve.pass != pass || curve.kernel != choices_.attention_kernel) continue;
    if (curve.head_dim <= head_dim && (below == nullptr || curve.head_dim > below->head_dim)) below = &curve;
    if (curve.head_dim >= head_dim && (above == nullptr || curve.head_dim < above->head_dim)) above = &curve;
  }
  FORESHARD_CHECK(below != nullptr || above != nullptr,
      "the calibration has no attention curve for " + std::string(pass == Pass::kForward ? "forward" : "backward"));
  if (below == nullptr || above == nullptr || below == above) return below != nullptr ? *below : *above;
  const double part = std::log(as_double(head_dim) / as_double(below->head_dim)) /
                      std::log(as_double(above->head_dim) / as_double(below->head_dim));
  AttentionCurve curve = *below;
  for (double AttentionCurve::*constant :
      {&AttentionCurve::efficiency, &AttentionCurve::s_half, &AttentionCurve::c_half, &AttentionCurve::overhead,
          &AttentionCurve::full_efficiency, &AttentionCurve::full_s_half})
    curve.*constant += part * (above->*constant - below->*constant);
  curve.evidence = weaker(weaker(below->evidence, above->evidence), Evidence::kInterpolated);
  return curve;
}

KernelPrice CostModel::curve_price(const Kernel& kernel) const {
  switch (kernel.kind) {
    case KernelKind::kGemm: {
      // A GPU without fp8 units, or a profile without their curve, multiplies as in bf16.
      const bool is_fp8 = kernel.fp8 && calibration_.gemm_fp8.efficiency > 0;
      const GemmCurve& curve = is_fp8        ? calibration_.gemm_fp8
                               : kernel.fp32 ? calibration_.gemm_fp32
                                             : calibration_.gemm_bf16;
      // Neither of grouped products nor of those in four bits (at the fraction of the peak that
      // fp8's reach) there is a measured curve.
      const bool is_grouped = kernel.groups > 1;
      if (kernel.fp8 && !is_fp8) {
        Kernel wide = kernel;
        wide.fp8 = false;
        return {curve_seconds(curve, wide, hot_), Factor::kGemm, Evidence::kAssumed};
      }
      const Generation& generation = generation_of(hot_);
      const bool is_apart = choices_.group_by_group && !generation.is_amd() && !generation.is_blackwell_or_later();
      const double seconds = curve_seconds(curve, kernel, hot_, is_apart ? 1 : kGroupedFraction);
      return {seconds * as_double(kernel.kernels), Factor::kGemm,
          is_grouped || kernel.fp4 ? weaker(curve.evidence, Evidence::kAssumed) : curve.evidence};
    }
    case KernelKind::kAttention: {
      const AttentionCurve curve = attention_curve(kernel.k, kernel.pass);
      if (kernel.in_tiles) {
        const MemoryCurve& memory = calibration_.memory_curve(MemoryClass::kElementwise);
        return {tiled_seconds(curve, memory, kernel, hot_), Factor::kAttention, curve.evidence};
      }
      return {
          curve_seconds(curve, kernel, hot_), Factor::kAttention, is_substitute_ ? Evidence::kAssumed : curve.evidence};
    }
    case KernelKind::kMemory: {
      const MemoryCurve& curve = calibration_.memory_curve(kernel.memory_class);
      const MemoryCurve& streams = calibration_.memory_curve(MemoryClass::kElementwise);
      const double least =
          std::max(busy_seconds(kernel, hot_) + curve.overhead, row_seconds(kernel, streams, cluster_.gpu));
      return {std::max(curve_seconds(curve, kernel.bytes, cluster_.gpu), least) +
                  as_double(kernel.kernels - 1) * curve.overhead,
          Factor::kMemoryBound, assumes_class(kernel.function) ? Evidence::kAssumed : curve.evidence};
    }
  }
  FORESHARD_CHECK(false, "unknown kernel kind");
  return {};
}

KernelPrice CostModel::memory_price(const Kernel& kernel) const {
  const MeasuredPoints& measured = calibration_.measured;
  const bool is_fp32 = kernel.fp32 || choices_.compute == DType::kFp32;
  const FunctionPoints* function = find_function(measured, kernel.function, kernel.pass, is_fp32);
  if (function == nullptr || kernel.flops.count() > 0) return curve_price(kernel);
  const Estimate found = seconds_at(function->points, as_double(kernel.bytes.count()));
  return {found.value, Factor::kMemoryBound, weaker(measured.evidence, found.evidence)};
}

KernelPrice CostModel::price(const Kernel& kernel) const {
  const std::size_t hash = hash_of(kernel);
  if (const std::optional<KernelPrice> found = prices_->find(hash, kernel)) return *found;
  const KernelPrice price = compute_price(kernel);
  prices_->keep(hash, kernel, price);
  return price;
}

KernelPrice CostModel::compute_price(const Kernel& kernel) const {
  if (kernel.kind == KernelKind::kMemory) return memory_price(kernel);
  KernelPrice price = curve_price(kernel);
  const ShapeCorrection& correction = kernel.kind == KernelKind::kGemm ? gemm_ : attention_;
  if (correction.empty() || kernel.in_tiles) return price;
  const Estimate factor = correction.at(kernel);
  price.seconds *= factor.value;
  // Away from the points it is the curve's word.
  const bool is_near = factor.evidence != Evidence::kExtrapolated;
  price.evidence = weaker(is_near ? calibration_.measured.evidence : price.evidence, factor.evidence);
  return price;
}

KernelPrice CostModel::copy_price(Bytes written) const {
  const bool is_cast = choices_.compute != DType::kFp32;  // the stored shards are fp32
  const std::int64_t ratio = is_cast ? size_of(DType::kFp32) / size_of(choices_.compute) : 1;
  Kernel kernel;
  kernel.function = is_cast ? Function::kCast : Function::kCopy;
  kernel.memory_class = MemoryClass::kCopy;
  kernel.bytes = Bytes(checked_multiply(written.count(), 1 + ratio));
  const MeasuredPoints& measured = calibration_.measured;
  if (find_function(measured, kernel.function, kernel.pass, !is_cast) == nullptr) kernel.function = Function::kCopy;
  return memory_price(kernel);
}

std::optional<CollectiveModel> CostModel::collective_model(const GroupShape& group) const {
  if (group.size <= 1 || calibration_.fabrics.empty() || cluster_.host_computes) return std::nullopt;
  const CollectiveSettings& settings = choices_.collectives;
  const FabricSystem fabric = fabric_system(cluster_, group_link(cluster_, group), settings.version);
  return CollectiveModel(fabric, settings, calibration_);
}

std::optional<CollectivePrice> CostModel::collective(EventKind collective, Bytes bytes, const GroupShape& group) const {
  const std::optional<CollectiveModel> model = collective_model(group);
  if (!model) return std::nullopt;
  const CollectiveOperation operation = operation_of(collective);
  const CollectivePrice price = model->price(operation, as_double(bytes.count()));
  // A sweep of the cluster itself was measured with its latencies.
  if (!calibration_.sweeps.empty()) return price;
  return with_gap(price, latency_gap(cluster_, group, choices_.collectives.version), operation);
}

KernelPrice CostModel::price(EventKind collective, Bytes bytes, const GroupShape& group) const {
  const std::optional<CollectivePrice> found = this->collective(collective, bytes, group);
  if (!found) return curve_price(collective, bytes, group);
  const bool is_between = group_link(cluster_, group).nodes > 1;
  return {found->seconds, is_between ? Factor::kInterNode : Factor::kIntraNode, found->evidence};
}

KernelPrice CostModel::curve_price(EventKind collective, Bytes bytes, const GroupShape& group) const {
  const GroupLink link = group_link(cluster_, group);
  const Factor factor = link.nodes > 1 ? Factor::kInterNode : Factor::kIntraNode;
  const CollectiveCurve& curve = link.nodes > 1 ? calibration_.inter_node : calibration_.intra_node;
  const bool copies = cluster_.host_computes && collective != EventKind::kAllReduce;
  if (group.size <= 1) return copies ? copy_price(bytes) : KernelPrice{0, factor, curve.evidence};
  const CollectiveCall call{
      measured_as(operation_of(collective)), choices_.order, group.size, as_double(bytes.count())};
  if (const std::optional<Estimate> found = collective_at(calibration_.measured, call))
    return {found->value, factor, weaker(calibration_.measured.evidence, found->evidence)};
  const double hops = as_double(group.size - 1);
  const double passes = collective == EventKind::kAllReduce ? 2 : 1;
  double busbw = curve.link_fraction * link.link.value();
  if (link.nodes > 1) {
    const double network = curve.network_fraction * link.network.value();
    // One rank per node never uses the GPU links.
    busbw = link.ranks_per_node > 1 ? std::min(busbw, network) : network;
    if (link.nodes > 2) busbw *= std::pow(curve.per_doubling, std::log2(as_double(link.nodes) / 2));
  }
  const double seconds = curve.latency + passes * curve.per_hop * hops +
                         passes * hops / as_double(group.size) * as_double(bytes.count()) / busbw;
  return {seconds, factor, curve.evidence};
}

// What an optimizer on the host gets of its memory's bandwidth by data sheet. Three figures on nodes of two EPYC 7742:
// Qwen2.5-1.5B over two A100, 1,365 ms a step with DeepSpeedCPUAdam and 240 without offload, gives 0.16; Qwen2.5-3B
// there, 2,497 ms, 0.18 (deepspeedai/DeepSpeed:blogs/zenflow-corebinding/README.md); a step of the optimizer of Qwen
// 72B over 32 A100, about 10 s, 0.19 (deepspeedai/DeepSpeed#6834).
constexpr double kHostOptimizerShare = 0.18;

// Copies between host and device run at the rate of the GPU's own link, and the ranks of a node share its memory and
// its drives. The host's optimizer is bound by memory: it reads and writes what its kernels say.
std::optional<CostModel::HostPrice> CostModel::price_on_host(const EventGraph& graph, const Work& work) const {
  const NodeKind& node = cluster_.node;
  const double ranks = as_double(std::max<std::int64_t>(1, cluster_.gpus_per_node()));
  const double bytes = as_double(work.bytes.count());
  switch (work.kind) {
    case EventKind::kHostToDevice:
    case EventKind::kDeviceToHost:
      if (cluster_.host_computes) return std::nullopt;
      return HostPrice{bytes / node.host_link.value(), false, Evidence::kDatasheet};
    case EventKind::kStorageRead:
    case EventKind::kStorageWrite:
      return HostPrice{bytes * ranks / node.storage_bandwidth.value(), false, Evidence::kAssumed};
    case EventKind::kHostOptimizer: {
      double moved = 0;
      for (const Kernel& kernel : graph.kernels_of(work)) moved += as_double(kernel.bytes.count());
      return HostPrice{
          moved * ranks / (kHostOptimizerShare * node.host_memory_bandwidth.value()), true, Evidence::kAssumed};
    }
    default: return std::nullopt;
  }
}

namespace {

LinkUse part_of(const LinkShares& most, double part) {
  LinkUse use{};
  for (std::size_t k = 0; k < kSharedLinks; ++k)
    use[k] = static_cast<std::int32_t>(most[k] * part * static_cast<double>(Contention::kOne));
  return use;
}

// What a collective of `bytes` fills of the links that a large one fills to `most`: less, where it waits for hops.
LinkUse used_by(
    const LinkShares& most, const CollectiveModel& model, CollectiveOperation operation, Bytes bytes, double seconds) {
  constexpr double kLarge = 1 << 30;
  const double size = as_double(bytes.count());
  if (size >= kLarge || seconds <= 0) return part_of(most, 1);
  const double large = model.price(operation, kLarge).seconds;
  return part_of(most, std::min(1.0, size / kLarge * large / seconds));
}

}

// Rows, not steps: a limit binds over tens of milliseconds, as long as a pass is made of rows
// alike, and a row's price does not follow from what else is in the graph.
double CostModel::heat(std::span<const Kernel> kernels, std::span<const KernelPrice> prices) const {
  const HeatCurve& curve = calibration_.heat;
  // Points of one's own were measured as hot as layers run.
  const bool is_measured = !calibration_.measured.gemm.empty();
  if (curve.idle <= 0 || cluster_.gpu.power_limit <= 0 || is_measured) return 1;
  const double fp8 = cluster_.gpu.peak_bf16.value() / cluster_.gpu.peak_fp8.value();
  HeatLoad load;
  for (std::size_t k = 0; k < kernels.size(); ++k) {
    const Kernel& kernel = kernels[k];
    const double seconds = prices[k].seconds;
    load.joules += curve.joules_per_byte * as_double(kernel.bytes.count());
    if (kernel.kind == KernelKind::kGemm) load.products += curve.cool * seconds;
    else load.others += seconds;
    // Units of fp32 are others; their clock was never seen.
    if (kernel.kind == KernelKind::kMemory || kernel.fp32) continue;
    load.joules += curve.joules_per_flop * kernel.flops.count() * (kernel.fp8 ? fp8 : 1);
  }
  return product_heat(curve, load, cluster_.gpu.power_limit);
}

void CostModel::price_row(
    std::span<const Kernel> kernels, const FactorDraw& draw, std::vector<KernelPrice>& prices) const {
  prices.clear();
  for (const Kernel& kernel : kernels) prices.push_back(price(kernel));
  const double hot = heat(kernels, prices);
  for (KernelPrice& p : prices) {
    p.seconds *= draw[at(p.factor)];
    if (p.factor == Factor::kGemm) p.seconds *= hot;
    if (p.factor != Factor::kMemoryBound) p.seconds *= slowest_;  // clocks differ, memory hardly
  }
}

CostTable CostModel::price(const EventGraph& graph, const FactorDraw& draw) const {
  CostTable table;
  table.works.reserve(graph.works.size());
  table.evidence.reserve(graph.works.size());
  auto scale = [&](Factor f) { return draw[at(f)]; };
  const double host = scale(Factor::kHost);
  // The overlap factor scales the excess over 1: no overlap is ever free of charge or a gain.
  const double overlap = scale(Factor::kOverlap);
  const auto excess = [&](double factor) {
    return static_cast<std::int32_t>(std::llround(static_cast<double>(Contention::kOne) * (factor - 1) * overlap));
  };
  std::vector<std::optional<CollectiveModel>> models;
  models.reserve(graph.communicators.size());
  std::vector<LatencyGap> gaps(graph.communicators.size());
  std::vector<GroupShape> groups;
  for (std::size_t i = 0; i < graph.communicators.size(); ++i) {
    const GroupShape& group = graph.communicators[i].group;
    models.push_back(collective_model(group));
    groups.push_back(group);
    if (!models[i] || !calibration_.sweeps.empty()) continue;
    gaps[i] = latency_gap(cluster_, group, choices_.collectives.version);
  }
  const std::vector<LinkShares> links = shared_links(cluster_, groups);
  std::vector<KernelPrice> prices;  // of a row's kernels
  for (const Work& work : graph.works) {
    double seconds = 0;
    double last = 0;
    double on_host = 0;
    double by_memory = 0;  // of the seconds
    Occupancy takes;
    LinkUse use{};
    Evidence evidence = Evidence::kMeasured;
    if (is_collective(work.kind) && models[work.communicator]) {
      const CollectiveModel& model = *models[work.communicator];
      const CollectiveOperation operation = operation_of(work);
      const double bytes = model.sent_once(as_double(work.bytes.count()), work.copies);
      const CollectivePrice p = with_gap(model.price(operation, bytes), gaps[work.communicator], operation);
      seconds = last = p.seconds * scale(model.factor());
      use = used_by(links[work.communicator], model, operation, work.bytes, p.seconds);
      evidence = weaker(evidence, work.copies > 1 ? Evidence::kAssumed : p.evidence);
      if (calibration_.contention.memory > 0) {
        const Slowdown slowdown = slowdown_of(p, cluster_.gpu, calibration_.contention);
        takes = {excess(slowdown.compute), excess(slowdown.memory)};
      }
    } else if (is_collective(work.kind)) {
      const KernelPrice p = curve_price(work.kind, work.bytes, graph.communicators[work.communicator].group);
      seconds = last = p.seconds * scale(p.factor);
      use = part_of(links[work.communicator], 1);
      evidence = weaker(evidence, p.evidence);
    }
    const std::optional<HostPrice> host_price = price_on_host(graph, work);
    if (host_price) {
      (host_price->by_host ? on_host : seconds) = host_price->seconds;
      evidence = weaker(evidence, host_price->evidence);
    }
    const auto kernels = host_price ? std::span<const Kernel>() : graph.kernels_of(work);
    price_row(kernels, draw, prices);
    for (const KernelPrice& p : prices) {
      last = p.seconds;
      seconds += last;
      if (p.factor == Factor::kMemoryBound) by_memory += last;
      evidence = weaker(evidence, p.evidence);
    }
    // Kernels beside compute share its multiprocessors and its memory, as a collective's do.
    if (!is_collective(work.kind) && by_memory > 0 && by_memory == seconds && calibration_.contention.memory > 0) {
      const Slowdown slowdown = slowdown_beside_copies(calibration_.contention);
      takes = {excess(slowdown.compute), excess(slowdown.memory)};
    }
    Cost cost;
    const HostSeconds issues = host_seconds(graph, work, calibration_.host);
    // The host waits for the GPU to begin what does not fit in the driver's queue.
    const double queued = std::min(1.0, kQueuedLaunches / work.launches);
    seconds = std::max(seconds, issues.during * host * (1 - queued));
    cost.before = Time::seconds(issues.before * host);
    cost.during = Time::seconds(issues.during * host + on_host);
    cost.duration = Time::seconds(seconds);
    cost.last_kernel = Time::seconds(std::min(last, seconds));
    cost.takes = takes;
    cost.uses = use;
    if (seconds > 0)
      cost.memory_share = static_cast<std::int32_t>(static_cast<double>(Contention::kOne) * by_memory / seconds);
    table.works.push_back(cost);
    table.evidence.push_back(evidence);
  }
  const auto slowdown = [&](double factor) { return Contention::kOne + excess(factor); };
  table.contention.compute = slowdown(calibration_.contention.compute);
  table.contention.communication = slowdown(calibration_.contention.communication);
  for (const auto& rank : graph.pipeline) table.pipeline.push_back(rank ? price(*rank, draw) : CostTable());
  return table;
}

double product_heat(const HeatCurve& curve, const HeatLoad& load, double power_limit) {
  const double seconds = load.products + load.others;
  if (load.products <= 0) return curve.cool;
  // A limit near idle would stop the clock; none is sold.
  const double left = std::max(power_limit - curve.idle, curve.idle / 10);
  const double demand = load.joules / seconds / left;
  if (demand <= 1) return curve.cool;
  // Slower products stretch the row, and it draws less: to first order by their share of it.
  const double share = load.products / seconds;
  const double log_clock = -std::log(demand) / (curve.energy_exponent + curve.rate_exponent * share);
  return curve.cool * std::exp(-curve.rate_exponent * log_clock);
}

}
