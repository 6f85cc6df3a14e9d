// Which form a file has, what several say together, and the cluster file of it.
//
// Hosts that hang on switches are written in groups of neighbours that are alike. A link whose rate
// nobody told is as wide as all ports below it: what a network without oversubscription has.
#include "interop/network/topology_import.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "calibration/clusters/host_list.h"
#include "calibration/machines.h"
#include "interop/network/topology_lines.h"
#include "sim/base/error.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/base/spelling.h"
#include "sim/base/units.h"

namespace foreshard {
namespace {

constexpr std::size_t kLongestWord = 256;

// "<name", blanks after the bracket allowed; of `cpu` as a whole word, which others begin with.
bool has_element(std::string_view text, std::string_view name) {
  for (std::size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
    const std::size_t word = std::min(text.find_first_not_of(" \t\r\n", at + 1), text.size());
    const std::string_view rest = text.substr(word);
    if (!rest.starts_with(name)) continue;
    if (name != "cpu" || (rest.size() > name.size() && is_space(rest[name.size()]))) return true;
  }
  return false;
}

}

TopologyFormat topology_format(std::string_view text) {
  const std::string_view head = text.substr(0, 1 << 16);
  if (has_element(head, "graphs")) return TopologyFormat::kNcclGraphs;
  for (const std::string_view name : {"system", "cpu"})
    if (has_element(head, name)) return TopologyFormat::kNcclXml;
  const std::size_t first_letter = head.find_first_not_of(" \t\r\n");
  if (first_letter != std::string_view::npos && head[first_letter] == '{') {
    const auto has = [&](std::string_view key) { return contains(head, key); };
    const bool is_nodes = has("\"items\"") && has("\"metadata\"");
    return is_nodes || has("\"NetworkNodes\"") ? TopologyFormat::kNodeLabels : TopologyFormat::kNone;
  }
  for (const std::string& line : text_lines(head)) {
    const Words words = words_of_line(std::string_view(line).substr(0, kLongestWord));
    if (words.empty()) continue;
    std::string first = words[0] + (words.size() > 1 && words[1][0] == '=' ? "=" : "");
    if (first == "GPU0") return TopologyFormat::kNvidiaSmi;
    // "==============NVSMI LOG==============", "| NVIDIA-SMI 550.54.15 ...", "name, power.limit [W]".
    const bool is_query = contains(line, "NVSMI LOG") || contains(line, "| NVIDIA-SMI ") ||
                          (contains(line, "name,") && contains(line, "power.limit"));
    if (is_query) return TopologyFormat::kNvidiaSmiQuery;
    if ((first == "Switch" || first == "Ca") && words.size() > 2 && words[2][0] == '"')
      return TopologyFormat::kIbnetdiscover;
    for (const char* key : {"SLURM_JOB_NODELIST", "SLURM_NODELIST", "NodeList"})
      if (!value_of(words, key).empty()) return TopologyFormat::kAllocation;
    first = lower(first);
    if (first.starts_with("switchname=") || first.starts_with("blockname=")) return TopologyFormat::kSlurm;
  }
  return TopologyFormat::kNone;
}

TopologyImport parse_topology(TopologyFormat format, std::string_view text, std::string_view file_name) {
  switch (format) {
    case TopologyFormat::kNvidiaSmi: return parse_nvidia_smi_topo(text, file_name);
    case TopologyFormat::kNvidiaSmiQuery: return parse_nvidia_smi_query(text, file_name);
    case TopologyFormat::kNcclXml: return parse_nccl_topology(text, file_name);
    case TopologyFormat::kNcclGraphs: return parse_nccl_graphs(text, file_name);
    case TopologyFormat::kSlurm: return parse_slurm_topology(text, file_name);
    case TopologyFormat::kAllocation: return parse_slurm_allocation(text, file_name);
    case TopologyFormat::kIbnetdiscover: return parse_ibnetdiscover(text, file_name);
    case TopologyFormat::kNodeLabels: return parse_node_labels(text, file_name);
    case TopologyFormat::kNone: break;
  }
  throw ConfigError({std::string(file_name), 1, 0, ""}, "is of no known form",
      "nvidia-smi -q, nvidia-smi topo -m, NCCL's topology or graph XML, Slurm's topology.conf, "
      "SLURM_JOB_NODELIST=..., ibnetdiscover, a Kubernetes node list, or settings of "
      "TorchTitan, Accelerate or DeepSpeed, config.json, safetensors");
}

namespace {

// The figures of one host beside what all have.
ImportedFigures different_from(const ImportedFigures& usual, const ImportedFigures& own) {
  ImportedFigures different;
  for (const auto& figure : own)
    if (!contains(usual, figure)) different.push_back(figure);
  return different;
}

void join_network(ImportedNetwork& all, const ImportedNetwork& part) {
  if (all.rings.empty()) all.rings = part.rings;
  if (all.allocation.empty() && !part.allocation.empty()) {
    all.allocation = part.allocation;
    all.allocation_file = part.allocation_file;
    all.allocation_line = part.allocation_line;
  }
  if (all.switches.empty() && !part.switches.empty()) {
    all.switches = part.switches;
    all.links = part.links;
    // What was told of single nodes before stays with those of the name.
    const std::vector<ImportedHost> told = std::exchange(all.hosts, part.hosts);
    for (const ImportedHost& one : told) {
      for (ImportedHost& host : all.hosts)
        if (host.name == one.name) host.figures = one.figures;
    }
    return;
  }
  for (const ImportedHost& host : part.hosts) {
    const auto same = std::ranges::find(all.hosts, host.name, &ImportedHost::name);
    if (!all.switches.empty()) {
      if (same != all.hosts.end() && same->figures.empty()) same->figures = host.figures;
      continue;
    }
    const bool is_other = same != all.hosts.end();  // a file of that name in another folder
    all.hosts.push_back(host);
    if (is_other) all.hosts.back().name += fmt::format("_{}", all.hosts.size());
  }
}

}

TopologyImport joined(const std::vector<TopologyImport>& parts) {
  TopologyImport all;
  for (const TopologyImport& part : parts) {
    if (all.machine.empty()) all.machine = part.machine;
    if (all.nodes == 0) all.nodes = part.nodes;
    if (all.gpus_per_node == 0) all.gpus_per_node = part.gpus_per_node;
    append(all.ledger, part.ledger);
    join_network(all.network, part.network);
    const bool is_a_node = part.network.hosts.size() == 1 && part.network.switches.empty();
    for (const auto& [key, value] : part.figures) {
      const auto same =
          std::ranges::find_if(all.figures, [&, name = key](const auto& figure) { return figure.first == name; });
      if (same == all.figures.end()) {
        all.figures.emplace_back(key, value);
      } else if (same->second != value && !is_a_node) {
        const std::string file = part.ledger.empty() ? "" : part.ledger.front().file;
        all.ledger.push_back(
            {Mapping::kIgnored, key, "", fmt::format("says {}, an earlier file {}", value, same->second), file, 0});
      }
    }
  }
  if (all.network.switches.empty() && all.network.hosts.size() > 1) all.nodes = std::ssize(all.network.hosts);
  return all;
}

TopologyImport allocated(TopologyImport import, std::string_view hosts) {
  Importer importer{"--nodelist"};
  import.network.allocation = importer.expanded(hosts, 0, kMostHosts);
  for (std::string& name : import.network.allocation) name = plain_name(name);
  import.network.allocation_file = "--nodelist";
  import.network.allocation_line = 0;
  return import;
}

namespace {

Location place_of(const TopologyImport& import) {
  return {import.ledger.empty() ? "" : import.ledger.front().file, 1, 0, ""};
}

// The sections node: and network: of the figures.
std::string sections(const ImportedFigures& figures) {
  std::string text;
  for (const char* section : {"gpu", "node", "network"}) {
    bool is_open = false;
    for (const auto& [path, value] : figures) {
      const std::string prefix = std::string(section) + ".";
      if (!path.starts_with(prefix)) continue;
      if (!is_open) text += fmt::format("{}:\n", section);
      is_open = true;
      text += fmt::format("  {}: {}\n", path.substr(prefix.size()), value);
    }
  }
  return text;
}

// The hosts in use, in the order of the allocation.
std::vector<ImportedHost> hosts_in_use(const ImportedNetwork& network) {
  if (network.allocation.empty()) return network.hosts;
  std::map<std::string_view, const ImportedHost*> by_name;
  for (const ImportedHost& host : network.hosts) by_name.emplace(host.name, &host);
  std::vector<ImportedHost> used;
  std::set<std::string_view> seen;
  const Location place{network.allocation_file, network.allocation_line, 0, ""};
  for (const std::string& name : network.allocation) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      auto known = list_of<std::string>(network.hosts, &ImportedHost::name);
      throw ConfigError(place, fmt::format("allocates a node that is not there, {}", name),
          fmt::format("nodes of {}", network.hosts.front().file), nearest_spelling(name, known));
    }
    if (!seen.insert(name).second) throw ConfigError(place, fmt::format("allocates {} twice", name), "each node once");
    used.push_back(*found->second);
  }
  return used;
}

// Switches and links on the way between hosts in use: up from their leaves, level by level.
class UsedNetwork {
 public:
  UsedNetwork(const ImportedNetwork& network, const std::vector<ImportedHost>& hosts)
      : network_(network), hosts_(hosts) {
    for (const ImportedLink& link : network.links) {
      next_[link.below].push_back(&link);
      next_[link.above].push_back(&link);
    }
    for (const ImportedHost& host : hosts)
      for (const std::string& leaf : host.leaves) leaves_.insert(leaf);
    check_connected();
  }

  // Ports below every switch, in a tree whose links tell no rates.
  std::map<std::string, std::int64_t> ports_below(std::int64_t ports_of_host) const {
    std::map<std::string, std::string> parent;
    for (const ImportedLink& link : network_.links) parent[link.below] = link.above;
    std::map<std::string, std::int64_t> below;
    for (const ImportedHost& host : hosts_) {
      const auto each = ports_of_host / std::ssize(host.leaves);
      for (const std::string& leaf : host.leaves) {
        std::string at = leaf;
        for (int steps = 0; steps < 64; ++steps) {
          below[at] += std::max<std::int64_t>(1, each);
          const auto up = parent.find(at);
          if (up == parent.end()) break;
          at = up->second;
        }
      }
    }
    return below;
  }

 private:
  void check_connected() const {
    if (leaves_.empty()) return;
    std::set<std::string> reached{*leaves_.begin()};
    std::vector<std::string> queue(reached.begin(), reached.end());
    for (std::size_t head = 0; head < queue.size(); ++head) {
      const auto links = next_.find(queue[head]);
      if (links == next_.end()) continue;
      const std::string here = queue[head];
      for (const ImportedLink* link : links->second) {
        const std::string& there = link->below == here ? link->above : link->below;
        if (reached.insert(there).second) queue.push_back(there);
      }
    }
    for (const ImportedHost& host : hosts_) {
      for (const std::string& leaf : host.leaves) {
        if (reached.contains(leaf)) continue;
        throw ConfigError({host.file, host.line, 0, ""},
            fmt::format("no links lead from {} ({}) to {} ({})", leaf, host.name, hosts_.front().leaves.front(),
                hosts_.front().name),
            "switches that join all nodes in use");
      }
    }
  }

  const ImportedNetwork& network_;
  const std::vector<ImportedHost>& hosts_;
  std::map<std::string, std::vector<const ImportedLink*>> next_;
  std::set<std::string> leaves_;
};

std::string quoted_list(const std::vector<std::string>& names) {
  return fmt::format("[\"{}\"]", fmt::join(names, "\", \""));
}

// One group of like hosts, as a line of nodes:.
std::string group_line(
    const std::vector<ImportedHost>& hosts, std::size_t begin, std::size_t end, const ImportedFigures& usual) {
  std::vector<std::string> names;
  for (std::size_t i = begin; i < end; ++i) names.push_back(hosts[i].name);
  const ImportedHost& first = hosts[begin];
  std::string text = fmt::format("  - {{names: {}", quoted_list(names));
  std::vector<std::string> leaves = first.leaves;
  if (std::ranges::all_of(leaves, [&](const std::string& leaf) { return leaf == leaves.front(); }))
    leaves.resize(std::min<std::size_t>(1, leaves.size()));
  if (!leaves.empty()) text += ", leaf: " + quoted_list(leaves);
  std::string node;
  for (const auto& [key, value] : different_from(usual, first.figures)) {
    constexpr std::string_view kNode = "node.";
    if (!key.starts_with(kNode)) continue;
    node += fmt::format("{}{}: {}", node.empty() ? "" : ", ", key.substr(kNode.size()), value);
  }
  if (!node.empty()) text += fmt::format(", node: {{{}}}", node);
  std::string degraded;
  for (const auto& [port, fraction] : first.degraded)
    degraded += fmt::format("{}{{nic: {}, fraction: {:.6g}}}", degraded.empty() ? "" : ", ", port, fraction);
  if (!degraded.empty()) text += fmt::format(", degraded: [{}]", degraded);
  return text + "}\n";
}

std::string nodes_section(const std::vector<ImportedHost>& hosts, const ImportedFigures& usual) {
  std::string text = "nodes:\n";
  for (std::size_t begin = 0; begin < hosts.size();) {
    std::size_t end = begin + 1;
    const auto is_like = [&](const ImportedHost& host) {
      return host.leaves == hosts[begin].leaves && host.figures == hosts[begin].figures &&
             host.degraded == hosts[begin].degraded;
    };
    while (end < hosts.size() && is_like(hosts[end])) ++end;
    text += group_line(hosts, begin, end, usual);
    begin = end;
  }
  return text;
}

// Ports of a node and the rate of one: of the figures, else of the machine.
struct Ports {
  std::int64_t count = 1;
  double rate = 0;
};
Ports ports_of(const std::string& head) {
  const Cluster node = parse_cluster("gpus: 1\n" + head, "the imported machine");
  return {std::max<std::int64_t>(1, node.node.nics), node.node.nic_rate.value()};
}

std::string links_section(
    const ImportedNetwork& network, const std::vector<ImportedHost>& hosts, const std::string& head) {
  const UsedNetwork used(network, hosts);
  if (network.links.empty()) return "";
  const bool is_told = std::ranges::all_of(network.links, [](const ImportedLink& link) { return link.rate > 0; });
  Ports ports;
  std::map<std::string, std::int64_t> below;
  if (!is_told) {
    ports = ports_of(head);
    below = used.ports_below(ports.count);
  }
  std::string text = "links:\n";
  for (const ImportedLink& link : network.links) {
    double rate = link.rate;
    if (rate <= 0) {
      const auto found = below.find(link.below);
      if (found == below.end()) continue;  // no node in use below it
      rate = as_double(found->second) * ports.rate;
    }
    text += fmt::format("  - {{between: [\"{}\", \"{}\"], rate: {:.6g}GB/s}}\n", link.below, link.above, rate / 1e9);
  }
  return text;
}

}

std::string cluster_file(const TopologyImport& import, std::string_view machine, std::int64_t nodes) {
  const std::string key = machine.empty() ? import.machine : std::string(machine);
  if (key.empty())
    throw ConfigError(place_of(import), "nothing here tells the GPU", "a machine of the catalogue with --machine KEY");
  const ImportedNetwork& network = import.network;
  std::string head = fmt::format("machine: {}\n", key) + sections(import.figures);
  if (!network.rings.empty()) {
    std::string rings;
    for (const ImportedRing& ring : network.rings) {
      rings += fmt::format("  - {{gpus: [{}]", fmt::join(ring.gpus, ", "));
      if (ring.enters >= 0) rings += fmt::format(", enters: {}", ring.enters);
      if (ring.leaves >= 0) rings += fmt::format(", leaves: {}", ring.leaves);
      rings += "}\n";
    }
    head += "rings:\n" + rings;
  }
  const std::string bare = fmt::format("machine: {}\n", key) + sections(import.figures);
  if (!network.switches.empty()) {
    const std::vector<ImportedHost> hosts = hosts_in_use(network);
    return head + nodes_section(hosts, import.figures) + fmt::format("switches: {}\n", quoted_list(network.switches)) +
           links_section(network, hosts, bare);
  }
  if (network.hosts.empty() && !network.allocation.empty()) {
    std::vector<ImportedHost> hosts;
    for (const std::string& name : network.allocation) hosts.push_back({name, {}, {}, {}, "", 0});
    return head + nodes_section(hosts, import.figures);
  }
  if (network.hosts.size() > 1) return head + nodes_section(hosts_in_use(network), import.figures);
  const std::int64_t count = nodes > 0 ? nodes : std::max<std::int64_t>(1, import.nodes);
  if (!network.rings.empty()) return head + fmt::format("nodes: [{{count: {}}}]\n", count);
  if (import.gpus_per_node <= 0) {
    throw ConfigError(place_of(import), "nothing here tells the GPUs of a node",
        "the output of nvidia-smi topo -m or NCCL's topology beside it");
  }
  return fmt::format("gpus: {}\n", checked_multiply(count, import.gpus_per_node)) + head;
}

}
