// A subset of nodes cuts groups into runs of neighbours, so that a group of thousands stays one.
#include "sim/spec/network/cluster_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "sim/base/error.h"
#include "sim/spec/network/routes.h"

namespace foreshard {
namespace {

// The nodes in this order, with the names they have.
std::vector<NodeGroup> seated(const std::vector<NodeGroup>& from, std::span<const std::int64_t> nodes) {
  std::vector<std::int64_t> first;  // node of every group
  std::int64_t all = 0;
  for (const NodeGroup& group : from) {
    first.push_back(all);
    all += group.count;
  }
  std::vector<NodeGroup> groups;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::int64_t node = nodes[i];
    FORESHARD_CHECK(node >= 0 && node < all, "a node that is not there");
    const auto g = at(std::ranges::upper_bound(first, node) - first.begin() - 1);
    const NodeGroup& group = from[g];
    const std::int64_t in_group = node - first[g];
    const bool follows = i > 0 && node == nodes[i - 1] + 1 && in_group > 0;
    if (!follows) {
      groups.push_back(
          {0, {}, group.gpu, group.kind, group.leaves, (group.first_in_domain + in_group) % group.kind.link_domain});
    }
    NodeGroup& run = groups.back();
    ++run.count;
    run.names.push_back(group.names.empty() ? fmt::format("n{}", node) : group.names[at(in_group)]);
  }
  return groups;
}

}

Cluster with_nodes(Cluster cluster, const std::function<void(NodeKind&)>& change) {
  change(cluster.node);
  if (cluster.layout) {
    ClusterLayout layout = *cluster.layout;
    for (NodeGroup& group : layout.groups) change(group.kind);
    cluster.layout = std::make_shared<const ClusterLayout>(std::move(layout));
  }
  return with_routes(std::move(cluster));
}

Cluster with_links(Cluster cluster, const std::function<void(SwitchLink&)>& change) {
  ClusterLayout layout = layout_of(cluster);
  for (SwitchLink& link : layout.links) change(link);
  cluster.node_count = cluster.nodes();
  cluster.layout = std::make_shared<const ClusterLayout>(std::move(layout));
  return with_routes(std::move(cluster));
}

Cluster on_nodes(Cluster cluster, std::span<const std::int64_t> nodes) {
  FORESHARD_CHECK(!nodes.empty(), "a cluster of no nodes");
  ClusterLayout layout = layout_of(cluster);
  layout.groups = seated(layout.groups, nodes);

  std::map<std::int64_t, std::int64_t> seats;  // by the node as it was counted
  for (std::size_t i = 0; i < nodes.size(); ++i) seats[nodes[i]] = static_cast<std::int64_t>(i);
  std::erase_if(cluster.degraded, [&](const DegradedLink& link) { return !seats.contains(link.node); });
  for (DegradedLink& link : cluster.degraded) link.node = seats.at(link.node);

  const NodeGroup* slowest = &layout.groups.front();
  Bytes least = slowest->gpu.memory;
  cluster.gpus = 0;
  for (const NodeGroup& group : layout.groups) {
    if (group.gpu.peak_bf16 < slowest->gpu.peak_bf16) slowest = &group;
    least = std::min(least, group.gpu.memory);
    cluster.gpus += group.count * group.kind.gpus;
  }
  cluster.gpu = slowest->gpu;
  cluster.gpu.memory = least;
  cluster.node = slowest->kind;
  cluster.node_count = std::ssize(nodes);
  cluster.layout = std::make_shared<const ClusterLayout>(std::move(layout));
  return with_routes(std::move(cluster));
}

ClusterLayout layout_of(const Cluster& cluster) {
  if (cluster.layout) return *cluster.layout;
  ClusterLayout layout;
  NodeKind kind = cluster.node;
  kind.gpus = cluster.gpus_per_node();
  const std::int64_t nodes = cluster.nodes();
  if (nodes == 1) {
    layout.groups.push_back({1, {}, cluster.gpu, kind, {}, 0});
    return layout;
  }
  if (kind.nics < 1) throw invalid_input("{} nodes without a network port", nodes);
  const std::int64_t per_leaf = std::max<std::int64_t>(1, cluster.network.nodes_per_leaf);
  const auto pods = static_cast<std::int32_t>((nodes + per_leaf - 1) / per_leaf);
  const auto rails = static_cast<std::int32_t>(kind.nics);
  const BytesPerSecond uplink(
      kind.nic_rate.value() * as_double(per_leaf) / std::max(1.0, cluster.network.oversubscription));
  layout.switches.push_back({"spine", -1, 0, Time()});
  for (std::int32_t pod = 0; pod < pods; ++pod) {
    const std::int64_t first = pod * per_leaf;
    NodeGroup group{std::min(per_leaf, nodes - first), {}, cluster.gpu, kind, {}, first % kind.link_domain};
    for (std::int32_t rail = 0; rail < rails; ++rail) {
      const auto leaf = static_cast<std::int32_t>(layout.switches.size());
      layout.switches.push_back({"", pod, rail, Time()});
      layout.links.push_back({leaf, 0, uplink, Time(), 0});
      group.leaves.push_back(leaf);
    }
    layout.groups.push_back(std::move(group));
  }
  return layout;
}

}
