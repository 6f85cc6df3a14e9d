// Which ranks form the groups of a mesh, and that costs follow from where they lie.
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/graph/training_step.h"
#include "sim/simulate/forecast.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

// 2 shards x 8 replicas on two nodes of 8.
Plan two_by_eight(MeshInner inner) {
  Plan plan = tiny_plan();
  plan.mesh = {2, 8, inner};
  return plan;
}

GroupShape group_named(const EventGraph& graph, const std::string& name) {
  const auto found = std::ranges::find_if(graph.communicators, [&](const Communicator& c) { return c.name == name; });
  return found->group;
}

TEST(MeshInner, SaysWhoseRanksAreNeighbours) {
  const ModelSpec model = tiny_model(2);
  const EventGraph shards = build_training_step(model, two_by_eight(MeshInner::kShard));
  EXPECT_EQ(group_named(shards, "shard"), (GroupShape{2, 1}));
  EXPECT_EQ(group_named(shards, "replicate"), (GroupShape{8, 2}));
  const EventGraph replicas = build_training_step(model, two_by_eight(MeshInner::kReplicate));
  EXPECT_EQ(group_named(replicas, "shard"), (GroupShape{2, 8}));
  EXPECT_EQ(group_named(replicas, "replicate"), (GroupShape{8, 1}));
  EXPECT_NE(shards.fingerprint(), replicas.fingerprint());
  EXPECT_EQ(shards.rows.size(), replicas.rows.size());
}

// reshard_after_forward=4 of 8 shards cuts rows of the mesh, whose ranks are 2 apart.
TEST(MeshInner, SmallerGroupsAreCutFromTheShardGroup) {
  Plan plan = tiny_plan();
  plan.mesh = {8, 2, MeshInner::kReplicate};
  plan.reshard_after_forward.value = {Reshard::Kind::kGroup, 4};
  const EventGraph graph = build_training_step(tiny_model(2), plan);
  EXPECT_EQ(group_named(graph, "post_forward"), (GroupShape{4, 2}));
}

// Rank r is shard r % 2 of the mesh of rows (replica, shard), and r / 8 of its transpose.
TEST(MeshInner, TellsWhichShardARankHolds) {
  EXPECT_EQ((Mesh{2, 8, MeshInner::kShard}.shard_index(9)), 1);
  EXPECT_EQ((Mesh{2, 8, MeshInner::kReplicate}.shard_index(9)), 1);
  EXPECT_EQ((Mesh{2, 8, MeshInner::kReplicate}.shard_index(7)), 0);
  EXPECT_EQ((Mesh{2, 8, MeshInner::kShard}.shard_index(7)), 1);
}

// A gather inside a node against one between nodes, an all-reduce the other way round.
TEST(MeshInner, CostsFollowFromTheGroup) {
  const ModelSpec model = tiny_model(2);
  const CostModel costs(round_cluster(16), round_calibration());
  const auto longest = [&](MeshInner inner, EventKind kind) {
    const Forecast f = forecast(model, two_by_eight(inner), costs);
    Time most;
    for (const Row& row : f.graph.rows) {
      if (row.kind == kind) most = std::max(most, f.costs.works[row.work].duration);
    }
    return most;
  };
  using enum EventKind;
  EXPECT_LT(longest(MeshInner::kShard, kAllGather), longest(MeshInner::kReplicate, kAllGather));
  EXPECT_GT(longest(MeshInner::kShard, kAllReduce), longest(MeshInner::kReplicate, kAllReduce));
}

}
}
