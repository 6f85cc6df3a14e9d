#include "reports/sizing/sizing.h"

#include <gtest/gtest.h>

#include "sim/simulate/forecast.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

// Short steps are drawn whole, longer ones from two shorter ones; both are of this many
// micro-batches, so the interval holds the forecast of the whole step.
TEST(SizeUp, IntervalsAreOfAllMicroBatches) {
  const CostModel costs(round_cluster(8), round_calibration());
  for (std::int64_t accumulation = 1; accumulation <= 9; ++accumulation) {
    SCOPED_TRACE(accumulation);
    Plan plan = tiny_plan();
    plan.batch = {128, 2, accumulation};
    const ModelSpec model = tiny_model(2);
    const SizedPlan sized = size_up(model, plan, costs, {64});
    const double step = forecast(model, plan, costs).timeline.period.seconds();
    EXPECT_DOUBLE_EQ(sized.step.value, step);
    const double middle = (sized.step.low + sized.step.high) / 2;
    EXPECT_NEAR(middle / step, 1, 0.12);  // four of five micro-batches would be 0.8
    EXPECT_LT(sized.step.low, step);
    EXPECT_GT(sized.step.high, step);
  }
}

}
}
