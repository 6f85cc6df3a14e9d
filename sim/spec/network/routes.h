// The groups of a mesh axis laid over the cluster's graph as NCCL lays them, and what every one of
// them gets of the wires while all of them run.
//
// Rings: a group with p ranks in each of several nodes runs p channels, each with 1/p of the bytes. Channel c enters a
// node at its c-th rank, passes the others in order (or as NCCL's own graph says), returns to the c-th rank over the
// NVSwitch and leaves through that rank's ports on their rail. Nodes follow one another in the order of their first
// rank. Trees: NCCL's two binary trees over the nodes, with half of the bytes each, on every rail.
//
// Between switches a flow takes all paths with the fewest hops, in proportion to their rates. What
// groups get is max-min fair; a group's channels carry even shares, so its slowest wire sets its
// pace. Bandwidths are bus bandwidths, as nccl-tests counts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sim/spec/cluster.h"
#include "sim/spec/network/shared_links.h"
#include "sim/spec/network/topology.h"

namespace foreshard {

// Disjoint groups of ranks that communicate at once: an axis of a mesh, or several joined.
struct RankGroups {
  std::vector<std::int32_t> ranks;  // one group after the other
  std::vector<std::int32_t> begin;  // per group and one more
  std::size_t size() const { return begin.size() - 1; }
  std::span<const std::int32_t> group(std::size_t i) const {
    return std::span(ranks).subspan(at(begin[i]), at(begin[i + 1] - begin[i]));
  }
};

// All groups {first + i * stride} that tile `gpus` ranks. Throws Error(kInvalidInput) if one does not fit.
RankGroups tiled_groups(const GroupShape& shape, std::int64_t gpus);

// The GPU of every rank.
std::vector<std::int32_t> placed(const Topology& topology, RankPlacement placement);

// A wire in one direction.
struct WireEnd {
  std::int32_t wire = -1;  // -1: none
  bool forward = true;     // from Wire::a to Wire::b
};

struct GroupRoute {
  std::int64_t nodes = 1;           // NVLink domains
  std::int64_t ranks_per_node = 1;  // of the node with the fewest
  double link = 0;                  // bytes/s of the ring by the wires inside nodes
  double network = 0;               // by the others; 0 inside a node
  double tree = 0;                  // see GroupLink::tree
  double link_latency = 0;          // ns of a hop, on average
  double network_latency = 0;
  WireEnd narrowest_link;
  WireEnd narrowest_network;
};

struct AxisRoute {
  GroupLink slowest;  // of all groups, figure by figure
  std::vector<GroupRoute> groups;
  std::size_t slowest_group = 0;
  // Per wire and direction (2 * wire + (forward ? 0 : 1)): the share of its rate that is used while
  // every group runs its ring as fast as it gets.
  std::vector<float> used;
};

// Ranks are GPUs of the topology: `groups` as placed. Throws Error(kInvalidInput) where nothing
// connects two ranks of a group.
AxisRoute route(const Topology& topology, const RankGroups& groups);
AxisRoute route(const Topology& topology, const GroupShape& shape);

// The graph of a cluster and the axes that were asked for, each routed once; threads may share one.
class Routes {
 public:
  explicit Routes(const Cluster& cluster);
  ~Routes();
  // Made when first asked for.
  const Topology& topology() const;
  const AxisRoute& axis(const GroupShape& shape) const;
  // What shared_links() finds; search asks it for the same axes again and again.
  std::vector<LinkShares> shared(std::span<const GroupShape> shapes) const;

 private:
  struct Memo;
  Cluster cluster_;  // without routes of its own
  std::unique_ptr<Memo> memo_;
};

// The cluster with the routes that its layout and its degraded links need; to be called after every change of them.
Cluster with_routes(Cluster cluster);

}
