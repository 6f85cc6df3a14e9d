// A cluster as it is: groups of like nodes, the switches that their ports hang on, the links
// between switches, and where the ranks sit. What a cluster file lists; the short form (identical
// nodes behind leaves and a spine) is expanded into the same.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sim/base/units.h"
#include "sim/spec/cluster.h"

namespace foreshard {

// Like nodes, one after the other in the order of their ranks.
struct NodeGroup {
  std::int64_t count = 1;
  std::vector<std::string> names;  // of each; empty: n<i>, counted over all groups
  Gpu gpu;
  NodeKind kind;
  // Switches of its ports: port i hangs on the i-th, modulo their number.
  std::vector<std::int32_t> leaves;
  std::int64_t first_in_domain = 0;  // place of its first node among those of an NVLink domain
};

struct NetworkSwitch {
  std::string name;
  std::int32_t pod = -1;  // of the short form's leaves, for their names
  std::int32_t rail = 0;
  Time latency;  // beyond what NodeKind::nic_latency has for one
};

// Both directions at that rate; parallel cables are one link.
struct SwitchLink {
  std::int32_t a = 0;  // indices of switches
  std::int32_t b = 0;
  BytesPerSecond rate;
  Time latency;                  // beyond what NodeKind::nic_latency has
  double background = 0;         // share of it that other jobs use, on average
  double background_log_sd = 0;  // of what they leave, from hour to hour
};

// The order in which a channel passes the GPUs of a full node, as NCCL writes it in its graph dump.
struct RingOrder {
  std::vector<std::int32_t> gpus;  // within the node
  std::int32_t enters = -1;        // port; -1: that of the first GPU
  std::int32_t leaves = -1;
};

struct ClusterLayout {
  std::vector<NodeGroup> groups;
  std::vector<NetworkSwitch> switches;
  std::vector<SwitchLink> links;
  std::vector<RingOrder> rings;
  std::int64_t nodes() const { return sum_of<std::int64_t>(groups, &NodeGroup::count); }
};

// The cluster with every kind of node changed, its own and those of its layout; and with every link
// between switches changed. Its routes are anew (sim/spec/network/routes.h).
Cluster with_nodes(Cluster cluster, const std::function<void(NodeKind&)>& change);
Cluster with_links(Cluster cluster, const std::function<void(SwitchLink&)>& change);

// The cluster whose ranks sit on these nodes alone, in this order: distinct indices of its nodes, at least one. The
// slowest GPU among them sets the pace, the smallest memory counts; ports keep what they lack.
Cluster on_nodes(Cluster cluster, std::span<const std::int64_t> nodes);

// The layout of the file, else that of the short form. Throws Error(kInvalidInput) for several nodes without ports.
ClusterLayout layout_of(const Cluster& cluster);

}
