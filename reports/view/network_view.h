// What the cluster's graph gives the communicators of a plan, and which wire binds each.
#pragma once

#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/graph/event_graph.h"
#include "sim/spec/cluster.h"

namespace foreshard {

// Communicators that a cluster is looked at with before there is a plan: all ranks, the ranks of a
// node, and one rank of every node.
std::vector<Communicator> usual_communicators(const Cluster& cluster);

// {communicators: [{name, size, stride, placement, nodes, ranks_per_node, link_bytes_per_s,
// network_bytes_per_s, tree_bytes_per_s, hop_s, narrowest: {from, to, bytes_per_s, used}}],
//  nodes: [{name, gpus, machine, ports, leaves}],
//  links: [{from, to, bytes_per_s, latency_s, background, used}]}: the links between switches and
// the ports that bind, `used` by the busiest communicator, by falling share.
Json network_json(const Cluster& cluster, const std::vector<Communicator>& communicators);

// A line for every communicator: its bandwidths and its narrowest wire.
std::vector<std::string> network_lines(const Cluster& cluster,
                                       const std::vector<Communicator>& communicators);

// The graph for Graphviz, its wires coloured by the load of the first communicator.
std::string network_dot(const Cluster& cluster, const std::vector<Communicator>& communicators);

}  // namespace foreshard
