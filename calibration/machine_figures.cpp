// Every figure is a row of one table, which makes the schema, too, and is read by the same
// function, which takes a plain value or {value, source} and notes where it came from.
#include "calibration/machine_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/lookup.h"
#include "sim/base/unit_strings.h"
#include "sim/spec/gpu_generation.h"

namespace foreshard {
namespace {

std::string place(const ConfigNode& node) {
  const Location where = node.location();
  return fmt::format("{}:{}", where.file, where.line);
}

// Reads the figures of a catalogue entry or a cluster file into one Cluster.
class FigureReader {
 public:
  FigureReader(Cluster& cluster, MissingFigures missing) : cluster_(cluster), missing_(missing) {}

  // The mapping `key` of `parent`, or null where it is missing and may be.
  ConfigNode section(const ConfigNode& parent, std::string_view key) const {
    const ConfigNode* found = parent.find(key);
    if (found == nullptr) {
      if (keeps(key)) return ConfigNode();
      return parent.at(key, "the figures of a machine, or machine: with a key of the catalogue");
    }
    if (!found->is_mapping()) throw found->error("is not a mapping", fmt::format("figures such as {}: {{...}}", key));
    return *found;
  }

  // Calls `read` with the value of figure `key`; `path` is its name in the list of sources.
  void figure(const ConfigNode& section, std::string_view key, std::string path, std::string_view expected,
      const std::function<void(const ConfigNode&)>& read) {
    const ConfigNode* found = section.is_mapping() ? section.find(key) : nullptr;
    if (found == nullptr) {
      if (keeps(path)) return;
      section.at(key, expected);
      return;
    }
    ConfigNode value = *found;
    std::string source = place(*found);
    if (found->is_mapping()) {
      found->allow_only({"value", "source"});
      value = found->at("value", expected);
      source = found->at("source", "where the figure comes from").as_string();
      if (source.empty()) throw found->at("source").error("is empty", "where the figure comes from");
    }
    read(value);
    for (auto& [name, text] : cluster_.sources) {
      if (name == path) {
        text = source;
        return;
      }
    }
    cluster_.sources.emplace_back(std::move(path), std::move(source));
  }

 private:
  bool keeps(std::string_view path) const {
    return missing_ == MissingFigures::kKeep || (missing_ == MissingFigures::kKeepServer && !path.starts_with("gpu"));
  }

  Cluster& cluster_;
  MissingFigures missing_;
};

// What a figure may be in a cluster file is a range and what another figure allows (kPairs): lower ends are a
// thousandth of the slowest machine of the catalogue, upper ends some ten times what is announced (NVIDIA Rubin Ultra
// NVL576, 2025-03: 1 TB of HBM4e at 32 TB/s, 25 PFLOP/s dense in fp8, 3.6 kW; ConnectX-9: 1.6 Tbit/s).
struct Figure {
  std::string_view section, key;
  bool is_needed;         // else only some prices and answers need it
  std::string_view unit;  // or what else it is; of quantities the schema has a definition
  void (*read)(const Figure&, const ConfigNode&, Cluster&);
  std::pair<std::string, Json> (*shown)(const Figure&, const Cluster&);
  std::string_view expected, says;
  double least = 0, most = 0;
  double (*of)(const Cluster&) = nullptr;  // where the range is not held as it is read
  bool is_shown = true;
};

double number_of(double value) { return value; }
double number_of(Bytes size) { return as_double(size.count()); }
double number_of(Time time) { return time.seconds(); }
double number_of(BytesPerSecond rate) { return rate.value(); }
double number_of(FlopsPerSecond rate) { return rate.value(); }

using Shown = std::pair<std::string, Json>;
Shown shown(std::string_view, const std::string& text) { return {text, text}; }
Shown shown(std::string_view, bool flag) { return {flag ? "true" : "false", flag}; }
Shown shown(std::string_view, std::int64_t n) { return {format_count(n), n}; }
Shown shown(std::string_view, Bytes size) { return {format_bytes(size), size.count()}; }
Shown shown(std::string_view, Time time) { return {format_time(time), time.seconds()}; }
Shown shown(std::string_view, BytesPerSecond r) { return {format_bandwidth(r), r.value()}; }
Shown shown(std::string_view, FlopsPerSecond r) { return {format_flop_rate(r), r.value()}; }
Shown shown(std::string_view unit, double n) {
  if (unit == "frequency") return {fmt::format("{:.0f} MHz", n / 1e6), n};
  if (unit == "power") return {fmt::format("{:g} W", n), n};
  return {unit == "price" ? fmt::format("{:.2f} USD", n) : fmt::format("{}", n), n};
}

// Rows of the table below: a figure is the member of its name, `c` the cluster, `n` what is read.
#define FORESHARD_FIGURE(section_, key_, is_needed_, unit_, reads, expected_, says_, ...)                             \
  {                                                                                                                   \
    .section = #section_, .key = #key_, .is_needed = is_needed_, .unit = unit_,                                       \
    .read = [](const Figure& figure [[maybe_unused]], const ConfigNode& n, Cluster& c) { reads; },                    \
    .shown = [](const Figure& f, const Cluster& c) { return shown(f.unit, c.section_.key_); }, .expected = expected_, \
    .says = says_ __VA_OPT__(, ) __VA_ARGS__                                                                          \
  }
#define FORESHARD_NAME(section_, key_, ...) \
  FORESHARD_FIGURE(section_, key_, true, "name", c.section_.key_ = read_name(n), __VA_ARGS__)
#define FORESHARD_COUNT(section_, key_, is_needed_, least_, most_, expected_, says_, ...)                          \
  FORESHARD_FIGURE(section_, key_, is_needed_, "count",                                                            \
      c.section_.key_ = n.as_int(static_cast<std::int64_t>(figure.least), static_cast<std::int64_t>(figure.most)), \
      expected_, says_, .least = least_, .most = most_ __VA_OPT__(, ) __VA_ARGS__)
#define FORESHARD_VALUE(section_, key_, is_needed_, unit_, least_, most_, ...)                            \
  FORESHARD_FIGURE(                                                                                       \
      section_, key_, is_needed_, #unit_, c.section_.key_ = n.as_##unit_(), __VA_ARGS__, .least = least_, \
      .most = most_, .of = [](const Cluster& c) { return number_of(c.section_.key_); })

std::string read_name(const ConfigNode& value) {
  std::string text = value.as_string();
  if (text.empty()) throw value.error("is empty", "a name");
  return text;
}

constexpr double kTiB = 1024.0 * 1024 * 1024 * 1024;
constexpr Figure kFigures[] = {
    FORESHARD_NAME(gpu, name, "a name such as NVIDIA H100", "Name for people."),
    FORESHARD_COUNT(gpu, multiprocessors, true, 1, 100'000, "a count such as 132", "Streaming multiprocessors."),
    FORESHARD_VALUE(gpu, peak_bf16, true, flop_rate, 1e9, 2e17, "1GFLOP/s to 200PFLOP/s, such as 989TFLOP/s",
        "Dense peak of bf16 and fp16 matrix products."),
    FORESHARD_VALUE(gpu, peak_fp32, true, flop_rate, 1e9, 2e17, "1GFLOP/s to 200PFLOP/s, such as 67TFLOP/s",
        "Peak of fp32 without TF32."),
    FORESHARD_VALUE(gpu, memory, true, bytes, 1024.0 * 1024, 10 * kTiB, "1MiB to 10TiB of one GPU, such as 79.1GiB",
        "What the driver reports."),
    FORESHARD_VALUE(
        gpu, memory_bandwidth, true, bandwidth, 1e8, 3e14, "100MB/s to 300TB/s, such as 3350GB/s", "Of device memory."),
    FORESHARD_FIGURE(gpu, architecture, false, "architecture",
        c.gpu.architecture = gpu_architectures()[n.as_choice(gpu_architectures())], "a name such as hopper",
        "Name of the chip generation."),
    FORESHARD_VALUE(gpu, clock, false, frequency, 1e7, 1e10, "10MHz to 10GHz, such as 1980MHz", "Boost clock."),
    FORESHARD_VALUE(gpu, peak_fp8, false, flop_rate, 0, 2.5e17,
        "0TFLOP/s (no fp8 units) to 250PFLOP/s, such as 1979TFLOP/s",
        "Dense fp8 rate, accumulated in fp32; 0TFLOP/s where there is none."),
    FORESHARD_VALUE(gpu, peak_fp4, false, flop_rate, 0, 2.5e17,
        "0TFLOP/s (no such units) to 250PFLOP/s, such as 9000TFLOP/s",
        "Dense rate in four bits (NVFP4), accumulated in fp32."),
    FORESHARD_VALUE(gpu, power_limit, false, power, 5, 3.6e4, "5W to 36kW of one GPU, such as 700W",
        "Power limit of one GPU: sustained clocks follow it."),
    FORESHARD_VALUE(gpu, price_per_hour, false, price, 0, 1e4, "0USD/h to 10000USD/h of one GPU, such as 2.95USD/h",
        "Price of one GPU for an hour."),
    FORESHARD_NAME(node, key, "a name such as hgx-h100", "Name of the kind of node."),
    FORESHARD_COUNT(node, gpus, true, 1, 4096, "GPUs of a node, such as 8", "GPUs per node."),
    FORESHARD_VALUE(node, gpu_link, true, bandwidth, 1e6, 4e13, "1MB/s to 40TB/s, such as 450GB/s",
        "Link of one GPU, one direction."),
    FORESHARD_NAME(node, gpu_link_name, "a name such as NVLink4", "Name of the link."),
    FORESHARD_COUNT(node, nics, true, 0, 4096, "network ports of a node, such as 8", "Network ports per node."),
    FORESHARD_VALUE(node, nic_rate, true, bandwidth, 1e5, 2e12, "1Mbit/s to 16Tbit/s of one port, such as 400Gbit/s",
        "Rate of one port, one direction."),
    FORESHARD_NAME(node, nic_name, "a name such as ConnectX-7", "Name of the port."),
    FORESHARD_VALUE(
        node, link_latency, true, time, 1e-9, 1e-3, "1ns to 1ms, such as 600ns", "GPU to GPU inside the node."),
    FORESHARD_VALUE(
        node, nic_latency, true, time, 1e-9, 0.1, "1ns to 100ms, such as 2700ns", "GPU to GPU of the next node."),
    FORESHARD_VALUE(node, host_link, false, bandwidth, 1e6, 2e13, "1MB/s to 20TB/s, such as 48GB/s",
        "PCIe between the host and a GPU, usable, one direction."),
    FORESHARD_VALUE(node, host_memory_bandwidth, false, bandwidth, 1e8, 2e14, "100MB/s to 200TB/s, such as 614.4GB/s",
        "Of the node's host memory."),
    FORESHARD_VALUE(node, storage_bandwidth, false, bandwidth, 1e5, 1e13, "100kB/s to 10TB/s, such as 25GB/s",
        "Of the node's NVMe drives together."),
    FORESHARD_COUNT(node, link_domain, false, 1, 4096, "a count",
        "Consecutive nodes whose GPUs hang on one NVLink switch, 18 in an NVL72 rack; default 1.", .is_shown = false),
    FORESHARD_COUNT(node, pcie_switches, false, 0, 4096, "a count",
        "PCIe switches of the node that GPUs and ports hang on; default: not stated, 0.", .is_shown = false),
    FORESHARD_FIGURE(node, peer_access, false, "flag", c.node.peer_access = n.as_bool(), "true or false",
        "Whether GPUs reach each other's memory over PCIe; false: through the host's, "
        "as GeForce drivers have it; default: true.",
        .is_shown = false),
    FORESHARD_FIGURE(network, kind, true, "kind", n.as_choice({"rail fat tree"});
                     c.network.kind = "rail fat tree", "rail fat tree", "Topology."),
    FORESHARD_COUNT(network, nodes_per_leaf, true, 1, 1'000'000, "nodes on one leaf switch, such as 32",
        "Nodes on one leaf switch."),
    FORESHARD_FIGURE(network, oversubscription, true, "ratio",
        c.network.oversubscription = n.as_double(figure.least, figure.most), "1 or more",
        "Of leaf up-links; 1 is non-blocking.", .least = 1, .most = 1000),
};

#undef FORESHARD_VALUE
#undef FORESHARD_COUNT
#undef FORESHARD_NAME
#undef FORESHARD_FIGURE

// The one text for a part (gpu., node., network.) that Gpu, NodeKind and Network carry.
std::string joined_sources(const Cluster& cluster, std::string_view prefix) {
  std::vector<std::string> seen;
  for (const auto& [path, source] : cluster.sources)
    if (path.starts_with(prefix) && !contains(seen, source)) seen.push_back(source);
  return fmt::format("{}", fmt::join(seen, "; "));
}

// The value of a figure in the file, or nullptr: an error always has a place in it.
const ConfigNode* find_figure(const ConfigNode& root, std::string_view section, std::string_view key) {
  const ConfigNode* found = root.find(section);
  if (found == nullptr || !found->is_mapping()) return nullptr;
  const ConfigNode* figure = found->find(key);
  return figure != nullptr && figure->is_mapping() ? figure->find("value") : figure;
}

// nvidia-smi's least power limits: 200 of 700 W (H100 SXM), 100 of 400 W (A100 SXM), 100 of 350 W
// (RTX 3090). Below a fifth no limit of the driver lies.
constexpr double kLeastPower = 0.2;

// The limit of one figure that another one sets; kNoLimit where that is not told.
constexpr double kNoLimit = std::numeric_limits<double>::max();
struct Pair {
  std::string_view section, key;
  double (*of)(const Cluster&);
  double (*most)(const Cluster&);
  const char* why;
  const char* expected;
};

// Ports are sold that their slot binds, by a generation of PCIe or two; not by more.
constexpr double kFasterThanSlot = 4;

constexpr Pair kPairs[] = {
    {"node", "nic_rate", [](const Cluster& c) { return c.node.nic_rate.value(); },
        [](const Cluster& c) {
          const bool is_told =
              std::ranges::any_of(c.sources, [](const auto& source) { return source.first == "node.host_link"; });
          return is_told ? kFasterThanSlot * c.node.host_link.value() : kNoLimit;
        },
        "no port is so much faster than the PCIe slot it is in (node.host_link)",
        "a lower rate of one port, or the host_link of the slot, such as 96GB/s"},
    {"node", "gpu_link", [](const Cluster& c) { return c.node.gpu_link.value(); },
        [](const Cluster& c) { return c.gpu.memory_bandwidth.value(); },
        "GPUs exchange nothing faster than their memory gives it (gpu.memory_bandwidth)",
        "the rate of one GPU and direction, such as 450GB/s"},
    {"gpu", "memory_bandwidth", [](const Cluster& c) { return c.node.gpu_link.value(); },
        [](const Cluster& c) { return c.gpu.memory_bandwidth.value(); },
        "GPUs exchange nothing faster than their memory gives it (node.gpu_link)",
        "a rate above that of the links, such as 3350GB/s"},
};

// A value of that schema, plain or with its source.
Json with_source(const Json& value) {
  Json sourced = {{"$ref", "#/definitions/sourced"}}, typed;
  typed["properties"]["value"] = value;
  Json both;
  both["allOf"] = Json::array({sourced, typed});
  return Json::array({value, both});
}

Json schema_of(const Figure& figure) {
  if (figure.unit == "flag") return {{"type", "boolean"}};
  if (figure.unit == "kind") return {{"enum", Json::array({"rail fat tree"})}};
  if (figure.unit == "architecture") return {{"enum", gpu_architectures()}};
  if (figure.unit == "count") {
    return {{"type", "integer"}, {"minimum", static_cast<std::int64_t>(figure.least)},
        {"maximum", static_cast<std::int64_t>(figure.most)}};
  }
  if (figure.unit == "ratio") return {{"type", "number"}, {"minimum", figure.least}, {"maximum", figure.most}};
  return {{"$ref", fmt::format("#/definitions/{}", figure.unit)}};
}

// "memory_bandwidth_bytes_per_s"
std::string json_key(const Figure& figure) {
  constexpr std::pair<std::string_view, std::string_view> kEndings[] = {{"flop_rate", "_flop_per_s"},
      {"bytes", "_bytes"}, {"bandwidth", "_bytes_per_s"}, {"frequency", "_hz"}, {"power", "_w"}, {"time", "_s"}};
  if (figure.unit == "price") return "price_usd_per_hour";
  const auto* const ending = std::ranges::find(kEndings, figure.unit, [](const auto& each) { return each.first; });
  return std::string(figure.key) + std::string(ending == std::end(kEndings) ? "" : ending->second);
}

void check_power(const ConfigNode& root, const Cluster& cluster, const Cluster* catalogue) {
  const ConfigNode* figure = find_figure(root, "gpu", "power_limit");
  if (figure == nullptr || catalogue == nullptr) return;
  const double own = catalogue->gpu.power_limit;
  if (own <= 0 || cluster.gpu.power_limit >= kLeastPower * own) return;
  throw figure->error(fmt::format("{:.4g} W is below every limit of {}", cluster.gpu.power_limit, catalogue->gpu.name),
      fmt::format("at least {:.0f}W, usually {:.0f}W", kLeastPower * own, own));
}

}

void read_figures(const ConfigNode& root, MissingFigures missing, Cluster& cluster) {
  FigureReader reader(cluster, missing);
  for (const std::string_view section : {"gpu", "node", "network"}) {
    const ConfigNode node = reader.section(root, section);
    std::vector<std::string_view> keys;
    if (section == "gpu") keys.emplace_back("key");  // whose figures these are
    for (const Figure& figure : kFigures)
      if (figure.section == section) keys.push_back(figure.key);
    if (node.is_mapping()) node.allow_only(std::span<const std::string_view>(keys));
    for (const Figure& figure : kFigures) {
      if (figure.section != section) continue;
      const bool is_there = node.is_mapping() && node.has(figure.key);
      if (!figure.is_needed && !is_there) continue;
      const auto read = [&](const ConfigNode& value) {
        figure.read(figure, value, cluster);
        if (figure.of == nullptr || figure.least <= 0 || figure.of(cluster) > 0) return;
        throw value.error("must be more than zero", std::string(figure.expected));
      };
      reader.figure(node, figure.key, fmt::format("{}.{}", section, figure.key), figure.expected, read);
    }
  }
  if (!root.has("memory_outside_allocator")) return;
  reader.figure(root, "memory_outside_allocator", "memory_outside_allocator", "a size such as 1.5GiB per GPU",
      [&](const ConfigNode& v) { cluster.memory_outside_allocator = v.as_bytes(); });
  if (*cluster.memory_outside_allocator >= cluster.gpu.memory) {
    throw root.error(fmt::format("memory_outside_allocator ({} bytes) leaves nothing of gpu.memory ({} bytes)",
                         cluster.memory_outside_allocator->count(), cluster.gpu.memory.count()),
        "less than gpu.memory, such as 1.5GiB");
  }
}

void join_sources(Cluster& cluster) {
  cluster.gpu.source = joined_sources(cluster, "gpu.");
  cluster.node.source = joined_sources(cluster, "node.");
  cluster.network.source = joined_sources(cluster, "network.");
  cluster.outside_source = joined_sources(cluster, "memory_outside_allocator");
}

void check_physics(const ConfigNode& root, const Cluster& cluster, const Cluster* catalogue) {
  for (const Figure& figure : kFigures) {
    const ConfigNode* said = find_figure(root, figure.section, figure.key);
    if (said == nullptr || figure.of == nullptr) continue;
    const double value = figure.of(cluster);
    if (value >= figure.least && value <= figure.most) continue;
    throw said->error(fmt::format("{} is out of range", said->text()), std::string(figure.expected));
  }
  check_power(root, cluster, catalogue);
  for (const Pair& pair : kPairs) {
    const ConfigNode* figure = find_figure(root, pair.section, pair.key);
    if (figure == nullptr || pair.of(cluster) <= pair.most(cluster)) continue;
    throw figure->error(fmt::format("{}: {}", figure->text(), pair.why), pair.expected);
  }
}

std::vector<ShownFigure> shown_figures(const Cluster& cluster) {
  std::vector<ShownFigure> list;
  for (const Figure& figure : kFigures) {
    if (!figure.is_shown) continue;
    if (figure.key == "peak_fp4" && cluster.gpu.peak_fp4.value() <= 0) continue;  // few have them
    auto [text, value] = figure.shown(figure, cluster);
    list.push_back(
        {fmt::format("{}.{}", figure.section, figure.key), json_key(figure), std::move(text), std::move(value)});
  }
  if (const std::optional<Bytes> outside = cluster.memory_outside_allocator) {
    list.push_back(
        {"memory_outside_allocator", "memory_outside_allocator_bytes", format_bytes(*outside), outside->count()});
  }
  return list;
}

void add_figures(Json& schema) {
  constexpr std::string_view kExample = "such as ";
  Json& needed = schema["allOf"][1]["anyOf"][1]["properties"];  // without a machine
  for (const Figure& figure : kFigures) {
    const std::string section(figure.section), key(figure.key);
    Json property = {{"description", figure.says}, {"anyOf", with_source(schema_of(figure))}};
    if (const std::size_t at = figure.expected.find(kExample); at != std::string_view::npos) {
      const std::string example(figure.expected.substr(at + kExample.size()));
      property["examples"] = Json::array({figure.unit == "count" ? Json::parse(example) : Json(example)});
    }
    schema["properties"][section]["properties"][key] = std::move(property);
    if (figure.is_needed) needed[section]["required"].push_back(key);
  }
  schema["properties"]["memory_outside_allocator"]["anyOf"] = with_source({{"$ref", "#/definitions/bytes"}});
}

}
