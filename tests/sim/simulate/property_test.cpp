// What must hold for every plan, whatever it costs. RapidCheck draws 100 plans per property;
// RC_PARAMS="max_success=N" draws N.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <array>
#include <map>

#include "sim/memory/memory_profile.h"
#include "sim/simulate/simulate.h"
#include "tests/support/generators.h"
#include "tests/support/sweep.h"

namespace foreshard {
namespace {

RC_GTEST_PROP(Property, EveryDependencyPointsToASmallerId, ()) {
  const RandomStep r = random_step();
  for (std::size_t i = 0; i < r.graph.rows.size(); ++i) {
    const auto id = static_cast<EventId>(i);
    for (EventId w : r.graph.waits_of(id)) {
      RC_ASSERT(w >= 0);
      RC_ASSERT(w < id);
      RC_ASSERT(r.graph.rows[at(w)].stream != r.graph.rows[i].stream);
    }
    RC_ASSERT(r.graph.rows[i].host_wait < id);
    RC_ASSERT(r.graph.rows[i].work < r.graph.works.size());
  }
}

RC_GTEST_PROP(Property, EveryBufferIsFreedOnceAndTheFastPeakIsTheReplayedOne, ()) {
  const RandomStep r = random_step();
  const MemoryProfile memory = replay_allocations(r.graph);  // throws on a double free or a leak
  RC_ASSERT(memory.peak == peak_allocated(r.graph));
  Bytes sum;
  for (Bytes b : memory.at_peak) sum += b;
  RC_ASSERT(sum == memory.peak);
  Bytes alive;
  for (const LiveBuffer& b : memory.alive_at_peak) alive += b.bytes;
  RC_ASSERT(alive == memory.peak);
}

// What is gathered is what is computed with, and every gradient is reduced once per synchronised micro-batch.
RC_GTEST_PROP(Property, BytesOnTheWireFollowFromTheUnits, ()) {
  const RandomStep r = random_step();
  const std::int64_t shards = r.plan.mesh.shard;
  std::map<std::pair<int, int>, int> reduced;
  for (std::size_t i = 0; i < r.graph.rows.size(); ++i) {
    const int unit = r.graph.details[i].unit;
    const EventKind kind = r.graph.rows[i].kind;
    if (unit < 0 || !is_collective(kind)) continue;
    const Unit& u = r.graph.units[at(unit)];
    const std::int64_t bytes = r.graph.works[r.graph.rows[i].work].bytes.count();
    RC_ASSERT(u.padded_numel() >= u.numel);
    if (kind == EventKind::kAllGather) {
      RC_ASSERT(bytes == u.shard_numel * shards * size_of(r.plan.param_dtype));
    } else if (kind == EventKind::kReduceScatter) {
      RC_ASSERT(bytes == u.shard_numel * shards * size_of(r.plan.reduce_dtype));
      RC_ASSERT(++reduced[std::pair(unit, r.graph.details[i].microbatch)] == 1);
    }
  }
  if (shards > 1) {
    const bool each = r.plan.accumulation == AccumulationMode::kReduceEach;
    RC_ASSERT(reduced.size() == r.graph.units.size() * at(each ? r.plan.batch.accumulation : 1));
  }
}

void expect_streams_disjoint(const EventGraph& graph, const Timeline& timeline) {
  std::array<Time, kStreams> stream_end;
  std::map<int, Time> communicator_end;
  stream_end.fill(Time::ns(0));
  for (std::size_t i = 0; i < graph.rows.size(); ++i) {
    const Span& span = timeline.spans[i];
    const Row& row = graph.rows[i];
    RC_ASSERT(span.issue <= span.start);
    RC_ASSERT(span.start <= span.arrive);
    RC_ASSERT(span.arrive <= span.end);
    Time& end = stream_end[at(row.stream)];
    RC_ASSERT(span.start >= end);
    end = span.end;
    for (EventId w : graph.waits_of(static_cast<EventId>(i))) RC_ASSERT(span.start >= timeline.spans[at(w)].end);
    if (row.communicator != kNoCommunicator) {
      auto it = communicator_end.find(row.communicator);
      if (it != communicator_end.end()) RC_ASSERT(span.arrive >= it->second);
      communicator_end[row.communicator] = span.end;
    }
  }
}

RC_GTEST_PROP(Property, SpansOfAStreamAndOfACommunicatorAreDisjoint, ()) {
  RandomStep r = random_step();
  r.costs.contention = random_contention();
  expect_streams_disjoint(r.graph, sweep(r.graph, r.costs));
  expect_streams_disjoint(r.graph, simulate(r.graph, r.costs));
}

RC_GTEST_PROP(Property, WithoutContentionSimulateIsSweepBitForBit, ()) {
  const RandomStep r = random_step();
  const Timeline a = sweep(r.graph, r.costs);
  const Timeline b = simulate(r.graph, r.costs);
  RC_ASSERT(a.spans == b.spans);
  RC_ASSERT(a.period == b.period);
  RC_ASSERT(a.first_step == b.first_step);
  RC_ASSERT(Simulator().period(r.graph, r.costs) == b.period);
}

RC_GTEST_PROP(Property, SweepIsALowerBoundOfSimulate, ()) {
  RandomStep r = random_step();
  const Timeline lower = sweep_once(r.graph, r.costs);
  r.costs.contention = random_contention();
  const Timeline upper = Simulator().simulate_once(r.graph, r.costs);
  for (std::size_t i = 0; i < r.graph.rows.size(); ++i) RC_ASSERT(lower.spans[i].end <= upper.spans[i].end);
}

RC_GTEST_PROP(Property, FasterComputeOrLinksAreNeverSlowerInSweep, ()) {
  const RandomStep r = random_step();
  const Timeline before = sweep_once(r.graph, r.costs);
  CostTable faster = r.costs;
  for (Cost& cost : faster.works) {
    const std::int64_t percent = *rc::gen::inRange<std::int64_t>(0, 101);
    cost.duration = Time::ns(cost.duration.nanoseconds() * percent / 100);
    cost.last_kernel = Time::ns(cost.last_kernel.nanoseconds() * percent / 100);
  }
  const Timeline after = sweep_once(r.graph, faster);
  for (std::size_t i = 0; i < r.graph.rows.size(); ++i) RC_ASSERT(after.spans[i].end <= before.spans[i].end);
}

RC_GTEST_PROP(Property, TheSteadyPeriodIsNotLongerThanTheFirstStepAndRepeats, ()) {
  const RandomStep r = random_step();
  const Timeline t = sweep(r.graph, r.costs);
  RC_ASSERT(t.period <= t.first_step);
  RC_ASSERT(t.period >= Time::ns(0));
}

}
}
