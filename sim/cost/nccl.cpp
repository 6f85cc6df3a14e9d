// T = L + S / B for every algorithm and protocol that is available; the smallest wins
// (ncclTopoTuneModel and ncclGetAlgoInfo). L adds a base and the hops of one pass; B starts from
// channels x speed of the graph ("bus bandwidth"), is capped by what a protocol can move, and is
// converted from bytes on a link to bytes of the buffer by the number of ring steps.
#include "sim/cost/nccl.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "sim/base/error.h"
#include "sim/base/integers.h"
#include "sim/cost/nccl_tables.h"

namespace foreshard {
namespace {

constexpr NcclVersion k226{2, 26, 0};

std::size_t index_of(NcclProtocol protocol) { return at(protocol); }

int floor_log2(std::int64_t value) { return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(value))) - 1; }

bool is_gather_or_scatter(CollectiveOperation c) {
  return c == CollectiveOperation::kAllGather || c == CollectiveOperation::kReduceScatter;
}

// Microseconds to hand a message to the network, for each protocol.
double post_overhead(const NcclSystem& system, NcclProtocol protocol) {
  if (system.nodes <= 1) return 0;
  const double once = system.cpu == CpuKind::kAmd ? 2 : 1;
  return protocol == NcclProtocol::kSimple ? 3 * once : once;
}

struct Hops {
  double intra = 0;
  double inter = 0;
};

Hops hops_of(const NcclSystem& system, NcclAlgorithm algorithm, NcclProtocol protocol) {
  const std::size_t p = index_of(protocol);
  Hops hops;
  const NcclHop inside = system.nvlink ? NcclHop::kNvlink : NcclHop::kPci;
  hops.intra = nccl_hop(algorithm, inside, system.version)[p];
  const bool alone = system.ranks_per_node == 1;
  const NcclAlgorithm row = alone ? NcclAlgorithm::kTree : algorithm;
  hops.inter = nccl_hop(row, NcclHop::kNetwork, system.version)[p] + system.net_latency;
  if (protocol == NcclProtocol::kSimple) hops.inter += system.net_latency;  // flush
  return hops;
}

double latency_of(const NcclSystem& s, CollectiveOperation collective, NcclAlgorithm algorithm, NcclProtocol protocol) {
  const double base = nccl_base(algorithm, s.version)[index_of(protocol)];
  Hops hop = hops_of(s, algorithm, protocol);
  const double nodes = as_double(s.nodes);
  const double local = as_double(s.ranks_per_node);
  const bool twice = collective == CollectiveOperation::kAllReduce;
  switch (algorithm) {
    case NcclAlgorithm::kRing: {
      hop.intra = std::max(hop.intra, post_overhead(s, protocol));
      const double steps = twice ? 2 * as_double(s.ranks() - 1) : as_double(s.ranks() - 1);
      double between = s.nodes > 1 ? nodes - 1 : 0;
      if (twice) between = s.nodes > 1 && s.version < k223 ? 2 * nodes : 2 * between;
      between = std::min(between, steps);
      return base + (steps - between) * hop.intra + between * hop.inter;
    }
    case NcclAlgorithm::kTree: return base + 2 * ((local - 1) * hop.intra + floor_log2(s.nodes) * hop.inter);
    case NcclAlgorithm::kNvls: return base + hop.intra + (s.nodes > 1 ? hop.inter : 0);
    case NcclAlgorithm::kNvlsTree: return base + hop.intra + 2 * floor_log2(s.nodes) * hop.inter;
    case NcclAlgorithm::kPat: return base + floor_log2(s.nodes) * hop.inter / 3.5 + 2.8 * as_double(s.ranks());
    case NcclAlgorithm::kCollNetDirect:
      return base + 2 * (std::min(1.0, local - 1) * hop.intra + 0.4 * (local - 1)) + hop.inter;
    case NcclAlgorithm::kCollNetChain: return base + 2 * (local - 1) * hop.intra + hop.inter;
    default: return base;
  }
}

bool has_ll128(const NcclSystem& system) { return system.nvlink || system.ranks_per_node == 1; }

// Bytes of the buffer per second, before corrections that depend on the size. 0: not available.
double bandwidth_of(
    const NcclModel& model, CollectiveOperation collective, NcclAlgorithm algorithm, NcclProtocol protocol) {
  const NcclSystem& s = model.system();
  const bool is_simple = protocol == NcclProtocol::kSimple;
  if (protocol == NcclProtocol::kLL128 && !has_ll128(s)) return 0;
  const double n = as_double(s.ranks());
  const double steps = ring_steps(collective, as_double(s.ranks()));
  const NcclGraph& ring = model.ring();
  const double speed = s.nodes <= 2 ? ring.intra : ring.inter;
  const double bus = ring.channels * speed;
  switch (algorithm) {
    case NcclAlgorithm::kRing: {
      double wire = bus;
      if (protocol == NcclProtocol::kLL) {
        const bool slow = collective == CollectiveOperation::kAllReduce || s.nodes > 1;
        const double share = s.version >= k223 ? 0.5 : slow ? 1.0 / 4 : 1.0 / 3;
        wire = std::min(nccl_ll_cap(s), share * bus);
      } else if (protocol == NcclProtocol::kLL128) {
        const bool slow = s.version < k223 && s.ranks_per_node < 2;
        wire = std::min((slow ? 0.7 : 0.92) * bus, ring.channels * nccl_ring_ll128(s));
      }
      return wire * n / steps;
    }
    case NcclAlgorithm::kTree: {
      if (collective != CollectiveOperation::kAllReduce) return 0;
      double wire = std::min(0.92 * bus, ring.channels * nccl_tree_simple(s));
      if (protocol == NcclProtocol::kLL) wire = std::min(wire / 3.8, nccl_ll_cap(s));
      if (protocol == NcclProtocol::kLL128) {
        const double share = s.nodes == 1 ? 7.0 / 9 : 120.0 / 128;
        wire = std::min(wire * share, ring.channels * nccl_tree_ll128(s));
      }
      return wire * 0.5;
    }
    case NcclAlgorithm::kNvls:
    case NcclAlgorithm::kNvlsTree: {
      const NcclGraph& nvls = model.nvls();
      const bool tree = algorithm == NcclAlgorithm::kNvlsTree;
      if (!is_simple || nvls.channels < 2 || tree == (s.nodes == 1)) return 0;
      if (tree && collective != CollectiveOperation::kAllReduce) return 0;
      if (!tree && collective != CollectiveOperation::kAllReduce && !is_gather_or_scatter(collective)) return 0;
      if (is_gather_or_scatter(collective) && s.version < k219) return 0;
      double y = tree ? nvls.inter * (s.nodes <= 2 ? 2 : 1) : nvls.intra;
      if (s.version < k228) {
        const double factor = is_gather_or_scatter(collective) ? 1 : 5.0 / 6;
        return nvls.channels * std::min(nvls.intra, y) * factor;
      }
      const double g = as_double(s.ranks_per_node);
      const double heads = nvls.channels;
      double x = nvls.intra * nccl_nvls_efficiency(s.generation) * (heads - 1) / heads *
                 (is_gather_or_scatter(collective) ? (g - 1) / g : 2.0);
      if (tree) x = std::min({x, y, nccl_nvls_tree(s)});
      return heads * x * (is_gather_or_scatter(collective) ? 1.0 : n / steps);
    }
    case NcclAlgorithm::kPat: {
      const bool is_one_a_node = s.ranks_per_node == 1 && s.nodes > 1;
      if (!is_simple || !is_gather_or_scatter(collective) || !is_one_a_node || s.version < k223) return 0;
      return bus * (s.version < k226 ? 0.85 : 0.75);
    }
    case NcclAlgorithm::kCollNetDirect: {
      if (!is_simple || !s.collnet || s.nodes < 2 || !s.nvswitch || s.ranks_per_node > 8) return 0;
      if (collective == CollectiveOperation::kAllReduce) return ring.channels * ring.intra * 0.5;
      if (!is_gather_or_scatter(collective) || s.version < k219) return 0;
      return as_double(s.ranks_per_node) * std::min(ring.intra, 0.9 * ring.inter);
    }
    case NcclAlgorithm::kCollNetChain:
      if (!is_simple || !s.collnet || s.nodes < 2 || collective != CollectiveOperation::kAllReduce) return 0;
      return ring.channels * ring.intra * 0.5;
    default: return 0;
  }
}

constexpr NcclAlgorithm kTable[] = {NcclAlgorithm::kTree, NcclAlgorithm::kRing, NcclAlgorithm::kCollNetDirect,
    NcclAlgorithm::kCollNetChain, NcclAlgorithm::kNvls, NcclAlgorithm::kNvlsTree, NcclAlgorithm::kPat};

// Sends and receives: all peers at once, those inside over the GPU's links, the others through the
// ports; the slower half decides. Blocks: two a channel, as NCCL's p2p channels.
double point_to_point(const NcclModel& model, CollectiveOperation collective) {
  const NcclSystem& s = model.system();
  const double n = as_double(s.ranks());
  const double ports = s.nic * s.nics;
  if (collective == CollectiveOperation::kSendRecv) return s.nodes > 1 ? ports / as_double(s.ranks_per_node) : s.link;
  const double inside = as_double(s.ranks_per_node - 1) / n / s.link;
  const double outside = s.nodes > 1 ? (n - as_double(s.ranks_per_node)) / n * as_double(s.ranks_per_node) / ports : 0;
  return 1 / std::max(inside, outside);
}

}

double ring_steps(CollectiveOperation collective, double ranks) {
  if (collective == CollectiveOperation::kAllReduce) return 2 * (ranks - 1);
  return is_gather_or_scatter(collective) ? ranks - 1 : ranks;
}

NcclModel::NcclModel(const NcclSystem& system) : system_(system), ring_(ring_graph(system)), nvls_(nvls_graph(system)) {
  FORESHARD_CHECK(system.ranks() > 1, "a communicator of one rank has no cost model");
  for (std::size_t c = 0; c < kCollectiveOperations; ++c) {
    const auto collective = static_cast<CollectiveOperation>(c);
    if (collective == CollectiveOperation::kAllToAll || collective == CollectiveOperation::kSendRecv) {
      const Hops hop = hops_of(system_, NcclAlgorithm::kRing, NcclProtocol::kSimple);
      const double peers = collective == CollectiveOperation::kSendRecv ? 1 : as_double(system_.ranks() - 1);
      const double once = nccl_base(NcclAlgorithm::kRing, system_.version)[2];
      const double post = post_overhead(system_, NcclProtocol::kLL);
      entries_[c].add({NcclAlgorithm::kPointToPoint, NcclProtocol::kSimple,
          once + (system_.nodes > 1 ? hop.inter : hop.intra) + post * peers, point_to_point(*this, collective)});
      continue;
    }
    const bool sums_all = collective == CollectiveOperation::kAllReduce;
    for (const NcclAlgorithm algorithm : kTable) {
      const bool is_ring = algorithm == NcclAlgorithm::kRing;
      if (!is_ring && !sums_all && !is_gather_or_scatter(collective)) continue;
      const bool has_all = is_ring || algorithm == NcclAlgorithm::kTree;
      for (std::size_t p = has_all ? 0 : 2; p < kNcclProtocols; ++p) {
        const Entry found = entry(collective, algorithm, static_cast<NcclProtocol>(p));
        if (found.bandwidth > 0) entries_[c].add(found);
      }
    }
  }
}

NcclModel::Entry NcclModel::entry(
    CollectiveOperation collective, NcclAlgorithm algorithm, NcclProtocol protocol) const {
  const double bandwidth = bandwidth_of(*this, collective, algorithm, protocol);
  if (bandwidth <= 0) return {algorithm, protocol, 0, 0};
  return {algorithm, protocol, latency_of(system_, collective, algorithm, protocol), bandwidth};
}

NcclCost NcclModel::at_size(CollectiveOperation collective, const Entry& entry, double bytes) const {
  NcclCost cost{entry.algorithm, entry.protocol, entry.latency, entry.bandwidth};
  if (collective != CollectiveOperation::kAllReduce) return cost;
  if (entry.algorithm == NcclAlgorithm::kTree) cost.bandwidth *= nccl_tree_correction(entry.protocol, bytes);
  if (entry.algorithm == NcclAlgorithm::kRing && entry.protocol == NcclProtocol::kSimple && system_.nodes > 1 &&
      bytes / (ring_.channels * as_double(system_.ranks())) >= 64)
    cost.latency *= system_.generation < GpuGeneration::kAmpere ? 1.9 : 1.4;
  return cost;
}

NcclCost NcclModel::cost(
    CollectiveOperation collective, NcclAlgorithm algorithm, NcclProtocol protocol, double bytes) const {
  return at_size(collective, entry(collective, algorithm, protocol), bytes);
}

int NcclModel::channels_for(const Entry& entry, double bytes) const {
  switch (entry.algorithm) {
    case NcclAlgorithm::kNvls:
    case NcclAlgorithm::kNvlsTree: return nvls_.ctas;
    case NcclAlgorithm::kRing:
    case NcclAlgorithm::kTree: break;
    default: return ring_.ctas;
  }
  const bool is_ring = entry.algorithm == NcclAlgorithm::kRing;
  double threads = 512;
  double threshold = 64;  // bytes a thread, below which fewer channels do
  if (entry.protocol == NcclProtocol::kSimple) {
    if (ring_.channels * ring_.intra <= 12) threads = 256;
  } else if (entry.protocol == NcclProtocol::kLL128) {
    threads = 640;
    threshold = 8;
  } else {
    threshold = is_ring ? 8 * as_double(system_.ranks()) : 8;
  }
  const double needed = std::ceil(bytes / (threads * threshold));
  return static_cast<int>(std::clamp(needed, 1.0, static_cast<double>(ring_.ctas)));
}

NcclModel::Choice NcclModel::choose(CollectiveOperation collective, double bytes) const {
  Choice best;
  const Entry* chosen = nullptr;
  const Entries& entries = entries_[at(collective)];
  for (std::size_t i = 0; i < entries.count; ++i) {
    const Entry& candidate = entries.list[i];
    const NcclCost cost = at_size(collective, candidate, bytes);
    const double time = cost.latency + bytes / (1000 * cost.bandwidth);
    if (chosen != nullptr && time >= best.microseconds) continue;
    chosen = &candidate;
    best.cost = cost;
    best.microseconds = time;
  }
  FORESHARD_CHECK(chosen != nullptr, "no algorithm is available");
  best.channels = channels_for(*chosen, bytes);
  return best;
}

}
