#include <gtest/gtest.h>

#include <algorithm>

#include "reports/view/views.h"
#include "tests/reports/hand_made.h"
#include "tests/reports/random_plans.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

TEST(ScheduleCsv, WritesExactSecondsAndEmptyCellsWhereThereIsNothing) {
  HandMade step;
  step.add(EventKind::kAllGather, Stream::kAllGather, {-1'500'000'000, 0, 7, 2'000'000'001}, {}, 1);
  step.add(EventKind::kOptimizer, Stream::kCompute, {-1, 9, 9, 10}, {}, -1);
  step.graph.works.push_back({});
  step.graph.works[1].flops = Flops(123456789012345678.0);
  step.graph.rows[1].work = 1;
  EXPECT_EQ(schedule_csv(step.graph, step.timeline),
      "id,kind,unit,unit_name,microbatch,stream,communicator,bytes,flops,"
      "issue_s,start_s,arrive_s,end_s\n"
      "0,all_gather,1,layers.1,0,all_gather,shard,1024,0,"
      "-1.500000000,0.000000000,0.000000007,2.000000001\n"
      "1,optimizer,,,0,compute,,0,123456789012345680,-0.000000001,0.000000009,0.000000009,0.000000010\n");
}

TEST(ScheduleCsv, HasALinePerRowAndThirteenCellsInEach) {
  RandomPlans plans(4);
  for (int i = 0; i < 20; ++i) {
    const Forecast f = plans.next_forecast();
    const auto lines = text_lines(schedule_csv(f.graph, f.timeline));
    ASSERT_EQ(lines.size(), f.graph.rows.size() + 1);
    for (std::size_t row = 0; row < lines.size(); ++row) {
      ASSERT_EQ(std::ranges::count(lines[row], ','), 12) << lines[row];
      if (row > 0) {
        ASSERT_EQ(lines[row].substr(0, lines[row].find(',')), std::to_string(row - 1));
      }
    }
  }
}

TEST(ScheduleCsv, TellsCommunicatorsOfSingleUnitsApart) {
  HandMade step;
  step.graph.communicators[0] = {"post_forward", {2, 1}, true};
  step.gather(0, 0, 5);
  const auto lines = text_lines(schedule_csv(step.graph, step.timeline));
  EXPECT_NE(lines[1].find(",post_forward/layers.0,"), std::string::npos) << lines[1];
}

}
}
