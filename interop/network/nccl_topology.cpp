// NCCL's topology XML: system > cpu > pci ... > gpu with nvlink, and nic > net with a speed in
// Mbit/s. Elements of one host are those of its `host_hash`; a dump of several hosts joined (NVLink
// domains) has several. pugixml reads a document that is cut off up to where it ends.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <pugixml.hpp>
#include <set>
#include <string>

#include "interop/network/topology_lines.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

// NCCL's own nest to system > cpu > pci > pci > pci > gpu > nvlink.
constexpr int kDeepestNode = 64;

// Lines of places in a text that are asked for in its order, in one pass over it.
class LineStarts {
 public:
  explicit LineStarts(std::string_view text) : text_(text) {}
  int at(std::ptrdiff_t offset) {
    const std::size_t end = std::min(static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, offset)), text_.size());
    if (end < at_) at_ = 0, line_ = 1;
    for (; at_ < end; ++at_) line_ += text_[at_] == '\n' ? 1 : 0;
    return line_;
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
};

class XmlImport : Importer {
 public:
  XmlImport(std::string_view text, std::string_view file) : Importer(file), text_(text), lines_(text) {}

  TopologyImport run() {
    pugi::xml_document document;
    const pugi::xml_parse_result parsed = document.load_buffer(text_.data(), text_.size());
    if (!parsed) {
      note(Mapping::kIgnored, "the rest of the file", "",
          std::string("not well-formed from here: ") + parsed.description(), lines_.at(parsed.offset));
    }
    collect(document, 0);
    if (gpus_ == 0) fail(parsed ? 1 : lines_.at(parsed.offset), "has no gpu element", "a dump of NCCL_TOPO_DUMP_FILE");
    const std::size_t hosts = std::max<std::size_t>(1, hosts_.size());
    if (gpus_ % static_cast<std::int64_t>(hosts) != 0) {
      note(Mapping::kUnsupported, fmt::format("{} GPUs on {} hosts", gpus_, hosts), "", "hosts of different kinds",
          first_gpu_);
    }
    out.gpus_per_node = std::max<std::int64_t>(1, gpus_ / static_cast<std::int64_t>(hosts));
    if (hosts > 1) out.nodes = static_cast<std::int64_t>(hosts);
    add_gpus();
    add_ports(static_cast<std::int64_t>(hosts));
    if (hosts > 1) figure("node.link_domain", std::to_string(hosts), "hosts of one NVLink domain", first_gpu_);
    return std::move(out);
  }

 private:
  // An attribute that is a number of at most `most`; 0 where it is missing or no number.
  double bounded(const pugi::xml_node& node, const char* name, double most, int line) const {
    const double value = node.attribute(name).as_double();
    if (value <= most) return std::max(0.0, value);
    fail(line,
        fmt::format(
            "{} of {} is \"{}\"", name, node.name(), std::string_view(node.attribute(name).value()).substr(0, 40)),
        fmt::format("a number of at most {}", most));
  }

  void collect(const pugi::xml_node& node, int depth) {
    for (const pugi::xml_node& child : node.children()) {
      const std::string name = child.name();
      const int line = lines_.at(child.offset_debug());
      if (depth == kDeepestNode)
        fail(line, "the elements are nested too deeply", fmt::format("at most {} levels", kDeepestNode));
      if (name == "cpu" && *child.attribute("host_hash").value() != '\0')
        hosts_.insert(child.attribute("host_hash").value());
      else if (name == "gpu") add_gpu(child, line);
      else if (name == "net") add_net(child, line);
      else if (name == "pcilink" || name == "c2c")
        note(Mapping::kIgnored, name, "", "no figure of a cluster file", line);
      collect(child, depth + 1);
    }
  }

  void add_gpu(const pugi::xml_node& gpu, int line) {
    if (gpus_++ == 0) first_gpu_ = line;
    sm_ = std::max(sm_, static_cast<int>(bounded(gpu, "sm", 1'000, line)));
    int links = 0;
    for (const pugi::xml_node& link : gpu.children("nvlink")) {
      links += static_cast<int>(bounded(link, "count", kMostLinks, line));
      if (links > kMostLinks)
        fail(line, fmt::format("{} NVLinks of one GPU", links), fmt::format("at most {}", kMostLinks));
      const std::string target = link.attribute("tclass").value();
      switch_ = switch_ || target == "0x068000";
    }
    fewest_ = gpus_ == 1 ? links : std::min(fewest_, links);
    most_ = std::max(most_, links);
    const pugi::xml_node slot = gpu.parent();
    const double lanes = bounded(slot, "link_width", 32, line);     // PCIe has up to x32
    const double speed = bounded(slot, "link_speed", 1'000, line);  // "16.0 GT/s PCIe"
    if (lanes > 0 && speed > 0) slot_ = std::max(slot_, slot_rate(speed) * lanes / 80);
  }

  // NVIDIA/nccl:src/graph/xml.cc, topo.cc: units of 100 Mbit/s a lane by GT/s; over 80 for GB/s.
  static double slot_rate(double speed) {
    static constexpr std::pair<double, double> kLanes[] = {
        {2.5, 15}, {5, 30}, {8, 60}, {16, 120}, {32, 240}, {64, 480}};
    double rate = 60;
    for (const auto& [transfers, units] : kLanes)
      if (speed >= transfers - 0.1) rate = units;
    return rate;
  }

  void add_net(const pugi::xml_node& net, int line) {
    const std::string name = net.attribute("name").value();
    constexpr double kFastest = 16e6;                                   // Mbit/s, as the limit of node.nic_rate
    const double speed = bounded(net, "speed", kFastest, line) / 1000;  // Gbit/s
    const bool is_port = speed > 0 && net.attribute("keep").as_int(1) != 0;
    if (!is_port) {
      note(Mapping::kIgnored, "net " + name, "", "without a speed, or not kept by NCCL", line);
      return;
    }
    ++ports_[speed];
    if (port_line_ == 0) port_line_ = line;
    port_name_ = name;
    latency_ = std::max(latency_, bounded(net, "latency", 1e6, line));
  }

  void add_gpus() {
    figure("node.gpus", std::to_string(out.gpus_per_node), fmt::format("{} gpu elements", gpus_), first_gpu_);
    const bool is_newer = sm_ >= 100;
    static constexpr std::pair<int, const char*> kMachines[] = {{80, "a100-80gb"}, {90, "h100-sxm"}, {100, "b200"}};
    for (const auto& [sm, machine] : kMachines) {
      if (sm_ != sm) continue;
      out.machine = machine;
      note(Mapping::kDefaulted, fmt::format("sm {}", sm_), std::string("machine: ") + machine,
          "the usual GPU of this compute capability", first_gpu_);
    }
    if (out.machine.empty()) {
      note(Mapping::kUnsupported, fmt::format("sm {}", sm_), "machine", "a compute capability with no usual machine",
          first_gpu_);
    }
    if (most_ == 0) {
      figure("node.gpu_link_name", "PCIe", "no nvlink elements", first_gpu_);
      if (slot_ > 0) figure("node.gpu_link", fmt::format("{}GB/s", slot_), "pci", first_gpu_);
    } else {
      if (fewest_ != most_) {
        note(Mapping::kUnsupported, fmt::format("{} to {} links", fewest_, most_), "",
            "GPUs with different links; the fewest are taken", first_gpu_);
      }
      const int links = fewest_ > 0 ? fewest_ : most_;
      figure("node.gpu_link", fmt::format("{}GB/s", links * (is_newer ? 50 : 25)),
          fmt::format("{} links of sm {}", links, sm_), first_gpu_);
      figure("node.gpu_link_name", switch_ ? "NVLink + NVSwitch" : "NVLink", "nvlink tclass", first_gpu_);
    }
    if (slot_ > 0) figure("node.host_link", fmt::format("{}GB/s", slot_), "pci", first_gpu_);
  }

  void add_ports(std::int64_t hosts) {
    if (ports_.empty()) {
      note(Mapping::kDefaulted, "network ports", "node.nics", "no net element: the machine's", 0);
      return;
    }
    const auto most = std::ranges::max_element(ports_,
        [](const auto& a, const auto& b) { return a.first * as_double(a.second) < b.first * as_double(b.second); });
    for (const auto& [speed, count] : ports_) {
      if (speed == most->first) continue;
      note(Mapping::kIgnored, fmt::format("{} ports of {} Gbit/s", count, speed), "",
          "a slower network beside the fast one", port_line_);
    }
    figure("node.nics", std::to_string(std::max<std::int64_t>(1, most->second / hosts)),
        fmt::format("{} net elements", most->second), port_line_);
    figure(
        "node.nic_rate", fmt::format("{}Gbit/s", most->first), fmt::format("speed {}", most->first * 1000), port_line_);
    figure("node.nic_name", port_name_, "the last net's name", port_line_);
    if (latency_ > 0) {
      note(Mapping::kIgnored, fmt::format("latency {} us", latency_), "",
          "the network's kind has its own (sim/cost/collective.h)", port_line_);
    }
  }

  std::string_view text_;
  LineStarts lines_;
  std::set<std::string> hosts_;
  std::map<double, std::int64_t> ports_;  // by Gbit/s
  std::string port_name_;
  std::int64_t gpus_ = 0;
  int sm_ = 0;
  int fewest_ = 0;
  int most_ = 0;
  bool switch_ = false;
  double slot_ = 0;
  double latency_ = 0;
  int first_gpu_ = 0;
  int port_line_ = 0;
};

}

// graphs > graph id="0" (the ring) > channel > net dev, gpu dev..., net dev: the order in which it
// passes a node's GPUs, and the ports by which it enters and leaves.
TopologyImport parse_nccl_graphs(std::string_view xml, std::string_view file_name) {
  Importer importer{file_name};
  pugi::xml_document document;
  const pugi::xml_parse_result parsed = document.load_buffer(xml.data(), xml.size());
  constexpr int kRing = 0;
  constexpr std::size_t kMostChannels = 64;  // NCCL's own limit
  constexpr int kMostGpus = 1024;
  std::vector<ImportedRing>& rings = importer.out.network.rings;
  for (const pugi::xml_node& graph : document.child("graphs").children("graph")) {
    if (graph.attribute("id").as_int(-1) != kRing) {
      importer.note(
          Mapping::kIgnored, fmt::format("graph {}", graph.attribute("id").as_int(-1)), "", "not the ring's", 0);
      continue;
    }
    for (const pugi::xml_node& channel : graph.children("channel")) {
      ImportedRing ring;
      for (const pugi::xml_node& element : channel.children()) {
        const int device = element.attribute("dev").as_int(-1);
        if (element.name() == std::string_view("gpu")) ring.gpus.push_back(device);
        if (element.name() != std::string_view("net") || device >= kMostGpus) continue;
        (ring.gpus.empty() ? ring.enters : ring.leaves) = device;
      }
      std::vector<int> sorted = ring.gpus;
      std::ranges::sort(sorted);
      for (std::size_t i = 0; i < sorted.size(); ++i) {
        if (sorted[i] == static_cast<int>(i) && i < kMostGpus) continue;
        importer.fail(1, "has a channel that does not pass every GPU of a node once",
            "a dump of NCCL_GRAPH_DUMP_FILE of whole nodes");
      }
      if (!ring.gpus.empty() && rings.size() < kMostChannels) rings.push_back(std::move(ring));
    }
  }
  if (rings.empty()) importer.fail(1, "has no ring", "a dump of NCCL_GRAPH_DUMP_FILE");
  if (!parsed) {
    importer.note(
        Mapping::kIgnored, "the rest of the file", "", std::string("not well-formed: ") + parsed.description(), 0);
  }
  importer.note(Mapping::kMapped, fmt::format("{} channels", rings.size()), "rings", "", 1);
  return std::move(importer.out);
}

TopologyImport parse_nccl_topology(std::string_view xml, std::string_view file_name) {
  return XmlImport(xml, file_name).run();
}

}
