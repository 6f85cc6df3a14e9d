// What another network would give, against forecasts on that network.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "calibration/machines.h"
#include "calibration/profile_store.h"
#include "models/zoo.h"
#include "reports/sizing/machine_changes.h"
#include "sim/spec/network/cluster_layout.h"
#include "tests/support/fixtures.h"

namespace foreshard::network_changes_test {
namespace {

// a1..a3 on one leaf, b1 on another, ranks in the order a1 b1 a2 a3.
Cluster four_nodes(const std::string& uplink, const std::string& more = "") {
  return parse_cluster(fmt::format("machine: h100\n"
                                   "nodes: [{{names: \"a[1-3]\", leaf: l1}}, {{names: [b1], leaf: l2}}]\n"
                                   "switches: [l1, l2]\nlinks: [{{between: [l1, l2], rate: {}}}]\n{}",
                           uplink, more),
      "four");
}

CostModel costs_on(const Cluster& cluster) { return {cluster, load_profile("h100-sxm")}; }

// Gathers of 2.5 GB and few tokens: the network sets the pace.
const ModelSpec& busy_model() {
  static const ModelSpec model = load_zoo_model("llama-3.2-1b");
  return model;
}

Forecast forecast_on(const Cluster& cluster, RankPlacement placement = RankPlacement::kListed) {
  Plan plan = tiny_plan();
  plan.mesh = {cluster.gpus, 1};
  plan.placement = placement;
  plan.units.embedding = UnitPlacement::kRoot;  // of a tied table
  plan.units.head = UnitPlacement::kRoot;
  return forecast(busy_model(), plan, costs_on(cluster));
}

double seconds_of(const std::vector<NetworkChange>& changes, const std::string& what) {
  for (const NetworkChange& change : changes) {
    if (change.what == what) return change.seconds;
  }
  ADD_FAILURE() << what << " is not there";
  return 0;
}

TEST(NetworkChanges, AreForecastsOnTheChangedNetwork) {
  const Cluster cluster = four_nodes("20GB/s");
  const Forecast made = forecast_on(cluster);
  const std::vector<NetworkChange> changes = network_changes(made, costs_on(cluster));
  ASSERT_FALSE(changes.empty());
  EXPECT_EQ(changes.front().what, "");
  EXPECT_EQ(changes.front().seconds, made.timeline.period.seconds());
  EXPECT_EQ(seconds_of(changes, "l1 - l2 twice as wide"), forecast_on(four_nodes("40GB/s")).timeline.period.seconds());
  EXPECT_LT(seconds_of(changes, "b1 moved to l1"), changes.front().seconds);
}

TEST(NetworkChanges, PlacementHelpsWhereRanksAlternate) {
  // a1 b1 a2 b2 crosses twice each way, a1 a2 b1 b2 once.
  const std::string two =
      "machine: h100\n"
      "nodes: [{names: \"a[1-2]\", leaf: l1}, {names: \"b[1-2]\", leaf: l2}]\n"
      "switches: [l1, l2]\nlinks: [{between: [l1, l2], rate: 20GB/s}]\n";
  const Cluster cluster = parse_cluster(two + "ranks: [a1, b1, a2, b2]\n", "alternating");
  const std::vector<NetworkChange> changes = network_changes(forecast_on(cluster), costs_on(cluster));
  EXPECT_EQ(
      seconds_of(changes, "placement: by_leaf"), forecast_on(parse_cluster(two, "in order")).timeline.period.seconds());
  EXPECT_EQ(seconds_of(changes, "placement: by_leaf"),
      forecast_on(cluster, RankPlacement::kByLeaf).timeline.period.seconds());
}

TEST(NetworkChanges, RepairsAndBackground) {
  Cluster cluster = parse_cluster(
      "machine: h100\n"
      "nodes: [{names: [a1], leaf: l1}, {names: [b1], leaf: l2, degraded: [{nic: 1, fraction: "
      "0.1}]}]\n"
      "switches: [l1, l2]\nlinks: [{between: [l1, l2], rate: 400GB/s}]\n"
      "background: {l1-l2: 0.5}\n",
      "shared");
  const std::vector<NetworkChange> changes = network_changes(forecast_on(cluster), costs_on(cluster));
  EXPECT_LT(seconds_of(changes, "degraded and missing links repaired"), changes.front().seconds);
  // The slow port binds first: links to ourselves give nothing and are not told.
  EXPECT_TRUE(
      std::ranges::none_of(changes, [](const NetworkChange& change) { return change.what == "links to ourselves"; }));
}

TEST(NetworkChanges, SayWhatLeavingTheSlowKindOutGives) {
  const Cluster cluster = parse_cluster(
      "machine: h100\nnodes: [{count: 2, leaf: l}, {count: 1, machine: a100, leaf: l}]\n"
      "switches: [l]\n",
      "mixed");
  EXPECT_EQ(cluster.gpu.key, "a100-80gb");
  EXPECT_LE(cluster.gpu.memory.count(), load_cluster("8xh100").gpu.memory.count());
  const CostModel costs(cluster, load_profile("a100-80gb"));
  Plan plan = tiny_plan();
  plan.mesh = {8, 3};
  const Forecast made = forecast(tiny_model(2), plan, costs);
  const std::vector<NetworkChange> changes = network_changes(made, costs);
  const auto without = std::ranges::find_if(
      changes, [](const NetworkChange& change) { return change.what == "without the 1 node of a100-80gb"; });
  ASSERT_NE(without, changes.end());
  EXPECT_EQ(without->gpus, 16);
  EXPECT_GT(without->tokens_per_s, 0);
}

TEST(NetworkChanges, SayWhatLeavingOutTheNodesThatHoldOthersBackGives) {
  const std::string nodes =
      "machine: h100\n"
      "nodes: [{names: \"a[1-3]\", leaf: l1}, {names: [b1], leaf: l2, degraded: [{nic: 1, fraction: "
      "0.05}]}]\nswitches: [l1, l2]\nlinks: [{between: [l1, l2], rate: 400GB/s}]\n";
  const Cluster cluster = parse_cluster(nodes, "four");
  const std::vector<NetworkChange> changes = network_changes(forecast_on(cluster), costs_on(cluster));
  // Of b1 once: its leaf, which is the smaller, is the same three nodes kept.
  EXPECT_EQ(seconds_of(changes, "without the 1 node with degraded links"),
      forecast_on(parse_cluster(nodes + "ranks: \"a[1-3]\"\n", "three")).timeline.period.seconds());
  EXPECT_EQ(
      std::ranges::count_if(changes, [](const NetworkChange& change) { return change.what.starts_with("without "); }),
      1);
}

TEST(NetworkChanges, SayNothingOfAlikeNodes) {
  const Cluster cluster = load_cluster("16xh100");
  EXPECT_TRUE(network_changes(forecast_on(cluster), costs_on(cluster)).empty());
}

}
}
