// Which GPU a rank sits on, and which ranks are the groups of an axis.

#include <algorithm>
#include <numeric>

#include "sim/base/error.h"
#include "sim/base/integers.h"
#include "sim/spec/network/routes.h"

namespace foreshard {
namespace {

// A place for every switch, by the first node that hangs on it.
std::vector<std::int32_t> leaves_as_listed(const Topology& topology) {
  std::vector<std::int32_t> order(topology.layout.switches.size(), -1);
  std::int32_t next = 0;
  for (const TopologyNode& node : topology.nodes) {
    if (node.ports == 0) continue;
    std::int32_t& place = order[at(topology.ports[at(node.first_port)].on)];
    if (place < 0) place = next++;
  }
  return order;
}

// A place for every switch: depth first from the ones farthest from ports, so that what hangs below
// one switch stays together.
std::vector<std::int32_t> switches_below_each_other(const Topology& topology) {
  const ClusterLayout& layout = topology.layout;
  std::vector<std::vector<std::int32_t>> next(layout.switches.size());
  for (const SwitchLink& link : layout.links) {
    next[at(link.a)].push_back(link.b);
    next[at(link.b)].push_back(link.a);
  }
  std::vector<std::int32_t> has_ports(layout.switches.size(), 0);
  for (const Port& port : topology.ports) has_ports[at(port.on)] = 1;
  // How far a switch is from the nearest with ports: the top of the tree is the farthest.
  std::vector<std::int32_t> height(layout.switches.size(), -1);
  std::vector<std::int32_t> queue;
  for (std::int32_t s = 0; at(s) < height.size(); ++s) {
    if (has_ports[at(s)] == 0) continue;
    height[at(s)] = 0;
    queue.push_back(s);
  }
  for (std::size_t head = 0; head < queue.size(); ++head) {
    for (const std::int32_t n : next[at(queue[head])]) {
      if (height[at(n)] >= 0) continue;
      height[at(n)] = height[at(queue[head])] + 1;
      queue.push_back(n);
    }
  }
  std::vector<std::int32_t> order(layout.switches.size(), -1);
  std::int32_t place = 0;
  for (auto top = queue.rbegin(); top != queue.rend(); ++top) {
    std::vector<std::int32_t> stack{*top};
    while (!stack.empty()) {
      const std::int32_t here = stack.back();
      stack.pop_back();
      if (order[at(here)] >= 0) continue;
      order[at(here)] = place++;
      for (auto n = next[at(here)].rbegin(); n != next[at(here)].rend(); ++n)
        if (order[at(*n)] < 0 && height[at(*n)] < height[at(here)]) stack.push_back(*n);
    }
  }
  return order;
}

}

RankGroups tiled_groups(const GroupShape& shape, std::int64_t gpus) {
  if (shape.size < 1 || shape.stride < 1 || shape.size > gpus / shape.stride)
    throw invalid_input("a group of {} ranks, {} apart, does not fit {} GPUs", shape.size, shape.stride, gpus);
  RankGroups groups;
  groups.begin.push_back(0);
  const std::int64_t block = shape.size * shape.stride;
  for (std::int64_t start = 0; start + block <= gpus; start += block) {
    for (std::int64_t offset = 0; offset < shape.stride; ++offset) {
      for (std::int64_t i = 0; i < shape.size; ++i)
        groups.ranks.push_back(static_cast<std::int32_t>(start + offset + i * shape.stride));
      groups.begin.push_back(static_cast<std::int32_t>(groups.ranks.size()));
    }
  }
  return groups;
}

std::vector<std::int32_t> placed(const Topology& topology, RankPlacement placement) {
  std::vector<std::int32_t> nodes(topology.nodes.size());
  std::iota(nodes.begin(), nodes.end(), 0);
  if (placement == RankPlacement::kByLeaf || placement == RankPlacement::kByPod) {
    const std::vector<std::int32_t> order =
        placement == RankPlacement::kByLeaf ? leaves_as_listed(topology) : switches_below_each_other(topology);
    const auto place = [&](std::int32_t node) {
      const TopologyNode& n = topology.nodes[at(node)];
      return n.ports == 0 ? -1 : order[at(topology.ports[at(n.first_port)].on)];
    };
    std::ranges::stable_sort(nodes, [&](std::int32_t a, std::int32_t b) { return place(a) < place(b); });
  }
  std::vector<std::int32_t> gpus;
  gpus.reserve(at(topology.gpus));
  if (placement == RankPlacement::kByRail) {
    for (std::int32_t local = 0; gpus.size() < at(topology.gpus); ++local) {
      for (const TopologyNode& node : topology.nodes)
        if (local < node.gpus) gpus.push_back(node.first_gpu + local);
    }
    return gpus;
  }
  for (const std::int32_t node : nodes) {
    const TopologyNode& n = topology.nodes[at(node)];
    for (std::int32_t g = 0; g < n.gpus; ++g) gpus.push_back(n.first_gpu + g);
  }
  return gpus;
}

}
