// The form of the header, and sweeps as corrections of it.
//
// Which sweep speaks for a call: the same group before others, the operation itself before its twin
// (all_gather and reduce_scatter move the same, broadcast and reduce too) before any other. Only
// the first two are taken as they are; another group passes on its ratio, another operation the
// root of it, for half of what is off belongs to the algorithm.
#include "sim/cost/collective.h"

#include <algorithm>
#include <cmath>

#include "sim/base/integers.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/cost/nccl_tables.h"

namespace foreshard {
namespace {

// What sends and receives to and from all peers reach of the GPU's links and of the ports: 348 and 357 GB/s of 371 on
// eight and four H100, 0.90 to 0.92 of 50 GB/s per port on ten nodes with one to eight GPUs each
// (xxrjun/nccl-tests-cluster@56089ca, benchmarks/example-cluster01, alltoall_perf of 64 GiB; NCCL 2.29.2).
constexpr double kPeersInside = 0.95;
constexpr double kPeersBetween = 0.91;

constexpr double kGiga = 1e9;
constexpr double kMicro = 1e-6;

CollectiveOperation twin_of(CollectiveOperation operation) {
  using enum CollectiveOperation;
  return value_of(operation,
      {{kAllGather, kReduceScatter}, {kReduceScatter, kAllGather}, {kBroadcast, kReduce}, {kReduce, kBroadcast}},
      operation);
}

// On the line through two points, or beyond the ends the value there.
double line_at(const std::vector<double>& x, const std::vector<double>& y, double at) {
  const auto above = std::lower_bound(x.begin(), x.end(), at);
  if (above == x.begin()) return y.front();
  if (above == x.end()) return y.back();
  const auto i = static_cast<std::size_t>(above - x.begin());
  const double t = (at - x[i - 1]) / (x[i] - x[i - 1]);
  return y[i - 1] + t * (y[i] - y[i - 1]);
}

const FabricCurve& curve_of(const Calibration& calibration, FabricKind kind) {
  static const FabricCurve kTable;
  for (const FabricCurve& curve : calibration.fabrics)
    if (curve.kind == kind) return curve;
  return kTable;
}

// The text of a source is long, and models are made by the thousand.
FabricCurve constants_of(const FabricCurve& c) {
  return {
      c.kind, c.fixed, c.hops, c.ring, c.nvls, c.tree, c.own, c.pipeline, c.per_doubling, c.evidence, std::string()};
}

NcclSystem reference_of(NcclSystem system) {
  system.version = NcclVersion{};
  return system;
}

double peers_share(const FabricCurve& curve) {
  if (curve.evidence == Evidence::kAssumed) return 1;  // NCCL's table as it is
  const bool inside = curve.kind == FabricKind::kNvlink || curve.kind == FabricKind::kPcie;
  return inside ? kPeersInside : kPeersBetween;
}

}

FabricKind network_kind(std::string_view name) {
  const std::string low = lower(name);
  if (has_any(low, {"tcpx", "fastrak"})) return FabricKind::kTcpOffload;
  if (has_any(low, {"tcp", "socket", "ib_disable"})) return FabricKind::kTcp;
  if (has_any(low, {"efa"})) return FabricKind::kEfa;
  if (has_any(low, {"slingshot", "cxi"})) return FabricKind::kSlingshot;
  return FabricKind::kRdma;
}

Inside inside_of(const NodeKind& node) {
  const std::string name = lower(node.gpu_link_name);
  if (has_any(name, {"infinity", "xgmi"})) return Inside::kXgmi;
  if (has_any(name, {"pcie", "pci express"})) return node.peer_access ? Inside::kPcie : Inside::kThroughHost;
  return has_any(name, {"switch"}) ? Inside::kSwitch : Inside::kMesh;
}

double through_host(double slot, BytesPerSecond memory, double ranks) {
  constexpr double kShare = 0.73, kTimes = 2;
  return kShare * std::min(slot, memory.value() / kGiga / (kTimes * ranks));
}

FabricSystem fabric_system(const Cluster& cluster, const GroupLink& group, NcclVersion version) {
  FabricSystem fabric;
  NcclSystem& s = fabric.system;
  const NodeKind& node = cluster.node;
  const Inside inside = inside_of(node);
  s.version = version;
  s.generation = nccl_generation(cluster.gpu);
  s.nodes = group.nodes;
  s.ranks_per_node = group.ranks_per_node;
  if (group.size != group.nodes * group.ranks_per_node) s.all_ranks = group.size;
  const bool is_amd = inside == Inside::kXgmi;
  const bool is_slot = inside == Inside::kPcie || inside == Inside::kThroughHost;
  s.nvlink = !is_slot && node.gpu_link.value() > 0;
  s.nvswitch = s.nvlink && inside == Inside::kSwitch;
  // Ampere nodes are built around AMD's processors (DGX A100, ND A100 v4), later ones around Intel's.
  s.cpu = is_amd || s.generation == GpuGeneration::kAmpere ? CpuKind::kAmd : CpuKind::kIntel;
  const double rate = group.link.value() / kGiga;
  const double ranks = as_double(group.ranks_per_node);
  s.link = rate;
  if (s.nvlink) s.link = usable_link(s.generation, rate, version);
  if (inside == Inside::kThroughHost) s.link = through_host(rate, node.host_memory_bandwidth, ranks);
  fabric.kind = s.nvlink ? FabricKind::kNvlink : FabricKind::kPcie;
  if (group.nodes <= 1) return fabric;
  fabric.kind = network_kind(node.nic_name + " " + cluster.network.kind);
  const double gpus = as_double(std::max<std::int64_t>(1, node.gpus));
  const double nics = as_double(node.nics);
  const double ports = nics >= gpus ? std::floor(nics / gpus) * ranks : ranks / std::ceil(gpus / nics);
  s.nics = ports;
  s.nic = group.network.value() / kGiga / ports;  // narrower where up-links or lost ports bind
  if (group.tree.value() > 0) fabric.tree = group.tree.value() / group.network.value();
  if (fabric.kind == FabricKind::kEfa) s.net_latency = 75;  // aws-ofi-nccl:src/platform-aws.cpp
  return fabric;
}

double busbw_factor(CollectiveOperation operation, double ranks) {
  switch (operation) {
    case CollectiveOperation::kAllReduce: return 2 * (ranks - 1) / ranks;
    case CollectiveOperation::kAllGather:
    case CollectiveOperation::kReduceScatter:
    case CollectiveOperation::kAllToAll: return (ranks - 1) / ranks;
    default: return 1;
  }
}

CollectiveModel::CollectiveModel(
    const FabricSystem& fabric, const CollectiveSettings& settings, const Calibration& calibration)
    : CollectiveModel(fabric, settings, curve_of(calibration, fabric.kind), calibration.sweeps) {}

CollectiveModel::CollectiveModel(const FabricSystem& fabric, const CollectiveSettings& settings,
    const FabricCurve& curve, const std::vector<CollectiveSweep>& sweeps)
    : fabric_(fabric),
      settings_(settings),
      curve_(constants_of(curve)),
      choice_(fabric.system),
      ranks_(as_double(fabric.system.ranks())),
      doublings_(fabric.system.nodes > 2 ? std::log2(as_double(fabric.system.nodes) / 2) : 0) {
  if (fabric.system.version != NcclVersion{}) reference_.emplace(reference_of(fabric.system));
  if (!sweeps.empty()) add_sweeps(sweeps);
}

FabricTerm CollectiveModel::term(CollectiveOperation operation, double bytes) const {
  const NcclModel::Choice choice = choice_.choose(operation, bytes);
  NcclCost cost = choice.cost;
  if (reference_) {
    const NcclCost known = reference_->cost(operation, cost.algorithm, cost.protocol, bytes);
    if (known.is_available()) cost = known;
  }
  FabricTerm term{cost.algorithm, cost.protocol, cost.latency * kMicro, bytes / (cost.bandwidth * kGiga),
      ring_steps(operation, ranks_), doublings_, choice.channels};
  // NCCL does not know what lies between its ports, so its choice stays.
  if (cost.algorithm == NcclAlgorithm::kTree || cost.algorithm == NcclAlgorithm::kNvlsTree)
    term.transfer /= fabric_.tree;
  if (settings_.max_ctas > 0 && settings_.max_ctas < term.ctas) {
    // A block moves its channel's share and no more.
    term.transfer *= static_cast<double>(term.ctas) / settings_.max_ctas;
    term.ctas = settings_.max_ctas;
  }
  return term;
}

double fabric_seconds(const FabricCurve& curve, const FabricTerm& term) {
  const auto protocol = static_cast<std::size_t>(term.protocol);
  double share = curve.ring[protocol];
  double more = 1;
  switch (term.algorithm) {
    case NcclAlgorithm::kNvls:
    case NcclAlgorithm::kNvlsTree: share = curve.nvls; break;
    case NcclAlgorithm::kTree: share = curve.tree; break;
    case NcclAlgorithm::kPointToPoint: share = peers_share(curve); break;
    default: more = 1 + curve.own / term.steps;
  }
  const double l = curve.hops[protocol] * term.latency;
  double s = term.transfer / share * more;
  if (term.doublings > 0) s *= std::pow(1 + curve.per_doubling, term.doublings);
  return curve.fixed + l + s + curve.pipeline * std::sqrt(l * s);
}

void CollectiveModel::add_sweeps(const std::vector<CollectiveSweep>& sweeps) {
  const NcclSystem& own = fabric_.system;
  for (const CollectiveSweep& sweep : sweeps) {
    // A sweep inside a node says nothing about the network, nor the other way round.
    if ((sweep.nodes > 1) != (own.nodes > 1) || sweep.ranks < 2 || sweep.points.empty()) continue;
    Sweep made;
    made.operation = sweep.operation;
    made.same_group = sweep.nodes == own.nodes && sweep.ranks == own.ranks();
    const double ranks = as_double(sweep.ranks);
    FabricSystem fabric = fabric_;
    fabric.system.nodes = sweep.nodes;
    fabric.system.all_ranks = 0;
    fabric.system.ranks_per_node = std::max<std::int64_t>(1, sweep.ranks / sweep.nodes);
    if (sweep.nodes > 1) fabric.system.nics *= as_double(fabric.system.ranks_per_node) / as_double(own.ranks_per_node);
    const CollectiveModel model(fabric, settings_, curve_, {});
    for (const SizePoint& point : sweep.points) {
      const double busbw = busbw_factor(sweep.operation, ranks) * point.bytes / point.seconds;
      made.log_bytes.push_back(std::log(point.bytes));
      made.log_busbw.push_back(std::log(busbw));
      made.log_ratio.push_back(
          std::log(point.seconds / fabric_seconds(curve_, model.term(sweep.operation, point.bytes))));
    }
    sweeps_.push_back(std::move(made));
  }
}

const CollectiveModel::Sweep* CollectiveModel::sweep_for(CollectiveOperation operation) const {
  const Sweep* best = nullptr;
  int best_rank = -1;
  for (const Sweep& sweep : sweeps_) {
    const int rank = (sweep.same_group ? 4 : 0) + (sweep.operation == operation               ? 2
                                                      : sweep.operation == twin_of(operation) ? 1
                                                                                              : 0);
    if (rank > best_rank) best = &sweep;
    best_rank = std::max(rank, best_rank);
  }
  return best;
}

void CollectiveModel::apply(CollectiveOperation operation, double bytes, CollectivePrice& price) const {
  const Sweep* sweep = sweep_for(operation);
  if (sweep == nullptr) return;
  const double at = std::log(bytes);
  const bool same = sweep->operation == operation;
  const bool alike = same || sweep->operation == twin_of(operation);
  constexpr double kSameSize = 1e-6;  // of the logarithm
  const bool inside = at >= sweep->log_bytes.front() - kSameSize && at <= sweep->log_bytes.back() + kSameSize;
  if (sweep->same_group && alike && inside) {
    const double ranks = as_double(fabric_.system.ranks());
    const double busbw = std::exp(line_at(sweep->log_bytes, sweep->log_busbw, at));
    price.seconds = busbw_factor(operation, ranks) * bytes / busbw;
    const bool is_point = std::ranges::any_of(sweep->log_bytes, [&](double x) { return std::abs(x - at) < kSameSize; });
    price.evidence = same && is_point ? Evidence::kMeasured : Evidence::kInterpolated;
    return;
  }
  const double ratio = line_at(sweep->log_bytes, sweep->log_ratio, at);
  price.seconds *= std::exp(alike ? ratio : ratio / 2);
  price.evidence = weaker(price.evidence, Evidence::kExtrapolated);
}

double CollectiveModel::sent_once(double bytes, std::int64_t copies) const {
  if (copies <= 1) return bytes;
  const NcclSystem& s = fabric_.system;
  const double k = as_double(copies), nodes = as_double(s.nodes), n = ranks_;
  const double local = n / nodes;  // ranks of a node
  const double ports = s.nodes > 1 ? s.nic * s.nics : 1;
  const auto reached = [&](double places) { return places * (1 - std::pow(1 - 1 / places, k)) / k; };
  // A row is forwarded over the GPUs' links from the rank that it came to.
  const double between = (nodes - 1) / nodes * local / ports;
  const double once = std::max(reached(n) * (local - 1) / local / s.link, reached(nodes) * between);
  return bytes * once * choice_.choose(CollectiveOperation::kAllToAll, bytes).cost.bandwidth;
}

CollectivePrice CollectiveModel::price(CollectiveOperation operation, double bytes) const {
  const NcclSystem& s = fabric_.system;
  const double ranks = ranks_;
  const double factor = busbw_factor(operation, ranks);
  const FabricTerm found = term(operation, bytes);
  CollectivePrice price{found.algorithm, found.ctas, fabric_seconds(curve_, found), 0, curve_.evidence};
  if (!sweeps_.empty()) apply(operation, bytes, price);
  const bool one_domain = s.nodes == 1 && s.nvlink;
  const bool copies = operation == CollectiveOperation::kAllGather || operation == CollectiveOperation::kAllToAll;
  if (settings_.kernels == CollectiveKernels::kCopyEngine && one_domain && copies &&
      settings_.version >= NcclVersion{2, 28, 0}) {
    price.algorithm = NcclAlgorithm::kCopyEngine;
    price.ctas = 0;
    price.evidence = weaker(price.evidence, Evidence::kAssumed);
  }
  const bool sums = operation == CollectiveOperation::kAllReduce;
  const bool is_symmetric =
      sums || operation == CollectiveOperation::kAllGather || operation == CollectiveOperation::kReduceScatter;
  if (settings_.kernels == CollectiveKernels::kSymmetric && one_domain && is_symmetric &&
      s.generation >= GpuGeneration::kHopper && settings_.version >= NcclVersion{2, 27, 0}) {
    // NVIDIA/nccl:src/sym_kernels.cc@v2.28.9-1: its own estimates of base (us), peak (GB/s), blocks.
    const bool newer = s.generation == GpuGeneration::kBlackwell;
    const double base = newer ? (sums ? 19.5 : 13.0) : 7.8;
    const double peak = newer ? (sums ? 1000 : 600) : (sums ? 480 : 320);
    price.algorithm = NcclAlgorithm::kSymmetric;
    price.seconds = base * kMicro + factor * bytes / (peak * kGiga);
    price.ctas = std::max(1, static_cast<int>((newer ? 32 : 16) / ranks));
    price.evidence = weaker(price.evidence, Evidence::kAssumed);
  }
  price.busbw = price.seconds > 0 ? factor * bytes / price.seconds : 0;
  return price;
}

Slowdown slowdown_of(const CollectivePrice& price, const Gpu& gpu, const ContentionCurve& curve) {
  constexpr double kTraffic = 3;     // bytes of memory per byte on the link
  constexpr double kMostHeld = 0.6;  // neither side is ever starved
  const double bandwidth = gpu.memory_bandwidth.value();
  const double held = bandwidth > 0 ? std::min(kMostHeld, kTraffic * price.busbw / bandwidth) : 0;
  const double all = as_double(std::max<std::int64_t>(1, gpu.multiprocessors));
  const double blocks = std::min(static_cast<double>(price.ctas), kMostHeld * all);
  Slowdown slowdown;
  slowdown.memory = 1 / (1 - held);
  slowdown.compute = all / (all - blocks) / (1 - std::min(1.0, curve.memory) * held);
  return slowdown;
}

}
