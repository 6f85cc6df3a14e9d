// A paragraph for every device, its first line the kind: `Switch 41 "S-506b..."  # "sw-leaf1"` or
// `Ca 1 "H-0002..."  # "node01 mlx5_0"`, followed by a line for every port that is up:
// `[3] "H-0002..."[1](2c90..)  # "node01 mlx5_0" lid 4 4xHDR`. Both ends of a cable list it; it is
// taken from the switch. A node is all adapters whose description begins with its name; a port that
// its fellows have and it has not is missing, a slower one degraded.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "calibration/clusters/host_list.h"
#include "interop/network/topology_lines.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"

namespace foreshard {
namespace {

// Gbit/s of data a lane (InfiniBand Architecture Specification, volume 2; NVIDIA's data sheets from
// EDR on): 8b/10b coding up to QDR, 64b/66b after.
constexpr std::pair<std::string_view, double> kLanes[] = {{"FDR10", 10}, {"SDR", 2}, {"DDR", 4}, {"QDR", 8},
    {"FDR", 13.64}, {"EDR", 25}, {"HDR", 50}, {"NDR", 100}, {"XDR", 200}, {"GDR", 400}};

// bytes/s of "4xHDR" among the words, 0 where there is none.
double rate_of(const Words& words) {
  for (auto word = words.rbegin(); word != words.rend(); ++word) {
    const std::size_t x = word->find('x');
    if (x == std::string::npos || x == 0 || x > 2) continue;
    const int width = parse_number<int>({word->data(), x}).value_or(0);
    if (width < 1 || width > 12) continue;
    for (const auto& [name, lane] : kLanes)
      if (std::string_view(*word).substr(x + 1) == name) return width * lane / 8 * 1e9;
  }
  return 0;
}

// The text between the n-th pair of double quotes.
std::string quoted(std::string_view line, int n) {
  std::size_t begin = 0;
  for (int i = 0;; ++i) {
    begin = line.find('"', begin);
    if (begin == std::string_view::npos) return "";
    const std::size_t end = line.find('"', begin + 1);
    if (end == std::string_view::npos) return "";
    if (i == n) return std::string(line.substr(begin + 1, end - begin - 1));
    begin = end + 1;
  }
}

// By runs of digits as numbers: mlx5_2 before mlx5_10.
bool natural_less(const std::string& a, const std::string& b) {
  const auto key = [](const std::string& name) {
    const std::size_t digits = name.find_last_not_of("0123456789") + 1;
    return std::tuple(name.substr(0, digits), name.size() - digits, name);
  };
  return key(a) < key(b);
}

struct NaturalLess {
  bool operator()(const std::string& a, const std::string& b) const { return natural_less(a, b); }
};

class IbReader {
 public:
  explicit IbReader(std::string_view file) : importer_(file) {}

  TopologyImport run(std::string_view text) {
    const std::vector<std::string> lines = text_lines(text);
    for (std::size_t i = 0; i < lines.size(); ++i) read_line(lines[i], static_cast<int>(i) + 1);
    if (switches_.empty()) importer_.fail(1, "has no switch", "the output of ibnetdiscover");
    name_switches();
    add_links();
    add_hosts();
    return std::move(importer_.out);
  }

 private:
  struct Cable {
    double rate = 0;
    int line = 0;
  };
  struct HostPort {
    std::string on;  // the switch's id
    double rate = 0;
    int line = 0;
  };

  void read_line(const std::string& line, int number) {
    const Words words = words_of_line(line);
    if (words.empty()) return;
    const std::string id = quoted(line, 0);
    if (words[0] == "Switch" || words[0] == "Ca" || words[0] == "Rt") {
      current_.clear();
      adapter_.clear();
      if (id.empty()) importer_.fail(number, "names no device", "Switch 41 \"S-506b...\"");
      const std::string description = quoted(line, 1);
      if (words[0] == "Switch") {
        current_ = id;
        if (switches_.emplace(id, description).second) order_.push_back(id);
      } else if (words[0] == "Ca") {
        open_adapter(description, id, number);
      }
      return;
    }
    if (line[0] != '[' || id.empty()) return;
    if (current_.empty() && (adapter_.empty() || id[0] != 'S')) return;
    const double rate = rate_of(words);
    if (rate <= 0) {
      importer_.fail(number, "does not tell the rate of a cable to " + plain_name(id),
          "its width and speed at the end, such as 4xHDR");
    }
    if (!current_.empty()) {
      if (id[0] != 'S') return;  // adapters tell their own ports
      const auto ends = std::minmax(current_, id);
      if (current_ == ends.first) {
        Cable& cable = cables_[ends];
        cable.rate += rate;
        cable.line = number;
      }
      return;
    }
    ports_[host_][adapter_ + line.substr(0, line.find(']') + 1)] = {id, rate, number};
  }

  void open_adapter(const std::string& description, const std::string& id, int number) {
    if (contains(description, "Aggregation Node")) {
      ++aggregations_;
      return;
    }
    const Words words = words_of_line(description);
    host_ = plain_name(words.empty() ? id : words.front());
    // "'node01 mlx5_0'" in some versions.
    while (!host_.empty() && host_.front() == '_') host_.erase(host_.begin());
    if (host_.empty()) host_ = plain_name(id);
    adapter_ = words.size() > 1 ? plain_name(words.back()) : plain_name(id);
    if (host_lines_.emplace(host_, number).second) hosts_.push_back(host_);
    if (hosts_.size() > kMostHosts) importer_.fail(number, "has too many nodes", "one cluster");
  }

  // Names of descriptions ("MF0;leaf1:MQM8700/U1"), with the id where two are the same.
  void name_switches() {
    std::map<std::string, int> counts;
    const auto short_name = [](const std::string& description) {
      std::string_view name = description;
      if (const std::size_t at = name.find(';'); at != std::string_view::npos) name.remove_prefix(at + 1);
      return plain_name(name.substr(0, name.find(':')));
    };
    for (const std::string& id : order_) ++counts[short_name(switches_[id])];
    for (const std::string& id : order_) {
      const std::string name = short_name(switches_[id]);
      names_[id] = name.empty() || counts[name] > 1 ? plain_name(name + "-" + id) : name;
      importer_.out.network.switches.push_back(names_[id]);
    }
    importer_.note(Mapping::kMapped, fmt::format("{} switches", order_.size()), "switches", "", 0);
    if (aggregations_ > 0) {
      importer_.note(
          Mapping::kIgnored, fmt::format("{} aggregation nodes", aggregations_), "", "SHARP's, inside the switches", 0);
    }
  }

  const std::string& name_of(const std::string& id, int line) const {
    const auto found = names_.find(id);
    if (found == names_.end()) {
      importer_.fail(
          line, "leads to a switch that is not there, " + plain_name(id), "a paragraph of its own for every switch");
    }
    return found->second;
  }

  void add_links() {
    for (const auto& [ends, cable] : cables_) {
      importer_.out.network.links.push_back(
          {name_of(ends.first, cable.line), name_of(ends.second, cable.line), cable.rate});
    }
    importer_.note(
        Mapping::kMapped, fmt::format("cables between {} pairs of switches", cables_.size()), "links", "", 0);
  }

  void add_hosts() {
    std::map<double, int> rates;
    std::map<std::string, std::size_t, NaturalLess> names;  // nodes that have the port
    for (const std::string& host : hosts_) {
      for (const auto& [port, where] : ports_[host]) {
        ++rates[where.rate];
        ++names[port];
      }
    }
    if (rates.empty()) importer_.fail(1, "has no adapter with a port that is up", "Ca 1 \"H-...\"");
    const double usual =
        std::ranges::max_element(rates, [](const auto& a, const auto& b) { return a.second < b.second; })->first;
    // Of all names those that most nodes have: others are the storage's or the front end's.
    std::vector<std::string> common;
    for (const auto& [name, nodes] : names)
      if (2 * nodes > hosts_.size()) common.push_back(name);
    if (common.empty())
      for (const auto& [name, nodes] : names) common.push_back(name);
    if (common.size() > kMostPorts)
      importer_.fail(1, fmt::format("has nodes with {} ports", common.size()), fmt::format("at most {}", kMostPorts));
    for (const std::string& host : hosts_) add_host(host, common, usual);
    importer_.out.nodes = std::ssize(importer_.out.network.hosts);
    importer_.figure(
        "node.nics", std::to_string(common.size()), fmt::format("{} to {}", common.front(), common.back()), 0);
    importer_.figure("node.nic_rate", fmt::format("{:g}Gbit/s", usual * 8 / 1e9), "the rate of most ports", 0);
  }

  void add_host(const std::string& host, const std::vector<std::string>& common, double usual) {
    const std::map<std::string, HostPort, NaturalLess>& own = ports_[host];
    ImportedHost made = {.name = host, .file = importer_.file(), .line = host_lines_[host]};
    const std::string fallback = own.empty() ? "" : own.begin()->second.on;
    for (std::size_t i = 0; i < common.size(); ++i) {
      const auto port = own.find(common[i]);
      const int index = static_cast<int>(i);
      if (port == own.end()) {
        made.leaves.push_back(fallback.empty() ? "" : name_of(fallback, made.line));
        made.degraded.emplace_back(index, 0.0);
        continue;
      }
      made.leaves.push_back(name_of(port->second.on, port->second.line));
      if (port->second.rate < usual) made.degraded.emplace_back(index, port->second.rate / usual);
    }
    if (own.empty() || made.degraded.size() == common.size()) {
      importer_.note(Mapping::kIgnored, host, "", "none of its ports is one of most nodes'", made.line);
      return;
    }
    importer_.out.network.hosts.push_back(std::move(made));
  }

  static constexpr std::size_t kMostPorts = 256;

  Importer importer_;
  std::string current_;  // the switch whose ports are read; "" within an adapter
  std::string adapter_;
  std::string host_;
  std::map<std::string, std::string> switches_;  // id, description
  std::map<std::string, std::string> names_;
  std::vector<std::string> order_;
  std::map<std::pair<std::string, std::string>, Cable> cables_;
  std::vector<std::string> hosts_;
  std::map<std::string, int> host_lines_;
  std::map<std::string, std::map<std::string, HostPort, NaturalLess>> ports_;
  int aggregations_ = 0;
};

}

TopologyImport parse_ibnetdiscover(std::string_view text, std::string_view file_name) {
  return IbReader(file_name).run(text);
}

}
