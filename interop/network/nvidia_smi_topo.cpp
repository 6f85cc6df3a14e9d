// The header row names the columns, every row begins with its own name. GPUs see each other over NV# (the links of one
// GPU, bonded), else over PCIe. A port belongs to the node's network where some GPU reaches it over PIX or PXB; others
// are the host's. GPUs that share PIX ports hang on one switch.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "interop/network/topology_lines.h"

namespace foreshard {
namespace {

// A word and a number: "GPU3".
bool is_numbered(const std::string& name, std::string_view word) {
  return name.size() > word.size() && name.starts_with(word) &&
         std::all_of(
             name.begin() + word.size(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
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
    const Words words = words_of_line(lines[i]);
    if (words.empty()) continue;
    if (matrix.columns.empty()) {
      if (!is_gpu(words[0])) continue;  // warnings ahead of the table
      for (const std::string& word : words)
        if (is_gpu(word) || is_nic(word)) matrix.columns.push_back(word);
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
    for (std::size_t c = 0; c < matrix.columns.size(); ++c) matrix.cells[words[0]][matrix.columns[c]] = words[c + 1];
  }
  if (matrix.columns.empty()) importer.fail(1, "has no header of GPUs", "the output of nvidia-smi topo -m");
  if (matrix.gpus.empty()) importer.fail(matrix.header_line, "is cut off behind its header", "a row for every GPU");
  const auto gpus = std::ranges::count_if(matrix.columns, is_gpu);
  if (gpus != static_cast<std::ptrdiff_t>(matrix.gpus.size())) {
    importer.fail(static_cast<int>(lines.size()),
        fmt::format("is cut off: {} GPUs in the header, {} rows", gpus, matrix.gpus.size()), "a row for every GPU");
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
      if (a != b && found != matrix.cells.at(a).end() && !found->second.starts_with("NV")) return false;
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
        "the matrix does not tell the generation of PCIe: that of the machine stands", line);
    return;
  }
  const std::string what = fmt::format("NV{}", links);
  if (links > kMostLinks)
    importer.fail(line, fmt::format("{} NVLinks of one GPU", links), fmt::format("NV1 to NV{}", kMostLinks));
  // 25 GB/s a link and direction to Hopper, 50 from Blackwell (NVIDIA's data sheets).
  if (links == 12) {
    importer.out.machine = "a100-80gb";
    importer.note(Mapping::kDefaulted, what, "machine: a100-80gb", "12 links: A100; 40 or 80 GB", line);
    importer.figure("node.gpu_link", "300GB/s", what, line);
  } else if (links == 18) {
    importer.note(Mapping::kUnsupported, what, "machine", "18 links: H100, H200 (450GB/s) or B200 (900GB/s)", line);
  } else if (links == 8) {
    importer.note(Mapping::kUnsupported, what, "machine", "8 links: A800, H800 and others", line);
  } else {
    importer.note(Mapping::kUnsupported, what, "node.gpu_link", "links of an unknown generation", line);
  }
  importer.figure(
      "node.gpu_link_name", all_linked(matrix) && matrix.gpus.size() > 4 ? "NVLink + NVSwitch" : "NVLink", what, line);
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
      importer.note(Mapping::kIgnored, column, "", "no GPU reaches it over PCIe switches: a port of the host",
          matrix.header_line);
      continue;
    }
    ports.push_back(column);
    switches.insert(near);
  }
  if (ports.empty()) {
    importer.note(Mapping::kDefaulted, "network ports", "node.nics", "none stands near a GPU: those of the machine",
        matrix.header_line);
    return;
  }
  importer.figure("node.nics", std::to_string(ports.size()), fmt::format("{} to {}", ports.front(), ports.back()),
      matrix.header_line);
  importer.figure(
      "node.pcie_switches", std::to_string(switches.size()), "groups of GPUs over PIX and PXB", matrix.header_line);
  importer.note(Mapping::kDefaulted, "rate of the ports", "node.nic_rate",
      "the matrix has no rates: that of the machine", matrix.header_line);
}

}

TopologyImport parse_nvidia_smi_topo(std::string_view text, std::string_view file_name) {
  Importer importer{file_name};
  const Matrix matrix = read_matrix(text_lines(text), importer);
  importer.out.gpus_per_node = std::ssize(matrix.gpus);
  importer.figure("node.gpus", std::to_string(matrix.gpus.size()),
      fmt::format("{} to {}", matrix.gpus.front(), matrix.gpus.back()), matrix.header_line);
  add_links(matrix, importer);
  add_ports(matrix, importer);
  importer.note(Mapping::kIgnored, "CPU and NUMA affinity", "", "ranks run beside their GPU", matrix.header_line);
  // The node that said it, where the file is named after one.
  importer.out.network.hosts.push_back({plain_name(std::filesystem::path(std::string(file_name)).stem().string()), {},
      importer.out.figures, {}, std::string(file_name), matrix.header_line});
  return std::move(importer.out);
}

}
