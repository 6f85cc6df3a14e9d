// Where the steps of a capture end.
#include <gtest/gtest.h>

#include <string>

#include "sim/graph/capture/capture.h"

namespace foreshard {
namespace {

using CallKind = CapturedCall::Kind;

// "m": a launch of the main thread, "b": one of autograd's, "s": an optimizer's step.
Capture capture_of(const std::string& calls) {
  Capture capture = {.names = {"kernel", "step 0 AdamW"}};
  for (const char c : calls) {
    capture.calls.push_back(
        {.kind = c == 's' ? CallKind::kMark : CallKind::kLaunch, .thread = c == 'b' ? 1 : 0, .name = c == 's' ? 1 : 0});
  }
  return capture;
}

TEST(SteadyStep, GroupsThatAnOptimizerStepsOneByOneAreOneStep) {
  // DeepSpeed's: two groups, each with kernels of its own, in each of three steps.
  const StepRange range = steady_step(capture_of("mbsmsmbsmsmbsms"));
  EXPECT_EQ(range.begin, 10U);  // behind the fourth mark
  EXPECT_EQ(range.end, 15U);
  EXPECT_EQ(range.steps, 3);
}

TEST(SteadyStep, WithoutAThreadOfAutogradEachMarkIsAStep) {
  const StepRange range = steady_step(capture_of("msmsms"));
  EXPECT_EQ(range.begin, 4U);
  EXPECT_EQ(range.steps, 3);
}

}
}
