// Paths are Dijkstra's over latency (shortest) or over the narrowest wire (widest).
//
// ring_bottleneck walks every ring of every group wire by wire. A group with p ranks in each of
// several nodes runs p channels, each carrying 1/p of the bytes: channel c enters a node at its
// c-th rank, passes the others in order, returns to the c-th rank over the switch and leaves
// through that rank's port (what NCCL does with PXN). A GPU with several ports splits its channel
// among them. The bus bandwidth a wire allows is its rate over the load, in units of one ring's
// full flow.
#include "sim/spec/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/dijkstra_shortest_paths.hpp>
#include <boost/graph/graphviz.hpp>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/unit_strings.h"

namespace foreshard {
namespace {

struct Edge {
  double latency = 0;  // ns, with a little for every hop so that fewer hops win ties
  double rate = 0;
  std::size_t wire = 0;
};
using Graph =
    boost::adjacency_list<boost::vecS, boost::vecS, boost::undirectedS, boost::no_property, Edge>;
using Vertex = boost::graph_traits<Graph>::vertex_descriptor;

Graph graph_of(const Topology& topology) {
  Graph graph(topology.devices.size());
  for (std::size_t i = 0; i < topology.wires.size(); ++i) {
    const Wire& wire = topology.wires[i];
    const Edge edge{static_cast<double>(wire.latency.nanoseconds()) + 1e-3, wire.rate.value(), i};
    boost::add_edge(static_cast<Vertex>(wire.a), static_cast<Vertex>(wire.b), edge, graph);
  }
  return graph;
}

std::vector<Vertex> shortest_tree(const Graph& graph, Vertex from) {
  std::vector<Vertex> parent(boost::num_vertices(graph));
  boost::dijkstra_shortest_paths(
      graph, from,
      boost::predecessor_map(parent.data()).weight_map(boost::get(&Edge::latency, graph)));
  return parent;
}

std::vector<Vertex> widest_tree(const Graph& graph, Vertex from) {
  std::vector<Vertex> parent(boost::num_vertices(graph));
  const auto narrower = [](double a, double b) { return std::min(a, b); };
  boost::dijkstra_shortest_paths(graph, from,
                                 boost::predecessor_map(parent.data())
                                     .weight_map(boost::get(&Edge::rate, graph))
                                     .distance_compare(std::greater<double>())
                                     .distance_combine(narrower)
                                     .distance_inf(0.0)
                                     .distance_zero(std::numeric_limits<double>::infinity()));
  return parent;
}

std::vector<Vertex> walk(const std::vector<Vertex>& parent, Vertex from, Vertex to) {
  std::vector<Vertex> path{to};
  while (path.back() != from) {
    FORESHARD_CHECK(parent[path.back()] != path.back(), "the topology is not connected");
    path.push_back(parent[path.back()]);
  }
  std::reverse(path.begin(), path.end());
  return path;
}

Path describe(const Topology& topology, const Graph& graph, const std::vector<Vertex>& vertices) {
  Path path;
  path.width = BytesPerSecond(std::numeric_limits<double>::infinity());
  for (std::size_t i = 0; i < vertices.size(); ++i) {
    path.devices.push_back(static_cast<std::int64_t>(vertices[i]));
    if (i == 0) continue;
    const auto [edge, found] = boost::edge(vertices[i - 1], vertices[i], graph);
    FORESHARD_CHECK(found, "a path over a wire that is not there");
    const Wire& wire = topology.wires[graph[edge].wire];
    path.width = std::min(path.width, wire.rate);
    path.latency += wire.latency;
  }
  return path;
}

void check_rank(const Topology& topology, std::int64_t rank) {
  if (rank < 0 || rank >= topology.gpus) {
    throw Error(ExitCode::kInvalidInput,
                fmt::format("rank {} is not one of {} GPUs", rank, topology.gpus));
  }
}

// Devices by kind, for the walks of rings.
class Places {
 public:
  explicit Places(const Topology& topology) : topology_(topology) {
    for (std::size_t i = 0; i < topology.devices.size(); ++i) {
      const Device& device = topology.devices[i];
      if (device.kind == DeviceKind::kNic) nics_[{device.node, device.index}] = i;
    }
    for (const Wire& wire : topology.wires) {
      for (const std::int64_t end : {wire.a, wire.b}) {
        const Device& device = topology.devices[static_cast<std::size_t>(end)];
        if (device.kind == DeviceKind::kNic) wired_.insert(static_cast<Vertex>(end));
      }
    }
  }
  // The ports of a rank: several where a node has more ports than GPUs, a shared one where fewer.
  // Where all of them are missing, the node's others, through their GPUs.
  std::vector<Vertex> ports(std::int64_t rank) const {
    std::vector<Vertex> own = own_ports(rank);
    std::erase_if(own, [&](Vertex port) { return wired_.count(port) == 0; });
    if (!own.empty()) return own;
    const std::int64_t node = rank / topology_.gpus_per_node;
    for (std::int64_t i = 0; i < topology_.nics_per_node; ++i) {
      const Vertex port = nics_.at({node, i});
      if (wired_.count(port) != 0) own.push_back(port);
    }
    return own;
  }

 private:
  std::vector<Vertex> own_ports(std::int64_t rank) const {
    const std::int64_t node = rank / topology_.gpus_per_node;
    const std::int64_t local = rank % topology_.gpus_per_node;
    const std::int64_t gpus = topology_.gpus_per_node;
    const std::int64_t nics = topology_.nics_per_node;
    std::vector<Vertex> found;
    if (nics < gpus) {
      const std::int64_t sharing = (gpus + nics - 1) / nics;
      found.push_back(nics_.at({node, local / sharing}));
    } else {
      const std::int64_t each = nics / gpus;
      for (std::int64_t i = 0; i < each; ++i) found.push_back(nics_.at({node, local * each + i}));
    }
    return found;
  }

  const Topology& topology_;
  std::map<std::pair<std::int64_t, std::int64_t>, Vertex> nics_;
  std::set<Vertex> wired_;
};

// Adds the flows of rings to the wires they pass, direction by direction.
class RingLoad {
 public:
  explicit RingLoad(const Topology& topology)
      : topology_(topology),
        graph_(graph_of(topology)),
        places_(topology),
        forward_(topology.wires.size(), 0.0),
        backward_(topology.wires.size(), 0.0) {}

  void add_ring(const std::vector<std::vector<std::int64_t>>& by_node) {
    std::size_t channels = by_node.front().size();
    for (const auto& ranks : by_node) channels = std::min(channels, ranks.size());
    if (by_node.size() == 1) channels = 1;
    for (std::size_t c = 0; c < channels; ++c) add_channel(by_node, c, channels);
  }

  RingBottleneck bottleneck(BytesPerSecond gpu_link) const {
    double link = gpu_link.value();
    double network = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < topology_.wires.size(); ++i) {
      const double load = std::max(forward_[i], backward_[i]);
      if (load <= 0) continue;
      const Wire& wire = topology_.wires[i];
      const bool inside =
          kind(wire.a) == DeviceKind::kNvSwitch || kind(wire.b) == DeviceKind::kNvSwitch;
      double& slowest = inside ? link : network;
      slowest = std::min(slowest, wire.rate.value() / load);
    }
    return {BytesPerSecond(link), BytesPerSecond(network < 1e300 ? network : 0.0)};
  }

 private:
  DeviceKind kind(std::int64_t device) const {
    return topology_.devices[static_cast<std::size_t>(device)].kind;
  }

  void add_channel(const std::vector<std::vector<std::int64_t>>& by_node, std::size_t channel,
                   std::size_t channels) {
    const double flow = 1.0 / static_cast<double>(channels);
    for (std::size_t n = 0; n < by_node.size(); ++n) {
      const auto& ranks = by_node[n];
      for (std::size_t i = 0; i + 1 < ranks.size(); ++i) {
        add_path(static_cast<Vertex>(ranks[(channel + i) % ranks.size()]),
                 static_cast<Vertex>(ranks[(channel + i + 1) % ranks.size()]), flow);
      }
      const std::int64_t exit = ranks[channel];
      add_path(static_cast<Vertex>(ranks[(channel + ranks.size() - 1) % ranks.size()]),
               static_cast<Vertex>(exit), flow);
      if (by_node.size() > 1) add_network(exit, by_node[(n + 1) % by_node.size()][channel], flow);
    }
  }

  void add_network(std::int64_t from, std::int64_t to, double flow) {
    const std::vector<Vertex> out = places_.ports(from);
    const std::vector<Vertex> in = places_.ports(to);
    // As many as the side with more: a node without a port of this rail takes them all in.
    const std::size_t parts = std::max(out.size(), in.size());
    const double part = flow / static_cast<double>(parts);
    for (std::size_t i = 0; i < parts; ++i) {
      const Vertex sender = out[i % out.size()];
      const Vertex receiver = in[i % in.size()];
      add_path(static_cast<Vertex>(from), sender, part);
      add_path(sender, receiver, part);
      add_path(receiver, static_cast<Vertex>(to), part);
    }
  }

  void add_path(Vertex from, Vertex to, double flow) {
    auto found = trees_.find(from);
    if (found == trees_.end()) found = trees_.emplace(from, shortest_tree(graph_, from)).first;
    const std::vector<Vertex> path = walk(found->second, from, to);
    for (std::size_t i = 1; i < path.size(); ++i) {
      const auto [edge, there] = boost::edge(path[i - 1], path[i], graph_);
      FORESHARD_CHECK(there, "a path over a wire that is not there");
      const std::size_t wire = graph_[edge].wire;
      const bool along = static_cast<Vertex>(topology_.wires[wire].a) == path[i - 1];
      (along ? forward_ : backward_)[wire] += flow;
    }
  }

  const Topology& topology_;
  Graph graph_;
  Places places_;
  std::vector<double> forward_;
  std::vector<double> backward_;
  std::map<Vertex, std::vector<Vertex>> trees_;
};

// Adds devices and wires of one cluster.
class Builder {
 public:
  explicit Builder(const Cluster& cluster) : cluster_(cluster) {
    topology_.gpus = cluster.gpus;
    topology_.gpus_per_node = cluster.gpus_per_node();
    topology_.gpus_per_domain =
        std::min(cluster.gpus, cluster.gpus_per_node() * cluster.node.link_domain);
    topology_.nics_per_node = cluster.nodes() > 1 ? cluster.node.nics : 0;
  }

  Topology build() {
    for (std::int64_t rank = 0; rank < cluster_.gpus; ++rank) {
      add(DeviceKind::kGpu, rank / topology_.gpus_per_node, rank % topology_.gpus_per_node);
    }
    for (std::int64_t node = 0; node < cluster_.nodes(); ++node) add_node(node);
    if (cluster_.nodes() > 1) add_network();
    return std::move(topology_);
  }

 private:
  std::int64_t add(DeviceKind kind, std::int64_t node, std::int64_t index) {
    static constexpr const char* kNames[] = {"gpu", "nvswitch", "pcieswitch",
                                             "nic", "leaf",     "spine"};
    const char* name = kNames[static_cast<std::size_t>(kind)];
    const char* group = kind == DeviceKind::kLeaf ? "pod" : "n";
    topology_.devices.push_back(
        {kind, node, index,
         node < 0 ? std::string(name) : fmt::format("{}{}.{}{}", group, node, name, index)});
    return static_cast<std::int64_t>(topology_.devices.size()) - 1;
  }

  void connect(std::int64_t a, std::int64_t b, BytesPerSecond rate, Time latency) {
    topology_.wires.push_back({a, b, rate, latency});
  }

  void add_node(std::int64_t node) {
    const std::int64_t per_node = topology_.gpus_per_node;
    const std::int64_t first = node * per_node;
    const std::int64_t gpus = std::min(per_node, cluster_.gpus - first);
    if (node % cluster_.node.link_domain == 0) nvswitch_ = add(DeviceKind::kNvSwitch, node, 0);
    const Time half = Time::ns(cluster_.node.link_latency.nanoseconds() / 2);
    for (std::int64_t i = 0; i < gpus; ++i) {
      connect(first + i, nvswitch_,
              BytesPerSecond(cluster_.node.gpu_link.value() *
                             fraction(node, DegradedLink::Part::kGpu, i)),
              half);
    }
    std::vector<std::int64_t> switches;
    if (topology_.nics_per_node > 0) {
      for (std::int64_t i = 0; i < cluster_.node.pcie_switches; ++i) {
        switches.push_back(add(DeviceKind::kPcieSwitch, node, i));
      }
    }
    const auto count = static_cast<std::int64_t>(switches.size());
    for (std::int64_t i = 0; i < gpus && count > 0; ++i) {
      connect(first + i, switches[static_cast<std::size_t>(i * count / gpus)],
              cluster_.node.host_link, eighth());
    }
    for (std::int64_t i = 0; i < topology_.nics_per_node; ++i) {
      const std::int64_t nic = add(DeviceKind::kNic, node, i);
      nics_.push_back(nic);
      if (fraction(node, DegradedLink::Part::kNic, i) <= 0) continue;
      if (count > 0) {
        const auto own = static_cast<std::size_t>(i * count / topology_.nics_per_node);
        connect(switches[own], nic, nic_rate(node, i), eighth());
      } else {
        connect_nic(first, gpus, i, nic);
      }
    }
  }

  double fraction(std::int64_t node, DegradedLink::Part part, std::int64_t index) const {
    for (const DegradedLink& link : cluster_.degraded) {
      if (link.node == node && link.part == part && link.index == index) return link.fraction;
    }
    return 1;
  }

  BytesPerSecond nic_rate(std::int64_t node, std::int64_t index) const {
    return BytesPerSecond(cluster_.node.nic_rate.value() *
                          fraction(node, DegradedLink::Part::kNic, index));
  }

  void connect_nic(std::int64_t first, std::int64_t gpus, std::int64_t index, std::int64_t nic) {
    const std::int64_t nics = topology_.nics_per_node;
    const BytesPerSecond rate = nic_rate(first / topology_.gpus_per_node, index);
    if (nics >= gpus) {
      const std::int64_t gpu = index / (nics / gpus);
      if (gpu < gpus) connect(first + gpu, nic, rate, quarter());
      return;
    }
    const std::int64_t sharing = (gpus + nics - 1) / nics;
    for (std::int64_t i = index * sharing; i < std::min(gpus, (index + 1) * sharing); ++i) {
      connect(first + i, nic, rate, quarter());
    }
  }

  void add_network() {
    const std::int64_t per_leaf = std::max<std::int64_t>(1, cluster_.network.nodes_per_leaf);
    const std::int64_t pods = (cluster_.nodes() + per_leaf - 1) / per_leaf;
    const std::int64_t nics = topology_.nics_per_node;
    const std::int64_t spine = add(DeviceKind::kSpine, -1, 0);
    const BytesPerSecond uplink(cluster_.node.nic_rate.value() * static_cast<double>(per_leaf) /
                                std::max(1.0, cluster_.network.oversubscription));
    for (std::int64_t pod = 0; pod < pods; ++pod) {
      for (std::int64_t rail = 0; rail < nics; ++rail) {
        const std::int64_t leaf = add(DeviceKind::kLeaf, pod, rail);
        connect(leaf, spine, uplink, quarter());
        const std::int64_t last = std::min(cluster_.nodes(), (pod + 1) * per_leaf);
        for (std::int64_t node = pod * per_leaf; node < last; ++node) {
          if (fraction(node, DegradedLink::Part::kNic, rail) <= 0) continue;
          connect(nics_[static_cast<std::size_t>(node * nics + rail)], leaf, nic_rate(node, rail),
                  quarter());
        }
      }
    }
  }

  // A path over one leaf has four wires.
  Time quarter() const { return Time::ns(cluster_.node.nic_latency.nanoseconds() / 4); }

  // With a PCIe switch there are two wires between GPU and port.
  Time eighth() const { return Time::ns(cluster_.node.nic_latency.nanoseconds() / 8); }

  const Cluster& cluster_;
  Topology topology_;
  std::vector<std::int64_t> nics_;
  std::int64_t nvswitch_ = 0;  // of the domain that is being added
};

}  // namespace

Topology build_topology(const Cluster& cluster) {
  if (cluster.nodes() > 1 && cluster.node.nics < 1) {
    throw Error(ExitCode::kInvalidInput,
                fmt::format("{} nodes without a network port", cluster.nodes()));
  }
  return Builder(cluster).build();
}

Path shortest_path(const Topology& topology, std::int64_t from_rank, std::int64_t to_rank) {
  check_rank(topology, from_rank);
  check_rank(topology, to_rank);
  const Graph graph = graph_of(topology);
  const auto from = static_cast<Vertex>(from_rank);
  return describe(topology, graph,
                  walk(shortest_tree(graph, from), from, static_cast<Vertex>(to_rank)));
}

Path widest_path(const Topology& topology, std::int64_t from_rank, std::int64_t to_rank) {
  check_rank(topology, from_rank);
  check_rank(topology, to_rank);
  const Graph graph = graph_of(topology);
  const auto from = static_cast<Vertex>(from_rank);
  return describe(topology, graph,
                  walk(widest_tree(graph, from), from, static_cast<Vertex>(to_rank)));
}

RingBottleneck ring_bottleneck(const Topology& topology, const GroupShape& group) {
  const std::int64_t block = group.size * group.stride;
  if (group.size < 1 || group.stride < 1 || block > topology.gpus) {
    throw Error(ExitCode::kInvalidInput,
                fmt::format("a group of {} ranks, {} apart, does not fit {} GPUs", group.size,
                            group.stride, topology.gpus));
  }
  RingLoad load(topology);
  for (std::int64_t start = 0; start + block <= topology.gpus; start += block) {
    for (std::int64_t offset = 0; offset < group.stride; ++offset) {
      std::vector<std::vector<std::int64_t>> by_node;
      std::int64_t node = -1;
      for (std::int64_t i = 0; i < group.size; ++i) {
        const std::int64_t rank = start + offset + i * group.stride;
        if (rank / topology.gpus_per_domain != node) by_node.emplace_back();
        node = rank / topology.gpus_per_domain;
        by_node.back().push_back(rank);
      }
      load.add_ring(by_node);
    }
  }
  return load.bottleneck(topology.wires.front().rate);
}

std::string to_dot(const Topology& topology) {
  const Graph graph = graph_of(topology);
  const auto name_vertex = [&](std::ostream& out, Vertex v) {
    const Device& device = topology.devices[v];
    const char* shape = device.kind == DeviceKind::kGpu   ? "box"
                        : device.kind == DeviceKind::kNic ? "ellipse"
                                                          : "hexagon";
    out << fmt::format("[label=\"{}\" shape={}]", device.name, shape);
  };
  const auto name_edge = [&](std::ostream& out, const auto& edge) {
    const Wire& wire = topology.wires[graph[edge].wire];
    out << fmt::format("[label=\"{}, {}\"]", format_bandwidth(wire.rate),
                       format_time(wire.latency));
  };
  std::ostringstream out;
  boost::write_graphviz(out, graph, name_vertex, name_edge);
  return out.str();
}

}  // namespace foreshard
