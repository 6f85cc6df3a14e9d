#include "sim/spec/network/topology.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "calibration/machines.h"
#include "sim/base/error.h"
#include "sim/spec/network/routes.h"

namespace foreshard {
namespace {

constexpr std::int64_t kStrides[] = {1, 2, 4, 8, 16, 24, 32, 64};

// Every shape that tiles the cluster.
int for_each_shape(const Cluster& cluster, auto check) {
  int shapes = 0;
  for (std::int64_t size = 2; size <= 64; ++size) {
    for (const std::int64_t stride : kStrides) {
      if (size * stride > cluster.gpus || cluster.gpus % (size * stride) != 0) continue;
      ++shapes;
      check(GroupShape{size, stride});
    }
  }
  return shapes;
}

void expect_same(const Cluster& cluster, const Topology& topology, const GroupShape& shape) {
  const GroupLink closed = regular_group_link(cluster, shape);
  const GroupLink walked = route(topology, shape).slowest;
  const std::string what = fmt::format("{}: {} ranks, {} apart", cluster.spec, shape.size, shape.stride);
  EXPECT_NEAR(closed.link.value(), walked.link.value(), 1e-6 * closed.link.value()) << what;
  EXPECT_NEAR(closed.network.value(), walked.network.value(), 1e-6 * closed.network.value()) << what;
}

TEST(Topology, GroupLinkIsTheBottleneckOfTheGraph) {
  int shapes = 0;
  for (const int nodes : {1, 2, 3, 4, 6, 8, 12, 16}) {
    const Cluster cluster = load_cluster(fmt::format("{}xh100", 8 * nodes));
    const Topology topology = build_topology(cluster);
    shapes += for_each_shape(cluster, [&](const GroupShape& shape) {
      const std::int64_t block = shape.size * shape.stride;
      const bool regular = shape.stride % 8 == 0 || (8 % shape.stride == 0 && (block % 8 == 0 || 8 % block == 0));
      if (regular) return expect_same(cluster, topology, shape);
      // A group that lies unevenly on the nodes: the closed form may only be too careful.
      EXPECT_LE(group_link(cluster, shape).network.value(), route(topology, shape).slowest.network.value() * (1 + 1e-9))
          << shape.size << " ranks, " << shape.stride << " apart";
    });
  }
  EXPECT_GT(shapes, 100);
}

TEST(Topology, GroupLinkIsTheBottleneckWithOtherPortsAndOversubscription) {
  for (const char* node : {"{nics: 8}", "{nics: 4}", "{nics: 1}", "{nics: 16, nic_rate: 100Gbit/s}",
           "{gpus: 4, nics: 2, nic_rate: 200Gbit/s}"}) {
    for (const char* network : {"{nodes_per_leaf: 4, oversubscription: 2}", "{nodes_per_leaf: 2, oversubscription: 3}",
             "{nodes_per_leaf: 5, oversubscription: 1.5}", "{nodes_per_leaf: 3}"}) {
      const Cluster cluster =
          parse_cluster(fmt::format("gpus: 128\nmachine: h100\nnode: {}\nnetwork: {}\n", node, network),
              fmt::format("{} {}", node, network));
      const Topology topology = build_topology(cluster);
      for_each_shape(cluster, [&](const GroupShape& shape) { expect_same(cluster, topology, shape); });
    }
  }
}

TEST(Topology, KnownShares) {
  const Cluster cluster = load_cluster("64xh100");
  EXPECT_EQ(group_link(cluster, {8, 1}).nodes, 1);
  EXPECT_EQ(group_link(cluster, {8, 1}).network.value(), 0);
  EXPECT_EQ(group_link(cluster, {64, 1}).network.value(), 400e9);
  EXPECT_EQ(group_link(cluster, {64, 1}).ranks_per_node, 8);
  EXPECT_EQ(group_link(cluster, {8, 8}).network.value(), 50e9);  // one port per replicate group
  EXPECT_EQ(group_link(cluster, {8, 8}).nodes, 8);
  EXPECT_EQ(group_link(cluster, {4, 2}).nodes, 1);
  EXPECT_EQ(group_link(cluster, {16, 4}).network.value(), 100e9);
  EXPECT_EQ(group_link(cluster, {12, 1}).ranks_per_node, 4);  // the worst of {0..11} and {12..23}
  EXPECT_EQ(group_link(cluster, {1, 1}).nodes, 1);
  EXPECT_THROW(group_link(cluster, {65, 1}), Error);
  EXPECT_THROW(group_link(cluster, {2, 64}), Error);
  EXPECT_THROW(group_link(cluster, {0, 1}), Error);
}

TEST(Topology, OversubscriptionHurtsOnlyRingsThatLeaveTheirLeaf) {
  const Cluster cluster =
      parse_cluster("{gpus: 128, machine: h100, network: {nodes_per_leaf: 4, oversubscription: 2}}", "test");
  EXPECT_EQ(group_link(cluster, {128, 1}).network.value(), 400e9);  // one hop in four leaves
  EXPECT_EQ(group_link(cluster, {32, 1}).network.value(), 400e9);   // stays in its pod
  EXPECT_EQ(group_link(cluster, {4, 32}).network.value(), 25e9);    // every hop leaves
}

// Racks of two trays of four GPUs behind one NVSwitch.
Cluster racks(const std::string& more = "") {
  return parse_cluster("gpus: 32\nmachine: b200\nnode: {gpus: 4, nics: 4, link_domain: 2}\n" + more, "racks");
}

TEST(Topology, TraysOfALinkDomainAreOneNode) {
  const Cluster cluster = racks();
  EXPECT_EQ(group_link(cluster, {8, 1}).nodes, 1);
  EXPECT_EQ(group_link(cluster, {8, 1}).network.value(), 0);
  EXPECT_EQ(group_link(cluster, {32, 1}).nodes, 4);
  EXPECT_EQ(group_link(cluster, {32, 1}).ranks_per_node, 8);
  EXPECT_EQ(group_link(cluster, {32, 1}).network.value(), 400e9);  // both trays' ports
  EXPECT_EQ(group_link(cluster, {4, 8}).network.value(), 50e9);
  const Topology topology = build_topology(cluster);
  int shapes = 0;
  shapes += for_each_shape(cluster, [&](const GroupShape& shape) { expect_same(cluster, topology, shape); });
  EXPECT_GT(shapes, 10);
}

TEST(Topology, PcieSwitchesBindPortsThatAreFasterThanTheirSlot) {
  // 800 Gbit/s is 100 GB/s; the slot gives 48.
  const Cluster cluster =
      parse_cluster("gpus: 32\nmachine: h100\nnode: {nic_rate: 800Gbit/s, pcie_switches: 8}\n", "slots");
  EXPECT_EQ(group_link(cluster, {4, 8}).network.value(), 48e9);
  const Topology topology = build_topology(cluster);
  expect_same(cluster, topology, {4, 8});
  expect_same(cluster, topology, {32, 1});
}

TEST(Topology, ASlowPortSlowsEveryRingOfItsNode) {
  const Cluster cluster =
      parse_cluster("gpus: 32\nmachine: h100\ndegraded: [{node: 1, nic: 3, fraction: 0.5}]\n", "slow");
  const Topology topology = build_topology(cluster);
  EXPECT_EQ(group_link(cluster, {32, 1}).network.value(), 200e9);  // even shares, the slowest waits
  EXPECT_EQ(group_link(cluster, {4, 8}).network.value(), 25e9);
}

TEST(Topology, AMissingPortLeavesItsPartToTheOthers) {
  const Cluster cluster =
      parse_cluster("gpus: 32\nmachine: h100\ndegraded: [{node: 2, nic: 0, fraction: 0}]\n", "missing");
  const Topology topology = build_topology(cluster);
  const double closed = group_link(cluster, {32, 1}).network.value();
  EXPECT_NEAR(closed, 350e9, 1);  // seven of eight
  EXPECT_NEAR(route(topology, {32, 1}).slowest.network.value(), closed, 1);
}

TEST(Topology, ASlowGpuLinkSlowsItsRing) {
  const Cluster cluster =
      parse_cluster("gpus: 8\nmachine: h100\ndegraded: [{node: 0, gpu: 5, fraction: 0.5}]\n", "link");
  EXPECT_EQ(group_link(cluster, {8, 1}).link.value(), 225e9);
}

TEST(Topology, RefusesDegradedLinksThatAreNone) {
  const auto refuse = [](const char* list) {
    EXPECT_THROW(parse_cluster(fmt::format("gpus: 16\nmachine: h100\ndegraded: [{}]\n", list), "bad"), ConfigError)
        << list;
  };
  refuse("{node: 2, nic: 0, fraction: 0}");
  refuse("{node: 0, nic: 8, fraction: 0}");
  refuse("{node: 0, nic: 1, gpu: 1, fraction: 0.5}");
  refuse("{node: 0, fraction: 0.5}");
  refuse("{node: 0, gpu: 1, fraction: 0}");
  refuse("{node: 0, nic: 1, fraction: 1.5}");
  refuse("{node: 0, nic: 1, fraction: 0.5}, {node: 0, nic: 1, fraction: 0}");
}

TEST(Topology, DotNamesEveryDevice) {
  const Topology topology = build_topology(load_cluster("16xh100"));
  const std::string dot = to_dot(topology);
  for (std::size_t i = 0; i < topology.devices.size(); ++i) {
    const std::string name = device_name(topology, static_cast<std::int64_t>(i));
    EXPECT_NE(dot.find('"' + name + '"'), std::string::npos) << name;
  }
  EXPECT_NE(dot.find("450 GB/s"), std::string::npos);
}

}
}
