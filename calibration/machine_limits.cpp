// Two tables: the range of each figure by itself, and pairs of which one bounds the other. Only
// figures that stand in the file are looked at, so that an error always has a place in it.
#include "calibration/machine_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>

namespace foreshard {
namespace {

struct Place {
  std::string_view section;
  std::string_view key;
};

// The value of a figure in the file, or nullptr.
const ConfigNode* find_figure(const ConfigNode& root, const Place& place) {
  const ConfigNode* section = root.find(place.section);
  if (section == nullptr || !section->is_mapping()) return nullptr;
  const ConfigNode* figure = section->find(place.key);
  return figure != nullptr && figure->is_mapping() ? figure->find("value") : figure;
}

// Lower ends are a thousandth of the slowest machine of the catalogue, upper ends some ten times
// what is announced (NVIDIA Rubin Ultra NVL576, 2025-03: 1 TB of HBM4e at 32 TB/s, 25 PFLOP/s dense
// in fp8, 3.6 kW; ConnectX-9: 1.6 Tbit/s).
struct Limits {
  Place place;
  double (*of)(const Cluster&);
  double least;
  double most;
  const char* expected;
};

constexpr double kNoLimit = std::numeric_limits<double>::max();

constexpr Limits kRanges[] = {
    {{"gpu", "peak_bf16"},
     [](const Cluster& c) { return c.gpu.peak_bf16.value(); },
     1e9,
     2e17,
     "1GFLOP/s to 200PFLOP/s, such as 989TFLOP/s"},
    {{"gpu", "peak_fp32"},
     [](const Cluster& c) { return c.gpu.peak_fp32.value(); },
     1e9,
     2e17,
     "1GFLOP/s to 200PFLOP/s, such as 67TFLOP/s"},
    {{"gpu", "peak_fp8"},
     [](const Cluster& c) { return c.gpu.peak_fp8.value(); },
     0,
     2.5e17,
     "0TFLOP/s (no fp8 units) to 250PFLOP/s, such as 1979TFLOP/s"},
    {{"gpu", "memory"},
     [](const Cluster& c) { return as_double(c.gpu.memory.count()); },
     1024.0 * 1024,
     10.0 * 1024 * 1024 * 1024 * 1024,
     "1MiB to 10TiB of one GPU, such as 79.1GiB"},
    {{"gpu", "memory_bandwidth"},
     [](const Cluster& c) { return c.gpu.memory_bandwidth.value(); },
     1e8,
     3e14,
     "100MB/s to 300TB/s, such as 3350GB/s"},
    {{"gpu", "clock"},
     [](const Cluster& c) { return c.gpu.clock; },
     1e7,
     1e10,
     "10MHz to 10GHz, such as 1980MHz"},
    {{"gpu", "power_limit"},
     [](const Cluster& c) { return c.gpu.power_limit; },
     5,
     3.6e4,
     "5W to 36kW of one GPU, such as 700W"},
    {{"gpu", "price_per_hour"},
     [](const Cluster& c) { return c.gpu.price_per_hour; },
     0,
     1e4,
     "0USD/h to 10000USD/h of one GPU, such as 2.95USD/h"},
    {{"node", "link_latency"},
     [](const Cluster& c) { return c.node.link_latency.seconds(); },
     1e-9,
     1e-3,
     "1ns to 1ms, such as 600ns"},
    {{"node", "nic_latency"},
     [](const Cluster& c) { return c.node.nic_latency.seconds(); },
     1e-9,
     0.1,
     "1ns to 100ms, such as 2700ns"},
    {{"node", "gpu_link"},
     [](const Cluster& c) { return c.node.gpu_link.value(); },
     1e6,
     4e13,
     "1MB/s to 40TB/s, such as 450GB/s"},
    {{"node", "nic_rate"},
     [](const Cluster& c) { return c.node.nic_rate.value(); },
     1e5,
     2e12,
     "1Mbit/s to 16Tbit/s of one port, such as 400Gbit/s"},
    {{"node", "host_link"},
     [](const Cluster& c) { return c.node.host_link.value(); },
     1e6,
     2e13,
     "1MB/s to 20TB/s, such as 48GB/s"},
    {{"node", "host_memory_bandwidth"},
     [](const Cluster& c) { return c.node.host_memory_bandwidth.value(); },
     1e8,
     2e14,
     "100MB/s to 200TB/s, such as 614.4GB/s"},
    {{"node", "storage_bandwidth"},
     [](const Cluster& c) { return c.node.storage_bandwidth.value(); },
     1e5,
     1e13,
     "100kB/s to 10TB/s, such as 25GB/s"},
};

// nvidia-smi's least power limits: 200 of 700 W (H100 SXM), 100 of 400 W (A100 SXM), 100 of 350 W
// (RTX 3090). Below a fifth no limit of the driver lies.
constexpr double kLeastPower = 0.2;

// The limit of one figure that another one sets; kNoLimit where that is not told.
struct Pair {
  Place place;
  double (*of)(const Cluster&);
  double (*most)(const Cluster&);
  const char* why;
  const char* expected;
};

// Ports are sold that their slot binds, by a generation of PCIe or two; not by more.
constexpr double kFasterThanSlot = 4;

constexpr Pair kPairs[] = {
    {{"node", "nic_rate"},
     [](const Cluster& c) { return c.node.nic_rate.value(); },
     [](const Cluster& c) {
       const bool is_told = std::ranges::any_of(
           c.sources, [](const auto& source) { return source.first == "node.host_link"; });
       return is_told ? kFasterThanSlot * c.node.host_link.value() : kNoLimit;
     },
     "no port is so much faster than the PCIe slot it is in (node.host_link)",
     "a lower rate of one port, or the host_link of the slot, such as 96GB/s"},
    {{"node", "gpu_link"},
     [](const Cluster& c) { return c.node.gpu_link.value(); },
     [](const Cluster& c) { return c.gpu.memory_bandwidth.value(); },
     "GPUs exchange nothing faster than their memory gives it (gpu.memory_bandwidth)",
     "the rate of one GPU and direction, such as 450GB/s"},
    {{"gpu", "memory_bandwidth"},
     [](const Cluster& c) { return c.node.gpu_link.value(); },
     [](const Cluster& c) { return c.gpu.memory_bandwidth.value(); },
     "GPUs exchange nothing faster than their memory gives it (node.gpu_link)",
     "a rate above that of the links, such as 3350GB/s"},
};

void check_power(const ConfigNode& root, const Cluster& cluster, const Cluster* catalogue) {
  const ConfigNode* figure = find_figure(root, {"gpu", "power_limit"});
  if (figure == nullptr || catalogue == nullptr) return;
  const double own = catalogue->gpu.power_limit;
  if (own <= 0 || cluster.gpu.power_limit >= kLeastPower * own) return;
  throw figure->error(fmt::format("{:.4g} W is below every limit of {}", cluster.gpu.power_limit,
                                  catalogue->gpu.name),
                      fmt::format("at least {:.0f}W, usually {:.0f}W", kLeastPower * own, own));
}

}  // namespace

void check_physics(const ConfigNode& root, const Cluster& cluster, const Cluster* catalogue) {
  for (const Limits& range : kRanges) {
    const ConfigNode* figure = find_figure(root, range.place);
    const double value = range.of(cluster);
    if (figure == nullptr || (value >= range.least && value <= range.most)) continue;
    throw figure->error(fmt::format("{} is out of range", figure->text()), range.expected);
  }
  check_power(root, cluster, catalogue);
  for (const Pair& pair : kPairs) {
    const ConfigNode* figure = find_figure(root, pair.place);
    if (figure == nullptr || pair.of(cluster) <= pair.most(cluster)) continue;
    throw figure->error(fmt::format("{}: {}", figure->text(), pair.why), pair.expected);
  }
}

}  // namespace foreshard
