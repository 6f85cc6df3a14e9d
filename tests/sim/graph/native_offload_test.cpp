// Runtime native with offload: what is copied between host and device, when, and what it leaves in the device's memory.
#include <gtest/gtest.h>

#include <map>

#include "models/zoo.h"
#include "sim/graph/training_step.h"
#include "sim/memory/arena.h"

namespace foreshard {
namespace {

Plan plan_of(Offload offload, std::int64_t accumulation = 1) {
  return Plan{.runtime = {RuntimeKind::kNative, "1"},
      .batch = {512, 1, accumulation},
      .mesh = {8, 1},
      .offload = offload,
      .reduction_order = ReductionOrder::kLibrary};
}

const ModelSpec& model() {
  static const ModelSpec spec = load_zoo_model("tinyllama-1.1b", Stack::kNative);
  return spec;
}

bool waits(const EventGraph& graph, EventId row, EventKind kind, std::int32_t unit) {
  for (const EventId event : graph.waits_of(row)) {
    const auto i = at(event);
    if (graph.rows[i].kind == kind && graph.details[i].unit == unit) return true;
  }
  return false;
}

TEST(NativeOffload, AGatherFollowsTheCopyOfItsShard) {
  const EventGraph graph = build_training_step(model(), plan_of(Offload::kCpu));
  std::map<EventKind, int> rows;
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const auto id = static_cast<EventId>(i);
    const std::int32_t unit = graph.details[i].unit;
    ++rows[graph.rows[i].kind];
    if (graph.rows[i].kind == EventKind::kAllGather) {
      EXPECT_TRUE(waits(graph, id, EventKind::kHostToDevice, unit)) << i;
      EXPECT_EQ(graph.details[i].buffer, graph.details[i - 1].buffer);
    }
    if (graph.rows[i].kind == EventKind::kDeviceToHost) {
      EXPECT_TRUE(waits(graph, id, EventKind::kReduceScatter, unit)) << i;
      EXPECT_EQ(graph.works[graph.rows[i].work].bytes, Bytes(graph.units[at(unit)].shard_numel * 4));
    }
  }
  EXPECT_EQ(rows[EventKind::kHostToDevice], rows[EventKind::kAllGather]);
  EXPECT_EQ(rows[EventKind::kDeviceToHost], static_cast<int>(graph.units.size()));
  EXPECT_EQ(rows[EventKind::kHostOptimizer], 2);  // the norm, then scale and step
  EXPECT_EQ(rows[EventKind::kOptimizer] + rows[EventKind::kGradNorm], 0);
  EXPECT_EQ(graph.rows.back().kind, EventKind::kHostOptimizer);
}

// Sums of earlier micro-batches come back to be added to.
TEST(NativeOffload, SumsComeBackForLaterMicroBatches) {
  const EventGraph graph = build_training_step(model(), plan_of(Offload::kCpu, 3));
  int brought = 0;
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    if (graph.rows[i].kind != EventKind::kHostToDevice) continue;
    const Buffer buffer = graph.buffer(graph.details[i].buffer);
    brought += buffer.category == MemoryCategory::kShardedGrad ? 1 : 0;
  }
  EXPECT_EQ(brought, 2 * static_cast<int>(graph.units.size()));
}

// 14 bytes per parameter of the shard leave the device (fp32 master and two moments, the bf16 shadow), and the 4 of the
// gradient are on the host instead of there for a part of the step; two sums of the largest unit's shard stay.
TEST(NativeOffload, OnlyTwoSumsOfGradientsStayOnTheDevice) {
  const EventGraph kept = build_training_step(model(), plan_of(Offload::kNone));
  const EventGraph graph = build_training_step(model(), plan_of(Offload::kCpu));
  std::int64_t shards = 0, largest = 0;
  for (const Unit& unit : graph.units) {
    shards += unit.shard_numel;
    largest = std::max(largest, unit.shard_numel);
  }
  const ArenaLayout before = lay_out_arena(kept), after = lay_out_arena(graph);
  EXPECT_EQ(before.host_size, Bytes());
  EXPECT_EQ(after.host_size, Bytes(18 * shards));
  EXPECT_EQ(before.size - after.size, Bytes(14 * shards - 2 * 4 * largest));
}

}
}
