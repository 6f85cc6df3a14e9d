#include <gtest/gtest.h>

#include "reports/accuracy/intervals.h"
#include "reports/report.h"
#include "tests/reports/hand_made.h"
#include "tests/reports/random_plans.h"

namespace foreshard {
namespace {

double ns(std::int64_t value) { return Time::ns(value).seconds(); }

Interval from_to(std::int64_t begin, std::int64_t end) { return {Time::ns(begin), Time::ns(end)}; }

TEST(Intervals, UnitesWhatTouchesAndDropsWhatIsEmpty) {
  EXPECT_EQ(united({from_to(5, 9), from_to(0, 2), from_to(2, 4), from_to(7, 7), from_to(6, 8)}),
      (std::vector<Interval>{from_to(0, 4), from_to(5, 9)}));
}

TEST(Intervals, OverlapCountsWhatLiesInBoth) {
  // [0,4) and [6,10) against [2,7) and [9,12): 2 + 1 + 1.
  EXPECT_EQ(overlap({from_to(0, 4), from_to(6, 10)}, {from_to(2, 7), from_to(9, 12)}), Time::ns(4));
}

TEST(StepMetrics, ExposedCommunicationIsWhereNoComputeRuns) {
  // compute     |0 ---- 100|          |160 -- 200|
  // all_gather      |60 --------- 150|
  HandMade step;
  const EventId first = step.compute(EventKind::kForward, 0, 100);
  const EventId gather = step.gather(60, 60, 150);
  step.compute(EventKind::kForward, 160, 200, {gather});
  (void)first;
  const StepMetrics m = measure_step(step.graph, step.timeline);
  EXPECT_DOUBLE_EQ(m.seconds, ns(200));
  EXPECT_DOUBLE_EQ(m.communication, ns(90));
  EXPECT_DOUBLE_EQ(m.exposed_communication, ns(50));  // 100 .. 150
  EXPECT_DOUBLE_EQ(m.compute, ns(140));
  EXPECT_DOUBLE_EQ(m.idle, ns(10));  // 150 .. 160
}

TEST(StepMetrics, CollectivesAtTheSameTimeCountOnce) {
  // all_gather 0 .. 50, all_reduce 30 .. 80, compute 90 .. 100: 80 ns in all, all of it exposed.
  HandMade step;
  step.gather(0, 0, 50);
  step.add(EventKind::kAllReduce, Stream::kAllReduce, {-1, 30, 30, 80});
  step.compute(EventKind::kForward, 90, 100);
  const StepMetrics m = measure_step(step.graph, step.timeline);
  EXPECT_DOUBLE_EQ(m.communication, ns(80));
  EXPECT_DOUBLE_EQ(m.exposed_communication, ns(80));
}

TEST(StepMetrics, WaitingForTheCommunicatorIsNoCommunication) {
  // The second gather is ready at 10, its communicator at 50.
  HandMade step;
  step.gather(0, 0, 50);
  step.add(EventKind::kReduceScatter, Stream::kReduceScatter, {-1, 10, 50, 70});
  step.compute(EventKind::kForward, 70, 100);
  const StepMetrics m = measure_step(step.graph, step.timeline);
  EXPECT_DOUBLE_EQ(m.waiting, ns(40));
  EXPECT_DOUBLE_EQ(m.communication, ns(70));
}

TEST(StepMetrics, CopiesOnOtherStreamsAreNeitherComputeNorCommunication) {
  HandMade step;
  step.add(EventKind::kAllGatherCopyIn, Stream::kCopyIn, {-1, 0, 0, 30});
  step.compute(EventKind::kForward, 30, 50);
  const StepMetrics m = measure_step(step.graph, step.timeline);
  EXPECT_DOUBLE_EQ(m.communication, 0);
  EXPECT_DOUBLE_EQ(m.idle, ns(30));
}

TEST(StepMetrics, ComputeExposedAndIdleFillTheStepOfRandomPlans) {
  RandomPlans plans(1);
  for (int i = 0; i < 100; ++i) {
    const Forecast f = plans.next_forecast();
    const StepMetrics m = measure_step(f.graph, f.timeline);
    EXPECT_NEAR(m.compute + m.exposed_communication + m.idle, m.seconds, 1e-12);
    EXPECT_LE(m.exposed_communication, m.communication);
    EXPECT_GE(m.idle, -1e-12);
  }
}

}
}
