// What nvidia-smi prints of a node's GPUs in its three forms: `-q` (sections by indentation, "key : value"),
// `--query-gpu=... --format=csv` (a header), and the table without options. Each becomes the same rows: name, power
// limit, why clocks are held back. A node is as fast as its slowest GPU: of several limits the lowest counts.
//
// Of a superchip `-q` has the module's power beside the GPU's: the latter is in "GPU Power
// Readings", or in "Power Readings" of drivers before 530. The limit that counts is the enforced
// one, where it is told. Memory is not taken: CUDA gets less of it than nvidia-smi counts.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "calibration/gpu_names.h"
#include "calibration/machines.h"
#include "interop/network/topology_lines.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"

namespace foreshard {
namespace {

struct SmiGpu {
  std::string name;
  std::optional<double> limit, enforced;  // W
  std::string held_by;                    // "SW Power Cap"
  int line = 0;                           // of its name
};

std::string_view cell_text(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t|");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t|") - begin + 1);
}

// "700.00 W": of "N/A", "[Not Supported]" and what is none, nothing.
std::optional<double> watts(std::string_view text) {
  const auto value = leading_number<double>(cell_text(text));
  return value > 0 && value <= 1e5 ? std::optional(value) : std::nullopt;
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  for (std::size_t at = 0; at <= line.size();) {
    const std::size_t end = std::min(line.find(',', at), line.size());
    cells.emplace_back(cell_text(std::string_view(line).substr(at, end - at)));
    at = end + 1;
  }
  return cells;
}

bool is_held(std::string_view key, std::string_view value) {
  return value == "Active" && (contains(key, "Power Cap") || contains(key, "Slowdown") || key == "HW Power Brake");
}

std::vector<SmiGpu> read_query(const std::vector<std::string>& lines) {
  std::vector<SmiGpu> gpus;
  std::string section;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string_view line = lines[i];
    if (line.starts_with("GPU ")) {
      gpus.push_back({"", {}, {}, "", static_cast<int>(i) + 1});
      continue;
    }
    const std::size_t colon = line.find(" : ");
    const std::string_view key = cell_text(line.substr(0, colon));
    if (gpus.empty() || key.empty()) continue;
    if (colon == std::string_view::npos) {
      section = key;
      continue;
    }
    const std::string_view value = cell_text(line.substr(colon + 3));
    SmiGpu& gpu = gpus.back();
    const bool is_power = section == "GPU Power Readings" || section == "Power Readings";
    if (key == "Product Name") gpu.name = value;
    if (is_power && (key == "Current Power Limit" || key == "Power Limit")) gpu.limit = watts(value);
    if (is_power && key == "Enforced Power Limit") gpu.enforced = watts(value);
    if (is_held(key, value) && gpu.held_by.empty()) gpu.held_by = key;
  }
  return gpus;
}

std::vector<SmiGpu> read_csv(const std::vector<std::string>& lines) {
  std::vector<SmiGpu> gpus;
  std::vector<std::string> header;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::vector<std::string> cells = cells_of(lines[i]);
    if (header.empty()) {
      if (cells.size() > 1) header = cells;
      continue;
    }
    if (cells.size() != header.size()) continue;
    SmiGpu& gpu = gpus.emplace_back(SmiGpu{"", {}, {}, "", static_cast<int>(i) + 1});
    for (std::size_t c = 0; c < cells.size(); ++c) {
      const std::string column = header[c].substr(0, header[c].find(' '));
      if (column == "name" || column == "gpu_name") gpu.name = cells[c];
      if (column == "power.limit") gpu.limit = watts(cells[c]);
      if (column == "enforced.power.limit") gpu.enforced = watts(cells[c]);
      if (cells[c] == "Active" && column.starts_with("clocks_") && !contains(column, "idle")) gpu.held_by = column;
    }
  }
  return gpus;
}

// "|   0  NVIDIA H100 80GB HBM3     On  | 00000000:1B:00.0 Off |", then "| N/A  35C  P0  72W / 700W
// |".
std::vector<SmiGpu> read_table(const std::vector<std::string>& lines) {
  std::vector<SmiGpu> gpus;
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
    const std::string_view line = lines[i];
    const std::string_view first = cell_text(line.substr(0, line.find('|', 1)));
    const Words words = words_of_line(first);
    const bool is_gpu = line.starts_with('|') && words.size() > 2 &&
                        words[0].find_first_not_of("0123456789") == std::string::npos &&
                        (words.back() == "On" || words.back() == "Off");
    if (!is_gpu) continue;
    const std::string& below = lines[i + 1];
    const std::size_t slash = below.find("W / ");
    std::string name = words[1];
    for (std::size_t w = 2; w + 1 < words.size(); ++w) name += " " + words[w];
    gpus.push_back({name, slash == std::string::npos ? std::nullopt : watts(below.substr(slash + 4)), {}, "",
        static_cast<int>(i) + 1});
  }
  return gpus;
}

void add_limit(const std::vector<SmiGpu>& gpus, Importer& importer) {
  std::optional<double> least;
  double most = 0;
  int line = gpus.front().line;
  for (const SmiGpu& gpu : gpus) {
    const std::optional<double> limit = gpu.enforced ? gpu.enforced : gpu.limit;
    if (!limit) continue;
    most = std::max(most, *limit);
    if (least && *limit >= *least) continue;
    least = limit;
    line = gpu.line;
  }
  if (!least) {
    importer.note(Mapping::kDefaulted, "power limit", "gpu.power_limit", "not told: that of the machine", line);
    return;
  }
  const std::string what =
      most > *least ? fmt::format("limits of {:g} to {:g} W: the lowest sets the pace", *least, most) : "power limit";
  importer.figure("gpu.power_limit", fmt::format("{:g}W", *least), what, line);
}

}

TopologyImport parse_nvidia_smi_query(std::string_view text, std::string_view file_name) {
  Importer importer{file_name};
  const std::vector<std::string> lines = text_lines(text);
  std::vector<SmiGpu> gpus = read_query(lines);
  if (gpus.empty()) gpus = read_table(lines);
  if (gpus.empty()) gpus = read_csv(lines);
  std::erase_if(gpus, [](const SmiGpu& gpu) { return gpu.name.empty(); });
  if (gpus.empty()) {
    importer.fail(1, "names no GPU",
        "the output of nvidia-smi, nvidia-smi -q or nvidia-smi --query-gpu=name,power.limit --format=csv");
  }
  const SmiGpu& first = gpus.front();
  for (const SmiGpu& gpu : gpus) {
    if (gpu.name == first.name) continue;
    importer.fail(gpu.line, fmt::format("{} beside {}", gpu.name, first.name), "GPUs of one kind in a node");
  }
  const std::vector<Machine> machines = list_machines();
  if (const Machine* machine = match_gpu(first.name, machines)) {
    importer.out.machine = machine->key;
    importer.note(Mapping::kMapped, first.name, "machine: " + machine->key, "", first.line);
  } else {
    importer.note(Mapping::kUnsupported, first.name, "machine", "no machine of the catalogue", first.line);
  }
  importer.out.gpus_per_node = std::ssize(gpus);
  importer.figure("node.gpus", std::to_string(gpus.size()), "GPUs", first.line);
  add_limit(gpus, importer);
  for (const SmiGpu& gpu : gpus) {
    if (gpu.held_by.empty()) continue;
    importer.note(Mapping::kUnsupported, gpu.held_by, "",
        "clocks were held back when this was read: if it was while the job ran, why is a "
        "question for foreshard diagnose",
        gpu.line);
    break;
  }
  importer.note(Mapping::kIgnored, "memory, clocks and temperature of the moment", "",
      "the forecast is of a chip that has run for long", first.line);
  return std::move(importer.out);
}

}
