// The cluster as a graph: GPUs, one NVSwitch per NVLink domain (a node, or the nodes that
// NodeKind::link_domain joins), PCIe switches where they are stated, network ports, leaf and spine
// switches. Degraded links have their own rate, missing ports no wire.
//
// Every node's i-th port hangs on the i-th leaf of its pod (rails); all leaves hang on one logical
// spine by an up-link as wide as their ports together over the oversubscription. Links are full
// duplex; rate and latency are those of one direction. Without PCIe switches a port is never wider
// than its slot. The paths are Boost.Graph's; group_link() (sim/spec/cluster.h) is the closed form.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/units.h"
#include "sim/spec/cluster.h"

namespace foreshard {

enum class DeviceKind : std::uint8_t { kGpu, kNvSwitch, kPcieSwitch, kNic, kLeaf, kSpine };

struct Device {
  DeviceKind kind = DeviceKind::kGpu;
  std::int64_t node = -1;  // a leaf: its pod; the spine: -1
  std::int64_t index = 0;  // within the node or pod
  std::string name;        // "n0.gpu3"
};

struct Wire {
  std::int64_t a = 0;  // indices of devices
  std::int64_t b = 0;
  BytesPerSecond rate;
  Time latency;
};

struct Topology {
  std::int64_t gpus = 0;
  std::int64_t gpus_per_node = 1;
  std::int64_t gpus_per_domain = 1;
  std::int64_t nics_per_node = 0;
  std::vector<Device> devices;  // the GPUs first, in rank order
  std::vector<Wire> wires;
};

// Throws Error(kInvalidInput) for a cluster of several nodes without ports.
Topology build_topology(const Cluster& cluster);

struct Path {
  std::vector<std::int64_t> devices;  // from and to included
  BytesPerSecond width;               // of its narrowest wire
  Time latency;
};

// Throw Error(kInvalidInput) where a rank is not one of the topology.
Path shortest_path(const Topology& topology, std::int64_t from_rank, std::int64_t to_rank);
Path widest_path(const Topology& topology, std::int64_t from_rank, std::int64_t to_rank);

// Bus bandwidth the rings of all groups of the shape reach together, wire by wire.
struct RingBottleneck {
  BytesPerSecond link;     // by the wires inside nodes
  BytesPerSecond network;  // by ports and switches; zero where no ring leaves its node
};
RingBottleneck ring_bottleneck(const Topology& topology, const GroupShape& group);

// Graphviz, one sub-graph-free undirected graph; rates and latencies as edge labels.
std::string to_dot(const Topology& topology);

}  // namespace foreshard
