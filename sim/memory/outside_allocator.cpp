// Sizes of NCCL (src/transport/p2p.cc, net.cc, nvls.cc, src/init.cc @ v2.28.9):
//
// A connection holds a buffer per protocol: LL 512 KiB, LL128 4,915,200 B, Simple NCCL_BUFFSIZE. Over NVLink the
// receiving side holds all of them behind a page of flags (with P2P reads the Simple one moves to the sender: the sum
// is the same), the sending side a page. Over the network both sides hold LL128 and Simple in device memory, LL in host
// memory. Each is an allocation of its own, rounded up to the 2 MiB of the driver.
//
// A ring receives from one neighbour and sends to one, on every channel. In a group of several nodes channel c leaves
// the node at the rank that serves it, so of each rank's channels channels / ranks_per_node leave through its port. A
// tree is a chain along the ring inside the node and a double binary tree between nodes. Algorithms share connections:
// of the chain's neighbours in both directions, a rank in the middle already has half from the ring. Four A100s show
// it: 544 MiB per communicator of two ranks, 688 of more (NVIDIA/nccl#964), and the 144 MiB between them are 24
// channels x 6 MiB, the one side that the end of the chain adds (P2P reads split a connection 6 +
// 6). NVLS keeps for every head (rank of the node) and channel a buffer to gather and one to scatter.
//
// Which algorithms: all-gather and reduce-scatter are ring in every version (src/graph/tuning.cc; others need
// registered buffers or SHARP). An all-reduce of gradients inside a node of Hopper or later is NVLS, else ring and tree
// by size. The all-reduce of the clipping norm is 4 bytes: ring inside a node, tree between nodes.
#include "sim/memory/outside_allocator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "sim/base/parse.h"
#include "sim/cost/collective.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/gpu_generation.h"

namespace foreshard {
namespace {

constexpr std::int64_t kDriverGranularity = 2 * kMiB;
constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kLL = 512 << 10;
constexpr std::int64_t kLL128 = 4'915'200;
constexpr std::int64_t kBuffer = 4 << 20;  // NCCL_BUFFSIZE's default

// --- the context ---

// Kernels are loaded when they are first used (CUDA 11.7 and later).
OutsideItems context_items(const Gpu& gpu) {
  const bool large = generation_of(gpu).is_hopper_or_later();
  OutsideItem context{
      "cuda context", Bytes(400'000'000), SizeEvidence::kPublished, "about 400 MB with lazy loading (pytorch#109888)"};
  if (large) {
    context.bytes = Bytes(616 * kMiB);
    context.source = "616 MiB of a process that only made a context (LMCache/LMCache#4019)";
  }
  return {context, {"kernels loaded by the step", Bytes(142 * kMiB), SizeEvidence::kPublished,
                       "0.51 GiB of a training process on one A100 (78.93 GiB in use, 76.28 allocated, 2.14 "
                       "reserved; Lightning-AI/litgpt:tutorials/oom.md) less the context"}};
}

// --- NCCL ---

struct Shipped {
  int torch_minor;  // of PyTorch 2.x
  NcclVersion nccl;
};
// nvidia-nccl-cu12 / -cu13 among the requirements of the wheels (pytorch/pytorch:
// .github/scripts/generate_binary_build_matrix.py of each release; 2.1: pytorch#112285, 2.2:
// pytorch#116977, 2.11: METADATA of its wheel, 2.12 and later: pytorch#187528).
constexpr std::array kShipped = {Shipped{1, {2, 18}}, Shipped{2, {2, 19}}, Shipped{3, {2, 20}}, Shipped{4, {2, 20}},
    Shipped{5, {2, 21}}, Shipped{6, {2, 21}}, Shipped{7, {2, 26}}, Shipped{8, {2, 27}}, Shipped{9, {2, 27}},
    Shipped{10, {2, 27}}, Shipped{11, {2, 28}}, Shipped{12, {2, 29}}, Shipped{13, {2, 30}}};

constexpr const char* kTransport = "NVIDIA/nccl:src/transport v2.28.9: buffers per connection";

constexpr std::int64_t rounded(std::int64_t bytes) {
  return (bytes + kDriverGranularity - 1) / kDriverGranularity * kDriverGranularity;
}

// Both sides of one neighbour on one channel: what is received from it and what is sent to it.
struct Connection {
  std::int64_t receive = 0;
  std::int64_t send = 0;
};
constexpr Connection kOverNvlink = {rounded(kPage + kLL + kLL128 + kBuffer), rounded(kPage)};
constexpr Connection kOverNetwork = {rounded(kLL128 + kBuffer), rounded(kLL128 + kBuffer)};

class Nccl {
 public:
  Nccl(const Cluster& cluster, NcclVersion version) : cluster_(cluster), version_(version) {}

  struct Uses {
    bool reduces_data = false;  // all-reduce of gradients
    bool reduces_scalar = false;
  };

  void add(const Communicator& communicator, const Uses& uses, OutsideItems& items) const {
    const GroupShape& shape = communicator.group;
    if (shape.size <= 1) return;
    const GroupLink link = group_link(cluster_, shape);
    const bool between_nodes = link.nodes > 1;
    const NcclSystem system = fabric_system(cluster_, link, version_).system;
    const NcclGraph nvls_trees = nvls_graph(system);
    const std::int64_t channels = ring_channels(link, system);
    const bool all_at_once = version_ < NcclVersion{2, 22};
    const bool nvls = nvls_trees.channels > 0;
    const std::string name = "nccl " + communicator.name;
    const bool tree =
        all_at_once || (uses.reduces_data && (between_nodes || !nvls)) || (uses.reduces_scalar && between_nodes);
    items.push_back(communicator_state(name, all_at_once));
    items.push_back({fmt::format("{}: ring, {} channels", name, channels), Bytes(ring_bytes(link, channels)),
        SizeEvidence::kDerived, kTransport});
    if (tree && tree_bytes(link, channels) > 0) {
      items.push_back({fmt::format("{}: tree, {} channels", name, channels), Bytes(tree_bytes(link, channels)),
          SizeEvidence::kDerived, kTransport});
    }
    if (nvls && (all_at_once || uses.reduces_data)) {
      items.push_back(
          {fmt::format("{}: NVLS, {} channels", name, nvls_trees.ctas), Bytes(nvls_bytes(link, nvls_trees.ctas)),
              SizeEvidence::kDerived, "NVIDIA/nccl:src/transport/nvls.cc v2.28.9"});
    }
  }

 private:
  // What a communicator holds beside its connections: the rest of two published totals.
  static OutsideItem communicator_state(const std::string& name, bool all_at_once) {
    OutsideItem item{name + ": state", Bytes(256 * kMiB), SizeEvidence::kPublished,
        "NVIDIA/nccl#964: 544 MiB for two A100s, less 24 channels x 12 MiB"};
    if (!all_at_once) {
      item.bytes = Bytes(228 * kMiB);
      item.source =
          "484 MiB of a process with one communicator on an RTX 3090 (NVIDIA/nccl#2366, 2.28.9), "
          "less the 256 MiB of its context (invoke-ai/InvokeAI#9413)";
    }
    return item;
  }

  // Of ncclTopoCompute and its doubling: one node with NVSwitch 24; several nodes two per port of the node, at least 4
  // (NVIDIA/nccl:src/graph/search.cc, connect.cc). Blackwell: 2.25 to 2.27 raise the ring to the NVLS channels, since
  // 2.28 at most 16. Over PCIe a ring has what the search gives it.
  std::int64_t ring_channels(const GroupLink& link, const NcclSystem& system) const {
    std::int64_t channels = 0;
    if (!system.nvlink) {
      channels = ring_graph(system).ctas;
    } else if (link.nodes == 1) {
      channels = 24;
    } else {
      const std::int64_t ports = std::max<std::int64_t>(
          1, cluster_.node.nics * link.ranks_per_node / std::max<std::int64_t>(1, cluster_.node.gpus));
      channels = std::clamp<std::int64_t>(2 * ports, 4, 16);
    }
    if (system.generation == GpuGeneration::kBlackwell && system.nvlink) {
      if (version_ >= NcclVersion{2, 28}) channels = std::min<std::int64_t>(channels, 16);
      else if (version_ >= NcclVersion{2, 25}) channels = std::max<std::int64_t>(channels, nvls_graph(system).ctas);
    }
    return channels;
  }

  std::int64_t ring_bytes(const GroupLink& link, std::int64_t channels) const {
    const auto &near = kOverNvlink, &far = kOverNetwork;
    if (link.nodes == 1) return channels * (near.receive + near.send);
    if (link.ranks_per_node == 1) return channels * (far.receive + far.send);
    // Of this rank's channels those that end at its port: one side far, the other near.
    const std::int64_t leaving = (channels + link.ranks_per_node - 1) / link.ranks_per_node;
    return (channels - leaving) * near.send + leaving * far.send + (channels - leaving) * near.receive +
           leaving * far.receive;
  }

  std::int64_t tree_bytes(const GroupLink& link, std::int64_t channels) const {
    const auto &near = kOverNvlink, &far = kOverNetwork;
    // What the ring does not have: the other direction of both neighbours.
    std::int64_t bytes = link.ranks_per_node > 2 ? channels * (near.receive + near.send) : 0;
    if (link.nodes > 1) {
      // Between nodes a rank that serves a channel has a parent and up to two children; over the
      // two trees it is a leaf in one and inner in the other: (1 + 3) / 2 neighbours.
      const std::int64_t serving = (channels + link.ranks_per_node - 1) / link.ranks_per_node;
      bytes += serving * 2 * (far.receive + far.send);
    }
    return bytes;
  }

  // heads x channels x {up, down} x 8 slots of 128 KiB (NCCL_NVLS_CHUNKSIZE).
  static std::int64_t nvls_bytes(const GroupLink& link, std::int64_t channels) {
    constexpr std::int64_t kChunk = 128 << 10, kSlots = 8, kDirections = 2;
    return rounded(link.ranks_per_node * channels * kDirections * kSlots * kChunk);
  }

  const Cluster& cluster_;
  const NcclVersion version_;
};

// What each communicator is used for, by its number in the graph.
std::vector<Nccl::Uses> uses_of(const EventGraph& graph) {
  // Gradients are larger than this; the clipping norm is 4 bytes.
  constexpr Bytes kScalar(512);
  std::vector<Nccl::Uses> uses(graph.communicators.size());
  for (const Work& work : graph.works) {
    if (work.communicator >= uses.size() || work.kind != EventKind::kAllReduce) continue;
    Nccl::Uses& use = uses[work.communicator];
    (work.bytes > kScalar ? use.reduces_data : use.reduces_scalar) = true;
  }
  return uses;
}

// Resharding to small groups makes a communicator for every unit (pytorch#147179).
std::int64_t instances(const Communicator& communicator, const EventGraph& graph) {
  if (!communicator.per_unit) return 1;
  return std::max<std::int64_t>(1, std::ranges::count_if(graph.units, [&](const Unit& unit) {
    return unit.reshard.kind == Reshard::Kind::kGroup && unit.reshard.group == communicator.group.size;
  }));
}

}

NcclVersion nccl_of(const Runtime& runtime) {
  const int minor = runtime.torch_minor();
  NcclVersion nccl = kShipped.front().nccl;
  for (const Shipped& shipped : kShipped)
    if (shipped.torch_minor <= minor) nccl = shipped.nccl;
  return nccl;
}

OutsideItems memory_outside(const EventGraph& graph, const Cluster& cluster, const Runtime& runtime) {
  if (cluster.memory_outside_allocator)
    return {{"declared", *cluster.memory_outside_allocator, SizeEvidence::kDeclared, cluster.outside_source}};
  if (cluster.host_computes) return {};
  OutsideItems items = context_items(cluster.gpu);
  const Nccl nccl(cluster, nccl_of(runtime));
  const std::vector<Nccl::Uses> uses = uses_of(graph);
  for (std::size_t c = 0; c < graph.communicators.size(); ++c) {
    const Communicator& communicator = graph.communicators[c];
    const std::size_t first = items.size();
    nccl.add(communicator, uses[c], items);
    const std::int64_t count = instances(communicator, graph);
    if (count == 1) continue;
    for (std::size_t i = first; i < items.size(); ++i) {
      items[i].bytes = items[i].bytes * count;
      items[i].name += fmt::format(" x {} communicators", count);
    }
  }
  return items;
}

Bytes total(const OutsideItems& items) { return sum_of<Bytes>(items, &OutsideItem::bytes); }

LibraryBuffers library_buffers(const EventGraph& graph, const Cluster& cluster, const Runtime& runtime) {
  if (cluster.host_computes) return {};
  constexpr int kEngineStreams = 4;
  const Generation& generation = generation_of(cluster.gpu);
  const ProductWorkspaces workspaces = product_workspaces(runtime.torch_minor(), generation.compute_capability);
  const Bytes bytes(workspaces.cublas);
  LibraryBuffers list;
  const bool multiplies = std::ranges::any_of(graph.kernels, [](const Kernel& kernel) {
    return kernel.kind == KernelKind::kGemm && kernel.function != Function::kConvolve;  // that is cuDNN's
  });
  if (workspaces.kept && multiplies) {
    list.push_back({bytes});
    if (runtime.kind != RuntimeKind::kNative)  // whose one thread does both
      list.push_back({bytes, Stream::kCompute, EventKind::kBackward});
  }
  if (has_engine_modules(runtime)) {
    const bool is_grouped = std::ranges::any_of(graph.kernels, [](const Kernel& kernel) { return kernel.groups > 1; });
    const Bytes each(generation.is_hopper_or_later() ? 32 * kMiB + 1024 : 4 * kMiB);
    list.insert(list.end(), is_grouped ? 1 + kEngineStreams : 1, {each});
  }
  return list;
}

}
