// Node groups are read first, each with the figures of its kind; then switches and links by name; then the ranks'
// order, which cuts groups into runs of neighbours. Everything that the graph needs (both ends of every link, a way
// between any two nodes) is asked here, where a place in the file can be named.
#include "calibration/clusters/cluster_nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "calibration/clusters/host_list.h"
#include "sim/base/error.h"
#include "sim/base/spelling.h"
#include "sim/memory/capacity.h"
#include "sim/spec/network/cluster_layout.h"

namespace foreshard {
namespace {

constexpr std::int64_t kMostGpus = 1 << 18;     // a graph has a kilobyte a GPU
constexpr std::int64_t kMostSwitches = 20'000;  // paths between them are kept
// Some hundred cables of the fastest port (calibration/machine_figures.cpp), and a sane slowest.
constexpr double kLeastLink = 1e5;
constexpr double kMostLink = 1e15;
constexpr double kMostLatency = 0.1;  // s

struct NamedLink {
  std::string name;
  ConfigNode where;
};

class LayoutReader {
 public:
  LayoutReader(const ConfigNode& root, const KindReader& read_kind, Cluster& cluster)
      : root_(root), read_kind_(read_kind), cluster_(cluster) {}

  void read() {
    if (const ConfigNode* switches = root_.find("switches")) read_switches(*switches);
    read_nodes(root_.at("nodes"));
    if (const ConfigNode* links = root_.find("links")) read_links(*links);
    if (layout_.switches.empty()) add_rails();
    if (const ConfigNode* background = root_.find("background")) read_background(*background);
    if (const ConfigNode* rings = root_.find("rings")) read_rings(*rings);
    for (const auto& [place, fraction] : degraded_) {
      const auto& [node, part, index] = place;
      cluster_.degraded.push_back({node, part, index, fraction});
    }
    const std::vector<std::int64_t> nodes = nodes_of_ranks();
    cluster_.layout = std::make_shared<const ClusterLayout>(std::move(layout_));
    cluster_ = on_nodes(std::move(cluster_), nodes);
    check_ways(*cluster_.layout);
    check_count();
  }

 private:
  // --- nodes ---

  void read_nodes(const ConfigNode& nodes) {
    for (const ConfigNode& element : nodes.elements()) read_group(element);
    if (layout_.groups.empty()) throw nodes.error("lists no nodes", "- {count: 8, leaf: leaf1}");
  }

  void read_group(const ConfigNode& element) {
    if (!element.is_mapping()) throw element.error("is no group of nodes", "{count: 8, leaf: leaf1}");
    element.allow_only({"names", "count", "machine", "gpu", "node", "leaf", "degraded"});
    NodeGroup group;
    const ConfigNode* names = element.find("names");
    const ConfigNode* count = element.find("count");
    if (names == nullptr && count == nullptr)
      throw element.error("says neither count: nor names:", "count: 8 or names: \"n[1-8]\"");
    if (names != nullptr) {
      group.names = host_names(*names);
      group.count = std::ssize(group.names);
    }
    if (count != nullptr) {
      const std::int64_t said = count->as_int(1, kMostGpus);
      if (names != nullptr && said != group.count)
        throw count->error(fmt::format("says {}, names: has {}", said, group.count), "one of the two");
      group.count = said;
    }
    const Cluster kind = read_kind_(element);
    group.gpu = kind.gpu;
    group.kind = kind.node;
    const std::int64_t first = layout_.nodes();
    gpus_ += group.count * group.kind.gpus;
    if (gpus_ > kMostGpus)
      throw element.error(fmt::format("{} GPUs in all", gpus_), fmt::format("at most {}", kMostGpus));
    if (names == nullptr)
      for (std::int64_t i = 0; i < group.count; ++i) group.names.push_back(fmt::format("n{}", first + i));
    for (std::size_t i = 0; i < group.names.size(); ++i) {
      const auto [known, is_new] = node_of_.emplace(group.names[i], first + static_cast<std::int64_t>(i));
      if (!is_new) throw element.error(fmt::format("node {} is there twice", group.names[i]), "each node once");
    }
    if (const ConfigNode* leaf = element.find("leaf")) read_leaves(*leaf, group);
    if (const ConfigNode* degraded = element.find("degraded")) read_degraded(*degraded, group, first);
    elements_.emplace(first, element);
    layout_.groups.push_back(std::move(group));
  }

  static std::vector<std::string> host_names(const ConfigNode& names) {
    std::vector<std::string> all;
    const auto add = [&](const ConfigNode& node) {
      try {
        for (std::string& name : expand_host_list(node.as_string())) all.push_back(std::move(name));
      } catch (const std::invalid_argument& why) {
        throw node.error(why.what(), "names such as \"n[1-16]\"");
      }
    };
    if (names.is_sequence())
      for (const ConfigNode& element : names.elements()) add(element);
    else add(names);
    if (all.empty()) throw names.error("names no node", "names such as \"n[1-16]\"");
    if (all.size() > kMostHosts) throw names.error("names too many nodes", fmt::format("at most {}", kMostHosts));
    return all;
  }

  void read_leaves(const ConfigNode& leaf, NodeGroup& group) {
    const auto add = [&](const ConfigNode& name) { group.leaves.push_back(switch_named(name, name.as_string())); };
    if (leaf.is_sequence()) {
      for (const ConfigNode& name : leaf.elements()) add(name);
      if (group.leaves.empty()) throw leaf.error("names no switch", "leaf: leaf1");
    } else {
      add(leaf);
    }
    if (group.kind.nics < 1) throw leaf.error("is the leaf of nodes without a network port", "node: {nics: 8, ...}");
  }

  // Of every node of the group, or of the one that `node` counts within it.
  void read_degraded(const ConfigNode& list, const NodeGroup& group, std::int64_t first) {
    for (const ConfigNode& element : list.elements()) {
      DegradedLink link = read_degraded_link(element, group.kind);
      std::int64_t begin = 0;
      std::int64_t end = group.count;
      if (const ConfigNode* node = element.find("node")) {
        begin = node->as_int(0, group.count - 1);
        end = begin + 1;
      }
      for (std::int64_t i = begin; i < end; ++i) {
        link.node = first + i;
        add_degraded(element, link, group.kind.nics);
      }
    }
  }

  void add_degraded(const ConfigNode& element, const DegradedLink& link, std::int64_t ports) {
    if (!degraded_.emplace(std::tuple(link.node, link.part, link.index), link.fraction).second)
      throw element.error("is there twice", "each link once");
    if (link.part == DegradedLink::Part::kNic && link.fraction <= 0 && ++missing_[link.node] >= ports)
      throw element.error("leaves its node without a port", "at least one port of every node");
  }

  // --- switches and links ---

  void read_switches(const ConfigNode& list) {
    for (const ConfigNode& element : list.elements()) {
      NetworkSwitch made;
      ConfigNode name = element;
      if (element.is_mapping()) {
        element.allow_only({"name", "latency"});
        name = element.at("name", "a switch's name");
        if (const ConfigNode* latency = element.find("latency")) made.latency = time_of(*latency);
      }
      made.name = name.as_string();
      if (made.name.empty()) throw name.error("is empty", "a switch's name");
      if (made.name.size() > kLongestHostName) throw name.error("is too long", "a switch's name");
      const auto [known, is_new] = switch_of_.emplace(made.name, static_cast<std::int32_t>(layout_.switches.size()));
      if (!is_new) throw name.error("is there twice", "each switch once");
      if (layout_.switches.size() >= kMostSwitches)
        throw name.error("is one switch too many", fmt::format("at most {}", kMostSwitches));
      layout_.switches.push_back(std::move(made));
    }
  }

  std::int32_t switch_named(const ConfigNode& where, const std::string& name) const {
    const auto found = switch_of_.find(name);
    if (found != switch_of_.end()) return found->second;
    if (node_of_.contains(name))
      throw where.error(fmt::format("{} is a node", name), "a switch; nodes hang on one by leaf:");
    auto known = list_of<std::string>(layout_.switches, &NetworkSwitch::name);
    throw where.error(
        fmt::format("names no switch of switches:, '{}'", name), "one of them", nearest_spelling(name, known));
  }

  static Time time_of(const ConfigNode& value) {
    const Time time = value.as_time();
    if (time.seconds() < 0 || time.seconds() > kMostLatency)
      throw value.error("is no latency of a network", "0ns to 100ms, such as 300ns");
    return time;
  }

  void read_links(const ConfigNode& list) {
    std::map<std::pair<std::int32_t, std::int32_t>, Location> seen;
    for (const ConfigNode& element : list.elements()) {
      if (!element.is_mapping()) throw element.error("is no link", "{between: [leaf1, spine], rate: 1.6Tbit/s}");
      element.allow_only({"between", "rate", "count", "latency"});
      const ConfigNode between = element.at("between", "the two switches: [leaf1, spine]");
      if (!between.is_sequence() || between.elements().size() != 2)
        throw between.error("does not name two ends", "[leaf1, spine]");
      const std::string a = between.elements()[0].as_string();
      const std::string b = between.elements()[1].as_string();
      SwitchLink link;
      link.a = switch_named(between.elements()[0], a);
      link.b = switch_named(between.elements()[1], b);
      if (link.a == link.b) throw between.error(fmt::format("links {} to itself", a), "two switches");
      const auto [first, is_new] = seen.emplace(std::minmax(link.a, link.b), between.location());
      if (!is_new) {
        throw between.error(fmt::format("{} and {} are linked in line {} already", a, b, first->second.line),
            "one link, with count: for parallel cables");
      }
      const ConfigNode rate = element.at("rate", "of one cable and direction, such as 400Gbit/s");
      const double value = rate.as_bandwidth().value();
      double cables = 1;
      if (const ConfigNode* count = element.find("count")) cables = as_double(count->as_int(1, 100'000));
      if (value < kLeastLink || value * cables > kMostLink) {
        throw rate.error(
            fmt::format("is no rate of a link between {} and {}", a, b), "1Mbit/s to 8000Tbit/s, such as 400Gbit/s");
      }
      link.rate = BytesPerSecond(value * cables);
      if (const ConfigNode* latency = element.find("latency")) link.latency = time_of(*latency);
      layout_.links.push_back(link);
    }
  }

  // The leaves and the spine of network:, as in the short form.
  void add_rails() {
    const std::int64_t nodes = layout_.nodes();
    if (nodes == 1) return;
    for (const NodeGroup& group : layout_.groups) {
      if (group.kind.nics >= 1) continue;
      throw place_of(group).error(fmt::format("one of {} nodes has no network port", nodes), "node: {nics: 8, ...}");
    }
    const std::int64_t per_leaf = std::max<std::int64_t>(1, cluster_.network.nodes_per_leaf);
    std::int64_t rails = 0;
    for (const NodeGroup& group : layout_.groups) rails = std::max(rails, group.kind.nics);
    const BytesPerSecond uplink(
        cluster_.node.nic_rate.value() * as_double(per_leaf) / std::max(1.0, cluster_.network.oversubscription));
    layout_.switches.push_back({"spine", -1, 0, Time()});
    const std::int64_t pods = (nodes + per_leaf - 1) / per_leaf;
    for (std::int64_t pod = 0; pod < pods; ++pod) {
      for (std::int64_t rail = 0; rail < rails; ++rail) {
        const auto leaf = static_cast<std::int32_t>(layout_.switches.size());
        layout_.switches.push_back({"", static_cast<std::int32_t>(pod), static_cast<std::int32_t>(rail), Time()});
        layout_.links.push_back({leaf, 0, uplink, Time(), 0});
      }
    }
    cut_groups([&](std::int64_t node) { return node / per_leaf; });
    std::int64_t node = 0;
    for (NodeGroup& group : layout_.groups) {
      const auto first = static_cast<std::int32_t>(1 + node / per_leaf * rails);
      for (std::int32_t rail = 0; rail < group.kind.nics; ++rail) group.leaves.push_back(first + rail);
      node += group.count;
    }
  }

  // Into runs of nodes with the same key.
  void cut_groups(auto key_of) {
    std::vector<NodeGroup> cut;
    std::int64_t node = 0;
    for (const NodeGroup& group : layout_.groups) {
      for (std::int64_t begin = 0; begin < group.count;) {
        std::int64_t end = begin + 1;
        while (end < group.count && key_of(node + end) == key_of(node + begin)) ++end;
        NodeGroup part = group;
        part.count = end - begin;
        part.names.assign(group.names.begin() + begin, group.names.begin() + end);
        part.first_in_domain = (group.first_in_domain + begin) % group.kind.link_domain;
        cut.push_back(std::move(part));
        begin = end;
      }
      node += group.count;
    }
    layout_.groups = std::move(cut);
  }

  // --- ranks ---

  std::vector<std::int64_t> nodes_of_ranks() const {
    std::vector<std::int64_t> order;
    const ConfigNode* ranks = root_.find("ranks");
    if (ranks == nullptr) {
      order.resize(at(layout_.nodes()));
      std::iota(order.begin(), order.end(), 0);
      return order;
    }
    std::vector<char> taken(at(layout_.nodes()), 0);
    for (const std::string& name : host_names(*ranks)) {
      const auto found = node_of_.find(name);
      if (found == node_of_.end()) {
        auto known = list_of<std::string>(node_of_, [&](const auto& each) { return each.first; });
        throw ranks->error(fmt::format("names a node that is not there, '{}'", name),
            "nodes of nodes:", nearest_spelling(name, known));
      }
      char& is_taken = taken[at(found->second)];
      if (is_taken != 0) throw ranks->error(fmt::format("has {} twice", name), "each node once");
      is_taken = 1;
      order.push_back(found->second);
    }
    return order;
  }

  // As NCCL's graph dump has them: rings: [{gpus: [0, 7, 6, ...], enters: 0, leaves: 3}].
  void read_rings(const ConfigNode& rings) {
    std::int64_t ports = 1;
    for (const NodeGroup& group : layout_.groups) ports = std::max(ports, group.kind.nics);
    for (const ConfigNode& element : rings.elements()) {
      element.allow_only({"gpus", "enters", "leaves"});
      const ConfigNode gpus = element.at("gpus", "the GPUs of a node in their order");
      RingOrder order;
      const auto count = static_cast<std::int64_t>(gpus.elements().size());
      std::vector<char> seen(at(count), 0);
      for (const ConfigNode& gpu : gpus.elements()) {
        const std::int64_t index = gpu.as_int(0, count - 1);
        char& is_seen = seen[at(index)];
        if (is_seen != 0) throw gpu.error("is there twice", "each GPU of a node once");
        is_seen = 1;
        order.gpus.push_back(static_cast<std::int32_t>(index));
      }
      for (const auto& [key, port] : {std::pair("enters", &order.enters), std::pair("leaves", &order.leaves)}) {
        const ConfigNode* said = element.find(key);
        if (said != nullptr) *port = static_cast<std::int32_t>(said->as_int(0, ports - 1));
      }
      layout_.rings.push_back(std::move(order));
    }
  }

  void read_background(const ConfigNode& background) {
    for (const ConfigItem& item : background.items()) {
      constexpr double kMost = 0.99;
      double low = 0;
      double high = 0;
      double mean = 0;
      if (item.value.is_sequence()) {
        const auto ends = item.value.elements();
        if (ends.size() != 2) throw item.value.error("is no range of shares", "[0.1, 0.5]");
        low = ends[0].as_double(0, kMost);
        high = ends[1].as_double(low, kMost);
        mean = (low + high) / 2;
      } else {
        mean = item.value.as_double(0, kMost);
        low = mean / 2;
        high = std::min(kMost, mean * 3 / 2);
      }
      bool found = false;
      for (SwitchLink& link : layout_.links) {
        const std::string& a = layout_.switches[at(link.a)].name;
        const std::string& b = layout_.switches[at(link.b)].name;
        if (item.key != "uplinks" && item.key != a + "-" + b && item.key != b + "-" + a) continue;
        link.background = mean;
        link.background_log_sd = std::log((1 - low) / (1 - high)) / (2 * kStandardDeviations);
        found = true;
      }
      if (!found) throw item.value.error("names no link", "two switches, such as leaf1-spine, or uplinks");
    }
  }

  // --- what the graph needs ---

  // Where the file lists the nodes of a group.
  const ConfigNode& place_of(const NodeGroup& group) const {
    return std::prev(elements_.upper_bound(node_of_.at(group.names.front())))->second;
  }

  // Every two nodes must reach each other, and every group must hang somewhere.
  void check_ways(const ClusterLayout& layout) const {
    const std::int64_t nodes = layout.nodes();
    if (nodes == 1) return;
    std::vector<std::int32_t> top(layout.switches.size());
    std::iota(top.begin(), top.end(), 0);
    const auto find = [&](std::int32_t s) {
      while (top[at(s)] != s) {
        std::int32_t& up = top[at(s)];
        up = top[at(up)];
        s = up;
      }
      return s;
    };
    for (const SwitchLink& link : layout.links) top[at(find(link.a))] = find(link.b);
    std::optional<std::int32_t> first;
    for (const NodeGroup& group : layout.groups) {
      if (group.leaves.empty()) {
        throw place_of(group).error(
            fmt::format("{} hangs on no switch", group.names.front()), "leaf: with one of switches:");
      }
      for (const std::int32_t leaf : group.leaves) {
        if (!first) first = leaf;
        if (find(leaf) == find(*first)) continue;
        throw place_of(group).error(
            fmt::format("no links lead from {} ({}) to {} ({})", layout.switches[at(leaf)].name, group.names.front(),
                layout.switches[at(*first)].name, layout.groups.front().names.front()),
            "links: that connect all nodes");
      }
    }
  }

  void check_count() const {
    const ConfigNode* said = root_.find("gpus");
    if (said == nullptr) return;
    const std::int64_t count = said->as_int(1, kMostGpus);
    if (count == cluster_.gpus) return;
    throw said->error(
        fmt::format("says {}, the ranks sit on {} GPUs", count, cluster_.gpus), "no gpus: beside nodes:, or the same");
  }

  const ConfigNode& root_;
  const KindReader& read_kind_;
  Cluster& cluster_;
  ClusterLayout layout_;
  std::map<std::int64_t, ConfigNode> elements_;  // of nodes:, by their first node
  std::map<std::string, std::int64_t> node_of_;
  std::map<std::string, std::int32_t> switch_of_;
  using DegradedPlace = std::tuple<std::int64_t, DegradedLink::Part, std::int64_t>;
  std::map<DegradedPlace, double> degraded_;      // by node, part and index within it
  std::map<std::int64_t, std::int64_t> missing_;  // ports of a node
  std::int64_t gpus_ = 0;
};

}

DegradedLink read_degraded_link(const ConfigNode& element, const NodeKind& node) {
  element.allow_only({"node", "nic", "gpu", "fraction"});
  if (element.has("gpu") == element.has("nic"))
    throw element.error("names no link or two", "either gpu: or nic:, from 0");
  const bool is_gpu = element.has("gpu");
  DegradedLink link;
  link.part = is_gpu ? DegradedLink::Part::kGpu : DegradedLink::Part::kNic;
  const std::int64_t all = is_gpu ? node.gpus : node.nics;
  if (all < 1) throw element.error("names a port of nodes without one", "node: {nics: 8, ...}");
  link.index = element.at(is_gpu ? "gpu" : "nic").as_int(0, all - 1);
  const ConfigNode fraction = element.at("fraction", "of its rate, 0 for a missing port");
  link.fraction = fraction.as_double(0, 1);
  if (is_gpu && link.fraction <= 0)
    throw fraction.error("must be more than zero for a GPU", "a GPU without links is no rank");
  return link;
}

void read_layout(const ConfigNode& root, const KindReader& read_kind, Cluster& cluster) {
  LayoutReader(root, read_kind, cluster).read();
}

}
