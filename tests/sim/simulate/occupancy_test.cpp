// Compute rows slow down by what the collectives beside them occupy.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "sim/cost/cost_model.h"
#include "sim/simulate/simulate.h"
#include "tests/support/generators.h"
#include "tests/support/sweep.h"

namespace foreshard::occupancy_test {
namespace {

constexpr auto kAll = static_cast<std::int32_t>(Contention::kOne);

void set_takes(RandomStep& r, Occupancy takes) {
  for (std::size_t w = 0; w < r.costs.works.size(); ++w) {
    if (is_collective(r.graph.works[w].kind)) r.costs.works[w].takes = takes;
  }
}

void set_memory_share(RandomStep& r, std::int32_t share) {
  for (Cost& cost : r.costs.works) cost.memory_share = share;
}

RC_GTEST_PROP(Occupancy, NothingTakenIsSweepBitForBit, ()) {
  RandomStep r = random_step();
  set_takes(r, {0, 0});
  set_memory_share(r, *rc::gen::inRange(0, kAll + 1));
  RC_ASSERT(sweep(r.graph, r.costs).spans == simulate(r.graph, r.costs).spans);
}

RC_GTEST_PROP(Occupancy, OneAtATimeItIsTheTablesFactor, ()) {
  RandomStep r = random_step();
  r.costs.contention = random_contention();
  const Timeline by_table = Simulator().simulate_once(r.graph, r.costs);
  const auto excess = static_cast<std::int32_t>(r.costs.contention.compute - Contention::kOne);
  set_takes(r, {excess, excess});
  set_memory_share(r, *rc::gen::inRange(0, kAll + 1));
  const Timeline by_work = Simulator().simulate_once(r.graph, r.costs);
  // Two collectives at once take twice as much; the table has one factor however many there are.
  if (r.graph.communicators.size() <= 1) RC_ASSERT(by_table.spans == by_work.spans);
}

RC_GTEST_PROP(Occupancy, RowsBoundByMemoryDoNotFeelMultiprocessors, ()) {
  RandomStep r = random_step();
  const std::int32_t memory = *rc::gen::inRange(0, kAll);
  set_memory_share(r, kAll);
  set_takes(r, {0, memory});
  const Timeline one = simulate(r.graph, r.costs);
  set_takes(r, {3 * kAll, memory});
  RC_ASSERT(simulate(r.graph, r.costs).spans == one.spans);
  // And the other way round.
  set_memory_share(r, 0);
  set_takes(r, {memory, 0});
  const Timeline two = simulate(r.graph, r.costs);
  set_takes(r, {memory, 3 * kAll});
  RC_ASSERT(simulate(r.graph, r.costs).spans == two.spans);
}

// (More taken may end a row earlier: a row that is later may find less beside it.)
RC_GTEST_PROP(Occupancy, WhateverIsTakenNothingIsFasterThanAlone, ()) {
  RandomStep r = random_step();
  const Timeline alone = sweep(r.graph, r.costs);
  set_memory_share(r, *rc::gen::inRange(0, kAll + 1));
  set_takes(r, {*rc::gen::inRange(0, 2 * kAll), *rc::gen::inRange(0, 2 * kAll)});
  const Timeline shared = simulate(r.graph, r.costs);
  for (std::size_t i = 0; i < r.graph.rows.size(); ++i) RC_ASSERT(alone.spans[i].end <= shared.spans[i].end);
}

// Copies on streams of their own run on the same multiprocessors: what they take, compute loses,
// however little else there is.
RC_GTEST_PROP(Occupancy, CopiesBesideComputeTakeTheirPart, ()) {
  RandomStep r = random_step();
  const Timeline free = simulate(r.graph, r.costs);
  const std::int32_t taken = *rc::gen::inRange(1, 2 * kAll);
  for (std::size_t w = 0; w < r.costs.works.size(); ++w) {
    if (!is_collective(r.graph.works[w].kind)) r.costs.works[w].takes = {taken, taken};
  }
  const Timeline shared = simulate(r.graph, r.costs);
  const Timeline alone = sweep(r.graph, r.costs);
  bool overlaps = false;
  for (std::size_t i = 0; i < r.graph.rows.size(); ++i) {
    RC_ASSERT(alone.spans[i].end <= shared.spans[i].end);
    const Row& row = r.graph.rows[i];
    overlaps |= row.stream != Stream::kCompute && !is_collective(row.kind) && free.spans[i].end > free.spans[i].start;
  }
  if (!overlaps) RC_ASSERT(shared.spans == free.spans);
}

// The same collective over a network of a tenth: its blocks stay, its share of the memory goes.
TEST(Occupancy, ASlowNetworkTakesMultiprocessorsAndLittleMemory) {
  const auto takes = [](double nic_rate) {
    Cluster cluster = round_cluster(16);
    cluster.gpu.architecture = "hopper";
    cluster.gpu.multiprocessors = 132;
    cluster.gpu.memory_bandwidth = BytesPerSecond(3350e9);
    cluster.node.gpu_link = BytesPerSecond(450e9);
    cluster.node.gpu_link_name = "NVLink + NVSwitch";
    cluster.node.nic_rate = BytesPerSecond(nic_rate);
    Calibration calibration = round_calibration();
    calibration.fabrics.push_back({});
    calibration.contention.memory = 0.4;
    const CostModel costs(cluster, calibration);
    const auto price = costs.collective(EventKind::kAllGather, Bytes(1 << 30), {16, 1});
    EXPECT_TRUE(price);
    return slowdown_of(*price, cluster.gpu, calibration.contention);
  };
  const Slowdown fast = takes(50e9);
  const Slowdown slow = takes(5e9);
  EXPECT_GT(fast.memory, 1.3);  // 3 * 360 of 3350 GB/s
  EXPECT_LT(slow.memory, 1.05);
  EXPECT_GT(slow.compute, 1.1);  // 16 blocks of 132
  EXPECT_LT(slow.compute, fast.compute);
}

}
}
