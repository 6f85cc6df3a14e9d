#include "reports/validate/slower.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/reports/hand_made.h"

namespace foreshard {
namespace {

// all_gather |0-40|, forward behind it, the optimizer issued by the host at `late`.
HandMade step_of(std::int64_t arrive, std::int64_t gathered, std::int64_t forward, std::int64_t late) {
  HandMade step;
  const EventId gather = step.gather(0, arrive, gathered);
  step.compute(EventKind::kForward, gathered, forward, {gather});
  step.add(EventKind::kOptimizer, Stream::kCompute, {late, late, late, late + 10});
  return step;
}

TEST(Slower, PutsEveryNanosecondOfTheDifferenceDownToACause) {
  const HandMade predicted = step_of(0, 40, 100, 100);
  // Peers come 15 late, the gather itself takes 45 instead of 40, forward 62 instead of 60, and the
  // host issues the optimizer 8 after forward has ended.
  const HandMade measured = step_of(15, 60, 122, 130);
  const SlowStep step = why_slower(predicted.graph, predicted.timeline, measured.timeline);
  std::map<SlowCause, std::int64_t> found;
  std::int64_t sum = 0;
  for (const SlowPart& part : step.parts) {
    found[part.cause] += part.difference().nanoseconds();
    sum += part.difference().nanoseconds();
  }
  EXPECT_EQ(found, (std::map<SlowCause, std::int64_t>{{SlowCause::kCompute, 2}, {SlowCause::kExposed, 5},
                       {SlowCause::kPeers, 15}, {SlowCause::kHost, 8}}));
  EXPECT_EQ(sum, 30);
  EXPECT_EQ(step.parts.front().cause, SlowCause::kPeers);  // what costs most comes first
  EXPECT_EQ(step.parts.front().where, "layers.0");
  const std::string text = slower_text(step, "step 3", Color::kNever);
  EXPECT_NE(text.find("waiting for peers in all_gather layers.0"), std::string::npos) << text;
  EXPECT_NE(text.find("another rank comes late"), std::string::npos);
}

TEST(Slower, SaysNothingOfEqualSteps) {
  const HandMade step = step_of(0, 40, 100, 100);
  EXPECT_TRUE(why_slower(step.graph, step.timeline, step.timeline).parts.empty());
}

}
}
