// The cluster as a graph: GPUs, one NVSwitch per NVLink domain (a node, or the nodes that
// NodeKind::link_domain joins), PCIe switches where they are stated, network ports, and the
// network's switches. Degraded links have their own rate, missing ports no wire.
//
// In the short form every node's i-th port hangs on the i-th leaf of its pod (rails), and all leaves hang on one
// logical spine by an up-link as wide as their ports together over the oversubscription. Links are full duplex; rate
// and latency are those of one direction. Without PCIe switches a port is never wider than its slot.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/base/units.h"
#include "sim/spec/cluster.h"
#include "sim/spec/network/cluster_layout.h"

namespace foreshard {

enum class DeviceKind : std::uint8_t { kGpu, kNvSwitch, kPcieSwitch, kNic, kSwitch };

struct Device {
  DeviceKind kind = DeviceKind::kGpu;
  std::int32_t node = -1;  // none of a switch of the network
  std::int32_t index = 0;  // within the node; of a switch: in the layout
};

struct Wire {
  std::int32_t a = 0;  // indices of devices
  std::int32_t b = 0;
  BytesPerSecond rate;  // what other jobs leave of it
  Time latency;
  double background = 0;
};

struct TopologyNode {
  std::int32_t first_gpu = 0;
  std::int32_t gpus = 0;
  std::int32_t first_port = 0;  // in Topology::ports
  std::int32_t ports = 0;
  std::int32_t domain = 0;  // which NVSwitch, counted from 0
  std::int32_t group = 0;   // in the layout
};

struct Port {
  std::int32_t device = 0;
  std::int32_t wire = -1;   // to its switch; -1: missing
  std::int32_t on = -1;     // that switch, in the layout
  std::int32_t owner = -1;  // the first GPU that it is near to
};

// The way of a GPU to a port that it is near to, over one wire or, with a PCIe switch, two.
struct PortAccess {
  std::int32_t port = 0;
  std::int32_t first = 0;
  std::int32_t second = -1;
};

struct Topology {
  ClusterLayout layout;
  std::int64_t gpus = 0;
  std::vector<Device> devices;  // the GPUs first, in rank order; switches last
  std::vector<Wire> wires;
  std::vector<TopologyNode> nodes;
  std::vector<Port> ports;
  std::vector<std::int32_t> node_of;       // per GPU
  std::vector<std::int32_t> link_of;       // per GPU: its wire to the NVSwitch
  std::vector<std::int32_t> access_begin;  // per GPU and one more
  std::vector<PortAccess> access;
  std::int32_t domains = 0;
  std::int32_t first_switch = 0;  // device of the layout's first switch
};

// Throws Error(kInvalidInput) for a cluster of several nodes without ports.
Topology build_topology(const Cluster& cluster);

std::string node_name(const Topology& topology,
    std::int64_t node);  // "n0", or the file's
std::string device_name(const Topology& topology,
    std::int64_t device);  // "n0.gpu3"
std::string wire_name(const Topology& topology,
    std::int64_t wire);  // "n0.nic3 - pod0.leaf3"

// The graph of a cluster for Graphviz.

// One undirected graph without sub-graphs; rates and latencies as edge labels. `used` (AxisRoute::used) colours a wire
// by the share of it that is used in the busier direction: grey for none, then green to red; empty: no colours.
std::string to_dot(const Topology& topology, std::span<const float> used = {});

}
