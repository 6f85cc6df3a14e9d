#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reports/view/views.h"
#include "sim/base/unit_strings.h"
#include "sim/spec/network/routes.h"
#include "sim/spec/network/topology.h"

namespace foreshard {
namespace {

// Of a cluster without routes of its own: for the drawing, not for the forecast.
std::shared_ptr<const Routes> routes_of(const Cluster& cluster) {
  return cluster.routes ? cluster.routes : std::make_shared<const Routes>(cluster);
}

double share(const AxisRoute& axis, std::size_t wire) {
  return static_cast<double>(std::max(axis.used[2 * wire], axis.used[2 * wire + 1]));
}

// The wire that sets the pace of the slowest group.
std::int32_t narrowest_of(const AxisRoute& axis) {
  const GroupRoute& group = axis.groups[axis.slowest_group];
  const bool by_network = group.nodes > 1 && group.network < group.link;
  return by_network ? group.narrowest_network.wire : group.narrowest_link.wire;
}

Json wire_json(const Topology& topology, std::int32_t index, double used) {
  const Wire& wire = topology.wires[at(index)];
  return {{"from", device_name(topology, wire.a)}, {"to", device_name(topology, wire.b)},
      {"bytes_per_s", wire.rate.value()}, {"latency_s", wire.latency.seconds()}, {"background", wire.background},
      {"used", used}};
}

Json communicator_json(const Topology& topology, const Communicator& communicator, const AxisRoute& axis) {
  const GroupLink& link = axis.slowest;
  const std::int32_t narrowest = narrowest_of(axis);
  return {{"name", communicator.name}, {"size", communicator.group.size}, {"stride", communicator.group.stride},
      {"placement", to_string(communicator.group.placement)}, {"nodes", link.nodes},
      {"ranks_per_node", link.ranks_per_node}, {"link_bytes_per_s", link.link.value()},
      {"network_bytes_per_s", link.network.value()}, {"tree_bytes_per_s", link.tree.value()},
      {"hop_s", link.nodes > 1 ? link.network_latency.seconds() : link.link_latency.seconds()},
      {"narrowest", narrowest < 0 ? Json(nullptr) : wire_json(topology, narrowest, share(axis, at(narrowest)))}};
}

Json nodes_json(const Topology& topology) {
  Json nodes = Json::array();
  for (std::size_t n = 0; n < topology.nodes.size(); ++n) {
    const TopologyNode& node = topology.nodes[n];
    const NodeGroup& group = topology.layout.groups[at(node.group)];
    Json leaves = json_list(group.leaves,
        [&](const std::int32_t leaf) -> Json { return device_name(topology, topology.first_switch + leaf); });
    nodes.push_back({{"name", node_name(topology, static_cast<std::int64_t>(n))}, {"gpus", node.gpus},
        {"gpu", group.gpu.key}, {"ports", node.ports}, {"leaves", std::move(leaves)}});
  }
  return nodes;
}

}

std::vector<Communicator> usual_communicators(const Cluster& cluster) {
  std::vector<Communicator> list = {{"all ranks", {cluster.gpus, 1}, false}};
  const std::int64_t node = cluster.gpus_per_node();
  if (node > 1 && cluster.nodes() > 1 && cluster.gpus % node == 0) {
    list.push_back({"ranks of a node", {node, 1}, false});
    list.push_back({"one rank of every node", {cluster.gpus / node, node}, false});
  }
  return list;
}

Json network_json(const Cluster& cluster, const std::vector<Communicator>& communicators) {
  constexpr std::size_t kMostLinks = 200;
  const std::shared_ptr<const Routes> routes = routes_of(cluster);
  const Topology& topology = routes->topology();
  Json list = Json::array();
  std::vector<double> used(topology.wires.size(), 0);
  std::vector<char> binds(topology.wires.size(), 0);
  for (const Communicator& communicator : communicators) {
    if (communicator.group.size < 2) continue;
    const AxisRoute& axis = routes->axis(communicator.group);
    list.push_back(communicator_json(topology, communicator, axis));
    for (std::size_t w = 0; w < used.size(); ++w) used[w] = std::max(used[w], share(axis, w));
    if (const std::int32_t n = narrowest_of(axis); n >= 0) binds[at(n)] = 1;
  }
  std::vector<std::int32_t> shown;
  for (std::size_t w = 0; w < used.size(); ++w) {
    const bool is_between = topology.wires[w].a >= topology.first_switch;
    if (is_between || binds[w] != 0) shown.push_back(static_cast<std::int32_t>(w));
  }
  std::ranges::stable_sort(shown, [&](std::int32_t a, std::int32_t b) { return used[at(a)] > used[at(b)]; });
  if (shown.size() > kMostLinks) shown.resize(kMostLinks);
  Json links = json_list(shown, [&](const std::int32_t w) -> Json { return wire_json(topology, w, used[at(w)]); });
  return {{"communicators", std::move(list)}, {"nodes", nodes_json(topology)}, {"links", std::move(links)}};
}

std::vector<std::string> network_lines(const Cluster& cluster, const std::vector<Communicator>& communicators) {
  const std::shared_ptr<const Routes> routes = routes_of(cluster);
  const Topology& topology = routes->topology();
  std::vector<std::string> lines;
  for (const Communicator& communicator : communicators) {
    if (communicator.group.size < 2) continue;
    const AxisRoute& axis = routes->axis(communicator.group);
    const GroupLink& link = axis.slowest;
    std::string text = fmt::format("{}: {} ranks, {} apart, {} nodes; {} inside", communicator.name,
        communicator.group.size, communicator.group.stride, link.nodes, format_bandwidth(link.link));
    if (link.nodes > 1) text += fmt::format(", {} between", format_bandwidth(link.network));
    if (const std::int32_t narrowest = narrowest_of(axis); narrowest >= 0) {
      const Wire& wire = topology.wires[at(narrowest)];
      text += fmt::format("; narrowest: {} ({})", wire_name(topology, narrowest), format_bandwidth(wire.rate));
    }
    lines.push_back(std::move(text));
  }
  return lines;
}

std::string network_dot(const Cluster& cluster, const std::vector<Communicator>& communicators) {
  const std::shared_ptr<const Routes> routes = routes_of(cluster);
  if (communicators.empty() || communicators.front().group.size < 2) return to_dot(routes->topology());
  return to_dot(routes->topology(), routes->axis(communicators.front().group).used);
}

}
