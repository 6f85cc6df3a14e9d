#include "sim/spec/checks/condition.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/sim/spec/plan_fixtures.h"

namespace foreshard {
namespace {

bool holds(std::string_view text, const std::string& yaml, const SmallModel& model = {}) {
  return Condition(text).holds(document_of(yaml), small_model(model));
}

TEST(Condition, ComparesKeysWithWordsNumbersAndKeys) {
  const std::string plan = "attention: fa2\nprefetch: {backward: 2}\ndtype: {param: bf16}";
  EXPECT_TRUE(holds("attention = fa1|fa2", plan));
  EXPECT_FALSE(holds("attention != fa1|fa2", plan));
  EXPECT_FALSE(holds("attention = fa1|fa3", plan));
  EXPECT_TRUE(holds("attention != fa1|fa3", plan));
  EXPECT_TRUE(holds("prefetch.backward > 1, prefetch.backward < 3", plan));
  EXPECT_FALSE(holds("prefetch.backward > 1, prefetch.backward < 2", plan));
  EXPECT_TRUE(holds("dtype.param != dtype.master", plan));  // bf16 and fp32
  EXPECT_FALSE(holds("prefetch.forward > 0", plan));        // implicit is no number
  EXPECT_TRUE(Condition().holds(Plan()));
}

TEST(Condition, KnowsFactsOfTheJob) {
  EXPECT_TRUE(holds("model.tied = true", "{}", {.is_tied = true}));
  EXPECT_FALSE(holds("model.tied = true", "{}"));
  EXPECT_TRUE(holds("model.experts = false, model.unused = false, model.words = true", "{}"));
  EXPECT_TRUE(holds("root_unit = true", "units: {embedding: root}"));
  EXPECT_FALSE(holds("root_unit = true", "units: {head: with_norm}"));
  EXPECT_TRUE(holds("ends_written = true", "units: {head: with_norm}"));
  EXPECT_FALSE(holds("ends_written = true", "units: {blocks: root}"));
  EXPECT_TRUE(holds("trainer.minor < 14", "trainer: accelerate@1.13.2"));
  EXPECT_TRUE(holds("trainer.minor > 13", "trainer: accelerate"));
  EXPECT_TRUE(holds("runtime.kind = fsdp1|ddp", "runtime: ddp"));
}

TEST(Condition, RefusesWhatNothingIsCalled) {
  EXPECT_THROW(Condition("units.hed = own"), Error);
  EXPECT_THROW(Condition("model.tied = true").holds(Plan()), Error);
}

}
}
