#include <gtest/gtest.h>

#include <map>

#include "reports/view/views.h"
#include "tests/reports/hand_made.h"
#include "tests/reports/random_plans.h"

namespace foreshard {
namespace {

using Bars = std::map<std::string, std::int64_t>;

Bars bars_of(const EventGraph& graph, const Timeline& timeline) {
  Bars bars;
  for (const WaterfallBar& bar : waterfall(graph, timeline)) bars[bar.what] += bar.time.nanoseconds();
  return bars;
}

std::int64_t sum(const Bars& bars) {
  std::int64_t total = 0;
  for (const auto& [what, nanoseconds] : bars) total += nanoseconds;
  return total;
}

TEST(Waterfall, PutsEveryGapDownToWhatTheRowBehindItWaitedFor) {
  // copy_in     |0-10|
  // all_gather        |10 ----- 60|
  // compute                        |60 forward 100|100 backward 150|      |170 optimizer 200|
  // host issues the optimizer at 170, when everything else is ready since 150.
  HandMade step;
  const EventId copy = step.add(EventKind::kAllGatherCopyIn, Stream::kCopyIn, {-9, 0, 0, 10});
  const EventId gather = step.gather(10, 10, 60, {copy});
  step.compute(EventKind::kForward, 60, 100, {gather});
  step.compute(EventKind::kBackward, 100, 150);
  step.add(EventKind::kOptimizer, Stream::kCompute, {170, 170, 170, 200});
  EXPECT_EQ(
      bars_of(step.graph, step.timeline), (Bars{{"stream dependency", 10}, {"exposed all_gather (forward)", 50},
                                              {"forward", 40}, {"backward", 50}, {"host", 20}, {"optimizer", 30}}));
}

TEST(Waterfall, PrefersTheCollectiveThatTheRowWaitedForOverAnEarlierOne) {
  // The reduce_scatter (issued first) and the gather both run in the gap 10 .. 60; forward waits for the gather.
  HandMade step;
  step.compute(EventKind::kBackward, 0, 10);
  step.add(EventKind::kReduceScatter, Stream::kReduceScatter, {-9, 0, 0, 90});
  const EventId gather = step.add(EventKind::kAllGather, Stream::kAllGather, {-9, 10, 10, 60});
  step.compute(EventKind::kForward, 60, 100, {gather});
  EXPECT_EQ(bars_of(step.graph, step.timeline)["exposed all_gather (backward)"], 50);
}

TEST(Waterfall, AQueueOnTheCommunicatorIsPutDownToWhoHeldIt) {
  // The gather is ready at 10 but its communicator reduces until 40: 30 ns of reduce_scatter, 20 of gather.
  HandMade step;
  step.compute(EventKind::kBackward, 0, 10);
  step.add(EventKind::kReduceScatter, Stream::kReduceScatter, {-9, 0, 0, 40});
  const EventId gather = step.add(EventKind::kAllGather, Stream::kAllGather, {-9, 10, 40, 60});
  step.compute(EventKind::kBackward, 60, 100, {gather});
  const Bars bars = bars_of(step.graph, step.timeline);
  EXPECT_EQ(bars.at("exposed reduce_scatter (backward)"), 30);
  EXPECT_EQ(bars.at("exposed all_gather (backward)"), 20);
}

TEST(Waterfall, SumsToTheStepToTheNanosecondOnRandomPlans) {
  RandomPlans plans(2);
  for (int i = 0; i < 100; ++i) {
    const Forecast f = plans.next_forecast();
    const Bars bars = bars_of(f.graph, f.timeline);
    EXPECT_EQ(sum(bars), f.timeline.period.nanoseconds()) << "plan " << i;
    Bars exposed;
    for (const auto& [what, time] : bars) {
      if (what.rfind("exposed", 0) == 0) exposed[what] = time;
    }
    EXPECT_NEAR(
        static_cast<double>(sum(exposed)) * 1e-9, measure_step(f.graph, f.timeline).exposed_communication, 1e-12)
        << "plan " << i;
  }
}

TEST(CauseChain, FollowsTheWinningPredecessor) {
  HandMade step;
  const EventId copy = step.add(EventKind::kAllGatherCopyIn, Stream::kCopyIn, {-9, 0, 0, 10});
  const EventId gather = step.gather(10, 10, 60, {copy});
  const EventId forward = step.compute(EventKind::kForward, 60, 100, {gather});
  const EventId backward = step.compute(EventKind::kBackward, 100, 150);
  const auto chain = cause_chain(step.graph, step.timeline, backward);
  ASSERT_EQ(chain.size(), 4U);
  EXPECT_EQ(chain[0].event, backward);
  EXPECT_EQ(chain[0].cause, Cause::kStream);
  EXPECT_EQ(chain[1].event, forward);
  EXPECT_EQ(chain[1].cause, Cause::kWait);
  EXPECT_EQ(chain[2].event, gather);
  EXPECT_EQ(chain[2].cause, Cause::kWait);
  EXPECT_EQ(chain[3].event, copy);
  EXPECT_EQ(chain[3].cause, Cause::kStepBegin);
}

TEST(CauseChain, StopsAtTheHostAndNamesTheCommunicator) {
  HandMade step;
  const EventId reduce = step.add(EventKind::kReduceScatter, Stream::kReduceScatter, {20, 20, 20, 40});
  const EventId gather = step.add(EventKind::kAllGather, Stream::kAllGather, {25, 25, 40, 60});
  const auto chain = cause_chain(step.graph, step.timeline, gather);
  ASSERT_EQ(chain.size(), 2U);
  EXPECT_EQ(chain[0].cause, Cause::kCommunicator);
  EXPECT_EQ(chain[1].event, reduce);
  EXPECT_EQ(chain[1].cause, Cause::kHost);
}

TEST(CauseChain, GoesBackWithoutHolesToTheStepsBeginOrTheHostOnRandomPlans) {
  RandomPlans plans(3);
  for (int i = 0; i < 40; ++i) {
    const Forecast f = plans.next_forecast();
    for (EventId event = 0; event < static_cast<EventId>(f.graph.rows.size()); event += 7) {
      const auto chain = cause_chain(f.graph, f.timeline, event);
      ASSERT_FALSE(chain.empty());
      const auto span = [&](std::size_t link) { return f.timeline.spans[at(chain[link].event)]; };
      for (std::size_t link = 0; link + 1 < chain.size(); ++link) {
        ASSERT_LT(chain[link + 1].event, chain[link].event);
        const bool queued = chain[link].cause == Cause::kCommunicator;
        ASSERT_EQ(span(link + 1).end, queued ? span(link).arrive : span(link).start);
      }
      const Cause last = chain.back().cause;
      ASSERT_TRUE(last == Cause::kStepBegin || last == Cause::kHost);
      ASSERT_EQ(span(chain.size() - 1).start, last == Cause::kHost ? span(chain.size() - 1).issue : Time());
    }
  }
}

}
}
