// What two axes of a mesh take of the links they share, worked out by hand, and by the graph
// against the closed form. A node has 8 GPUs with 450 GB/s of NVLink and 8 ports of 50 GB/s.
#include "sim/spec/network/shared_links.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "calibration/machines.h"
#include "sim/spec/network/routes.h"

namespace foreshard::shared_links_test {
namespace {

Cluster cluster_of(const std::string& yaml) {
  return parse_cluster(
      "machine: h100\nnode: {gpus: 8, gpu_link: 450GB/s, nics: 8, nic_rate: 400Gbit/s}\n" + yaml, "case");
}

// Two nodes on either of two leaves.
std::string leaves(int uplink) {
  return fmt::format(
      "nodes: [{{count: 2, leaf: leaf1}}, {{count: 2, leaf: leaf2}}]\n"
      "switches: [leaf1, leaf2, spine]\n"
      "links: [{{between: [leaf1, spine], rate: {0}GB/s}}, {{between: [leaf2, spine], rate: {0}GB/s}}]\n",
      uplink);
}

using Shares = std::vector<LinkShares>;

Shares shares(const std::string& yaml, const std::vector<GroupShape>& shapes) {
  return shared_links(cluster_of(yaml), shapes);
}

TEST(SharedLinks, ThoseWithoutALinkInCommonShareNone) {
  // Tensor parallel over NVLink, the others from port to port.
  EXPECT_EQ(shares("gpus: 64\n", {{8, 1}, {8, 8}}), (Shares{{}, {}}));
  EXPECT_EQ(shares(leaves(400), {{8, 1}, {4, 8}}), (Shares{{}, {}}));
}

TEST(SharedLinks, OneAloneSharesNothing) {
  EXPECT_EQ(shares("gpus: 64\n", {{64, 1}}), (Shares{{}}));
  EXPECT_EQ(shares(leaves(400), {{32, 1}}), (Shares{{}}));
}

TEST(SharedLinks, TwoInsideANodeWantAllOfNvlink) {
  EXPECT_EQ(shares("gpus: 8\n", {{2, 1}, {4, 2}}), (Shares{{1}, {1}}));
}

TEST(SharedLinks, WhomTheSpineBindsTakesLessOfThePorts) {
  // Replicate groups, 16 of two ranks, get 400/16 = 25 GB/s over the spine: half of a port. Shard
  // groups stay on their leaf and want all of the ports.
  EXPECT_EQ(shares(leaves(400), {{16, 1}, {2, 16}}), (Shares{{1}, {0.5}}));
}

TEST(SharedLinks, BothOverTheSpineShareIt) {
  // The ring of all 32 leaves a leaf once, at 200 GB/s; so do 16 of two ranks, together.
  EXPECT_EQ(shares(leaves(200), {{32, 1}, {2, 16}}), (Shares{{1}, {1}}));
}

TEST(SharedLinks, EachKindOfLinkIsOneOfItsOwn) {
  // The ring of all gets 300 of the ports' 400 GB/s, 300 of NVLink's 450 and all of the spine.
  // Groups of 4 in a node want NVLink, those of two leaves a spine (16 x 18.75) and 3/8 of a port.
  EXPECT_EQ(shares(leaves(300), {{32, 1}, {4, 1}, {2, 16}}), (Shares{{1, 171 / 256.0}, {0, 1}, {1, 0}}));
}

TEST(SharedLinks, WhatFitsSideBySideIsLeftOut) {
  // 100 GB/s over the spine are a quarter of the ports for either.
  EXPECT_EQ(shares(leaves(100), {{16, 1}, {2, 16}}), (Shares{{1}, {0.125}}));
  EXPECT_EQ(shares("gpus: 64\nnetwork: {nodes_per_leaf: 4, oversubscription: 4}\n", {{32, 1}, {2, 32}}),
      (Shares{{1}, {0.25}}));
}

// The closed form takes every shape's busiest leaf for the same one: never less than the graph.
TEST(SharedLinksProperty, TheClosedFormCoversTheGraph) {
  std::mt19937 random(20261124);
  const auto pick = [&](std::initializer_list<int> from) {
    return *(from.begin() + std::uniform_int_distribution<std::size_t>(0, from.size() - 1)(random));
  };
  int shared = 0;
  int equal = 0;
  for (int i = 0; i < 300; ++i) {
    Cluster c = cluster_of(fmt::format("gpus: {}\nnetwork: {{nodes_per_leaf: {}, oversubscription: {}}}\n",
        8 * pick({2, 4, 8, 16}), pick({1, 2, 4}), pick({1, 2, 4})));
    const std::int64_t inner = std::min<std::int64_t>(c.gpus / 2, pick({2, 4, 8, 16, 32}));
    const std::vector<GroupShape> shapes = {{inner, 1}, {c.gpus / inner, inner}};
    const Shares closed = shared_links(c, shapes);
    const Topology topology = build_topology(c);
    const AxisRoute axes[] = {route(topology, shapes[0]), route(topology, shapes[1])};
    const std::vector<const AxisRoute*> list = {&axes[0], &axes[1]};
    const Shares found = shared_links(list);
    for (std::size_t k = 0; k < kSharedLinks; ++k) {
      bool covered = false;
      for (std::size_t by = 0; by < kSharedLinks; ++by) {
        covered |= closed[0][by] >= found[0][k] && closed[1][by] >= found[1][k];
      }
      EXPECT_TRUE(covered) << fmt::format("{} GPUs, {} apart: {} and {}", c.gpus, inner, found[0][k], found[1][k]);
    }
    shared += closed[0][0] > 0 ? 1 : 0;
    equal += closed == found ? 1 : 0;
  }
  EXPECT_GT(shared, 50);
  EXPECT_GT(equal, 250);
}

}
}
