// The short form becomes a layout, and a layout devices and wires, node by node.
//
// A path between neighbouring nodes has four wires (GPU, port, switch, port, GPU), over which
// NodeKind::nic_latency is spread; links between switches add what the layout says, nothing in the
// short form: NCCL's table has one figure for a hop, however many switches it has.
#include "sim/spec/network/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/lookup.h"

namespace foreshard {
namespace {

Time part(Time time, std::int64_t of) { return Time::ns(time.nanoseconds() / of); }

// Adds devices and wires of one cluster.
class TopologyBuilder {
 public:
  TopologyBuilder(const Cluster& cluster, ClusterLayout layout) {
    topology_.layout = std::move(layout);
    for (const DegradedLink& link : cluster.degraded) degraded_[{link.node, link.part, link.index}] = link.fraction;
  }

  Topology build() {
    const ClusterLayout& layout = topology_.layout;
    for (const NodeGroup& group : layout.groups) {
      topology_.gpus += group.count * group.kind.gpus;
      has_network_ = has_network_ || !group.leaves.empty();
    }
    topology_.nodes.reserve(at(layout.nodes()));
    reserve();
    add_gpus();
    std::int32_t node = 0;
    for (const NodeGroup& group : layout.groups) {
      for (std::int64_t i = 0; i < group.count; ++i, ++node) {
        if ((group.first_in_domain + i) % group.kind.link_domain == 0) {
          nvswitch_ = add(DeviceKind::kNvSwitch, node, 0);
          ++topology_.domains;
        }
        topology_.nodes[at(node)].domain = topology_.domains - 1;
        add_node(group, node);
      }
    }
    topology_.access_begin.push_back(static_cast<std::int32_t>(topology_.access.size()));
    add_switches();
    return std::move(topology_);
  }

 private:
  std::int32_t add(DeviceKind kind, std::int32_t node, std::int64_t index) {
    topology_.devices.push_back({kind, node, static_cast<std::int32_t>(index)});
    return static_cast<std::int32_t>(topology_.devices.size()) - 1;
  }

  std::int32_t connect(std::int32_t a, std::int32_t b, BytesPerSecond rate, Time latency) {
    topology_.wires.push_back({a, b, rate, latency, 0});
    return static_cast<std::int32_t>(topology_.wires.size()) - 1;
  }

  void reserve() {
    std::size_t devices = topology_.layout.switches.size();
    std::size_t wires = topology_.layout.links.size();
    for (const NodeGroup& group : topology_.layout.groups) {
      const auto count = at(group.count);
      const auto gpus = at(group.kind.gpus);
      const auto nics = at(group.kind.nics);
      const auto slots = at(group.kind.pcie_switches);
      devices += count * (gpus + nics + slots + 1);
      wires += count * (2 * gpus + 2 * nics);
    }
    topology_.devices.reserve(devices);
    topology_.wires.reserve(wires);
  }

  void add_gpus() {
    std::int32_t node = 0;
    std::int32_t group_index = 0;
    for (const NodeGroup& group : topology_.layout.groups) {
      for (std::int64_t i = 0; i < group.count; ++i, ++node) {
        TopologyNode place = {.first_gpu = static_cast<std::int32_t>(topology_.devices.size()),
            .gpus = static_cast<std::int32_t>(group.kind.gpus),
            .group = group_index};
        topology_.nodes.push_back(place);
        for (std::int32_t g = 0; g < place.gpus; ++g) {
          add(DeviceKind::kGpu, node, g);
          topology_.node_of.push_back(node);
        }
      }
      ++group_index;
    }
  }

  void add_node(const NodeGroup& group, std::int32_t node) {
    const NodeKind& kind = group.kind;
    TopologyNode& place = topology_.nodes[at(node)];
    for (std::int32_t i = 0; i < place.gpus; ++i) {
      topology_.link_of.push_back(
          connect(place.first_gpu + i, nvswitch_, part_of(kind.gpu_link, {node, kGpu, i}), part(kind.link_latency, 2)));
    }
    std::vector<std::int32_t> slots;  // per GPU, its wire to the PCIe switch
    std::vector<std::int32_t> switches;
    const std::int64_t switch_count = has_network_ ? kind.pcie_switches : 0;
    for (std::int64_t i = 0; i < switch_count; ++i) switches.push_back(add(DeviceKind::kPcieSwitch, node, i));
    for (std::int64_t i = 0; i < place.gpus && switch_count > 0; ++i) {
      const auto near = at(i * switch_count / place.gpus);
      slots.push_back(connect(
          place.first_gpu + static_cast<std::int32_t>(i), switches[near], kind.host_link, part(kind.nic_latency, 8)));
    }
    place.first_port = static_cast<std::int32_t>(topology_.ports.size());
    place.ports = has_network_ ? static_cast<std::int32_t>(kind.nics) : 0;
    for (std::int32_t i = 0; i < place.ports; ++i) add_port(group, node, i);
    add_access(kind, place, slots, switches);
  }

  void add_port(const NodeGroup& group, std::int32_t node, std::int32_t index) {
    Port port = {.device = add(DeviceKind::kNic, node, index), .on = group.leaves[at(index) % group.leaves.size()]};
    topology_.ports.push_back(port);
  }

  // Ports are evenly near to the GPUs: each GPU has its own, or several share one.
  void add_access(const NodeKind& kind, const TopologyNode& place, const std::vector<std::int32_t>& slots,
      const std::vector<std::int32_t>& switches) {
    std::vector<std::int32_t> behind(at(place.ports), -1);
    const auto count = std::ssize(switches);
    for (std::int32_t p = 0; p < place.ports && count > 0; ++p) {
      const Port& port = topology_.ports[at(place.first_port + p)];
      const auto own = at(p * count / place.ports);
      if (fraction({node_of(place), kNic, p}) > 0)
        behind[at(p)] = connect(switches[own], port.device, port_rate(kind, place, p), part(kind.nic_latency, 8));
    }
    const std::int32_t each = place.ports / std::max(1, place.gpus);
    const std::int32_t sharing = place.ports > 0 ? (place.gpus + place.ports - 1) / place.ports : 1;
    for (std::int32_t g = 0; g < place.gpus; ++g) {
      topology_.access_begin.push_back(static_cast<std::int32_t>(topology_.access.size()));
      if (place.ports == 0) continue;
      const std::int32_t from = each > 0 ? g * each : g / sharing;
      for (std::int32_t p = from; p < from + std::max(1, each); ++p) {
        if (fraction({node_of(place), kNic, p}) <= 0) continue;
        const std::int32_t port_index = place.first_port + p;
        Port& port = topology_.ports[at(port_index)];
        if (port.owner < 0) port.owner = place.first_gpu + g;
        if (count > 0) {
          topology_.access.push_back({port_index, slots[at(g)], behind[at(p)]});
        } else {
          topology_.access.push_back({port_index,
              connect(place.first_gpu + g, port.device, port_rate(kind, place, p), part(kind.nic_latency, 4)), -1});
        }
      }
    }
  }

  void add_switches() {
    const ClusterLayout& layout = topology_.layout;
    topology_.first_switch = static_cast<std::int32_t>(topology_.devices.size());
    for (std::size_t i = 0; i < layout.switches.size(); ++i) add(DeviceKind::kSwitch, -1, static_cast<std::int64_t>(i));
    for (const TopologyNode& place : topology_.nodes) {
      const NodeKind& kind = layout.groups[at(place.group)].kind;
      for (std::int32_t p = 0; p < place.ports; ++p) {
        if (fraction({node_of(place), kNic, p}) <= 0) continue;
        Port& port = topology_.ports[at(place.first_port + p)];
        const Time at_switch = part(layout.switches[at(port.on)].latency, 2);
        port.wire = connect(port.device, topology_.first_switch + port.on, port_rate(kind, place, p),
            part(kind.nic_latency, 4) + at_switch);
      }
    }
    for (const SwitchLink& link : layout.links) {
      const auto half = [&](std::int32_t end) { return part(layout.switches[at(end)].latency, 2); };
      const std::int32_t wire = connect(topology_.first_switch + link.a, topology_.first_switch + link.b,
          BytesPerSecond(link.rate.value() * (1 - link.background)), link.latency + half(link.a) + half(link.b));
      topology_.wires[at(wire)].background = link.background;
    }
  }

  static constexpr auto kGpu = DegradedLink::Part::kGpu;
  static constexpr auto kNic = DegradedLink::Part::kNic;
  struct Place {
    std::int64_t node;
    DegradedLink::Part part;
    std::int64_t index;
    auto operator<=>(const Place&) const = default;
  };

  double fraction(const Place& place) const {
    if (degraded_.empty()) return 1;
    return value_of(degraded_, place, 1);
  }

  BytesPerSecond part_of(BytesPerSecond rate, const Place& place) const {
    return BytesPerSecond(rate.value() * fraction(place));
  }

  BytesPerSecond port_rate(const NodeKind& kind, const TopologyNode& place, std::int32_t index) const {
    return part_of(kind.nic_rate, {node_of(place), kNic, index});
  }

  std::int64_t node_of(const TopologyNode& place) const { return topology_.node_of[at(place.first_gpu)]; }

  Topology topology_;
  std::map<Place, double> degraded_;
  bool has_network_ = false;
  std::int32_t nvswitch_ = 0;  // of the domain that is being added
};

}

Topology build_topology(const Cluster& cluster) { return TopologyBuilder(cluster, layout_of(cluster)).build(); }

std::string node_name(const Topology& topology, std::int64_t node) {
  std::int64_t first = 0;
  for (const NodeGroup& group : topology.layout.groups) {
    if (node < first + group.count)
      return group.names.empty() ? fmt::format("n{}", node) : group.names[at(node - first)];
    first += group.count;
  }
  FORESHARD_CHECK(false, "a node that is not there");
  return {};
}

std::string device_name(const Topology& topology, std::int64_t device) {
  static constexpr const char* kNames[] = {"gpu", "nvswitch", "pcieswitch", "nic"};
  const Device& d = topology.devices[at(device)];
  if (d.kind == DeviceKind::kSwitch) {
    const NetworkSwitch& s = topology.layout.switches[at(d.index)];
    return s.pod < 0 ? s.name : fmt::format("pod{}.leaf{}", s.pod, s.rail);
  }
  return fmt::format("{}.{}{}", node_name(topology, d.node), kNames[at(d.kind)], d.index);
}

std::string wire_name(const Topology& topology, std::int64_t wire) {
  const Wire& w = topology.wires[at(wire)];
  return fmt::format("{} - {}", device_name(topology, w.a), device_name(topology, w.b));
}

}
