// GroupLoads are counted per wire and direction, in units of one ring's full flow.
//
// The share of a tree: what links between switches leave of it, against what the ports alone would;
// ports bind trees and rings alike, and NCCL's table knows them.

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/base/error.h"
#include "sim/spec/network/fair_shares.h"
#include "sim/spec/network/routes.h"
#include "sim/spec/network/switch_paths.h"

namespace foreshard {
namespace {

// Parents in NCCL's double binary tree (NVIDIA/nccl:src/graph/trees.cc): in the first the lowest
// set bit goes up; the second is its mirror image of an even number of nodes, else shifted by one.
std::int64_t parent_in_first(std::int64_t nodes, std::int64_t node) {
  if (node == 0) return -1;
  const std::int64_t bit = node & -node;
  const std::int64_t up = (node ^ bit) | (bit << 1);
  return up < nodes ? up : node ^ bit;
}

std::int64_t parent_in_second(std::int64_t nodes, std::int64_t node) {
  if (nodes % 2 == 0) {
    const std::int64_t up = parent_in_first(nodes, nodes - 1 - node);
    return up < 0 ? -1 : nodes - 1 - up;
  }
  const std::int64_t up = parent_in_first(nodes, (node - 1 + nodes) % nodes);
  return up < 0 ? -1 : (up + 1) % nodes;
}

class Router {
 public:
  explicit Router(const Topology& topology)
      : t_(topology),
        paths_(topology),
        inside_(topology.wires.size()),
        outside_(topology.wires.size()),
        tree_(topology.wires.size()),
        slot_of_(at(topology.domains), -1) {
    const auto devices = [&](std::int32_t wire, DeviceKind kind) {
      const Wire& w = topology.wires[at(wire)];
      return topology.devices[at(w.a)].kind == kind || topology.devices[at(w.b)].kind == kind;
    };
    is_inside_.resize(topology.wires.size());
    is_between_.resize(topology.wires.size());
    for (std::int32_t w = 0; at(w) < topology.wires.size(); ++w) {
      is_inside_[at(w)] = devices(w, DeviceKind::kNvSwitch);
      const Wire& wire = topology.wires[at(w)];
      is_between_[at(w)] = wire.a >= topology.first_switch && wire.b >= topology.first_switch;
    }
  }

  AxisRoute route(const RankGroups& groups) {
    AxisRoute result;
    result.groups.reserve(groups.size());
    for (std::size_t i = 0; i < groups.size(); ++i) {
      result.groups.push_back(lay(groups.group(i)));
      inside_.finish(inside_loads_);
      outside_.finish(outside_loads_);
      tree_.finish(tree_loads_);
    }
    fill(result, groups);
    return result;
  }

 private:
  // --- laying one group ---

  struct Hops {
    double latency = 0;
    double count = 0;
    double mean() const { return count > 0 ? latency / count : 0; }
  };

  GroupRoute lay(std::span<const std::int32_t> ranks) {
    sort_by_domain(ranks);
    GroupRoute made = {.nodes = std::ssize(domain_begin_) - 1, .ranks_per_node = std::ssize(ranks)};
    for (std::size_t d = 0; d + 1 < domain_begin_.size(); ++d)
      made.ranks_per_node = std::min<std::int64_t>(made.ranks_per_node, domain_begin_[d + 1] - domain_begin_[d]);
    inside_hops_ = outside_hops_ = {};
    const auto channels = made.nodes == 1 ? std::int32_t{1} : static_cast<std::int32_t>(made.ranks_per_node);
    for (std::int32_t c = 0; c < channels; ++c) add_ring(c, channels);
    if (made.nodes > 1)
      for (std::int32_t c = 0; c < channels; ++c) add_trees(c, channels);
    made.link_latency = inside_hops_.count > 0 ? inside_hops_.mean() : 2 * latency(t_.link_of[at(ranks[0])]);
    made.network_latency = outside_hops_.mean();
    return made;
  }

  // by_domain_: the ranks, domain by domain in the order of their first rank.
  void sort_by_domain(std::span<const std::int32_t> ranks) {
    std::vector<std::int32_t> counts;
    seen_.clear();
    for (const std::int32_t rank : ranks) {
      const std::int32_t domain = domain_of(rank);
      std::int32_t& slot = slot_of_[at(domain)];
      if (slot < 0) {
        slot = static_cast<std::int32_t>(seen_.size());
        seen_.push_back(domain);
        counts.push_back(0);
      }
      ++counts[at(slot)];
    }
    domain_begin_.assign(1, 0);
    for (const std::int32_t count : counts) domain_begin_.push_back(domain_begin_.back() + count);
    by_domain_.resize(ranks.size());
    std::vector<std::int32_t> next(domain_begin_.begin(), domain_begin_.end() - 1);
    for (const std::int32_t rank : ranks) by_domain_[at(next[at(slot_of_[at(domain_of(rank))])]++)] = rank;
    for (const std::int32_t domain : seen_) slot_of_[at(domain)] = -1;
  }

  std::int32_t domain_of(std::int32_t rank) const { return t_.nodes[at(t_.node_of[at(rank)])].domain; }

  std::span<const std::int32_t> members(std::size_t domain) const {
    return std::span(by_domain_)
        .subspan(at(domain_begin_[domain]), at(domain_begin_[domain + 1] - domain_begin_[domain]));
  }

  void add_ring(std::int32_t channel, std::int32_t channels) {
    const double flow = 1.0 / channels;
    const std::size_t domains = domain_begin_.size() - 1;
    for (std::size_t d = 0; d < domains; ++d) {
      const std::span<const std::int32_t> here = members(d);
      const auto size = static_cast<std::int32_t>(here.size());
      const auto rank_at = [&](std::int32_t i) { return here[at(order_at(here, channel, i))]; };
      for (std::int32_t i = 0; i + 1 < size; ++i) add_inside(rank_at(i), rank_at(i + 1), flow);
      // Where NCCL's dump names no port, the ring returns to its first rank and leaves there.
      const std::int32_t port = domains > 1 ? port_of(here, channel, &RingOrder::leaves) : -1;
      if (size > 1 && port < 0) add_inside(rank_at(size - 1), rank_at(0), flow);
      if (domains > 1) {
        const std::span<const std::int32_t> there = members((d + 1) % domains);
        const RingEnd from{rank_at(port < 0 ? 0 : size - 1), port};
        const RingEnd to{there[at(order_at(there, channel, 0))], port_of(there, channel, &RingOrder::enters)};
        const double hop = add_network(outside_, from, to, flow);
        outside_hops_.latency += hop;
        outside_hops_.count += 1;
      }
    }
  }

  // NCCL's own ring of the channel, of a node that is in the group with all its GPUs; else null.
  const RingOrder* ring_of(std::span<const std::int32_t> here, std::int32_t channel) const {
    const std::vector<RingOrder>& rings = t_.layout.rings;
    if (rings.empty()) return nullptr;
    const RingOrder& ring = rings[at(channel) % rings.size()];
    const TopologyNode& node = t_.nodes[at(t_.node_of[at(here[0])])];
    const bool is_whole = ring.gpus.size() == here.size() && at(static_cast<std::int32_t>(node.gpus)) == here.size();
    return is_whole ? &ring : nullptr;
  }

  // The i-th of the members that the channel passes.
  std::int32_t order_at(std::span<const std::int32_t> here, std::int32_t channel, std::int32_t i) const {
    const RingOrder* ring = ring_of(here, channel);
    return ring != nullptr ? ring->gpus[at(i)] : (channel + i) % static_cast<std::int32_t>(here.size());
  }

  // Of the node, as its ring has it; -1 where that names none that is there.
  std::int32_t port_of(std::span<const std::int32_t> here, std::int32_t channel, std::int32_t RingOrder::*port) const {
    const RingOrder* ring = ring_of(here, channel);
    const TopologyNode& node = t_.nodes[at(t_.node_of[at(here[0])])];
    if (ring == nullptr || ring->*port < 0 || ring->*port >= node.ports) return -1;
    const std::int32_t found = node.first_port + ring->*port;
    return t_.ports[at(found)].wire >= 0 && t_.ports[at(found)].owner >= 0 ? found : -1;
  }

  void add_inside(std::int32_t from, std::int32_t to, double flow) {
    const std::int32_t up = t_.link_of[at(from)];
    const std::int32_t down = t_.link_of[at(to)];
    inside_.add(static_cast<std::uint32_t>(2 * up), flow);
    inside_.add(static_cast<std::uint32_t>(2 * down + 1), flow);
    inside_hops_.latency += latency(up) + latency(down);
    inside_hops_.count += 1;
  }

  void add_trees(std::int32_t channel, std::int32_t channels) {
    const auto nodes = std::ssize(domain_begin_) - 1;
    const double flow = 0.25 / channels;  // of twice the buffer; half of it in each tree
    const auto rank_of = [&](std::int64_t node) { return members(at(node))[at(channel)]; };
    for (std::int64_t node = 0; node < nodes; ++node) {
      for (const std::int64_t up : {parent_in_first(nodes, node), parent_in_second(nodes, node)}) {
        if (up < 0) continue;
        add_network(tree_, {rank_of(node)}, {rank_of(up)}, flow);
        add_network(tree_, {rank_of(up)}, {rank_of(node)}, flow);
      }
    }
  }

  struct RingEnd {
    std::int32_t rank = 0;
    std::int32_t port = -1;  // that it must use; -1: as NCCL chooses
  };
  // The ports of a rank: the one it must use, else its own; where all of them are missing, the node's others.
  struct Exit {
    std::int32_t port = 0;
    std::int32_t access = -1;  // of whom the port is; -1: through its owner
  };
  void find_exits(RingEnd end, std::vector<Exit>& exits) const {
    exits.clear();
    const std::int32_t rank = end.rank;
    if (end.port >= 0) {
      exits.push_back({end.port, -1});
      for (std::int32_t i = t_.access_begin[at(rank)]; i < t_.access_begin[at(rank) + 1]; ++i)
        if (t_.access[at(i)].port == end.port) exits.back().access = i;
      return;
    }
    for (std::int32_t i = t_.access_begin[at(rank)]; i < t_.access_begin[at(rank) + 1]; ++i)
      exits.push_back({t_.access[at(i)].port, i});
    if (!exits.empty()) return;
    const TopologyNode& node = t_.nodes[at(t_.node_of[at(rank)])];
    for (std::int32_t p = node.first_port; p < node.first_port + node.ports; ++p)
      if (t_.ports[at(p)].wire >= 0 && t_.ports[at(p)].owner >= 0) exits.push_back({p, -1});
    if (exits.empty()) throw invalid_input("rank {} ({}) has no network port", rank, device_name(t_, rank));
  }

  // Returns the latency of the hop, ns.
  double add_network(Tally& tally, RingEnd from, RingEnd to, double flow) {
    find_exits(from, out_);
    find_exits(to, in_);
    // As many as the side with more: a node without a port of this rail takes them all in.
    const std::size_t parts = std::max(out_.size(), in_.size());
    const double part = flow / as_double(parts);
    double hop = 0;
    for (std::size_t i = 0; i < parts; ++i) {
      const Exit& receiver = in_[i % in_.size()];
      const Exit& usual = out_[i % out_.size()];
      const Exit sender = from.port < 0 ? on_the_rail_of(receiver, from.rank, usual) : usual;
      hop += cross(tally, from.rank, sender, false, part);
      const Port& a = t_.ports[at(sender.port)];
      const Port& b = t_.ports[at(receiver.port)];
      tally.add(static_cast<std::uint32_t>(2 * a.wire), part);
      tally.add(static_cast<std::uint32_t>(2 * b.wire + 1), part);
      hop += latency(a.wire) + latency(b.wire);
      if (a.on != b.on) {
        const SwitchPaths::Route& route = paths_.between(a.on, b.on);
        for (const SwitchPaths::Step& step : route.steps) tally.add(step.end, part * step.share);
        hop += route.latency;
      }
      hop += cross(tally, to.rank, receiver, true, part);
    }
    return hop / as_double(parts);
  }

  // Where a port of another rail takes the flow in, the sender goes there over NVLink (PXN) rather than over switches.
  Exit on_the_rail_of(const Exit& receiver, std::int32_t from, const Exit& usual) const {
    if (receiver.access >= 0) return usual;
    const std::int32_t rail = t_.ports[at(receiver.port)].on;
    if (t_.ports[at(usual.port)].on == rail) return usual;
    const TopologyNode& node = t_.nodes[at(t_.node_of[at(from)])];
    for (std::int32_t p = node.first_port; p < node.first_port + node.ports; ++p) {
      const Port& port = t_.ports[at(p)];
      if (port.wire >= 0 && port.owner >= 0 && port.on == rail) return {p, -1};
    }
    return usual;
  }

  const PortAccess& access_of_owner(const Port& port, std::int32_t index) const {
    for (std::int32_t i = t_.access_begin[at(port.owner)];; ++i)
      if (t_.access[at(i)].port == index) return t_.access[at(i)];
  }

  // Out of the rank's node, or into it.
  double cross(Tally& tally, std::int32_t rank, const Exit& exit, bool inward, double flow) {
    const Port& port = t_.ports[at(exit.port)];
    if (exit.access < 0 && port.owner != rank) {
      const std::int32_t from = inward ? port.owner : rank, to = inward ? rank : port.owner;
      inside_.add(static_cast<std::uint32_t>(2 * t_.link_of[at(from)]), flow_inside(tally, flow));
      inside_.add(static_cast<std::uint32_t>(2 * t_.link_of[at(to)] + 1), flow_inside(tally, flow));
    }
    return pass(tally, exit, inward, flow);
  }

  // Rings alone are counted inside.
  double flow_inside(const Tally& tally, double flow) const { return &tally == &outside_ ? flow : 0; }

  double pass(Tally& tally, const Exit& exit, bool inward, double flow) {
    const PortAccess& way =
        exit.access >= 0 ? t_.access[at(exit.access)] : access_of_owner(t_.ports[at(exit.port)], exit.port);
    double hop = 0;
    for (const std::int32_t wire : {way.first, way.second}) {
      if (wire < 0) continue;
      tally.add(static_cast<std::uint32_t>(2 * wire + (inward ? 1 : 0)), flow);
      hop += latency(wire);
    }
    return hop;
  }

  double latency(std::int32_t wire) const { return as_double(t_.wires[at(wire)].latency.nanoseconds()); }

  // --- sharing the wires ---

  static WireEnd end_of(std::uint32_t end) { return {static_cast<std::int32_t>(end / 2), end % 2 == 0}; }

  double rate_of(std::uint32_t end) const { return t_.wires[end / 2].rate.value(); }

  void fill(AxisRoute& result, const RankGroups& groups) {
    const auto rate = [&](std::uint32_t end) { return rate_of(end); };
    const auto ports_alone = [&](std::uint32_t end) { return is_between_[end / 2] ? kUnbound : rate_of(end); };
    const std::size_t ends = 2 * t_.wires.size();
    const FairShares link = fair_shares(inside_loads_, ends, rate);
    const FairShares network = fair_shares(outside_loads_, ends, rate);
    const FairShares ring_ports = fair_shares(outside_loads_, ends, ports_alone);
    const FairShares tree = fair_shares(tree_loads_, ends, rate);
    const FairShares tree_ports = fair_shares(tree_loads_, ends, ports_alone);
    result.used.assign(2 * t_.wires.size(), 0.0F);
    GroupLink& slowest = result.slowest;
    double least_link = kUnbound;
    double least_network = kUnbound;
    double least_tree = kUnbound;
    double link_latency = 0;
    double network_latency = 0;
    slowest.ranks_per_node = std::numeric_limits<std::int64_t>::max();
    double worst = kUnbound;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      GroupRoute& made = result.groups[g];
      made.link = std::isfinite(link.rate[g]) ? link.rate[g] : own_link(groups.group(g));
      if (std::isfinite(link.rate[g])) made.narrowest_link = end_of(link.by[g]);
      if (made.nodes > 1) {
        made.network = network.rate[g];
        made.narrowest_network = end_of(network.by[g]);
        made.tree =
            std::isfinite(tree_ports.rate[g]) ? ring_ports.rate[g] * tree.rate[g] / tree_ports.rate[g] : made.network;
        least_network = std::min(least_network, made.network);
        least_tree = std::min(least_tree, made.tree);
      }
      least_link = std::min(least_link, made.link);
      link_latency = std::max(link_latency, made.link_latency);
      network_latency = std::max(network_latency, made.network_latency);
      slowest.size = std::max(slowest.size, static_cast<std::int64_t>(groups.group(g).size()));
      slowest.nodes = std::max(slowest.nodes, made.nodes);
      slowest.ranks_per_node = std::min(slowest.ranks_per_node, made.ranks_per_node);
      const double pace = made.nodes > 1 ? std::min(made.network, made.link) : made.link;
      if (pace < worst) {
        worst = pace;
        result.slowest_group = g;
      }
      use(result.used, inside_loads_.group(g), pace);
      use(result.used, outside_loads_.group(g), pace);
    }
    slowest.link = BytesPerSecond(least_link);
    if (std::isfinite(least_network)) {
      slowest.network = BytesPerSecond(least_network);
      slowest.tree = BytesPerSecond(least_tree);
    }
    slowest.link_latency = Time::ns(std::llround(link_latency));
    slowest.network_latency = Time::ns(std::llround(network_latency));
  }

  void use(std::vector<float>& used, std::span<const WireLoad> loads, double pace) const {
    for (const WireLoad& load : loads) used[load.end] += static_cast<float>(load.flow * pace / rate_of(load.end));
  }

  // Of a group that uses no link inside a node.
  double own_link(std::span<const std::int32_t> ranks) const {
    double least = kUnbound;
    for (const std::int32_t rank : ranks) least = std::min(least, t_.wires[at(t_.link_of[at(rank)])].rate.value());
    return least;
  }

  const Topology& t_;
  SwitchPaths paths_;
  Tally inside_;
  Tally outside_;
  Tally tree_;
  GroupLoads inside_loads_;
  GroupLoads outside_loads_;
  GroupLoads tree_loads_;
  std::vector<bool> is_inside_;
  std::vector<bool> is_between_;
  std::vector<std::int32_t> slot_of_;  // per domain, of the group that is laid
  std::vector<std::int32_t> seen_;
  std::vector<std::int32_t> by_domain_;
  std::vector<std::int32_t> domain_begin_;
  std::vector<Exit> out_;
  std::vector<Exit> in_;
  Hops inside_hops_;
  Hops outside_hops_;
};

}

AxisRoute route(const Topology& topology, const RankGroups& groups) { return Router(topology).route(groups); }

AxisRoute route(const Topology& topology, const GroupShape& shape) {
  RankGroups groups = tiled_groups(shape, topology.gpus);
  if (shape.placement != RankPlacement::kListed) {
    const std::vector<std::int32_t> gpus = placed(topology, shape.placement);
    for (std::int32_t& rank : groups.ranks) rank = gpus[at(rank)];
  }
  return route(topology, groups);
}

}
