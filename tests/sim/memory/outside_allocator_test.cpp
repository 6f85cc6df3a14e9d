// Sizes by hand: over NVLink a connection is rounded(4 KiB + 512 KiB + 4,915,200 + 4 MiB) = 10 MiB on the receiving and
// rounded(4 KiB) = 2 MiB on the sending side; over the network rounded(4,915,200 + 4 MiB) = 10 MiB on each.
#include "sim/memory/outside_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sim/base/lookup.h"
#include "sim/graph/training_step.h"
#include "tests/support/fixtures.h"

namespace foreshard::outside_allocator_test {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// GPUs of a generation behind an NVSwitch, with its rate of NVLink.
Cluster cluster_of(const std::string& architecture, std::int64_t gpus) {
  Cluster cluster = round_cluster(gpus);
  cluster.gpu.architecture = architecture;
  const bool is_blackwell = architecture == "blackwell";
  cluster.node.gpu_link = BytesPerSecond(is_blackwell ? 900e9 : architecture == "hopper" ? 450e9 : 300e9);
  cluster.node.gpu_link_name = "NVLink + NVSwitch";
  cluster.memory_outside_allocator.reset();
  return cluster;
}

Runtime torch(const std::string& version) { return {RuntimeKind::kFsdp2, version}; }

EventGraph graph_of(Mesh mesh, const std::string& reshard = "always") {
  Plan plan = tiny_plan();
  plan.mesh = mesh;
  if (reshard != "always") plan.reshard_after_forward.value = {Reshard::Kind::kGroup, std::stoll(reshard)};
  return build_training_step(tiny_model(4), plan);
}

// MiB of the items whose name contains `part`; -1: there is none.
std::int64_t mib(const OutsideItems& items, const std::string& part) {
  std::int64_t sum = -1;
  for (const OutsideItem& item : items) {
    if (!contains(item.name, part)) continue;
    sum = std::max<std::int64_t>(sum, 0) + item.bytes.count() / kMiB;
  }
  return sum;
}

TEST(OutsideAllocator, RingInsideANodeHasTwoNeighboursPerChannel) {
  const OutsideItems items = memory_outside(graph_of({8, 1}), cluster_of("hopper", 8), torch("2.11"));
  EXPECT_EQ(mib(items, "nccl shard: ring, 24 channels"), 24 * (10 + 2));
  EXPECT_EQ(mib(items, "tree"), -1);  // connected when first used, which it never is
  EXPECT_EQ(mib(items, "NVLS"), -1);
  EXPECT_EQ(mib(items, "replicate"), -1);  // groups of one rank
  Bytes sum;
  for (const OutsideItem& item : items) {
    EXPECT_GT(item.bytes, Bytes()) << item.name;
    EXPECT_GT(item.source.size(), 10U) << item.name;
    sum += item.bytes;
  }
  EXPECT_EQ(total(items), sum);
}

// PyTorch 2.6 ships NCCL 2.21, which connects everything when the communicator is made: the other
// direction of both neighbours for the tree, and NVLS with 8 heads x 16 channels x 2 x 1 MiB.
TEST(OutsideAllocator, OlderVersionsConnectEveryAlgorithm) {
  const EventGraph graph = graph_of({8, 1});
  const OutsideItems h100 = memory_outside(graph, cluster_of("hopper", 8), torch("2.6"));
  EXPECT_EQ(mib(h100, "shard: tree"), 24 * 12);
  EXPECT_EQ(mib(h100, "shard: NVLS, 16 channels"), 256);
  const OutsideItems a100 = memory_outside(graph, cluster_of("ampere", 8), torch("2.6"));
  EXPECT_EQ(mib(a100, "NVLS"), -1);
}

// NVIDIA/nccl#964: 544 MiB per communicator of two A100s, where ring and tree use the same connections. (Of four, 688
// MiB at the end of the chain; here a rank in its middle: one side more.)
TEST(OutsideAllocator, TwoA100sAsMeasured) {
  const OutsideItems two = memory_outside(graph_of({2, 1}), cluster_of("ampere", 2), torch("2.1"));
  EXPECT_EQ(mib(two, "nccl shard"), 544);
  const OutsideItems four = memory_outside(graph_of({4, 1}), cluster_of("ampere", 4), torch("2.1"));
  EXPECT_EQ(mib(four, "nccl shard"), 688 + 24 * 6);
}

// 8 nodes of 8 with a port each: 16 channels, of which each rank sends two through its port.
TEST(OutsideAllocator, RingOverNodesHasAPortPerRank) {
  const OutsideItems items = memory_outside(graph_of({64, 1}), cluster_of("hopper", 64), torch("2.11"));
  EXPECT_EQ(mib(items, "shard: ring, 16 channels"), 14 * (10 + 2) + 2 * (10 + 10));
}

// Replicas on 8 nodes, one rank each: 4 channels through the one port, ring and double tree.
TEST(OutsideAllocator, ReplicasReduceOverTheirOwnCommunicator) {
  const OutsideItems items = memory_outside(graph_of({8, 8}), cluster_of("hopper", 64), torch("2.11"));
  EXPECT_EQ(mib(items, "replicate: ring, 4 channels"), 4 * 20);
  EXPECT_EQ(mib(items, "replicate: tree, 4 channels"), 4 * 2 * 20);
  EXPECT_EQ(mib(items, "replicate: NVLS"), -1);  // one rank per node
}

// pytorch#147179: resharding to 4 ranks makes a communicator per unit, gigabytes together.
TEST(OutsideAllocator, SmallReshardGroupsCostACommunicatorPerUnit) {
  const EventGraph graph = graph_of({8, 1}, "4");
  const auto units =
      std::ranges::count_if(graph.units, [](const Unit& unit) { return unit.reshard.kind == Reshard::Kind::kGroup; });
  ASSERT_GT(units, 3);
  const OutsideItems items = memory_outside(graph, cluster_of("hopper", 8), torch("2.7"));
  EXPECT_EQ(mib(items, "post_forward: ring"), units * 24 * 12);
  EXPECT_EQ(mib(items, "post_forward: state"), units * 228);
}

TEST(OutsideAllocator, ADeclaredTotalIsTheOnlyItem) {
  const EventGraph graph = graph_of({8, 1});
  const OutsideItems items = memory_outside(graph, round_cluster(8), torch("2.11"));
  ASSERT_EQ(items.size(), 1U);
  EXPECT_EQ(items[0].bytes, Bytes(2048 * kMiB));
  EXPECT_EQ(items[0].evidence, SizeEvidence::kDeclared);
  Cluster cpu = cluster_of("cpu", 8);
  cpu.host_computes = true;
  EXPECT_TRUE(memory_outside(graph, cpu, torch("2.11")).empty());
}

TEST(OutsideAllocator, VersionsOfNccl) {
  EXPECT_EQ(nccl_of(torch("2.4")), (NcclVersion{2, 20}));
  EXPECT_EQ(nccl_of(torch("2.10")), (NcclVersion{2, 27}));
  EXPECT_EQ(nccl_of(torch("2.11")), (NcclVersion{2, 28}));
  EXPECT_EQ(nccl_of(torch("2.99")), nccl_of(torch("2.13")));
  EXPECT_EQ(nccl_of({RuntimeKind::kNative, "1"}), (NcclVersion{2, 28}));
}

EventGraph multiplies(Function function = Function::kMatrixProduct) {
  EventGraph graph;
  graph.kernels.push_back({.kind = KernelKind::kGemm, .function = function});
  return graph;
}

TEST(LibraryBuffers, OneCublasWorkspacePerThread) {
  const auto h100 = library_buffers(multiplies(), cluster_of("hopper", 8), torch("2.11"));
  ASSERT_EQ(h100.size(), 2U);
  EXPECT_EQ(h100[0].first_event, EventKind::kForward);
  EXPECT_EQ(h100[1].first_event, EventKind::kBackward);
  for (const LibraryBuffer& buffer : h100) EXPECT_EQ(buffer.bytes, Bytes(32 * kMiB));
  EXPECT_EQ(library_buffers(multiplies(), cluster_of("ampere", 8), torch("2.11"))[0].bytes, Bytes(8'519'680));
  EXPECT_EQ(library_buffers(multiplies(), cluster_of("blackwell", 8), torch("2.11"))[0].bytes, Bytes(8'519'680));
  EXPECT_EQ(library_buffers(multiplies(), cluster_of("blackwell", 8), torch("2.12"))[0].bytes, Bytes(32 * kMiB));
}

TEST(LibraryBuffers, ConvolutionsAreCudnns) {
  EXPECT_TRUE(library_buffers(multiplies(Function::kConvolve), cluster_of("hopper", 8), torch("2.11")).empty());
}

// (Then products take them: LayerProgram.ProductsTakeALibrarysWorkspace.)
TEST(LibraryBuffers, NoneIsKeptFrom215On) {
  EXPECT_TRUE(library_buffers(multiplies(), cluster_of("hopper", 8), torch("2.15")).empty());
  EXPECT_EQ(library_buffers(multiplies(), cluster_of("hopper", 8), {RuntimeKind::kZero3, "0.19"}).size(), 2U);
  EXPECT_TRUE(library_buffers(multiplies(), cluster_of("hopper", 8), {RuntimeKind::kZero3, "0.19", "2.15"}).empty());
}

// What a GPU is called says nothing; what it hangs on says whether there is NVLS.
TEST(OutsideAllocator, TheGenerationDecidesAndNotTheKey) {
  const EventGraph graph = graph_of({8, 1});
  Cluster h20 = cluster_of("hopper", 8);
  h20.gpu.key = "h20";
  const OutsideItems switched = memory_outside(graph, h20, torch("2.6"));
  EXPECT_EQ(mib(switched, "cuda context"), 616);
  EXPECT_EQ(mib(switched, "shard: NVLS, 16 channels"), 256);
  EXPECT_EQ(library_buffers(multiplies(), h20, torch("2.11")).front().bytes, Bytes(32 * kMiB));
  Cluster pcie = h20;
  pcie.gpu.key = "h100-pcie";
  pcie.node.gpu_link = BytesPerSecond(64e9);
  pcie.node.gpu_link_name = "PCIe 5.0 x16";
  const OutsideItems items = memory_outside(graph, pcie, torch("2.6"));
  EXPECT_EQ(mib(items, "NVLS"), -1);
  EXPECT_EQ(mib(items, "ring, 24 channels"), -1);
  EXPECT_GT(mib(items, "shard: ring"), 0);
  EXPECT_LT(mib(items, "shard: ring"), 60);
  Cluster named = cluster_of("ampere", 8);
  named.gpu.key = "h100-like";
  EXPECT_EQ(mib(memory_outside(graph, named, torch("2.6")), "NVLS"), -1);
}

}
}
