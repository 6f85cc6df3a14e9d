// GPU: the machine of the catalogue that the row's text means (calibration/gpu_names.h), an H100
// where it means none. Network: words decide the kind of fabric; "8x400Gb",
// "4 x 100 Gbps" and "2x Slingshot-11 200Gb" are ports times rate of a node, a single "400Gb" is
// one port. What is not said is the usual network of that GPU, a port of the usual rate per GPU.
#include "calibration/fit/nccl_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "calibration/gpu_names.h"
#include "calibration/machines.h"
#include "sim/base/error.h"
#include "sim/base/letters.h"
#include "sim/base/lookup.h"
#include "sim/base/parse.h"
#include "sim/cost/nccl_tables.h"

namespace foreshard {
namespace {

// The usual node of a GPU, by the catalogue.
struct Family {
  Inside inside = Inside::kSwitch;
  GpuGeneration generation = GpuGeneration::kAmpere;
  double link = 0;                  // GB/s of one direction, of its NVLinks or its slot
  double port = 0;                  // Gbit/s of network per GPU
  bool joins_hosts = false;         // its NVLink domain is of several hosts
  bool hangs_on_processor = false;  // by NVLink-C2C
  BytesPerSecond host_memory;
};

Family usual_of(const Machine& machine) {
  constexpr std::int64_t kHost = 16;      // GPUs that one host has at the most
  constexpr double kFastestSlot = 150e9;  // B/s, twice PCIe 6.0 x16 would do
  const NodeKind& node = machine.node.node;
  const double gpus = as_double(node.gpus);
  return {inside_of(node), nccl_generation(machine.node.gpu), node.gpu_link.value() / 1e9,
      as_double(node.nics) * node.nic_rate.value() * 8 / 1e9 / gpus, node.gpus > kHost || node.link_domain > 1,
      node.host_link.value() > kFastestSlot, node.host_memory_bandwidth};
}

Family family_of(std::string_view gpu) {
  static const std::vector<Machine> machines = list_machines();
  const Machine* found = match_gpu(gpu, machines);
  return usual_of(found != nullptr ? *found : machine_named("h100").value());
}

struct Ports {
  double count = 0;  // of a node; 0: not said
  double rate = 0;   // Gbit/s of one; 0: not said
};

std::size_t skip_spaces(std::string_view text, std::size_t at) {
  return skip(
      text, at, [](char c) { return c == ' ' || c == '\t'; });
}

// The number that a text is; NaN where it is none.
double number_of(std::string_view text) { return parse_number<double>(text).value_or(std::nan("")); }

// Gbit/s of "400gb", "1.6 tbit/s", "100g" at a place; 0 where none stands there.
double rate_at(std::string_view text, std::size_t begin) {
  std::size_t end = skip(text, begin, is_digit);
  if (end == begin) return 0;
  if (end + 1 < text.size() && text[end] == '.' && is_digit(text[end + 1])) end = skip(text, end + 1, is_digit);
  const std::size_t unit = skip_spaces(text, end);
  if (unit >= text.size() || (text[unit] != 't' && text[unit] != 'g')) return 0;
  const char next = unit + 1 < text.size() ? text[unit + 1] : ' ';
  const bool is_word = is_letter(next) || is_digit(next) || next == '_';
  if (is_word && !contains(std::string_view("biep"), next)) return 0;
  return number_of(text.substr(begin, end - begin)) * (text[unit] == 't' ? 1000 : 1);
}

// "8x400gb", "8 x 400 gbit/s", "2x slingshot-11 200gb", "4*100g": at most three words between.
Ports many_ports_at(std::string_view text, std::size_t begin) {
  const std::size_t digits = skip(text, begin, is_digit);
  std::size_t at = skip_spaces(text, digits);
  if (digits == begin || at >= text.size() || (text[at] != 'x' && text[at] != '*')) return {};
  at = skip_spaces(text, at + 1);
  for (int words = 0; words < 3 && at < text.size() && is_letter(text[at]); ++words) {
    const std::size_t end =
        skip(text, at, [](char c) { return is_letter(c) || is_digit(c) || c == '.' || c == '/' || c == '-'; });
    at = skip_spaces(text, end);
    if (at == end) return {};
  }
  const double rate = rate_at(text, at);
  return rate > 0 ? Ports{number_of(text.substr(begin, digits - begin)), rate} : Ports{};
}

Ports ports_of(std::string_view network) {
  constexpr std::size_t kLongest = 1000;  // every place is tried
  network = network.substr(0, kLongest);
  for (std::size_t at = 0; at < network.size(); ++at)
    if (const Ports found = many_ports_at(network, at); found.rate > 0) return found;
  for (std::size_t at = 0; at < network.size(); ++at)
    if (const double rate = rate_at(network, at); rate > 0) return {0, rate};
  return {};
}

// NVLink domains the ranks lie on.
std::int64_t domains_of(
    const NcclPlace& place, const Family& family, const std::string& gpu, const std::string& network) {
  const std::string both = gpu + " " + network;
  const bool says_domain = has_any(both, {"nvl72", "nvl36", "nvl144", "mnnvl"});
  if (!family.joins_hosts && !says_domain) return place.nodes;
  const bool is_apart = has_any(
      network, {"different", "separate", "across", "two nvl", "2 nvl", "inter-domain", "no mnnvl", "mnnvl off"});
  const std::int64_t size = contains(both, "nvl36") ? 36 : contains(both, "nvl144") ? 144 : 72;
  const std::int64_t racks = (place.ranks + size - 1) / size;
  if (racks > 1) return racks;
  const bool has_network =
      has_any(network, {"infiniband", "roce", "rdma", "ethernet", "efa", "cx-", "connectx", "quantum", "spectrum"}) ||
      ports_of(network).rate > 0;
  if (is_apart || (has_network && !has_any(network, {"mnnvl", "one nvl72", "nvl72)"}))) return place.nodes;
  return 1;
}

std::string repository_of(const std::string& source) {
  std::string_view rest = source;
  for (const std::string_view scheme : {"https://", "http://"})
    if (rest.starts_with(scheme)) rest.remove_prefix(scheme.size());
  for (const std::string_view host : {"github.com:", "github.com/", "github:", "github/"}) {
    if (!rest.starts_with(host)) continue;
    rest.remove_prefix(host.size());
    const std::size_t slash = rest.find_first_of("/:");
    if (slash == 0 || slash == std::string_view::npos || rest[slash] != '/') break;
    const std::size_t end = std::min(rest.find_first_of("/:@#", slash + 1), rest.size());
    if (end > slash + 1) return std::string(rest.substr(0, end));
    break;
  }
  return source;
}

std::optional<CollectiveOperation> collective_named(const std::string& text) {
  std::string name = squeezed(text);
  for (const char* end : {"perf", "tensor", "base"}) {
    const std::size_t at = name.rfind(end);
    if (at != std::string::npos && at > 0) name.resize(at);
  }
  static constexpr std::pair<const char*, CollectiveOperation> kNames[] = {
      {"allgather", CollectiveOperation::kAllGather},
      {"reducescatter", CollectiveOperation::kReduceScatter},
      {"allreduce", CollectiveOperation::kAllReduce},
      {"broadcast", CollectiveOperation::kBroadcast},
      {"bcast", CollectiveOperation::kBroadcast},
      {"reduce", CollectiveOperation::kReduce},
      {"alltoall", CollectiveOperation::kAllToAll},
      {"sendrecv", CollectiveOperation::kSendRecv},
      {"ag", CollectiveOperation::kAllGather},
      {"rs", CollectiveOperation::kReduceScatter},
      {"ar", CollectiveOperation::kAllReduce},
  };
  for (const auto& [known, collective] : kNames)
    if (name == known) return collective;
  return std::nullopt;
}

std::string cell(const CsvTable& table, std::size_t row, std::string_view column) {
  return table.has(column) ? table.text(row, column) : std::string();
}

// NaN where the cell is empty or no number.
double value(const CsvTable& table, std::size_t row, std::string_view column) {
  return number_of(cell(table, row, column));
}

// A fabric cannot be thousands of times off: such rows are of another unit.
constexpr double kFastest = 20'000;  // GB/s of bus bandwidth
constexpr double kLongest = 3'600;   // s

std::string problem_of(const NcclRow& row, double ranks, double nodes) {
  if (!row.collective) return "its collective is not known";
  if (!(ranks >= 1 && nodes >= 1) || ranks != std::floor(ranks) || nodes != std::floor(nodes))
    return "n_gpus or n_nodes is not a count";
  if (ranks < 2) return "one rank communicates with nobody";
  if (ranks > 1e6) return "n_gpus is absurd";
  if (nodes > ranks) return "more nodes than GPUs";
  if (!(row.bytes > 0) || row.bytes > 1e15) return "bytes is not a size";
  if (!(row.seconds > 0) || row.seconds > kLongest) return "time_us_oop is not a time";
  const double busbw = busbw_factor(*row.collective, ranks) * row.bytes / row.seconds / 1e9;
  if (busbw > kFastest) return "its bandwidth is absurd: another unit?";
  return "";
}

}

// Copies through the host's kernel bind before the ports do; an assumption, of its order of size.
constexpr double kSockets = 10;  // GB/s of a node

PlacedSystem place_system(const NcclPlace& place) {
  const std::string gpu = lower(place.gpu);
  const std::string network = lower(place.network);
  const Family family = family_of(place.gpu);
  PlacedSystem placed;
  NcclSystem& s = placed.system;
  s.version = parse_nccl_version(place.version);
  s.generation = family.generation;
  s.nodes = std::max<std::int64_t>(1, domains_of(place, family, gpu, network));
  s.ranks_per_node = std::max<std::int64_t>(1, place.ranks / s.nodes);
  const bool bridge = has_any(gpu + network, {"nvlink bridge", "nvl bridge"});
  const bool says_pcie = family.inside != Inside::kPcie && s.nodes == 1 && has_any(network, {"pcie"}) &&
                         !has_any(network, {"nvlink", "nvswitch"});
  Inside inside = family.inside;
  double link = family.link;
  if (bridge && inside != Inside::kSwitch) inside = Inside::kMesh, link = 300;
  if (says_pcie && inside != Inside::kThroughHost) inside = Inside::kPcie, link = 24;
  if (inside == Inside::kThroughHost && has_any(network, {"p2p"}) && !has_any(network, {"no p2p", "without p2p"}))
    inside = Inside::kPcie;
  s.nvlink = inside == Inside::kSwitch || inside == Inside::kMesh || inside == Inside::kXgmi;
  s.nvswitch = inside == Inside::kSwitch;
  s.cpu = s.generation == GpuGeneration::kAmpere || inside == Inside::kXgmi ? CpuKind::kAmd
          : family.hangs_on_processor                                       ? CpuKind::kOther
                                                                            : CpuKind::kIntel;
  s.link = s.nvlink ? usable_link(s.generation, link, s.version) : link;
  if (inside == Inside::kThroughHost) s.link = through_host(link, family.host_memory, as_double(s.ranks_per_node));
  placed.kind = s.nvlink ? FabricKind::kNvlink : FabricKind::kPcie;
  if (s.nodes <= 1) return placed;
  placed.kind = network_kind(network);
  Ports ports = ports_of(network);
  if (ports.rate <= 0) ports.rate = family.port;
  const std::int64_t host_gpus = std::max<std::int64_t>(1, place.ranks / place.nodes);
  const double hosts = as_double(place.nodes) / as_double(s.nodes);
  ports.count = ports.count > 0 ? ports.count * hosts : as_double(host_gpus) * hosts;
  s.nic = ports.rate / 8;
  s.nics = ports.count;
  if (placed.kind == FabricKind::kTcp) {
    const double total = std::min(s.nic * s.nics, kSockets);
    s.nic = total;
    s.nics = 1;
  }
  if (placed.kind == FabricKind::kEfa) {
    // aws/aws-ofi-nccl:src/platform-aws.cpp: 75 us to the p5 of EFAv2, 35 after.
    s.net_latency = has_any(network, {"efav3", "efav4", "p5en", "p6"}) ? 35 : 75;
  }
  return placed;
}

std::vector<NcclRow> nccl_rows(const CsvTable& table) {
  for (const char* column : {"bytes", "collective", "n_gpus"}) {
    if (!table.has(column)) {
      throw ConfigError({table.file_name(), 1, 1, ""}, fmt::format("has no column '{}'", column),
          "bytes, collective, n_gpus and time_us_oop or busbw_GBps");
    }
  }
  std::vector<NcclRow> rows;
  for (std::size_t i = 0; i < table.rows(); ++i) {
    NcclRow row;
    row.line = table.line(i);
    row.id = cell(table, i, "id");
    row.source = repository_of(cell(table, i, "source"));
    row.gpu = cell(table, i, "gpu");
    row.network = cell(table, i, "network");
    const double ranks = value(table, i, "n_gpus");
    const double given = value(table, i, "n_nodes");
    const double nodes = cell(table, i, "n_nodes").empty() ? 1.0 : given;
    row.collective = collective_named(cell(table, i, "collective"));
    row.bytes = value(table, i, "bytes");
    row.seconds = value(table, i, "time_us_oop") * 1e-6;
    const double busbw = value(table, i, "busbw_GBps");
    if (std::isnan(row.seconds) && busbw > 0 && row.collective && ranks >= 2)
      row.seconds = busbw_factor(*row.collective, ranks) * row.bytes / (busbw * 1e9);
    row.problem = problem_of(row, ranks, nodes);
    if (row.problem.empty()) {
      const std::string version = cell(table, i, "nccl_version");
      const NcclPlace place{
          row.gpu, row.network, version, static_cast<std::int64_t>(ranks), static_cast<std::int64_t>(nodes)};
      const PlacedSystem placed = place_system(place);
      row.system = placed.system;
      row.kind = placed.kind;
      row.hosts = static_cast<std::int64_t>(nodes);
    }
    row.fabric = fmt::format("{}|{}|{}|{}|{}", row.source, squeezed(row.gpu), ranks, nodes, squeezed(row.network));
    if (row.id.empty()) row.id = fmt::format("line {}", row.line);
    rows.push_back(std::move(row));
  }
  return rows;
}

}
