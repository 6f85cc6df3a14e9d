// The closed form: what the ring of one group gets while all groups of its
// shape run.
//
// A ring over several nodes uses as many channels as it has ranks in a node;
// channel c enters and leaves every node through the ports of its c-th rank
// there (NCCL's rails). So of every node it gets the ports of as many GPUs as
// it has ranks in the node, whatever the other groups do, and each GPU's link
// carries each byte once. Only up-links of leaf switches can be narrower than
// that: they are loaded by the hops that leave their leaf, which are counted
// node by node.
#include "sim/spec/cluster.h"

#include <algorithm>
#include <limits>

#include "sim/base/error.h"
#include "sim/spec/network/fair_shares.h"
#include "sim/spec/network/routes.h"

namespace foreshard {
namespace {

// One direction, of one GPU, with the ports of its node evenly handed out.
double port_rate_of_gpu(const NodeKind& node) {
  if (node.nics == 0) return 0;
  const double rate = node.nic_rate.value();
  if (node.nics >= node.gpus) return rate * as_double(node.nics / node.gpus);
  const std::int64_t sharing = (node.gpus + node.nics - 1) / node.nics;
  return rate / as_double(sharing);
}

// Behind PCIe switches no GPU reaches more than its slot.
double slot_rate(const NodeKind& node) { return node.pcie_switches > 0 ? node.host_link.value() : kUnbound; }

// Nodes that one NVLink switch joins count as one.
std::int64_t domain_gpus(const Cluster& cluster) {
  return std::min(cluster.gpus, cluster.gpus_per_node() * cluster.node.link_domain);
}

std::int64_t domains(const Cluster& cluster) {
  return (cluster.nodes() + cluster.node.link_domain - 1) / cluster.node.link_domain;
}

std::int64_t domains_per_leaf(const Cluster& cluster) {
  const std::int64_t nodes = cluster.network.nodes_per_leaf;
  return nodes <= 0 ? 0 : std::max<std::int64_t>(1, nodes / cluster.node.link_domain);
}

// How a regular group lies on the nodes: every `stride`-th node of a block,
// `count` of them.
struct NodeRing {
  std::int64_t count = 1;
  std::int64_t stride = 1;
};

// What leaf up-links carry over the ports' rate; no end of it where they are as
// wide as ports or no hop leaves its leaf.
double uplink_factor(const Cluster& cluster, const NodeRing& ring) {
  const std::int64_t nodes = domains(cluster);
  const std::int64_t leaf = domains_per_leaf(cluster);
  if (cluster.network.oversubscription <= 1 || leaf <= 0 || nodes <= leaf) return kUnbound;
  const std::int64_t block = ring.count * ring.stride;
  const std::int64_t used = nodes / block * block;
  std::vector<std::int64_t> leaving(at((nodes + leaf - 1) / leaf), 0);
  std::vector<std::int64_t> entering(leaving.size(), 0);
  for (std::int64_t node = 0; node < used; ++node) {
    const bool last = node % block / ring.stride + 1 == ring.count;
    const std::int64_t next = last ? node - (ring.count - 1) * ring.stride : node + ring.stride;
    if (node / leaf == next / leaf) continue;
    ++leaving[at(node / leaf)];
    ++entering[at(next / leaf)];
  }
  const std::int64_t most = std::max(*std::ranges::max_element(leaving), *std::ranges::max_element(entering));
  if (most == 0) return kUnbound;
  return as_double(leaf) / cluster.network.oversubscription / as_double(most);
}

// The worst of all groups that do not lie evenly on the nodes.
struct Spread {
  std::int64_t nodes = 1;
  std::int64_t fewest = std::numeric_limits<std::int64_t>::max();  // ranks in one of its nodes
  bool leaves = false;                                             // some hop leaves its leaf
};

void add_group(const Cluster& cluster, const GroupShape& group, std::int64_t first, Spread& worst) {
  const std::int64_t per_node = domain_gpus(cluster);
  std::int64_t nodes = 0;
  std::int64_t fewest = group.size;
  std::int64_t in_node = 0;
  std::int64_t node = -1;
  for (std::int64_t i = 0; i < group.size; ++i) {
    const std::int64_t here = (first + i * group.stride) / per_node;
    if (here != node) {
      if (node >= 0) fewest = std::min(fewest, in_node);
      node = here;
      ++nodes;
      in_node = 0;
    }
    ++in_node;
  }
  fewest = std::min(fewest, in_node);
  worst.nodes = std::max(worst.nodes, nodes);
  if (nodes == 1) return;
  worst.fewest = std::min(worst.fewest, fewest);
  const std::int64_t leaf = std::max<std::int64_t>(domains_per_leaf(cluster), 1);
  worst.leaves = worst.leaves || first / per_node / leaf != node / leaf;
}

Spread spread_of(const Cluster& cluster, const GroupShape& group) {
  Spread worst;
  const std::int64_t block = group.size * group.stride;
  for (std::int64_t start = 0; start + block <= cluster.gpus; start += block)
    for (std::int64_t offset = 0; offset < group.stride; ++offset) add_group(cluster, group, start + offset, worst);
  return worst;
}

bool is_regular(const GroupShape& group, std::int64_t per_node) {
  if (group.stride % per_node == 0) return true;
  const std::int64_t block = group.size * group.stride;
  return per_node % group.stride == 0 && (block % per_node == 0 || per_node % block == 0);
}

}

GroupLink regular_group_link(const Cluster& cluster, const GroupShape& group) {
  if (group.size < 1 || group.stride < 1 || group.size > cluster.gpus / group.stride)
    throw invalid_input("a group of {} ranks, {} apart, does not fit {} GPUs", group.size, group.stride, cluster.gpus);
  GroupLink result = {.size = group.size, .link = cluster.node.gpu_link, .link_latency = cluster.node.link_latency};
  const std::int64_t per_node = domain_gpus(cluster);
  double factor = kUnbound;
  if (is_regular(group, per_node)) {
    result.ranks_per_node = std::min(group.size, std::max<std::int64_t>(1, per_node / group.stride));
    result.nodes = group.size / result.ranks_per_node;
    const std::int64_t apart = std::max<std::int64_t>(1, group.stride / per_node);
    if (result.nodes > 1) factor = uplink_factor(cluster, {result.nodes, apart});
  } else {
    const Spread worst = spread_of(cluster, group);
    result.nodes = worst.nodes;
    result.ranks_per_node = worst.nodes == 1 ? group.size : worst.fewest;
    if (worst.leaves) factor = 1 / std::max(1.0, cluster.network.oversubscription);
  }
  if (result.nodes == 1) return result;
  const double rate = port_rate_of_gpu(cluster.node);
  if (rate <= 0)
    throw invalid_input("a group of {} ranks spans {} nodes, which have no network port", group.size, result.nodes);
  const auto of_the_node = [&](double of_a_gpu) { return BytesPerSecond(of_a_gpu * as_double(result.ranks_per_node)); };
  result.ports = of_the_node(std::min(rate, slot_rate(cluster.node)));
  result.network = result.ports;
  if (factor < kUnbound) {  // up-links are as wide as ports, whatever the slots
    result.uplinks = of_the_node(rate * factor);
    result.network = std::min(result.ports, result.uplinks);
  }
  result.tree = result.network;
  result.network_latency = cluster.node.nic_latency;
  return result;
}

GroupLink group_link(const Cluster& cluster, const GroupShape& group) {
  if (cluster.routes) return cluster.routes->axis(group).slowest;
  FORESHARD_CHECK(!cluster.layout && cluster.degraded.empty(), "a graph without routes");
  return regular_group_link(cluster, group);
}

}
