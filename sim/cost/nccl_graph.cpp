// What NCCL's search over the topology comes to on regular machines, as rules.
//
// Inside a node behind an NVSwitch a ring gets the product of channels and speed that fits the GPU's links best, the
// faster speed winning ties. Between nodes every channel enters and leaves through a port, so a channel is no faster
// than its port and their number follows the ports. Channels of 25 GB/s and more are split in two (not on Hopper and
// later, slower than 50 GB/s and more than four), and the kernel runs two blocks a channel; on Hopper between nodes
// four, while there are fewer than 16 of more than 45 GB/s.
//
// NVLS runs a tree per GPU of the node ("heads"). Every link carries the pieces of all heads and
// its own once more, so the speed is the link over one more than the GPUs. On Blackwell as on
// Hopper this gives the sizes of groups from which all-reduce takes NVLS (5 on H200, 6 on B200
// with 2.27.7: stas00/ml-engineering:network, logs with NCCL_DEBUG_SUBSYS=TUNING).
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "sim/cost/nccl.h"
#include "sim/cost/nccl_tables.h"
#include "sim/spec/gpu_generation.h"

namespace foreshard {
namespace {

constexpr double kSlack = 1e-9;  // of comparisons of products of rates

constexpr double kWorthIt = 1.05;

struct ChannelFit {
  int channels = 0;
  double speed = 0;
};

// The best channels x speed within `total`. A port takes one channel, or as many as it needs where
// it is faster than any speed of the list.
ChannelFit best_fit(std::span<const double> speeds, double total, double port, double ports) {
  ChannelFit best;
  for (const double speed : speeds) {
    if (speed > port + kSlack || speed > total + kSlack) continue;
    double channels = std::floor(total / speed + kSlack);
    if (std::isfinite(port)) {
      // Less than one port to oneself: others' channels use it as well.
      const double each = port > speeds.front() ? std::floor(port / speed + kSlack) : 1.0;
      const double most = ports >= 1 ? std::floor(ports + kSlack) * each : 1.0;
      channels = std::min(channels, most);
    }
    channels = std::min(channels, 32.0);
    // A slower speed must be worth it: the search takes the first that fills the links.
    if (channels * speed > best.channels * best.speed * kWorthIt + kSlack) best = {static_cast<int>(channels), speed};
  }
  return best;
}

int split(NcclGraph& graph, const NcclSystem& system, double speed) {
  const bool stays = system.generation >= GpuGeneration::kHopper && speed < 50 && graph.channels > 4;
  if (speed >= 25 && !stays) {
    graph.channels *= 2;
    graph.intra /= 2;
    graph.inter /= 2;
  }
  int ctas = 2 * graph.channels;
  if (system.generation >= GpuGeneration::kHopper && system.nodes > 1 && speed > 45 + kSlack && graph.inter > 45 &&
      ctas < 16)
    ctas *= 2;
  const int most = system.version < NcclVersion{2, 25, 0} ? 32 : 64;
  return std::clamp(ctas, 1, most);
}

}

NcclVersion parse_nccl_version(std::string_view text) {
  while (!text.empty() && std::isdigit(static_cast<unsigned char>(text.front())) == 0) text.remove_prefix(1);
  int parts[3] = {0, 0, 0};
  int found = 0;
  const char* at = text.data();
  const char* end = text.data() + text.size();
  while (found < 3 && at < end) {
    const auto [next, error] = std::from_chars(at, end, parts[found]);
    if (error != std::errc()) break;
    ++found;
    if (next == end || *next != '.') break;
    at = next + 1;
  }
  if (found == 1 && parts[0] >= 20000 && parts[0] < 40000)  // NCCL_VERSION_CODE
    return {parts[0] / 10000, parts[0] / 100 % 100, parts[0] % 100};
  if (found < 2 || parts[0] != 2) return {};
  return {parts[0], parts[1], parts[2]};
}

GpuGeneration nccl_generation(const Gpu& gpu) {
  const int capability = generation_of(gpu).compute_capability;
  if (capability >= 10) return GpuGeneration::kBlackwell;
  if (capability == 9) return GpuGeneration::kHopper;
  return capability == 7 ? GpuGeneration::kVolta : GpuGeneration::kAmpere;
}

double usable_link(GpuGeneration generation, double gigabytes, NcclVersion version) {
  switch (generation) {
    case GpuGeneration::kVolta:
    case GpuGeneration::kAmpere: return gigabytes / 25 * 20;
    case GpuGeneration::kHopper: return gigabytes / 25 * (version < NcclVersion{2, 20, 0} ? 20.0 : 20.6);
    case GpuGeneration::kBlackwell: return gigabytes / 50 * (version < NcclVersion{2, 27, 0} ? 40.0 : 40.1);
  }
  return gigabytes;
}

NcclGraph ring_graph(const NcclSystem& system) {
  NcclGraph graph;
  if (system.nodes > 1) {
    const double link = system.ranks_per_node > 1 ? system.link : 1e9;
    double port = system.nic;
    double ports = system.nics;
    if (ports < 1) {  // a share of a port
      port *= ports;
      ports = 1;
    }
    const ChannelFit fit = best_fit(nccl_speeds_between(system.generation), link, port, ports);
    // The list is coarse for slow ports, but what runs is as fast as they are.
    constexpr double kCoarse = 0.8;
    const double all = std::min(link, port * ports);
    if (fit.channels * fit.speed >= kCoarse * all) {
      graph = {fit.channels, fit.speed, fit.speed, 0};
    } else {
      constexpr double kUsable = 0.96;  // as 48 of 50 GB/s, 24 of 25
      const double channels = std::clamp(std::floor(ports + kSlack), 1.0, 32.0);
      const double speed = kUsable * all / channels;
      graph = {static_cast<int>(channels), speed, speed, 0};
    }
  } else if (system.nvlink) {
    const double infinite = std::numeric_limits<double>::infinity();
    const ChannelFit fit = best_fit(nccl_speeds_inside(system.generation), system.link, infinite, 0);
    graph =
        fit.channels > 0 ? NcclGraph{fit.channels, fit.speed, fit.speed, 0} : NcclGraph{1, system.link, system.link, 0};
  } else {
    graph = {1, system.link, system.link, 0};
  }
  graph.ctas = split(graph, system, graph.intra);
  return graph;
}

NcclGraph nvls_graph(const NcclSystem& system) {
  const std::int64_t heads = system.ranks_per_node;
  if (system.generation < GpuGeneration::kHopper || !system.nvswitch || heads < 2) return {};
  const std::int64_t trees = std::min<std::int64_t>(heads, 8);
  const double share = system.link / static_cast<double>(trees + 1);
  NcclGraph graph;
  for (const double speed : nccl_speeds_inside(system.generation)) {
    if (speed > share + kSlack) continue;
    graph = {static_cast<int>(trees), speed, 0, 0};
    break;
  }
  if (graph.channels == 0) return {};
  if (system.nodes > 1) {
    graph.inter =
        std::min(system.nic * system.nics / static_cast<double>(trees), nccl_speeds_between(system.generation).front());
  }
  // NVIDIA/nccl:src/transport/nvls.cc: blocks by architecture.
  graph.ctas = system.generation == GpuGeneration::kHopper ? 16 : system.nodes > 1 ? 32 : 24;
  return graph;
}

}
