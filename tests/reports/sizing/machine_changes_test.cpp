// A machine changed in one property, against forecasts on that machine.
#include "reports/sizing/machine_changes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

Forecast forecast_on(const Cluster& cluster) {
  Plan plan = tiny_plan();
  plan.mesh = {cluster.gpus, 1};
  return forecast(tiny_model(2), plan, CostModel(cluster, round_calibration()));
}

std::string name_of(const MachineChange& change) { return std::string(change.property) + " " + change.change; }

TEST(MachineChanges, AreForecastsOnTheChangedMachine) {
  Cluster cluster = round_cluster(16);
  cluster.network.oversubscription = 2;
  cluster.memory_outside_allocator = Bytes(0);
  const Json list = changes_json(forecast_on(cluster), CostModel(cluster, round_calibration()));
  const auto matter =
      std::ranges::count_if(machine_changes(), [&](const MachineChange& c) { return c.matters(cluster); });
  ASSERT_EQ(static_cast<std::ptrdiff_t>(list.size()), matter);
  for (const Json& one : list) {
    const std::string name = one["property"].get<std::string>() + " " + one["change"].get<std::string>();
    SCOPED_TRACE(name);
    const auto change =
        std::ranges::find_if(machine_changes(), [&](const MachineChange& c) { return name_of(c) == name; });
    ASSERT_NE(change, machine_changes().end());
    Cluster changed = cluster;
    change->apply(changed);
    const Forecast f = forecast_on(changed);
    EXPECT_EQ(one["seconds"].get<double>(), f.timeline.period.seconds());
    EXPECT_EQ(one["margin_bytes"].get<std::int64_t>(), (changed.gpu.memory - f.reserved.peak).count());
    EXPECT_EQ(one["fits"].get<bool>(), f.reserved.peak <= changed.gpu.memory);
  }
}

// Twice the rate, twice the rails: the same bytes per second. Half of it is slower.
TEST(MachineChanges, GoTheWayTheyShould) {
  const Cluster cluster = round_cluster(16);
  const Forecast made = forecast_on(cluster);
  const double step = made.timeline.period.seconds();
  double nic = 0, rails = 0, half = 0;
  for (const Json& one : changes_json(made, CostModel(cluster, round_calibration()))) {
    const double seconds = one["seconds"];
    if (one["property"] == "node.nic_rate") (one["change"] == "x2" ? nic : half) = seconds;
    if (one["change"] == "twice the rails") rails = seconds;
    if (one["property"] == "gpu.memory") {
      EXPECT_EQ(seconds, step);
    }
  }
  EXPECT_LT(nic, step);
  EXPECT_EQ(nic, rails);
  EXPECT_GT(half, step);
}

TEST(MachineChanges, InsideANodeThereIsNoNetwork) {
  const Cluster node = round_cluster(8);
  std::set<std::string> properties;
  for (const Json& one : changes_json(forecast_on(node), CostModel(node, round_calibration()))) {
    properties.insert(one["property"].get<std::string>());
  }
  EXPECT_EQ(
      properties, (std::set<std::string>{"node.gpu_link", "gpu.memory", "gpu.memory_bandwidth", "gpu.peak_bf16"}));
}

}
}
