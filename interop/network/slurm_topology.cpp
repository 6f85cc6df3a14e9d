// topology.conf: "SwitchName=leaf1 Nodes=n[1-16]" is a leaf, "SwitchName=s Switches=leaf[1-4]" is above; "BlockName=b1
// Nodes=n[1-18]" is a block of nodes that lie near. A tree: every node and every switch hangs on one other.
#include <fmt/format.h>

#include <map>

#include "calibration/clusters/host_list.h"
#include "interop/network/topology_lines.h"

namespace foreshard {
namespace {

struct SwitchLine {
  std::string name;
  std::vector<std::string> nodes;
  std::vector<std::string> switches;
  int line = 0;
};

class SlurmReader {
 public:
  explicit SlurmReader(std::string_view file) : importer_(file) {}

  TopologyImport run(std::string_view text) {
    const std::vector<std::string> lines = text_lines(text);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const int line = static_cast<int>(i) + 1;
      const Words words = words_of_line(std::string_view(lines[i]).substr(0, lines[i].find('#')));
      if (!words.empty()) read_line(words, line);
    }
    if (leaves_ == 0) importer_.fail(1, "has no switch with nodes", "SwitchName=leaf1 Nodes=n[1-16]");
    for (const SwitchLine& s : switches_) add_children(s);
    check_cycles();
    add_hosts();
    importer_.note(Mapping::kDefaulted, "width of the up-links", "links: rate",
        "the file says nothing of it: as wide as the ports below", 0);
    return std::move(importer_.out);
  }

 private:
  void read_line(const Words& words, int line) {
    const std::string block = value_of(words, "BlockName");
    const std::string name = block.empty() ? value_of(words, "SwitchName") : block;
    if (name.empty()) {
      importer_.note(Mapping::kUnsupported, words[0].substr(0, kLongestHostName), "", "no switch of a tree", line);
      return;
    }
    const std::string nodes = value_of(words, "Nodes");
    const std::string switches = value_of(words, "Switches");
    if (nodes.empty() == switches.empty()) {
      importer_.fail(line, fmt::format("switch {} has neither nodes nor switches, or both", name),
          "Nodes=n[1-16] or Switches=leaf[1-4]");
    }
    if (!value_of(words, "LinkSpeed").empty())
      importer_.note(Mapping::kIgnored, "LinkSpeed", "", "Slurm itself reads no unit from it", line);
    SwitchLine made{plain_name(name), {}, {}, line};
    const auto [first, is_new] = line_of_.emplace(made.name, line);
    if (!is_new) {
      importer_.fail(
          line, fmt::format("switch {} is there twice, first in line {}", name, first->second), "each switch once");
    }
    made.nodes = list(nodes, line);
    made.switches = list(switches, line);
    if (!nodes.empty()) ++leaves_;
    if (!block.empty()) blocks_.push_back(made.name);
    switches_.push_back(std::move(made));
  }

  std::vector<std::string> list(const std::string& text, int line) {
    std::vector<std::string> names = importer_.expanded(text, line, kMostHosts - named_);
    named_ += names.size();
    for (std::string& name : names) name = plain_name(name);
    return names;
  }

  void add_children(const SwitchLine& s) {
    for (const std::string& child : s.switches) {
      const auto found = line_of_.find(child);
      if (found == line_of_.end()) {
        importer_.fail(s.line, fmt::format("switch {} has a switch that is not there, {}", s.name, child),
            fmt::format("SwitchName={} Nodes=...", child));
      }
      const auto [parent, is_new] = parent_.emplace(child, s.name);
      if (!is_new) {
        importer_.fail(s.line, fmt::format("switch {} hangs on {} and on {}", child, parent->second, s.name),
            "a tree: one switch above each");
      }
    }
  }

  void check_cycles() const {
    const auto climb = [&](const SwitchLine& s, auto&& visit) {
      std::string at = s.name;
      for (std::size_t steps = 1; steps <= kDeepest + 1; ++steps) {
        const auto up = parent_.find(at);
        if (up == parent_.end()) return;
        at = up->second;
        visit(at, steps);
      }
    };
    for (const SwitchLine& s : switches_) {
      climb(
          s,
          [&](const std::string& above, std::size_t) {
            if (above != s.name) return;
            importer_.fail(
                s.line, fmt::format("switch {} is above itself, by way of {}", s.name, parent_.at(s.name)), "a tree");
          });
    }
    for (const SwitchLine& s : switches_) {
      climb(
          s,
          [&](const std::string&, std::size_t steps) {
            if (steps <= kDeepest) return;
            importer_.fail(s.line, fmt::format("more than {} switches above {}", kDeepest, s.name), "a tree");
          });
    }
  }

  void add_hosts() {
    ImportedNetwork& network = importer_.out.network;
    std::map<std::string, const SwitchLine*> leaf_of;
    for (const SwitchLine& s : switches_) {
      network.switches.push_back(s.name);
      const auto up = parent_.find(s.name);
      if (up != parent_.end()) network.links.push_back({s.name, up->second, 0});
      for (const std::string& node : s.nodes) {
        const auto [known, is_new] = leaf_of.emplace(node, &s);
        if (!is_new) {
          importer_.fail(s.line, fmt::format("node {} hangs on {} and on {}", node, known->second->name, s.name),
              "each node on one switch");
        }
        network.hosts.push_back({node, {s.name}, {}, {}, importer_.file(), s.line});
      }
    }
    if (blocks_.size() > 1 && parent_.empty()) {
      network.switches.push_back("between_blocks");
      for (const std::string& block : blocks_) network.links.push_back({block, "between_blocks", 0});
      importer_.note(Mapping::kDefaulted, "what joins the blocks", "one switch", "the file says nothing of it",
          line_of_.at(blocks_.front()));
    }
    importer_.out.nodes = std::ssize(network.hosts);
    importer_.note(
        Mapping::kMapped, fmt::format("{} nodes", network.hosts.size()), "nodes", "", switches_.front().line);
    importer_.note(Mapping::kMapped, fmt::format("{} switches, {} of them with nodes", switches_.size(), leaves_),
        "switches, links", "", switches_.front().line);
  }

  static constexpr std::size_t kDeepest = 64;

  Importer importer_;
  std::vector<SwitchLine> switches_;
  std::vector<std::string> blocks_;
  std::map<std::string, int> line_of_;
  std::map<std::string, std::string> parent_;
  std::size_t named_ = 0;
  int leaves_ = 0;
};

constexpr std::string_view kAllocations[] = {"SLURM_JOB_NODELIST", "SLURM_NODELIST", "NodeList"};

}

TopologyImport parse_slurm_topology(std::string_view text, std::string_view file_name) {
  return SlurmReader(file_name).run(text);
}

TopologyImport parse_slurm_allocation(std::string_view text, std::string_view file_name) {
  Importer importer{file_name};
  const std::vector<std::string> lines = text_lines(text);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const int line = static_cast<int>(i) + 1;
    const Words words = words_of_line(lines[i]);
    for (const std::string_view key : kAllocations) {
      std::string hosts = value_of(words, key);
      std::erase_if(hosts, [](char c) { return c == '"' || c == '\''; });
      if (hosts.empty() || hosts == "(null)") continue;
      ImportedNetwork& network = importer.out.network;
      network.allocation = importer.expanded(hosts, line, kMostHosts);
      for (std::string& name : network.allocation) name = plain_name(name);
      network.allocation_file = importer.file();
      network.allocation_line = line;
      importer.note(
          Mapping::kMapped, std::string(key), fmt::format("{} nodes in use", network.allocation.size()), "", line);
      return std::move(importer.out);
    }
  }
  importer.fail(1, "names no allocation", "SLURM_JOB_NODELIST=n[1-16]");
}

}
