// Where the step runs: nodes of GPUs, their links, and the network between the nodes.
//
// Ranks are numbered node by node. Every rate is per direction and carries its source in the machine catalogue
// (calibration/machines/*.yaml). The short form is identical nodes behind leaves and a spine; a ClusterLayout lists
// nodes, switches and links as they are. Either is a graph (sim/spec/network/topology.h) over which the groups of a
// mesh are laid (sim/spec/network/routes.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/letters.h"
#include "sim/base/units.h"

namespace foreshard {

struct Gpu {
  std::string key;           // "h100-sxm"
  std::string name;          // "NVIDIA H100 SXM5 80 GB"
  std::string architecture;  // "hopper": a GPU without measurements borrows from its own first
  std::int64_t multiprocessors = 0;
  double clock = 0;          // Hz, boost; 0: not known
  FlopsPerSecond peak_bf16;  // dense, accumulated in fp32; fp16 where there is no bf16
  FlopsPerSecond peak_fp32;  // without TF32
  FlopsPerSecond peak_fp8;   // dense, accumulated in fp32; 0: no such units
  FlopsPerSecond peak_fp4;   // the same of NVFP4
  Bytes memory;              // what the driver reports
  BytesPerSecond memory_bandwidth;
  double power_limit = 0;     // W; 0: not known
  double price_per_hour = 0;  // USD of one GPU, as of its source's date; 0: not known
  std::string source;
};

struct NodeKind {
  std::string key;  // "dgx-h100"
  std::int64_t gpus = 0;
  BytesPerSecond gpu_link;    // NVLink, per GPU and direction
  std::string gpu_link_name;  // "NVLink4 + NVSwitch"
  std::int64_t nics = 0;
  BytesPerSecond nic_rate;  // per NIC and direction
  std::string nic_name;
  Time link_latency;  // GPU to GPU through the switch
  Time nic_latency;   // GPU to GPU of the next node
  // The host's side, for offload. A cluster file may leave them out: the defaults are assumed (PCIe
  // 4.0 x16 as NCCL counts it, eight channels of DDR4-3200 on two sockets, four NVMe drives).
  BytesPerSecond host_link = BytesPerSecond(24e9);                 // PCIe, usable, per GPU and direction
  BytesPerSecond host_memory_bandwidth = BytesPerSecond(409.6e9);  // of the node
  BytesPerSecond storage_bandwidth = BytesPerSecond(25e9);         // NVMe drives of the node
  // Consecutive nodes whose GPUs hang on one NVLink switch: 18 trays of 4 in an NVL72 rack.
  std::int64_t link_domain = 1;
  std::int64_t pcie_switches = 0;  // that GPUs and ports hang on, evenly; 0: not stated
  // Whether GPUs reach each other's memory over the slots; GeForce drivers do not let them.
  bool peer_access = true;
  std::string source;
};

struct Network {
  std::string kind;                 // "rail fat tree"
  std::int64_t nodes_per_leaf = 0;  // scalable unit
  double oversubscription = 1;      // leaf up-links: 1 = non-blocking
  std::string source;
};

// A link that is slower than its kind, or missing.
struct DegradedLink {
  std::int64_t node = 0;
  enum class Part : std::uint8_t { kGpu, kNic } part = Part::kNic;
  std::int64_t index = 0;  // within the node
  double fraction = 0;     // of its rate; 0: missing
  bool operator==(const DegradedLink&) const = default;
};

struct ClusterLayout;  // sim/spec/network/cluster_layout.h
class Routes;          // sim/spec/network/routes.h

struct Cluster {
  std::string spec;  // what the user wrote: "64xh100"
  // Of mixed nodes the GPU that sets the pace, with the least memory of all, and the kind that has it.
  Gpu gpu;
  NodeKind node;
  Network network;
  std::vector<DegradedLink> degraded;  // each link once
  // CPU ranks of one machine: a "GPU" is the cores of one rank, and the host that issues is the one that computes.
  bool host_computes = false;
  std::int64_t gpus = 0;  // total; the last node may be partly used
  // Nodes, switches and links as a file lists them; null: the short form, of the fields above.
  std::shared_ptr<const ClusterLayout> layout;
  // Where groups lie on the graph, as far as it was asked: of a layout, and of degraded links.
  // with_routes() (sim/spec/network/routes.h) makes it anew after a change.
  std::shared_ptr<const Routes> routes;
  // Per GPU: CUDA context and NCCL buffers, subtracted from Gpu::memory. Where nobody declares or
  // measured a total it is added up for each plan (sim/memory/outside_allocator.h).
  std::optional<Bytes> memory_outside_allocator;
  std::string outside_source;
  // Where each figure comes from, by its key in a cluster file ("node.nic_rate"), in file order.
  std::vector<std::pair<std::string, std::string>> sources;

  std::int64_t node_count = 0;  // of a layout
  std::int64_t nodes() const { return node_count > 0 ? node_count : (gpus + node.gpus - 1) / node.gpus; }
  std::int64_t gpus_per_node() const { return gpus < node.gpus ? gpus : node.gpus; }
};

// Which GPU a rank sits on. Nodes as listed, or those of a leaf (of all that hangs together below a
// switch) one after the other, rank by rank; or round the nodes, so that neighbours share a rail.
enum class RankPlacement : std::uint8_t { kListed, kByLeaf, kByPod, kByRail };
inline constexpr std::size_t kPlacements = 4;
constexpr const char* to_string(RankPlacement placement) {
  return word_at(placement, {"listed", "by_leaf", "by_pod", "by_rail"});
}

// Ranks {first + i*stride}. Of a mesh: Mesh::shard_stride(), replicate_stride().
struct GroupShape {
  std::int64_t size = 1;
  std::int64_t stride = 1;
  RankPlacement placement = RankPlacement::kListed;  // says nothing where all nodes are alike
  bool operator==(const GroupShape&) const = default;
};

// What the slowest group gets while all groups of the shape communicate at once.
struct GroupLink {
  std::int64_t size = 1;
  std::int64_t nodes = 1;  // nodes the group spans; NVLink domains where those join nodes
  std::int64_t ranks_per_node = 1;
  BytesPerSecond link;     // GPU link, one direction
  BytesPerSecond network;  // share of the node's NICs of this group; zero inside a node
  // Of the closed form, what `network` is the smaller of: the ports, and what links between
  // switches carry of this shape (0: no end of it).
  BytesPerSecond ports{};
  BytesPerSecond uplinks{};
  // The same of NCCL's double tree, as the bus bandwidth of a ring over ports as fast; differs from
  // `network` where links between switches bind one more than the other.
  BytesPerSecond tree{};   // 0: as network
  Time link_latency{};     // of a hop inside a node, on average over the ring
  Time network_latency{};  // of a hop between nodes
};

// By the graph; where cluster and group are regular by the closed form, which is the same. Throws
// Error(kInvalidInput) if the group does not fit the cluster.
GroupLink group_link(const Cluster& cluster, const GroupShape& group);

// The closed form: identical nodes, and a group that is regular on them. Of others it is a bound.
GroupLink regular_group_link(const Cluster& cluster, const GroupShape& group);

}
