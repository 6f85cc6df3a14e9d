#include "sim/simulate/cost_choices.h"

#include <gtest/gtest.h>

namespace foreshard {
namespace {

TEST(CostChoices, CollectivesAreThePlans) {
  Plan plan;
  EXPECT_EQ(cost_choices(plan).collectives.kernels, CollectiveKernels::kDefault);
  EXPECT_EQ(cost_choices(plan).collectives.max_ctas, 0);
  plan.collectives = {CollectiveKernels::kCopyEngine, 8};
  EXPECT_EQ(cost_choices(plan).collectives.kernels, CollectiveKernels::kCopyEngine);
  EXPECT_EQ(cost_choices(plan).collectives.max_ctas, 8);
}

}
}
