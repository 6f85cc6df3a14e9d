// Every figure is read by the same function, which takes a plain value or {value, source} and notes
// where it came from.
#include "calibration/machine_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.h"
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
      if (missing_ == MissingFigures::kKeep) return ConfigNode();
      return parent.at(key, "the figures of a machine, or machine: with a key of the catalogue");
    }
    if (!found->is_mapping()) {
      throw found->error("is not a mapping", fmt::format("figures such as {}: {{...}}", key));
    }
    return *found;
  }

  // Calls `read` with the value of figure `key`; `path` is its name in the list of sources.
  void figure(const ConfigNode& section, std::string_view key, std::string path,
              std::string_view expected, const std::function<void(const ConfigNode&)>& read) {
    const ConfigNode* found = section.is_mapping() ? section.find(key) : nullptr;
    if (found == nullptr) {
      if (missing_ == MissingFigures::kKeep) return;
      section.at(key, expected);
      return;
    }
    ConfigNode value = *found;
    std::string source = place(*found);
    if (found->is_mapping()) {
      found->allow_only({"value", "source"});
      value = found->at("value", expected);
      source = found->at("source", "where the figure comes from").as_string();
      if (source.empty())
        throw found->at("source").error("is empty", "where the figure comes from");
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
  Cluster& cluster_;
  MissingFigures missing_;
};

std::string read_name(const ConfigNode& value) {
  std::string text = value.as_string();
  if (text.empty()) throw value.error("is empty", "a name");
  return text;
}

BytesPerSecond read_rate(const ConfigNode& value) {
  const BytesPerSecond rate = value.as_bandwidth();
  if (rate.value() <= 0) throw value.error("must be more than zero", "a rate such as 400Gbit/s");
  return rate;
}

FlopsPerSecond read_peak(const ConfigNode& value) {
  const FlopsPerSecond rate = value.as_flop_rate();
  if (rate.value() <= 0) throw value.error("must be more than zero", "a rate such as 989TFLOP/s");
  return rate;
}

void read_gpu(FigureReader& reader, const ConfigNode& gpu, Gpu& out) {
  const auto figure = [&](std::string_view key, std::string_view expected, auto read) {
    reader.figure(gpu, key, fmt::format("gpu.{}", key), expected, read);
  };
  figure("name", "a name such as NVIDIA H100",
         [&](const ConfigNode& v) { out.name = read_name(v); });
  figure("multiprocessors", "a count such as 132",
         [&](const ConfigNode& v) { out.multiprocessors = v.as_int(1, 100'000); });
  figure("peak_bf16", "a rate such as 989TFLOP/s",
         [&](const ConfigNode& v) { out.peak_bf16 = read_peak(v); });
  figure("peak_fp32", "a rate such as 67TFLOP/s",
         [&](const ConfigNode& v) { out.peak_fp32 = read_peak(v); });
  figure("memory", "a size such as 79.1GiB", [&](const ConfigNode& v) {
    out.memory = v.as_bytes();
    if (out.memory.count() <= 0) throw v.error("must be more than zero", "a size such as 79.1GiB");
  });
  figure("memory_bandwidth", "a rate such as 3350GB/s",
         [&](const ConfigNode& v) { out.memory_bandwidth = read_rate(v); });
  // What only some prices and answers need.
  const auto optional = [&](std::string_view key, std::string_view expected, auto read) {
    if (gpu.is_mapping() && gpu.has(key)) figure(key, expected, read);
  };
  optional("architecture", "a name such as hopper", [&](const ConfigNode& v) {
    out.architecture = gpu_architectures()[v.as_choice(gpu_architectures())];
  });
  optional("clock", "the boost clock, such as 1980MHz",
           [&](const ConfigNode& v) { out.clock = v.as_frequency(); });
  optional("peak_fp8", "a rate such as 1979TFLOP/s, 0TFLOP/s where there is none",
           [&](const ConfigNode& v) { out.peak_fp8 = v.as_flop_rate(); });
  optional("power_limit", "a power such as 700W",
           [&](const ConfigNode& v) { out.power_limit = v.as_power(); });
  optional("price_per_hour", "a price such as 2.95USD/h",
           [&](const ConfigNode& v) { out.price_per_hour = v.as_price(); });
}

void read_node(FigureReader& reader, const ConfigNode& node, NodeKind& out) {
  const auto figure = [&](std::string_view key, std::string_view expected, auto read) {
    reader.figure(node, key, fmt::format("node.{}", key), expected, read);
  };
  figure("key", "a name such as hgx-h100", [&](const ConfigNode& v) { out.key = read_name(v); });
  figure("gpus", "GPUs of a node, such as 8",
         [&](const ConfigNode& v) { out.gpus = v.as_int(1, 4096); });
  figure("gpu_link", "a rate such as 450GB/s, one direction",
         [&](const ConfigNode& v) { out.gpu_link = read_rate(v); });
  figure("gpu_link_name", "a name such as NVLink4",
         [&](const ConfigNode& v) { out.gpu_link_name = read_name(v); });
  figure("nics", "network ports of a node, such as 8",
         [&](const ConfigNode& v) { out.nics = v.as_int(0, 4096); });
  figure("nic_rate", "a rate such as 400Gbit/s, one direction",
         [&](const ConfigNode& v) { out.nic_rate = read_rate(v); });
  figure("nic_name", "a name such as ConnectX-7",
         [&](const ConfigNode& v) { out.nic_name = read_name(v); });
  figure("link_latency", "a time such as 600ns",
         [&](const ConfigNode& v) { out.link_latency = v.as_time(); });
  figure("nic_latency", "a time such as 3us",
         [&](const ConfigNode& v) { out.nic_latency = v.as_time(); });
  const auto optional = [&](std::string_view key, BytesPerSecond& rate) {
    if (!node.is_mapping() || !node.has(key)) return;
    figure(key, "a rate such as 24GB/s, one direction",
           [&](const ConfigNode& v) { rate = read_rate(v); });
  };
  optional("host_link", out.host_link);
  optional("host_memory_bandwidth", out.host_memory_bandwidth);
  optional("storage_bandwidth", out.storage_bandwidth);
  const auto optional_count = [&](std::string_view key, std::int64_t least, std::int64_t& count) {
    if (!node.is_mapping() || !node.has(key)) return;
    figure(key, "a count", [&](const ConfigNode& v) { count = v.as_int(least, 4096); });
  };
  optional_count("link_domain", 1, out.link_domain);
  optional_count("pcie_switches", 0, out.pcie_switches);
  if (node.is_mapping() && node.has("peer_access")) {
    figure("peer_access", "true or false",
           [&](const ConfigNode& v) { out.peer_access = v.as_bool(); });
  }
}

void read_network(FigureReader& reader, const ConfigNode& network, Network& out) {
  const auto figure = [&](std::string_view key, std::string_view expected, auto read) {
    reader.figure(network, key, fmt::format("network.{}", key), expected, read);
  };
  figure("kind", "rail fat tree", [&](const ConfigNode& v) {
    v.as_choice({"rail fat tree"});
    out.kind = "rail fat tree";
  });
  figure("nodes_per_leaf", "nodes on one leaf switch, such as 32",
         [&](const ConfigNode& v) { out.nodes_per_leaf = v.as_int(1, 1'000'000); });
  figure("oversubscription", "1 or more",
         [&](const ConfigNode& v) { out.oversubscription = v.as_double(1, 1000); });
}

// The one text for a part (gpu., node., network.) that Gpu, NodeKind and Network carry.
std::string joined_sources(const Cluster& cluster, std::string_view prefix) {
  std::vector<std::string> seen;
  for (const auto& [path, source] : cluster.sources) {
    if (path.starts_with(prefix) && std::ranges::find(seen, source) == seen.end()) {
      seen.push_back(source);
    }
  }
  return fmt::format("{}", fmt::join(seen, "; "));
}

}  // namespace

void read_figures(const ConfigNode& root, MissingFigures missing, Cluster& cluster) {
  FigureReader reader(cluster, missing);
  const ConfigNode gpu = reader.section(root, "gpu");
  if (gpu.is_mapping()) {
    gpu.allow_only({"key", "name", "multiprocessors", "peak_bf16", "peak_fp32", "memory",
                    "memory_bandwidth", "architecture", "clock", "peak_fp8", "power_limit",
                    "price_per_hour"});
  }
  read_gpu(reader, gpu, cluster.gpu);
  const ConfigNode node = reader.section(root, "node");
  if (node.is_mapping()) {
    node.allow_only({"key", "gpus", "gpu_link", "gpu_link_name", "nics", "nic_rate", "nic_name",
                     "link_latency", "nic_latency", "host_link", "host_memory_bandwidth",
                     "storage_bandwidth", "link_domain", "pcie_switches", "peer_access"});
  }
  read_node(reader, node, cluster.node);
  const ConfigNode network = reader.section(root, "network");
  if (network.is_mapping()) {
    network.allow_only({"kind", "nodes_per_leaf", "oversubscription"});
  }
  read_network(reader, network, cluster.network);
  if (!root.has("memory_outside_allocator")) return;
  reader.figure(root, "memory_outside_allocator", "memory_outside_allocator",
                "a size such as 1.5GiB per GPU",
                [&](const ConfigNode& v) { cluster.memory_outside_allocator = v.as_bytes(); });
  if (*cluster.memory_outside_allocator >= cluster.gpu.memory) {
    throw root.error(
        fmt::format("memory_outside_allocator ({} bytes) leaves nothing of gpu.memory "
                    "({} bytes)",
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

}  // namespace foreshard
