// A rate and a fixed time each. PCIe is a link of each GPU; the host's memory and the drives are
// shared by the node's ranks.
#include "sim/cost/offload_price.h"

namespace foreshard {
namespace {

// Pinned copies over PCIe 4.0 x16 reach about 25 of 31.5 GB/s (NVIDIA's bandwidthTest on A100
// systems); a copy from the host is enqueued and awaited in about 10 us.
constexpr double kPcieRate = 25e9;
constexpr double kPcieLatency = 10e-6;

// DeepSpeedCPUAdam steps 1e9 parameters in 0.24 s on a node of two 24-core Xeons (ZeRO-Offload,
// arXiv:2101.06840, table of Adam latencies): 28 bytes a parameter.
constexpr double kHostRate = 28e9 / 0.24;

// ZeRO-Infinity (arXiv:2104.07857, section 3 and figure 2b) takes 25 GB/s for the NVMe drives of a
// DGX-2 node, read or written, with queues deep enough to fill them; 100 us to open a request.
constexpr double kStorageRate = 25e9;
constexpr double kStorageLatency = 100e-6;

}  // namespace

std::optional<double> offload_seconds(EventKind kind, Bytes bytes, const Cluster& cluster) {
  const double amount = static_cast<double>(bytes.count());
  const double sharers = static_cast<double>(cluster.gpus_per_node());
  switch (kind) {
    case EventKind::kHostToDevice:
    case EventKind::kDeviceToHost:
      return kPcieLatency + amount / kPcieRate;
    case EventKind::kHostOptimizer:
      return amount * sharers / kHostRate;
    case EventKind::kStorageRead:
    case EventKind::kStorageWrite:
      return kStorageLatency + amount * sharers / kStorageRate;
    default:
      return std::nullopt;
  }
}

}  // namespace foreshard
