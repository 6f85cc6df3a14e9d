// Known defects of versions are told to whose plan meets them, and to nobody else.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "sim/base/lookup.h"
#include "sim/spec/checks/plan_check.h"
#include "sim/spec/fsdp2_version.h"
#include "tests/sim/spec/plan_fixtures.h"

namespace foreshard {
namespace {

// The minor versions of PyTorch 2 whose warnings say `words`.
std::vector<std::int64_t> versions_that_say(const char* words, const std::function<void(Plan&)>& change) {
  std::vector<std::int64_t> minors;
  for (std::int64_t minor = kOldestFsdp2; minor <= kNewestFsdp2; ++minor) {
    Plan plan;
    plan.runtime.version = "2." + std::to_string(minor);
    plan.batch.sequence = 4096;
    plan.mesh = {32, 2};
    change(plan);
    const std::vector<std::string> texts = warnings(plan, small_model(), cluster_of_gpus(64));
    if (std::ranges::any_of(texts, [&](const std::string& text) { return contains(text, words); })) {
      minors.push_back(minor);
    }
  }
  return minors;
}

using Minors = std::vector<std::int64_t>;
Minors from_to(std::int64_t first, std::int64_t last) {
  Minors minors;
  for (; first <= last; ++first) minors.push_back(first);
  return minors;
}
void nothing(Plan&) {}
void evaluates(Plan& p) { p.evaluation.in_step = true; }
void freezes(Plan& p) { p.frozen.blocks.ranges = {{0, 15, true}}; }

TEST(PlanWarnings, TellOfLabelsThatTheLossDoesNotRead) {
  const char* const words = "batch.labelled has no effect";
  const auto counts = [](Plan& p) {
    p.batch.labelled = 100;
    p.loss.kind = Loss::Kind::kSmoothed;
  };
  EXPECT_EQ(versions_that_say(words, counts), from_to(kOldestFsdp2, kNewestFsdp2));
  for (const auto loss : {Loss::Kind::kTiledLinear, Loss::Kind::kEager}) {
    EXPECT_EQ(versions_that_say(words,
                  [&](Plan& p) {
                    counts(p);
                    p.loss.kind = loss;
                  }),
        Minors{});
  }
  EXPECT_EQ(versions_that_say(words, nothing), Minors{});
}

TEST(PlanWarnings, TellOfGathersThatServeTheNextStep) {
  const char* const stale = "weights from before the optimizer step";
  EXPECT_EQ(versions_that_say(stale, evaluates), from_to(4, 5));
  EXPECT_EQ(versions_that_say(stale,
                [](Plan& p) {
                  p.batch.accumulation = 2;
                  p.accumulation_details.is_last_backward = When::kLast;
                }),
      from_to(4, 5));
  EXPECT_EQ(versions_that_say(stale,
                [](Plan& p) {
                  p.accumulation_details.is_last_backward = When::kLast;  // the only one is the last
                }),
      Minors{});
  EXPECT_EQ(versions_that_say(stale, nothing), Minors{});
  EXPECT_EQ(versions_that_say("of a frozen unit", freezes), from_to(4, 5));
  EXPECT_EQ(versions_that_say("that nobody uses", evaluates), from_to(6, 15));
}

TEST(PlanWarnings, TellOfMemoryThatIsKept) {
  EXPECT_EQ(versions_that_say("second reduce-scatter input", nothing), Minors{12});
  const char* const held = "all-reduce input until the end of backward";
  const auto narrow = [](Plan& p) { p.reduce_dtype = DType::kBf16; };
  EXPECT_EQ(versions_that_say(held, narrow), from_to(6, 15));
  EXPECT_EQ(versions_that_say(held, nothing), Minors{});
  EXPECT_EQ(versions_that_say(held,
                [&](Plan& p) {
                  narrow(p);
                  p.mesh = {64, 1};
                }),
      Minors{});
}

TEST(PlanWarnings, TellOfAllReducesPerMicroBatch) {
  const char* const words = "4 micro-batches is all-reduced over the 2 replicas";
  const auto four = [](Plan& p) { p.batch.accumulation = 4; };
  EXPECT_EQ(versions_that_say(words, four), from_to(4, 15));
  EXPECT_EQ(versions_that_say(words,
                [&](Plan& p) {
                  four(p);
                  p.accumulation_details.all_reduce = When::kLast;
                }),
      Minors{});
  EXPECT_EQ(versions_that_say(words,
                [&](Plan& p) {
                  four(p);
                  p.accumulation = AccumulationMode::kKeepUnsharded;
                }),
      Minors{});
}

TEST(PlanWarnings, TellOfExpertsThatAreNotThere) {
  EXPECT_EQ(
      versions_that_say("units.experts own has no effect", [](Plan& p) { p.units.experts = UnitPlacement::kOwn; }),
      from_to(4, 15));
}

}
}
