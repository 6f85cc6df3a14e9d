#include "sim/cost/nccl.h"

#include <gtest/gtest.h>

namespace foreshard::nccl_test {
namespace {

using Op = CollectiveOperation;

// A node of GPUs behind an NVSwitch; marketing rates, one direction.
NcclSystem node_of(GpuGeneration generation, std::int64_t gpus, double link) {
  NcclSystem s = {.generation = generation, .ranks_per_node = gpus};
  s.link = usable_link(generation, link, s.version);
  return s;
}
NcclSystem h100(std::int64_t gpus = 8) { return node_of(GpuGeneration::kHopper, gpus, 450); }
NcclSystem a100(std::int64_t gpus = 8) { return node_of(GpuGeneration::kAmpere, gpus, 300); }
NcclSystem b200(std::int64_t gpus = 8) { return node_of(GpuGeneration::kBlackwell, gpus, 900); }

NcclSystem across(NcclSystem s, std::int64_t nodes, double nics, double gigabits) {
  s.nodes = nodes;
  s.nics = nics;
  s.nic = gigabits / 8;
  return s;
}

struct Expected {
  NcclSystem system;
  int channels;
  double speed;
  int ctas;
};

TEST(NcclGraph, FindsTheRingsOfKnownMachines) {
  // The graphs NCCL reports on these machines, and the blocks of its kernels.
  const Expected rings[] = {
      {a100(), 12, 20, 24}, {h100(), 12, 30, 24}, {b200(), 16, 45, 32}, {across(a100(), 2, 8, 200), 8, 24, 16},
      {across(h100(), 2, 8, 400), 8, 45, 16},  // 8 * 48 would be more than the links' 370.8
      {across(b200(), 2, 8, 400), 8, 48, 16}, {across(h100(1), 10, 1, 400), 2, 24, 4},  // 1 * 48, split
      {across(h100(2), 10, 2, 400), 4, 24, 8}, {across(h100(4), 10, 4, 400), 8, 24, 16},
      {across(a100(4), 2, 2, 200), 2, 24, 4}, {across(h100(), 2, 8, 40), 8, 4.8, 16},  // slower than the list is fine
  };
  for (const Expected& expected : rings) {
    const NcclGraph graph = ring_graph(expected.system);
    EXPECT_EQ(graph.channels, expected.channels);
    EXPECT_DOUBLE_EQ(graph.intra, expected.speed);
    EXPECT_EQ(graph.ctas, expected.ctas);
  }
}

TEST(NcclModel, WorkedCheckOfAnAllGather) {
  // 256 MiB over 8 H100: a ring, Simple; L = 8.4 + 7 * 3.4, B = 360 * 8 / 7.
  const double bytes = 268435456;
  const NcclModel model(h100());
  const NcclModel::Choice choice = model.choose(Op::kAllGather, bytes);
  EXPECT_EQ(choice.cost.algorithm, NcclAlgorithm::kRing);
  EXPECT_EQ(choice.cost.protocol, NcclProtocol::kSimple);
  EXPECT_NEAR(choice.cost.latency, 32.2, 1e-9);
  EXPECT_NEAR(choice.cost.bandwidth, 360 * 8.0 / 7, 1e-9);
  EXPECT_NEAR(choice.microseconds, 32.2 + bytes / (1000 * 360 * 8.0 / 7), 1e-6);
  EXPECT_NEAR(choice.microseconds, 684.7, 0.1);
  EXPECT_EQ(choice.channels, 24);
}

TEST(NcclModel, LatencyCountsHopsInsideAndBetween) {
  // 2 nodes of 8 A100, AMD's processors: 14 hops inside, 1 between; the network's post overhead of
  // 2 us is longer than LL's hop.
  NcclSystem s = across(a100(), 2, 8, 200);
  s.cpu = CpuKind::kAmd;
  const NcclModel model(s);
  const auto latency = [&](NcclProtocol protocol) {
    return model.cost(Op::kAllGather, NcclAlgorithm::kRing, protocol, 1 << 26).latency;
  };
  EXPECT_NEAR(latency(NcclProtocol::kLL), 6.6 + 14 * 2 + 2.7, 1e-9);
  EXPECT_NEAR(latency(NcclProtocol::kLL128), 14 + 14 * 2 + 4, 1e-9);
  EXPECT_NEAR(latency(NcclProtocol::kSimple), 8.4 + 14 * 6 + 14, 1e-9);
}

TEST(NcclModel, SwitchesProtocolsAsSizesGrow) {
  const NcclModel model(h100());
  const auto protocol = [&](double bytes) { return model.choose(Op::kAllGather, bytes).cost.protocol; };
  EXPECT_EQ(protocol(1 << 10), NcclProtocol::kLL);
  EXPECT_EQ(protocol(1 << 30), NcclProtocol::kSimple);
  double last = 0;
  for (double bytes = 1; bytes < 1e11; bytes *= 1.7) {
    const double now = model.choose(Op::kAllGather, bytes).microseconds;
    EXPECT_GE(now, last);  // a minimum of rising lines
    last = now;
  }
}

TEST(NcclModel, GathersAndScattersAreRingsAllReducesTakeNvls) {
  for (const NcclSystem& s : {h100(), b200(), across(h100(), 4, 8, 400)}) {
    const NcclModel model(s);
    for (const Op op : {Op::kAllGather, Op::kReduceScatter}) {
      EXPECT_EQ(model.choose(op, 1 << 28).cost.algorithm, NcclAlgorithm::kRing);
    }
  }
  EXPECT_EQ(NcclModel(h100()).choose(Op::kAllReduce, 1 << 28).cost.algorithm, NcclAlgorithm::kNvls);
  EXPECT_EQ(
      NcclModel(across(h100(), 4, 8, 400)).choose(Op::kAllReduce, 1 << 28).cost.algorithm, NcclAlgorithm::kNvlsTree);
  EXPECT_EQ(NcclModel(a100()).choose(Op::kAllReduce, 1 << 28).cost.algorithm, NcclAlgorithm::kRing);
}

TEST(NcclModel, NvlsFromFiveH200AndSixB200) {
  // Logs of NCCL 2.27.7 (stas00/ml-engineering): at 1 GiB the switch reduces from these sizes up.
  const auto algorithm = [](NcclSystem s) {
    s.version = {2, 27, 7};
    return NcclModel(s).choose(Op::kAllReduce, 1 << 30).cost.algorithm;
  };
  EXPECT_EQ(algorithm(h100(4)), NcclAlgorithm::kRing);
  EXPECT_EQ(algorithm(h100(5)), NcclAlgorithm::kNvls);
  EXPECT_EQ(algorithm(b200(5)), NcclAlgorithm::kRing);
  EXPECT_EQ(algorithm(b200(6)), NcclAlgorithm::kNvls);
}

TEST(NcclModel, NvlsBandwidthOfTheSwitch) {
  // 8 trees of 40 GB/s, 0.85 of them, 7/8, both ways: 476 GB/s of bus bandwidth; B = 476 * 8 / 14.
  const NcclModel model(h100());
  const NcclCost cost = model.cost(Op::kAllReduce, NcclAlgorithm::kNvls, NcclProtocol::kSimple, 1 << 30);
  EXPECT_NEAR(cost.bandwidth, 8 * 40 * 0.85 * 7 / 8 * 2 * 8.0 / 14, 1e-9);
  // Two nodes: the tree's cap of 57.7 a channel; four: 45.5.
  const auto tree = [](std::int64_t nodes) {
    return NcclModel(across(h100(), nodes, 8, 400))
        .cost(Op::kAllReduce, NcclAlgorithm::kNvlsTree, NcclProtocol::kSimple, 1 << 30);
  };
  EXPECT_NEAR(tree(2).bandwidth * 30 / 16, 8 * 57.7, 1e-9);
  EXPECT_NEAR(tree(4).bandwidth * 62 / 32, 8 * 45.5, 1e-9);
}

TEST(NcclModel, PatOnlyWithOneRankANode) {
  // From 2.23 and for small messages, where log2(nodes) beats nodes - 1 hops.
  NcclSystem s = across(h100(1), 32, 1, 400);
  EXPECT_EQ(NcclModel(s).choose(Op::kAllGather, 1 << 16).cost.algorithm, NcclAlgorithm::kPat);
  s.version = {2, 22, 3};
  EXPECT_EQ(NcclModel(s).choose(Op::kAllGather, 1 << 16).cost.algorithm, NcclAlgorithm::kRing);
  const NcclSystem full = across(h100(8), 32, 8, 400);
  EXPECT_NE(NcclModel(full).choose(Op::kAllGather, 1 << 16).cost.algorithm, NcclAlgorithm::kPat);
}

TEST(NcclModel, CollNetWhereTheNetworkReduces) {
  NcclSystem s = across(h100(), 4, 8, 400);
  const auto cost = [&] {
    return NcclModel(s).cost(Op::kAllReduce, NcclAlgorithm::kCollNetDirect, NcclProtocol::kSimple, 1 << 30);
  };
  EXPECT_FALSE(cost().is_available());
  s.collnet = true;
  EXPECT_NEAR(cost().bandwidth, 360 * 0.5, 1e-9);
}

TEST(NcclModel, VersionsDiffer) {
  const auto ll = [](NcclVersion version) {
    NcclSystem s = h100();
    s.version = version;
    return NcclModel(s).cost(Op::kAllGather, NcclAlgorithm::kRing, NcclProtocol::kLL, 1 << 16).bandwidth;
  };
  EXPECT_NEAR(ll({2, 28, 9}), 141 * 8.0 / 7, 1e-9);   // min(141, 360 / 2)
  EXPECT_NEAR(ll({2, 20, 5}), 87.7 * 8.0 / 7, 1e-9);  // min(87.7, 360 / 3)
  NcclSystem old = h100();
  old.version = {2, 18, 6};
  EXPECT_FALSE(
      NcclModel(old).cost(Op::kAllGather, NcclAlgorithm::kNvls, NcclProtocol::kSimple, 1 << 20).is_available());
}

TEST(NcclModel, SmallMessagesTakeFewerChannels) {
  const NcclModel model(h100());
  EXPECT_EQ(model.choose(Op::kAllGather, 1 << 10).channels, 1);
  // LL: 8 bytes a thread and rank, 512 threads: 32 KiB a channel.
  EXPECT_EQ(model.choose(Op::kAllGather, 3 * 32768).channels, 3);
  EXPECT_EQ(model.choose(Op::kAllGather, 1 << 20).channels, 24);
}

TEST(NcclModel, AllToAllIsBoundByLinksOrPorts) {
  // Inside: 7/8 of the buffer over the GPU's links. Across 2 nodes of 8: half of it over one port of 50 GB/s per GPU.
  const NcclModel inside(h100());
  EXPECT_NEAR(inside.choose(Op::kAllToAll, 1 << 30).cost.bandwidth, 18 * 20.6 * 8.0 / 7, 1e-6);
  const NcclModel between(across(h100(), 2, 8, 400));
  EXPECT_NEAR(between.choose(Op::kAllToAll, 1 << 30).cost.bandwidth, 100, 1e-6);
  EXPECT_NEAR(between.choose(Op::kSendRecv, 1 << 30).cost.bandwidth, 50, 1e-6);
}

TEST(NcclVersionText, ReadsWhatPeopleWrite) {
  EXPECT_EQ(parse_nccl_version("2.18.6"), (NcclVersion{2, 18, 6}));
  EXPECT_EQ(parse_nccl_version("v2.30.7-1"), (NcclVersion{2, 30, 7}));
  EXPECT_EQ(parse_nccl_version("22809"), (NcclVersion{2, 28, 9}));
  EXPECT_EQ(parse_nccl_version("2.21"), (NcclVersion{2, 21, 0}));
  EXPECT_EQ(parse_nccl_version("n/a (container 24.01)"), NcclVersion{});
  EXPECT_EQ(parse_nccl_version(""), NcclVersion{});
}

}
}
