// nvidia-smi: the header row names the columns, every row begins with its own name. GPUs see each
// other over NV# (the links of one GPU, bonded), else over PCIe. A port belongs to the node's
// network where some GPU reaches it over PIX or PXB; others are the host's. GPUs that share PIX
// ports hang on one switch.
//
// Slurm: "SwitchName=leaf1 Nodes=n[1-16]" is a leaf, "SwitchName=s Switches=leaf[1-4]" is above.
#include "interop/network/topology_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <map>
#include <set>

#include "sim/base/error.h"
#include "sim/base/units.h"

namespace foreshard {
namespace {

using Words = std::vector<std::string>;

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

Words words_of(std::string_view line) {
  Words words;
  for (std::size_t at = 0; at < line.size();) {
    if (is_space(line[at])) {
      ++at;
      continue;
    }
    const std::size_t begin = at;
    while (at < line.size() && !is_space(line[at])) ++at;
    words.emplace_back(line.substr(begin, at - begin));
  }
  return words;
}

// nvidia-smi underlines its header: without "\x1b[4m" and the like.
std::string without_colours(std::string_view line) {
  std::string plain;
  for (std::size_t at = 0; at < line.size(); ++at) {
    if (line.substr(at, 2) == "\x1b[") {
      const std::size_t end = line.find_first_not_of("0123456789;", at + 2);
      if (end != std::string_view::npos && line[end] == 'm') {
        at = end;
        continue;
      }
    }
    plain.push_back(line[at]);
  }
  return plain;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find_first_of("\r\n", at), text.size());
    lines.push_back(without_colours(text.substr(at, end - at)));
    at = end + (text.substr(end).starts_with("\r\n") ? 2 : 1);
  }
  return lines;
}

class Importer {
 public:
  explicit Importer(std::string_view file) : file_(file) {}

  void note(Mapping mapping, std::string what, std::string to, std::string why, int line) {
    out.ledger.push_back({mapping, std::move(what), std::move(to), std::move(why), file_, line});
  }
  void figure(const std::string& key, const std::string& value, std::string what, int line) {
    out.figures.emplace_back(key, value);
    note(Mapping::kMapped, std::move(what), fmt::format("{}: {}", key, value), "", line);
  }
  [[noreturn]] void fail(int line, const std::string& what, const std::string& expected) const {
    throw ConfigError({file_, line, 0, ""}, what, expected);
  }

  TopologyImport out;

 private:
  std::string file_;
};

// A word and a number: "GPU3".
bool is_numbered(const std::string& name, std::string_view word) {
  return name.size() > word.size() && name.starts_with(word) &&
         std::all_of(name.begin() + static_cast<std::ptrdiff_t>(word.size()), name.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
}

bool is_gpu(const std::string& name) { return is_numbered(name, "GPU"); }
bool is_nic(const std::string& name) {
  // Older drivers name the devices.
  return is_numbered(name, "NIC") || name.starts_with("mlx") || name.starts_with("bnxt_re") ||
         name.starts_with("efa_") || name.starts_with("rdma") || name.starts_with("hfi");
}

struct Matrix {
  Words columns;
  std::map<std::string, std::map<std::string, std::string>> cells;  // row, column
  std::vector<std::string> gpus;
  int header_line = 0;
};

Matrix read_matrix(const std::vector<std::string>& lines, Importer& importer) {
  Matrix matrix;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const int line = static_cast<int>(i) + 1;
    const Words words = words_of(lines[i]);
    if (words.empty()) continue;
    if (matrix.columns.empty()) {
      if (!is_gpu(words[0])) continue;  // warnings ahead of the table
      for (const std::string& word : words) {
        if (is_gpu(word) || is_nic(word)) matrix.columns.push_back(word);
      }
      matrix.header_line = line;
      continue;
    }
    if (words[0] == "Legend:") break;
    if (!is_gpu(words[0]) && !is_nic(words[0])) continue;
    if (words.size() <= matrix.columns.size()) {
      importer.note(Mapping::kIgnored, words[0], "", "its row is cut off", line);
      continue;
    }
    if (is_gpu(words[0])) matrix.gpus.push_back(words[0]);
    for (std::size_t c = 0; c < matrix.columns.size(); ++c) {
      matrix.cells[words[0]][matrix.columns[c]] = words[c + 1];
    }
  }
  if (matrix.columns.empty()) {
    importer.fail(1, "has no header of GPUs", "the output of nvidia-smi topo -m");
  }
  if (matrix.gpus.empty()) {
    importer.fail(matrix.header_line, "is cut off behind its header", "a row for every GPU");
  }
  const auto gpus = std::count_if(matrix.columns.begin(), matrix.columns.end(), is_gpu);
  if (gpus != static_cast<std::ptrdiff_t>(matrix.gpus.size())) {
    importer.fail(
        static_cast<int>(lines.size()),
        fmt::format("is cut off: {} GPUs in the header, {} rows", gpus, matrix.gpus.size()),
        "a row for every GPU");
  }
  return matrix;
}

// The links of the best connected pair; 0 where GPUs see each other over PCIe alone.
int links_of(const Matrix& matrix) {
  int links = 0;
  for (const std::string& a : matrix.gpus) {
    for (const std::string& b : matrix.gpus) {
      const auto found = matrix.cells.at(a).find(b);
      if (found == matrix.cells.at(a).end() || !found->second.starts_with("NV")) continue;
      int count = 0;
      const std::string& text = found->second;
      const auto parsed = std::from_chars(text.data() + 2, text.data() + text.size(), count);
      if (parsed.ec == std::errc::result_out_of_range) count = std::numeric_limits<int>::max();
      links = std::max(links, count);
    }
  }
  return links;
}

bool all_linked(const Matrix& matrix) {
  for (const std::string& a : matrix.gpus) {
    for (const std::string& b : matrix.gpus) {
      const auto found = matrix.cells.at(a).find(b);
      if (a != b && found != matrix.cells.at(a).end() && !found->second.starts_with("NV")) {
        return false;
      }
    }
  }
  return true;
}

void add_links(const Matrix& matrix, Importer& importer) {
  const int links = links_of(matrix);
  const int line = matrix.header_line + 1;
  if (links == 0) {
    importer.figure("node.gpu_link_name", "PCIe", "no NVLink between GPUs", line);
    importer.note(Mapping::kUnsupported, "rate of the slots", "node.gpu_link",
                  "the matrix does not tell the generation of PCIe: that of the machine stands",
                  line);
    return;
  }
  const std::string what = fmt::format("NV{}", links);
  if (links > kMostLinks) {
    importer.fail(line, fmt::format("{} NVLinks of one GPU", links),
                  fmt::format("NV1 to NV{}", kMostLinks));
  }
  // 25 GB/s a link and direction to Hopper, 50 from Blackwell (NVIDIA's data sheets).
  if (links == 12) {
    importer.out.machine = "a100-80gb";
    importer.note(Mapping::kDefaulted, what, "machine: a100-80gb", "12 links: A100; 40 or 80 GB",
                  line);
    importer.figure("node.gpu_link", "300GB/s", what, line);
  } else if (links == 18) {
    importer.note(Mapping::kUnsupported, what, "machine",
                  "18 links: H100, H200 (450GB/s) or B200 (900GB/s)", line);
  } else if (links == 8) {
    importer.note(Mapping::kUnsupported, what, "machine", "8 links: A800, H800 and others", line);
  } else {
    importer.note(Mapping::kUnsupported, what, "node.gpu_link", "links of an unknown generation",
                  line);
  }
  importer.figure("node.gpu_link_name",
                  all_linked(matrix) && matrix.gpus.size() > 4 ? "NVLink + NVSwitch" : "NVLink",
                  what, line);
}

void add_ports(const Matrix& matrix, Importer& importer) {
  std::vector<std::string> ports;
  std::set<std::set<std::string>> switches;
  for (const std::string& column : matrix.columns) {
    if (!is_nic(column)) continue;
    std::set<std::string> near;
    for (const std::string& gpu : matrix.gpus) {
      const auto found = matrix.cells.at(gpu).find(column);
      if (found == matrix.cells.at(gpu).end()) continue;
      if (found->second == "PIX" || found->second == "PXB") near.insert(gpu);
    }
    if (near.empty()) {
      importer.note(Mapping::kIgnored, column, "",
                    "no GPU reaches it over PCIe switches: a port "
                    "of the host",
                    matrix.header_line);
      continue;
    }
    ports.push_back(column);
    switches.insert(near);
  }
  if (ports.empty()) {
    importer.note(Mapping::kDefaulted, "network ports", "node.nics",
                  "none stands near a GPU: those of the machine", matrix.header_line);
    return;
  }
  importer.figure("node.nics", std::to_string(ports.size()),
                  fmt::format("{} to {}", ports.front(), ports.back()), matrix.header_line);
  importer.figure("node.pcie_switches", std::to_string(switches.size()),
                  "groups of GPUs over PIX and PXB", matrix.header_line);
  importer.note(Mapping::kDefaulted, "rate of the ports", "node.nic_rate",
                "the matrix has no rates: that of the machine", matrix.header_line);
}

// --- Slurm ---

constexpr std::size_t kLongestName = 256;    // of a host: DNS allows 253
constexpr std::size_t kMostNames = 100'000;  // of a file; the largest clusters have 10,000 nodes

// "n[1-3,7],m4" as names; `left` is what the file may still name.
std::vector<std::string> expanded(const std::string& list, int line, const Importer& importer,
                                  std::size_t& left) {
  std::vector<std::string> names;
  const auto take_one = [&] {
    if (left-- == 0) {
      importer.fail(line, fmt::format("the file names more than {} nodes", kMostNames),
                    "the nodes of one cluster");
    }
  };
  std::size_t at = 0;
  while (at < list.size()) {
    std::size_t end = at;
    int depth = 0;
    while (end < list.size() && (list[end] != ',' || depth > 0)) {
      depth += list[end] == '[' ? 1 : list[end] == ']' ? -1 : 0;
      ++end;
    }
    const std::string part = list.substr(at, end - at);
    at = end + 1;
    const std::size_t open = part.find('[');
    if (open == std::string::npos) {
      if (!part.empty()) take_one(), names.push_back(part);
      continue;
    }
    const std::size_t close = part.find(']', open);
    if (close == std::string::npos) {
      importer.fail(line, "a list is cut off: " + part.substr(0, kLongestName), "n[1-16]");
    }
    if (part.size() - (close - open) > kLongestName) {
      importer.fail(line, "a name is too long", fmt::format("at most {} bytes", kLongestName));
    }
    const std::string ranges = part.substr(open + 1, close - open - 1);
    for (std::size_t begin = 0; begin < ranges.size();) {
      const std::size_t comma = std::min(ranges.find(',', begin), ranges.size());
      const std::string range = ranges.substr(begin, comma - begin);
      begin = comma + 1;
      int first = 0;
      int last = 0;
      const std::size_t dash = range.find('-');
      const std::string low = range.substr(0, dash);
      const std::string high = dash == std::string::npos ? low : range.substr(dash + 1);
      const auto a = std::from_chars(low.data(), low.data() + low.size(), first);
      const auto b = std::from_chars(high.data(), high.data() + high.size(), last);
      if (a.ec != std::errc() || b.ec != std::errc() || first < 0 || last < first) {
        importer.fail(line, "is no range of nodes: " + range.substr(0, kLongestName), "[1-16]");
      }
      for (int i = first; i <= last; ++i) {
        take_one();
        names.push_back(fmt::format("{}{}{}", part.substr(0, open), i, part.substr(close + 1)));
      }
    }
  }
  return names;
}

std::string value_of(const Words& words, const std::string& key) {
  for (const std::string& word : words) {
    const std::size_t equal = word.find('=');
    if (equal == std::string::npos || equal != key.size()) continue;
    const bool same = std::equal(key.begin(), key.end(), word.begin(), [](char a, char b) {
      return std::tolower(static_cast<unsigned char>(a)) ==
             std::tolower(static_cast<unsigned char>(b));
    });
    if (same) return word.substr(equal + 1);
  }
  return "";
}

}  // namespace

TopologyImport parse_nvidia_smi_topo(std::string_view text, std::string_view file_name) {
  Importer importer{file_name};
  const Matrix matrix = read_matrix(lines_of(text), importer);
  importer.out.gpus_per_node = static_cast<std::int64_t>(matrix.gpus.size());
  importer.figure("node.gpus", std::to_string(matrix.gpus.size()),
                  fmt::format("{} to {}", matrix.gpus.front(), matrix.gpus.back()),
                  matrix.header_line);
  add_links(matrix, importer);
  add_ports(matrix, importer);
  importer.note(Mapping::kIgnored, "CPU and NUMA affinity", "", "ranks run beside their GPU",
                matrix.header_line);
  return std::move(importer.out);
}

TopologyImport parse_slurm_topology(std::string_view text, std::string_view file_name) {
  Importer importer{file_name};
  const std::vector<std::string> lines = lines_of(text);
  std::set<std::string> nodes;
  std::size_t largest = 0;
  std::map<std::string, int> above;  // switch over switches, its line
  std::map<std::string, std::string> parent;
  int leaves = 0;
  int first_line = 0;
  std::size_t left = kMostNames;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const int line = static_cast<int>(i) + 1;
    std::string content = lines[i].substr(0, lines[i].find('#'));
    const Words words = words_of(content);
    if (words.empty()) continue;
    const std::string name = value_of(words, "SwitchName");
    if (name.empty()) {
      importer.note(Mapping::kUnsupported, words[0], "", "no switch of a tree", line);
      continue;
    }
    const std::string below = value_of(words, "Nodes");
    const std::string switches = value_of(words, "Switches");
    if (below.empty() == switches.empty()) {
      importer.fail(line, fmt::format("switch {} has neither nodes nor switches, or both", name),
                    "Nodes=n[1-16] or Switches=leaf[1-4]");
    }
    if (!value_of(words, "LinkSpeed").empty()) {
      importer.note(Mapping::kIgnored, "LinkSpeed", "", "Slurm itself reads no unit from it", line);
    }
    if (!below.empty()) {
      const std::vector<std::string> names = expanded(below, line, importer, left);
      largest = std::max(largest, names.size());
      nodes.insert(names.begin(), names.end());
      ++leaves;
      if (first_line == 0) first_line = line;
      continue;
    }
    above[name] = line;
    for (const std::string& child : expanded(switches, line, importer, left)) parent[child] = name;
  }
  if (leaves == 0) {
    importer.fail(1, "has no switch with nodes", "SwitchName=leaf1 Nodes=n[1-16]");
  }
  importer.out.nodes = static_cast<std::int64_t>(nodes.size());
  importer.note(Mapping::kMapped, fmt::format("{} nodes", nodes.size()), "gpus",
                "nodes times GPUs of one", first_line);
  importer.figure("network.nodes_per_leaf", std::to_string(largest),
                  fmt::format("{} switches with nodes", leaves), first_line);
  for (const auto& [name, line] : above) {
    const bool is_top = parent.find(name) == parent.end();
    importer.note(is_top ? Mapping::kMapped : Mapping::kUnsupported, name,
                  is_top ? "the spine" : "", is_top ? "" : "a level between leaf and spine", line);
  }
  importer.note(Mapping::kDefaulted, "width of the up-links", "network.oversubscription: 1",
                "the file says nothing of it", 0);
  return std::move(importer.out);
}

namespace {

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

}  // namespace

TopologyFormat topology_format(std::string_view text) {
  const std::string_view head = text.substr(0, 1 << 16);
  for (const std::string_view name : {"system", "cpu", "graphs"}) {
    if (has_element(head, name)) return TopologyFormat::kNcclXml;
  }
  for (const std::string& line : lines_of(head)) {
    const Words words = words_of(line.substr(0, kLongestName));
    if (words.empty()) continue;
    std::string first = words[0] + (words.size() > 1 && words[1][0] == '=' ? "=" : "");
    if (first == "GPU0") return TopologyFormat::kNvidiaSmi;
    std::transform(first.begin(), first.end(), first.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (first.starts_with("switchname=")) return TopologyFormat::kSlurm;
  }
  return TopologyFormat::kNone;
}

TopologyImport joined(const std::vector<TopologyImport>& parts) {
  TopologyImport all;
  for (const TopologyImport& part : parts) {
    if (all.machine.empty()) all.machine = part.machine;
    if (all.nodes == 0) all.nodes = part.nodes;
    if (all.gpus_per_node == 0) all.gpus_per_node = part.gpus_per_node;
    all.ledger.insert(all.ledger.end(), part.ledger.begin(), part.ledger.end());
    for (const auto& [key, value] : part.figures) {
      const auto same =
          std::find_if(all.figures.begin(), all.figures.end(),
                       [&, name = key](const auto& figure) { return figure.first == name; });
      if (same == all.figures.end()) {
        all.figures.emplace_back(key, value);
      } else if (same->second != value) {
        const std::string file = part.ledger.empty() ? "" : part.ledger.front().file;
        all.ledger.push_back({Mapping::kIgnored, key, "",
                              fmt::format("says {}, an earlier file {}", value, same->second), file,
                              0});
      }
    }
  }
  return all;
}

namespace {

Location place_of(const TopologyImport& import) {
  return {import.ledger.empty() ? "" : import.ledger.front().file, 1, 0, ""};
}

}  // namespace

std::string cluster_file(const TopologyImport& import, std::string_view machine,
                         std::int64_t nodes) {
  const std::string key = machine.empty() ? import.machine : std::string(machine);
  if (key.empty()) {
    throw ConfigError(place_of(import), "nothing here tells the GPU",
                      "a machine of the catalogue with --machine KEY");
  }
  const std::int64_t count = nodes > 0 ? nodes : std::max<std::int64_t>(1, import.nodes);
  std::string text;
  if (import.gpus_per_node > 0) {
    text += fmt::format("gpus: {}\n", checked_multiply(count, import.gpus_per_node));
  } else {
    throw ConfigError(place_of(import), "nothing here tells the GPUs of a node",
                      "the output of nvidia-smi topo -m or NCCL's topology beside it");
  }
  text += fmt::format("machine: {}\n", key);
  for (const char* section : {"node", "network"}) {
    bool is_open = false;
    for (const auto& [path, value] : import.figures) {
      const std::string prefix = std::string(section) + ".";
      if (!path.starts_with(prefix)) continue;
      if (!is_open) text += fmt::format("{}:\n", section);
      is_open = true;
      text += fmt::format("  {}: {}\n", path.substr(prefix.size()), value);
    }
  }
  return text;
}

}  // namespace foreshard
