#include "sim/base/parse.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace foreshard {
namespace {

TEST(Parse, ANumberIsAllOfItsText) {
  EXPECT_EQ(parse_number<int>("-12"), -12);
  EXPECT_EQ(parse_number<double>("2.5"), 2.5);
  EXPECT_EQ(parse_number<std::uint64_t>("ff", 16), 255U);
  for (const char* none : {"", " 1", "1 ", "+1", "1x", "x", "99999999999"}) {
    EXPECT_FALSE(parse_number<int>(none)) << none;
  }
}

TEST(Parse, ALeadingNumberEndsWhereItsTextGoesOn) {
  EXPECT_EQ(leading_number<int>("16 lanes"), 16);
  EXPECT_EQ(leading_number<int>("lanes"), 0);
  EXPECT_EQ(leading_number("lanes", -1), -1);
}

TEST(Parse, AVersionHasAPointBehindItsFirstNumber) {
  EXPECT_EQ(parse_version("2.11.0+cu128"), std::pair(2, 11));
  EXPECT_EQ(parse_version("2.x"), std::pair(2, 0));
  EXPECT_FALSE(parse_version("2"));
  EXPECT_FALSE(parse_version("v2.1"));
}

TEST(Parse, PartsStandBetweenSeparators) {
  EXPECT_EQ(parts_of("a;;b;", ";"), (std::vector<std::string>{"a", "", "b"}));
  EXPECT_TRUE(parts_of("", ";").empty());
}

TEST(Parse, SqueezedNamesAreAlike) {
  EXPECT_EQ(squeezed("GPT-NeoX 20B"), "gptneox20b");
  EXPECT_TRUE(is_name_letter('Z') && is_name_letter('_') && !is_name_letter(' '));
}

}
}
