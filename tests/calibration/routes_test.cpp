// What groups get of the wires, against the closed form on regular clusters and against numbers
// worked out by hand on others. Unless a case says otherwise a node has 8 GPUs with 450 GB/s of
// NVLink and 8 ports of 50 GB/s, 400 in all; a ring's flow of 1 is what its bus bandwidth counts.
#include "sim/spec/network/routes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "calibration/machines.h"
#include "sim/base/error.h"
#include "sim/spec/network/cluster_layout.h"

namespace foreshard {
namespace {

constexpr double kGiga = 1e9;

Cluster cluster_of(const std::string& yaml) {
  return parse_cluster(
      "machine: h100\nnode: {gpus: 8, gpu_link: 450GB/s, nics: 8, nic_rate: "
      "400Gbit/s, link_latency: 600ns, nic_latency: 2700ns}\n" +
          yaml,
      "case");
}

AxisRoute routed(const std::string& yaml, const GroupShape& shape) {
  return route(build_topology(cluster_of(yaml)), shape);
}

double network(const std::string& yaml, const GroupShape& shape) {
  return routed(yaml, shape).slowest.network.value() / kGiga;
}

constexpr double kRounding = 1e-9;

void expect_gigabytes(double found, double expected) { EXPECT_NEAR(found, expected, kRounding * expected); }

// --- regular clusters ---

Cluster random_regular(std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int> from) {
    return *(from.begin() + std::uniform_int_distribution<std::size_t>(0, from.size() - 1)(random));
  };
  Cluster c;
  c.node.gpus = pick({1, 2, 4, 8, 16});
  c.node.gpu_link = BytesPerSecond(pick({50, 300, 450, 900}) * kGiga);
  c.node.nics = pick({1, 2, 4, 8, 16, 32});
  c.node.nic_rate = BytesPerSecond(pick({12, 25, 50, 100}) * kGiga);
  c.node.host_link = BytesPerSecond(pick({24, 48, 96}) * kGiga);
  // A switch for every GPU, for there are none to share: a slot binds its own ports.
  c.node.pcie_switches = pick({0, 1}) * static_cast<int>(c.node.gpus);
  if (c.node.nics < c.node.gpus) c.node.pcie_switches = 0;
  c.node.link_latency = Time::ns(2 * pick({300, 500, 1000}));
  c.node.nic_latency = Time::ns(8 * pick({340, 700}));
  c.network.nodes_per_leaf = pick({1, 2, 3, 4, 5, 8, 32});
  c.network.oversubscription = pick({2, 3, 4, 8}) / 2.0;
  c.gpus = c.node.gpus * pick({1, 2, 3, 4, 6, 8, 12, 16, 24, 48});
  return c;
}

// A group that lies on the nodes in the same way everywhere.
bool is_regular(const GroupShape& group, const Cluster& c) {
  const std::int64_t per_node = c.gpus_per_node();
  const std::int64_t block = group.size * group.stride;
  if (c.gpus % block != 0) return false;
  if (group.stride % per_node == 0) return true;
  return per_node % group.stride == 0 && (block % per_node == 0 || per_node % block == 0);
}

TEST(RoutesProperty, RegularClustersGetTheClosedForm) {
  std::mt19937 random(20261123);
  int compared = 0;
  int between_nodes = 0;
  while (compared < 1000) {
    const Cluster c = random_regular(random);
    const auto draw = [&] { return std::uniform_int_distribution<std::int64_t>(1, c.gpus)(random); };
    GroupShape shape{draw(), draw()};
    for (int tries = 0; tries < 200 && !is_regular(shape, c); ++tries) shape = {draw(), draw()};
    if (!is_regular(shape, c)) continue;
    ++compared;
    const GroupLink closed = regular_group_link(c, shape);
    const GroupLink found = route(build_topology(c), shape).slowest;
    const std::string what =
        fmt::format("{} ranks, {} apart, on {} nodes of {} GPUs and {} ports, {} on a leaf, {}:1", shape.size,
            shape.stride, c.nodes(), c.node.gpus, c.node.nics, c.network.nodes_per_leaf, c.network.oversubscription);
    EXPECT_EQ(found.size, closed.size) << what;
    EXPECT_EQ(found.nodes, closed.nodes) << what;
    EXPECT_EQ(found.ranks_per_node, closed.ranks_per_node) << what;
    EXPECT_NEAR(found.link.value(), closed.link.value(), kRounding * closed.link.value()) << what;
    EXPECT_NEAR(found.network.value(), closed.network.value(), kRounding * closed.network.value()) << what;
    EXPECT_EQ(found.link_latency, closed.link_latency) << what;
    EXPECT_EQ(found.network_latency, closed.network_latency) << what;
    if (closed.nodes > 1) ++between_nodes;
  }
  EXPECT_GT(between_nodes, 300);
}

TEST(Routes, TheShortFormListedIsTheSameGraph) {
  const std::string fabric = "network: {nodes_per_leaf: 3, oversubscription: 2}\n";
  const Topology one = build_topology(cluster_of("gpus: 64\n" + fabric));
  const Topology two = build_topology(cluster_of("nodes: [{count: 5}, {count: 3}]\n" + fabric));
  ASSERT_EQ(one.devices.size(), two.devices.size());
  ASSERT_EQ(one.wires.size(), two.wires.size());
  for (std::size_t i = 0; i < one.wires.size(); ++i) {
    const auto wire = static_cast<std::int64_t>(i);
    EXPECT_EQ(wire_name(one, wire), wire_name(two, wire));
    EXPECT_EQ(one.wires[i].rate.value(), two.wires[i].rate.value());
    EXPECT_EQ(one.wires[i].latency, two.wires[i].latency);
  }
}

// --- irregular ones, by hand ---

// Nodes a1..a5 on one leaf, b1..b3 on another.
std::string uneven(const std::string& rate, const std::string& more = "") {
  return fmt::format(
      "nodes: [{{names: \"a[1-5]\", leaf: leaf1}}, {{names: \"b[1-3]\", leaf: leaf2}}]\n"
      "switches: [leaf1, leaf2, spine]\n"
      "links: [{{between: [leaf1, spine], rate: {0}}}, {{between: [leaf2, spine], rate: {0}}}]\n{1}",
      rate, more);
}

TEST(RoutesByHand, AWideUplinkDoesNotBindTheRingOfAll) {
  // One hop leaves leaf1 and one comes back: a flow of 1 each way over 400 GB/s.
  expect_gigabytes(network(uneven("400GB/s"), {64, 1}), 400);
}

TEST(RoutesByHand, AThinUplinkBindsTheRingOfAll) {
  const AxisRoute found = routed(uneven("200GB/s"), {64, 1});
  expect_gigabytes(found.slowest.network.value() / kGiga, 200);
  const Topology topology = build_topology(cluster_of(uneven("200GB/s")));
  EXPECT_EQ(wire_name(topology, found.groups[0].narrowest_network.wire), "leaf1 - spine");
}

TEST(RoutesByHand, AllReplicateGroupsCrossTheUplinkAtOnce) {
  // Eight groups of one GPU of every node, each with a flow of 1 over 200 GB/s.
  expect_gigabytes(network(uneven("200GB/s"), {8, 8}), 25);
}

TEST(RoutesByHand, TheTreeCrossesLessOftenThanItsPortsCarry) {
  // Tree 1 over nodes 0..7 has parents 1>2, 2>4, 3>2, 4>0, 5>6, 6>4, 7>6: 5, 6 > 4 cross as 6>4
  // only (5, 6, 7 are b1..b3): one edge. Tree 2 is its mirror: node n as 7-n, so edges 6>5, 5>3,
  // 4>5, 3>7, 2>1, 1>3, 0>1: 5>3, 4>5 and 3>7 cross, three. Of an edge a quarter goes each way:
  // 4/4 = 1 flow over 200 GB/s, while ports carry 1 flow of 400.
  const AxisRoute found = routed(uneven("200GB/s"), {64, 1});
  expect_gigabytes(found.slowest.tree.value() / kGiga, 200);
}

TEST(RoutesByHand, RanksThatAlternateLeavesCrossAtEveryHop) {
  // a1 b1 a2 b2 a3 b3 a4 a5: three hops leave leaf1 (a1, a2, a3), three come back: 400 / 3.
  const std::string order = "ranks: [a1, b1, a2, b2, a3, b3, a4, a5]\n";
  expect_gigabytes(network(uneven("400GB/s", order), {64, 1}), 400.0 / 3);
}

TEST(RoutesByHand, PlacedByLeafTheyCrossOnce) {
  const std::string order = "ranks: [a1, b1, a2, b2, a3, b3, a4, a5]\n";
  expect_gigabytes(network(uneven("400GB/s", order), {64, 1, RankPlacement::kByLeaf}), 400);
}

TEST(RoutesByHand, PlacedByRailNeighboursAreOnOneRail) {
  // Rank r is GPU r / 8 of node r % 8, so groups of 8 neighbours are the replicate groups above.
  expect_gigabytes(network(uneven("200GB/s"), {8, 1, RankPlacement::kByRail}), 25);
}

TEST(RoutesByHand, NodesLeftOutFreeTheUplink) {
  // Without b1..b3 all is on leaf1.
  expect_gigabytes(network(uneven("100GB/s", "ranks: \"a[1-5]\"\n"), {40, 1}), 400);
}

TEST(Layout, NodesLeftOutKeepTheirNamesAndWhatTheyLack) {
  const Cluster all = cluster_of(
      "nodes: [{names: \"a[1-3]\", leaf: l}, {names: [b1, b2], leaf: l, machine: a100,\n"
      "  degraded: [{node: 1, nic: 2, fraction: 0.5}]}]\nswitches: [l]\n");
  const std::vector<std::int64_t> kept = {4, 0, 1};
  const Cluster some = on_nodes(all, kept);
  EXPECT_EQ(some.gpus, 24);
  EXPECT_EQ(some.nodes(), 3);
  EXPECT_EQ(some.gpu.key, "a100-80gb");
  ASSERT_EQ(some.degraded.size(), 1U);
  EXPECT_EQ(some.degraded[0], (DegradedLink{0, DegradedLink::Part::kNic, 2, 0.5}));
  ASSERT_EQ(some.layout->groups.size(), 2U);
  EXPECT_EQ(some.layout->groups[0].names, std::vector<std::string>{"b2"});
  EXPECT_EQ(some.layout->groups[1].names, (std::vector<std::string>{"a1", "a2"}));
  const std::vector<std::int64_t> fast = {0, 1, 2};
  EXPECT_EQ(on_nodes(all, fast).gpu.key, "h100-sxm");
  EXPECT_TRUE(on_nodes(all, fast).degraded.empty());
}

TEST(RoutesByHand, BackgroundTakesItsShareOfALink) {
  expect_gigabytes(network(uneven("400GB/s", "background: {leaf2-spine: 0.75}\n"), {64, 1}), 100);
}

std::string rails(const std::string& degraded, int nodes = 4) {
  return fmt::format("gpus: {}\ndegraded: [{}]\n", 8 * nodes, degraded);
}

TEST(RoutesByHand, RingsUseThePortsOfNcclsDump) {
  const std::string nodes = "nodes: [{count: 2}]\n";
  const std::string order = "gpus: [0, 1, 2, 3, 4, 5, 6, 7]";
  // Both rings leave and enter by port 0 of eight with 50 GB/s: four channels each of 1/8.
  const std::string one = nodes + "rings: [{" + order + ", enters: 0, leaves: 0}]\n";
  const AxisRoute found = routed(one, {16, 1});
  expect_gigabytes(found.slowest.network.value() / kGiga, 50);
  // Half of the channels by port 3: 100. From GPU 7, which is not port 0's, over NVLink to GPU 0:
  // as many flows inside as the ring that returns.
  const std::string two =
      nodes + "rings: [{" + order + ", enters: 0, leaves: 0}, {" + order + ", enters: 3, leaves: 3}]\n";
  expect_gigabytes(network(two, {16, 1}), 100);
  expect_gigabytes(routed(one, {16, 1}).slowest.link.value() / kGiga,
      routed(nodes + "rings: [{" + order + "}]\n", {16, 1}).slowest.link.value() / kGiga);
  // Without ports in the dump each channel leaves by that of its first GPU, here always GPU 0.
  expect_gigabytes(network(nodes + "rings: [{" + order + "}]\n", {16, 1}), 50);
}

TEST(RoutesByHand, ADeadRailLeavesSevenPorts) {
  // Eight channels of 1/8 over seven ports: 1/8 + 1/56 = 1/7 on each of 50 GB/s.
  expect_gigabytes(network(rails("{node: 2, nic: 0, fraction: 0}"), {32, 1}), 350);
}

TEST(RoutesByHand, TwoDeadRailsOfANodeLeaveSix) {
  // 1/8 + 2/8/6 = 1/6.
  expect_gigabytes(network(rails("{node: 2, nic: 0, fraction: 0}, {node: 2, nic: 5, fraction: 0}"), {32, 1}), 300);
}

TEST(RoutesByHand, DeadRailsOfNeighboursMeetOnThePortsBetween) {
  // Out of n1 (without port 0) into n2 (without port 5): channel 0 leaves over seven ports with
  // 1/56 each, channel 5 over the rails on which n2 takes it in: six of n1's ports, and its own for
  // rail 0, which n1 has not. The busiest: 1/8 + 1/56 + 1/56 = 9/56 on 50 GB/s.
  expect_gigabytes(
      network(rails("{node: 1, nic: 0, fraction: 0}, {node: 2, nic: 5, fraction: 0}"), {32, 1}), 50 * 56 / 9.0);
}

TEST(RoutesByHand, ADeadRailsGroupTakesFromAllOthers) {
  // Replicate groups: every port of n2 carries its own group and a seventh of that of rail 0:
  // x * 8/7 = 50.
  const AxisRoute found = routed(rails("{node: 2, nic: 0, fraction: 0}"), {4, 8});
  for (const GroupRoute& group : found.groups) expect_gigabytes(group.network / kGiga, 43.75);
}

TEST(RoutesByHand, ASlowPortSlowsItsGroupAlone) {
  const AxisRoute found = routed(rails("{node: 1, nic: 3, fraction: 0.5}"), {4, 8});
  expect_gigabytes(found.slowest.network.value() / kGiga, 25);
  expect_gigabytes(found.groups[2].network / kGiga, 50);
  expect_gigabytes(found.groups[3].network / kGiga, 25);
  EXPECT_EQ(found.slowest_group, 3U);
}

TEST(RoutesByHand, ASlowPortSlowsEveryChannelOfTheRingOfAll) {
  // Channels carry even shares: 1/8 over 25 GB/s.
  expect_gigabytes(network(rails("{node: 1, nic: 3, fraction: 0.5}"), {32, 1}), 200);
}

TEST(RoutesByHand, ASlowNvlinkBindsItsNodesGroup) {
  const AxisRoute found = routed(rails("{node: 1, gpu: 6, fraction: 0.5}"), {8, 1});
  expect_gigabytes(found.groups[0].link / kGiga, 450);
  expect_gigabytes(found.groups[1].link / kGiga, 225);
  EXPECT_EQ(found.slowest_group, 1U);
}

TEST(RoutesByHand, HalvesOfAShardGroupMeetOverTheSpine) {
  // Shard groups of two nodes, replicas on the other leaf: 16 groups of two ranks, each with a
  // flow of 1 either way over 400 GB/s.
  const std::string yaml =
      "nodes: [{count: 2, leaf: leaf1}, {count: 2, leaf: leaf2}]\n"
      "switches: [leaf1, leaf2, spine]\n"
      "links: [{between: [leaf1, spine], rate: 400GB/s}, {between: [leaf2, spine], rate: 400GB/s}]\n";
  expect_gigabytes(network(yaml, {2, 16}), 25);
  expect_gigabytes(network(yaml, {16, 1}), 400);  // within a leaf
}

// Three nodes, each on a switch of a chain s1 - s2 - s3.
std::string chain(const std::string& second) {
  return fmt::format(
      "nodes: [{{count: 1, leaf: s1}}, {{count: 1, leaf: s2}}, {{count: 1, leaf: s3}}]\n"
      "switches: [s1, s2, s3]\n"
      "links:\n"
      "  - {{between: [s1, s2], rate: 400GB/s, latency: 300ns}}\n"
      "  - {{between: [s2, s3], rate: {}, latency: 300ns}}\n",
      second);
}

TEST(RoutesByHand, TheThinLinkOfAChainBinds) { expect_gigabytes(network(chain("100GB/s"), {24, 1}), 100); }

TEST(RoutesByHand, HopsCountInTheLatency) {
  // n0 > n1 one link, n1 > n2 one, n2 > n0 two: 4/3 of 300 ns beside the 2700 of a hop.
  EXPECT_EQ(routed(chain("100GB/s"), {24, 1}).slowest.network_latency, Time::ns(3100));
  EXPECT_EQ(routed(chain("100GB/s"), {24, 1}).slowest.link_latency, Time::ns(600));
}

// Two nodes on leaves with two spines between.
std::string spines(const std::string& a1, const std::string& b1, const std::string& a2, const std::string& b2) {
  return fmt::format(
      "nodes: [{{count: 1, leaf: leaf1}}, {{count: 1, leaf: leaf2}}]\n"
      "switches: [leaf1, leaf2, a, b]\n"
      "links: [{{between: [leaf1, a], rate: {}}}, {{between: [leaf1, b], rate: {}}},\n"
      "        {{between: [leaf2, a], rate: {}}}, {{between: [leaf2, b], rate: {}}}]\n",
      a1, b1, a2, b2);
}

TEST(RoutesByHand, FlowsSplitByRateOverEqualPaths) {
  // A quarter over a, three over b: 0.25 / 100 = 0.75 / 300 = 1 / 400.
  expect_gigabytes(network(spines("100GB/s", "300GB/s", "100GB/s", "300GB/s"), {16, 1}), 400);
}

TEST(RoutesByHand, SwitchesDoNotSeeTheThinLinkBehindTheNext) {
  // leaf1 splits evenly, so half a flow goes down the 100 GB/s from a: 200. From leaf2 a fifth does, 0.2 of 100.
  expect_gigabytes(network(spines("200GB/s", "200GB/s", "100GB/s", "400GB/s"), {16, 1}), 200);
}

TEST(RoutesByHand, TheNodeWithFewerSlowerPortsBinds) {
  // Four ports of 25 GB/s, two GPUs to each: 100 of the node.
  const std::string yaml =
      "nodes: [{count: 1, leaf: s}, {count: 1, node: {nics: 4, nic_rate: 200Gbit/s}, leaf: s}]\n"
      "switches: [s]\n";
  expect_gigabytes(network(yaml, {16, 1}), 100);
  expect_gigabytes(network(yaml, {2, 8}), 12.5);  // a half of a port each
}

TEST(RoutesByHand, MixedLinksInsideNodes) {
  const std::string yaml =
      "nodes: [{count: 1, leaf: s}, {count: 1, node: {gpu_link: 200GB/s}, leaf: s}]\n"
      "switches: [s]\n";
  const AxisRoute found = routed(yaml, {8, 1});
  expect_gigabytes(found.groups[0].link / kGiga, 450);
  expect_gigabytes(found.groups[1].link / kGiga, 200);
}

// Trays of four GPUs, 18 to an NVLink domain: five of one rack, three of another.
const char* const kRacks =
    "nodes:\n"
    "  - {count: 5, node: {gpus: 4, nics: 4, link_domain: 18, gpu_link: 900GB/s}, leaf: s}\n"
    "  - {count: 3, node: {gpus: 4, nics: 4, link_domain: 18, gpu_link: 900GB/s}, leaf: s}\n"
    "switches: [s]\n";

TEST(RoutesByHand, PartsOfNvl72RacksRunAsManyChannelsAsTheSmaller) {
  // 20 and 12 ranks: twelve channels of 50 GB/s.
  const AxisRoute found = routed(kRacks, {32, 1});
  EXPECT_EQ(found.slowest.nodes, 2);
  EXPECT_EQ(found.slowest.ranks_per_node, 12);
  expect_gigabytes(found.slowest.network.value() / kGiga, 600);
  expect_gigabytes(found.slowest.link.value() / kGiga, 900);
}

TEST(RoutesByHand, AGroupInsideOneRackNeedsNoNetwork) {
  // Ranks 0..15 lie in the first rack; 16..31 have one tray there and three in the second: four channels.
  const AxisRoute found = routed(kRacks, {16, 1});
  EXPECT_EQ(found.groups[0].nodes, 1);
  EXPECT_EQ(found.groups[0].network, 0);
  EXPECT_EQ(found.groups[1].nodes, 2);
  expect_gigabytes(found.groups[1].network / kGiga, 200);
}

TEST(RoutesByHand, GroupsThatShareANodeUseItsOtherPorts) {
  // 12 ranks: 0..11 with ports 0..3 of n1, 12..23 with its ports 4..7: four channels each.
  const AxisRoute found = routed("nodes: [{count: 3, leaf: s}]\nswitches: [s]\n", {12, 1});
  ASSERT_EQ(found.groups.size(), 2U);
  for (const GroupRoute& group : found.groups) {
    EXPECT_EQ(group.ranks_per_node, 4);
    expect_gigabytes(group.network / kGiga, 200);
  }
}

TEST(RoutesByHand, WhatAStoppedGroupLeavesGoesToTheOthers) {
  // Groups of one port of a1 and b1 each, over one link of 100 GB/s: eight flows, 12.5 each. Two of
  // them stop at slow ports of 5 GB/s, so (100 - 10) / 6 = 15 for the others.
  const std::string yaml =
      "nodes:\n"
      "  - {count: 1, leaf: l1, degraded: [{nic: 0, fraction: 0.1}, {nic: 1, fraction: 0.1}]}\n"
      "  - {count: 1, leaf: l2}\n"
      "switches: [l1, l2]\n"
      "links: [{between: [l1, l2], rate: 100GB/s}]\n";
  const AxisRoute found = routed(yaml, {2, 8});
  expect_gigabytes(found.groups[0].network / kGiga, 5);
  expect_gigabytes(found.groups[1].network / kGiga, 5);
  for (std::size_t g = 2; g < 8; ++g) expect_gigabytes(found.groups[g].network / kGiga, 15);
  EXPECT_GT(found.used[2 * at(found.groups[2].narrowest_network.wire)], 0.999F);
}

// --- what is no graph ---

void expect_refused(const std::string& yaml, const std::string& place, const std::string& what) {
  try {
    cluster_of(yaml);
    FAIL() << yaml;
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.rfind("case:" + place, 0), 0U) << text;
    EXPECT_NE(text.find(what), std::string::npos) << text;
  }
}

TEST(Layout, WhatIsWrongIsSaidWithItsPlaceAndBothEnds) {
  const std::string two = "nodes: [{names: [a], leaf: l1}, {names: [b], leaf: l2}]\nswitches: [l1, l2]\n";  // 3, 4
  expect_refused(two, "3:", "no links lead from l2 (b) to l1 (a)");
  expect_refused(two + "links: [{between: [l1, l3], rate: 1GB/s}]\n", "5:", "'l3'");
  expect_refused(two + "links: [{between: [l1, l2], rate: 100}]\n", "5:", "unit");
  expect_refused(two + "links: [{between: [l1, l2], rate: -1GB/s}]\n", "5:", "");
  expect_refused(two + "links: [{between: [l1, l2], rate: 0GB/s}]\n", "5:", "between l1 and l2");
  expect_refused(two + "links: [{between: [l1, l2], rate: 9000TB/s}]\n", "5:", "between l1 and l2");
  expect_refused(two + "links: [{between: [l1, l1], rate: 1GB/s}]\n", "5:", "l1 to itself");
  expect_refused(two + "links:\n- {between: [l1, l2], rate: 1GB/s}\n- {between: [l2, l1], rate: 1GB/s}\n",
      "7:", "l2 and l1 are linked in line 6");
  const std::string linked = two + "links: [{between: [l1, l2], rate: 1GB/s}]\n";
  expect_refused(linked + "ranks: [a, c]\n", "6:", "'c'");
  expect_refused(linked + "ranks: [a, a]\n", "6:", "a twice");
  expect_refused(linked + "ranks: \"a[1-\"\n", "6:", "cut off");
  expect_refused(linked + "gpus: 24\n", "6:", "16 GPUs");
  expect_refused(linked + "background: {l1-l3: 0.2}\n", "6:", "names no link");
  expect_refused(linked + "background: {l1-l2: 1.2}\n", "6:", "");
  expect_refused("nodes: [{names: [a, a]}]\n", "3:", "a is there twice");
  expect_refused("nodes: [{count: 2, node: {nics: 0}}]\n", "3:", "no network port");
  expect_refused("nodes: [{leaf: l}]\nswitches: [l]\n", "3:", "neither count: nor names:");
  expect_refused("nodes: [{count: 1, leaf: [a, b]}, {count: 1, leaf: a}]\nswitches: [a, a]\n", "4:", "twice");
  expect_refused("gpus: 8\nlinks: []\n", "4:", "without nodes:");
  expect_refused(
      "nodes: [{count: 2, leaf: l, degraded: [{nic: 0, fraction: 0}, {nic: 0, fraction: 0}]}]\n"
      "switches: [l]\n",
      "3:", "twice");
}

}
}
