// Search in depth: the place of the mesh, and reshard groups per unit.
#include "sim/search/deep.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "sim/search/knobs.h"
#include "tests/sim/search/brute_force.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

SearchSpace space_of(const Cluster& cluster) {
  SearchSpace space = {.base = tiny_plan()};
  space.base.mesh = {cluster.gpus, 1};
  space.global_batch = cluster.gpus * 2;
  return space;
}

TEST(Deep, APlaceThatChangesNothingIsNoFurtherPlan) {
  const Cluster cluster = round_cluster(16);
  SearchSpace space = space_of(cluster);
  const std::size_t without = enumerate(space, tiny_model(1), cluster).size();
  space.knobs = {*knob_axis("mesh.inner", space.base)};
  const std::vector<Plan> plans = enumerate(space, tiny_model(1), cluster);
  std::size_t transposed = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const Mesh& mesh = plans[i].mesh;
    const bool is_transposed = mesh.inner == MeshInner::kReplicate;
    transposed += is_transposed;
    EXPECT_TRUE(!is_transposed || (mesh.shard > 1 && mesh.replicate > 1));
    for (std::size_t k = 0; k < i; ++k) ASSERT_NE(plans[i], plans[k]);
  }
  EXPECT_GT(transposed, 0U);
  EXPECT_EQ(plans.size(), without + transposed);
}

// Inside one node all places are alike, so nobody looks for one.
TEST(Deep, LooksForAPlaceWhereThereAreNodes) {
  const auto varies = [](std::int64_t gpus, const std::vector<std::string>& fixed) {
    const Cluster cluster = round_cluster(gpus);
    for (const KnobAxis& axis : with_all_knobs(space_of(cluster), cluster, fixed).knobs) {
      if (axis.key == "mesh.inner") return true;
    }
    return false;
  };
  EXPECT_TRUE(varies(16, {}));
  EXPECT_FALSE(varies(8, {}));
  EXPECT_FALSE(varies(16, {"mesh.inner"}));
}

// The better of the two places, as forecasts of both say.
RC_GTEST_PROP(DeepProperty, ThePlaceFoundIsTheFaster, ()) {
  Cluster cluster = round_cluster(16);
  cluster.memory_outside_allocator = Bytes(0);
  cluster.node.nic_rate = BytesPerSecond(*rc::gen::element(1e9, 10e9, 80e9));
  const ModelSpec model = tiny_model(2);
  const CostModel costs(cluster, round_calibration());
  SearchSpace space = space_of(cluster);
  space.shard_groups = {*rc::gen::element<std::int64_t>(2, 4, 8)};
  space.reshards = {{*rc::gen::element(Reshard::Kind::kAlways, Reshard::Kind::kNever), 0}};
  space.prefetches = {{}};
  space.recomputes = {{Recompute::kNone, {}}};
  space.micro_batches = {1};
  space.knobs = {*knob_axis("mesh.inner", space.base)};
  SearchOptions options = {.threads = 1, .detail = SearchDetail::kBest};
  const SearchResult found = search(space, model, costs, options);
  RC_ASSERT(found.best.has_value());
  for (const Plan& plan : enumerate(space, model, cluster)) {
    RC_ASSERT(found.best->seconds <= forecast(model, plan, costs).timeline.period.seconds());
  }
}

// On one mesh with nothing else to vary, depth tries every value of every unit, groups included.
RC_GTEST_PROP(DeepProperty, UnitsMayReshardToGroups, ()) {
  LayerProblem p = {.model = tiny_model(1), .cluster = round_cluster(16)};
  p.cluster.memory_outside_allocator = Bytes(0);
  p.cluster.gpu.memory = Bytes(*rc::gen::inRange<std::int64_t>(40, 200) << 20);
  p.frame = tiny_plan();
  p.frame.mesh = {16, 1};
  p.frame.batch = {*rc::gen::element<std::int64_t>(128, 512), 1, 1};
  p.choices.recomputes = {Recompute::kNone, Recompute::kFull};
  p.choices.reshards = {
      {Reshard::Kind::kAlways, 0}, {Reshard::Kind::kGroup, 8}, {Reshard::Kind::kGroup, 2}, {Reshard::Kind::kNever, 0}};
  const CostModel costs(p.cluster, round_calibration());
  const std::optional<Optimum> optimum = brute_force(p, costs);

  SearchSpace space = {.base = p.frame,
      .global_batch = 16,
      .shard_groups = {16},
      .reshards = p.choices.reshards,
      .prefetches = {p.frame.prefetch},
      .recomputes = {{Recompute::kNone, {}}, {Recompute::kFull, {}}},
      .micro_batches = {1}};
  std::swap(space.reshards.front(), space.reshards.back());  // the order is the stage's own
  SearchOptions options = {.threads = 1};
  const DeepResult deep = search_deep(space, p.model, costs, {}, options);
  // Mixtures are looked for where something uniform fits.
  RC_ASSERT(!deep.best || optimum.has_value());
  if (!deep.best) return;
  RC_ASSERT(deep.layers.has_value());
  RC_ASSERT(deep.layers->is_optimum);
  RC_ASSERT(deep.best->seconds == optimum->step.seconds());
}

// Of a mesh of 4 shards the unit may keep a half, of 16 any of 2, 4 and 8; the answer is never
// slower than what depth began with.
RC_GTEST_PROP(DeepProperty, IsNeverSlowerThanItsBeginning, ()) {
  Cluster cluster = round_cluster(16);
  cluster.memory_outside_allocator = Bytes(0);
  cluster.gpu.memory = Bytes(*rc::gen::inRange<std::int64_t>(40, 400) << 20);
  const ModelSpec model = tiny_model(*rc::gen::inRange(1, 3));
  const CostModel costs(cluster, round_calibration());
  SearchSpace space = space_of(cluster);
  space.prefetches = {{}};
  SearchOptions options = {.threads = 1};
  const SearchResult grid = search(space, model, costs, options);
  const SearchSpace further = with_all_knobs(space, cluster, {"units.layers_per_unit", "offload"});
  const DeepResult deep = search_deep(further, model, costs, {grid.best, {}}, options);
  RC_ASSERT(!grid.best || deep.best.has_value());
  if (!grid.best) return;
  RC_ASSERT(deep.best->seconds <= grid.best->seconds);
  const Forecast f = forecast(model, deep.best->plan, costs);
  RC_ASSERT(f.timeline.period.seconds() == deep.best->seconds);
  RC_ASSERT(holds(fit_in(cluster, f.memory.peak, f.reserved.peak, Bytes(0)), MemoryTerms()));
}

}
}
