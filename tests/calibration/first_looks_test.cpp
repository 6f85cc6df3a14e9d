// What first looks say of codes that nobody has read.
#include "calibration/first_looks.h"

#include <gtest/gtest.h>

#include <set>

#include "calibration/training_evidence.h"

namespace foreshard {
namespace {

TEST(FirstLooks, EverySetHasAFitWithoutIt) {
  const FirstLooks& looks = first_looks();
  ASSERT_EQ(looks.sets.size(), 21U);  // the table with axes is of two sources
  for (const auto* fits : {&looks.time, &looks.memory}) {
    std::set<std::string> without;
    for (const FirstLookFit& fit : *fits) without.insert(fit.without);
    EXPECT_TRUE(without.contains(""));
    for (const FirstLookSet& set : looks.sets) EXPECT_TRUE(without.contains(set.name)) << set.name;
  }
}

// A row of a set is judged by the others alone.
TEST(FirstLooks, AFamilyHasNoSayInItsOwnInterval) {
  FirstLooks looks = {.sets = {{"one", {"AA"}}, {"two", {"BB"}}}};
  const std::vector<FirstLookFit> fits = {
      {"", -3, 0, {}, {}}, {"one", -2, 0, {}, {{"hopper", 0.1}}}, {"two", -1, 0, {}, {{"hopper", 0.2}}}};
  const double all = code_reach(looks, fits, {}, "CC").up;
  EXPECT_GT(code_reach(looks, fits, {}, "AA").up, all);
  EXPECT_GT(code_reach(looks, fits, {}, "BB").up, code_reach(looks, fits, {}, "AA").up);
  EXPECT_EQ(code_shift(looks, fits, {{"hopper", 1}}, "AA"), 0.1);
  EXPECT_EQ(code_shift(looks, fits, {{"hopper", 1}}, "BB"), 0.2);
  EXPECT_EQ(code_shift(looks, fits, {{"hopper", 1}}, "CC"), 0);
  EXPECT_EQ(code_shift(looks, fits, {{"fp8", 1}}, "AA"), 0);
}

// Described in part or compiled on Hopper: codes at first sight are slower than they are described,
// and hold more where nobody wrote their modules down.
TEST(FirstLooks, ShiftsAreUpwardsInEveryFit) {
  const FirstLooks& looks = first_looks();
  for (const FirstLookFit& fit : looks.time) {
    const std::vector<FirstLookFit> only = {{"", fit.base, fit.skew, {}, fit.shifts}};
    EXPECT_GT(code_shift(looks, only, {{"rests_on_readings", 1}}, ""), 0) << fit.without;
    EXPECT_GT(code_shift(looks, only, {{"hopper_compiled", 1}}, ""), 0) << fit.without;
    EXPECT_EQ(code_shift(looks, only, {}, ""), 0) << fit.without;
  }
  for (const FirstLookFit& fit : looks.memory) {
    const std::vector<FirstLookFit> only = {{"", fit.base, fit.skew, {}, fit.shifts}};
    EXPECT_GT(code_shift(looks, only, {{"no_preset", 1}}, ""), 0.05) << fit.without;
    EXPECT_EQ(code_shift(looks, only, {{"stack hf_trainer", 1}}, ""), 0) << fit.without;
  }
}

TEST(FirstLooks, WhatIsDescribedLessIsWider) {
  const FirstLooks& looks = first_looks();
  const LogReach described = code_reach(looks, looks.time, {}, "");
  for (const char* fact : {"rests_on_readings", "below_half_peak", "zero3", "before_torch_2"}) {
    EXPECT_GT(code_reach(looks, looks.time, {{fact, 1}}, "").up, described.up) << fact;
  }
  EXPECT_GT(described.up, described.down);  // rarely faster than its description
  EXPECT_GT(described.down, 0);
  const LogReach memory = code_reach(looks, looks.memory, {}, "");
  EXPECT_GT(code_reach(looks, looks.memory, {{"rests_on_readings", 1}}, "").up, memory.up);
}

TEST(FirstLooks, CardsOfAKnownChipHaveItsSteps) {
  for (const char* card : {"a100-80gb", "a800", "h100-pcie", "h800", "h200", "gh200-144gb"}) {
    EXPECT_TRUE(has_steps(card)) << card;
  }
  for (const char* card : {"h20", "b200", "l40s", "a40"}) EXPECT_FALSE(has_steps(card)) << card;
}

}
}
