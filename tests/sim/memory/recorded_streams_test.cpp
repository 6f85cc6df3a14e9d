// Blocks on which streams were recorded come back when these streams are done, which takes times:
// worked out on a graph of three rows, and seen in the libraries that record streams.
#include <gtest/gtest.h>

#include "sim/graph/training_step.h"
#include "sim/memory/memory_actions.h"
#include "sim/memory/reserved_forecast.h"
#include "sim/simulate/forecast.h"
#include "sim/simulate/simulate.h"
#include "sim/spec/checks/plan_check.h"
#include "tests/support/fixtures.h"

namespace foreshard::recorded_streams_test {
namespace {

constexpr Bytes kBlock(std::int64_t{64} << 20);
constexpr Time kMs = Time::ns(1'000'000);

// Row 0 computes into a block, row 1 reads it on another stream and the host frees it there, row 2
// computes into a block of the same size.
EventGraph three_rows(StreamSet recorded) {
  EventGraph graph;
  graph.buffers = {{MemoryCategory::kCommTemp, Stream::kCompute, -1, kBlock},
      {MemoryCategory::kCommTemp, Stream::kCompute, -1, kBlock}};
  using Kind = MemoryAction::Kind;
  graph.actions = {{Kind::kAllocate, 0},
      {Kind::kFree, 0, recorded == 0 ? MemoryAction::kWhole : std::uint16_t{recorded}}, {Kind::kAllocate, 1},
      {Kind::kFree, 1}};
  graph.works.resize(1);
  graph.rows.resize(3);
  graph.rows[1].stream = Stream::kReduceScatter;
  graph.details.resize(3);
  const std::uint32_t ends[] = {1, 2, 4};
  for (std::size_t row = 0; row < 3; ++row) {
    graph.details[row].actions_begin = row == 0 ? 0 : ends[row - 1];
    graph.details[row].actions_end = ends[row];
  }
  return graph;
}

// Row 1 ends after 5 ms of a step of 10 ms; row 2 is issued at `issue`.
RowTimes times_with(Time issue) {
  return RowTimes{.issues = {Time(), kMs, issue}, .ends = {kMs, 5 * kMs, 10 * kMs}, .period = 10 * kMs};
}

Bytes reserved(const EventGraph& graph, const RowTimes* times) {
  return replay_reserved(graph, {}, DeviceMemory::unlimited(), {{}, times}).peak_reserved;
}

TEST(RecordedStreams, ABlockServesAgainOnceTheRecordedStreamIsDone) {
  const EventGraph graph = three_rows(only(Stream::kReduceScatter));
  const RowTimes early = times_with(4 * kMs), late = times_with(5 * kMs);
  EXPECT_EQ(reserved(graph, &early), kBlock * 2);  // row 1 still reads it
  EXPECT_EQ(reserved(graph, &late), kBlock);
  EXPECT_EQ(reserved(graph, nullptr), kBlock);  // a lower bound
  EXPECT_TRUE(records_streams(graph));
}

TEST(RecordedStreams, OthersServeAtOnce) {
  const RowTimes early = times_with(4 * kMs);
  EXPECT_EQ(reserved(three_rows(0), &early), kBlock);
  EXPECT_FALSE(records_streams(three_rows(0)));
  // Its own stream is in order anyway, and one that was given nothing has nothing to do.
  EXPECT_EQ(reserved(three_rows(only(Stream::kCompute)), &early), kBlock);
  EXPECT_EQ(reserved(three_rows(only(Stream::kAllGather)), &early), kBlock);
}

// A block freed in row 1 of a step comes back while later steps run. Row 2's is free at once.
TEST(RecordedStreams, StepsFollowEachOther) {
  const EventGraph graph = three_rows(only(Stream::kReduceScatter));
  RowTimes times = times_with(2 * kMs);
  times.ends[1] = 12 * kMs;
  // Row 0 of the next step, at 10 ms, finds row 2's block, and row 2, at 12 ms, that of row 0.
  EXPECT_EQ(reserved(graph, &times), kBlock * 2);
  // Blocks of row 0 come back 13 ms after their step began, too late for row 2 of the next one: a
  // third; but row 0 of the one after that finds the first.
  times.ends[1] = 13 * kMs;
  EXPECT_EQ(reserved(graph, &times), kBlock * 3);
  // 23 ms: in use when row 2 of the third step asks, at 22 ms, are those of rows 0 of three steps.
  times.ends[1] = 23 * kMs;
  EXPECT_EQ(reserved(graph, &times), kBlock * 4);
}

Plan library_plan(RuntimeKind kind) {
  Plan plan = tiny_plan();
  plan.runtime = {kind, newest_version(kind)};
  if (is_zero(kind)) plan.reduce_dtype = plan.param_dtype;
  return plan;
}

Bytes reserved_by(const Plan& plan, const ModelSpec& model, bool with_times) {
  const Cluster cluster = round_cluster(8);
  const EventGraph graph = build_training_step(model, plan);
  const CostModel costs(cluster, round_calibration());
  const RowTimes times = row_times(simulate(graph, costs.price(graph)));
  return forecast_reserved(graph, plan, cluster, with_times ? &times : nullptr).peak;
}

TEST(RecordedStreams, WithoutTimesTheLibrariesReservedMemoryIsALowerBound) {
  const ModelSpec model = tiny_model(6);
  for (const RuntimeKind kind : {RuntimeKind::kFsdp1, RuntimeKind::kZero3, RuntimeKind::kZero2}) {
    Plan plan = library_plan(kind);
    plan.zero.overlap_comm = true;
    plan.zero.reduce_bucket_size = 1'000'000;
    plan.zero.stage3_prefetch_bucket_size = 1'000'000;
    plan.zero.stage3_max_reuse_distance = 0;
    EXPECT_TRUE(records_streams(build_training_step(model, plan))) << to_string(kind);
    EXPECT_GE(reserved_by(plan, model, true), reserved_by(plan, model, false)) << to_string(kind);
  }
  EXPECT_FALSE(records_streams(build_training_step(model, library_plan(RuntimeKind::kFsdp2))));
}

// What the rate limiter is for (_FreeEventQueue): a host that runs ahead finds no unsharded
// parameters back and takes new memory for every unit.
TEST(RecordedStreams, TheRateLimiterKeepsTheHostFromTakingMemoryAhead) {
  const ModelSpec model = tiny_model(12);
  Plan plan = library_plan(RuntimeKind::kFsdp1);
  const Bytes limited = reserved_by(plan, model, true);
  plan.fsdp1.limit_all_gathers = false;
  const Bytes free = reserved_by(plan, model, true);
  EXPECT_EQ(reserved_by(plan, model, false) <= limited, true);
  // At least four more units of 6.3 MB in bf16.
  EXPECT_GT(free, limited + Bytes(4 * 6'000'000));
}

TEST(RecordedStreams, AForecastHasTimes) {
  const Plan plan = library_plan(RuntimeKind::kFsdp1);
  const CostModel costs(round_cluster(8), round_calibration());
  const Forecast result = forecast(tiny_model(4), plan, costs);
  EXPECT_GE(result.reserved.peak, result.memory.peak);
}

}
}
