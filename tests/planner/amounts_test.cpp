// Amounts as they are typed, and what is said to those that are none.
#include "planner/amounts.h"

#include <gtest/gtest.h>

#include "sim/base/error.h"

namespace foreshard {
namespace {

std::string refusal(auto read) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kUsage);
    return error.what();
  }
  return "no error";
}

TEST(Amounts, TimesHaveUnitsAndDeadlinesAreDays) {
  constexpr double kDay = 86400;
  EXPECT_EQ(parse_days("--deadline", "30"), 30 * kDay);
  EXPECT_EQ(parse_days("--deadline", "2.5"), 2.5 * kDay);
  EXPECT_EQ(parse_days("--deadline", "4w"), 28 * kDay);
  EXPECT_EQ(parse_days("--deadline", "12h"), kDay / 2);
  EXPECT_EQ(parse_days("--deadline", "60 days"), 60 * kDay);
  EXPECT_EQ(parse_days("--deadline", "2months"), 365.25 / 6 * kDay);
  EXPECT_EQ(parse_duration("--restart", "10min", "10min"), 600);
  EXPECT_EQ(refusal([] { parse_duration("--restart", "10", "10min"); }),
      "--restart: '10' has no unit; expected s, min, h, d or w, such as 10min");
  EXPECT_EQ(refusal([] { parse_days("--deadline", "1T"); }),
      "--deadline: '1T' is no time; expected a number with s, min, h, d or w, such as 30d");
  for (const char* text : {"0", "-3", "-3d", "", "d", "30 days ago", "nan", "inf", "1e400d"}) {
    EXPECT_NE(refusal([&] { parse_days("--deadline", text); }).find("such as 30d"), std::string::npos) << text;
  }
}

TEST(Amounts, CountsHaveSuffixes) {
  EXPECT_EQ(parse_amount("--tokens", "8k", "1T"), 8e3);
  EXPECT_EQ(parse_amount("--tokens", "4M", "1T"), 4e6);
  EXPECT_EQ(parse_amount("--tokens", "1e12", "1T"), 1e12);
  EXPECT_EQ(parse_amount("--tokens", "2 trillion", "1T"), 2e12);
  EXPECT_EQ(parse_amount("--budget", "$1,500,000", "2M"), 1.5e6);
  EXPECT_EQ(parse_amount("--budget", "500k USD", "2M"), 5e5);
  EXPECT_NE(refusal([] { parse_amount("--budget", "1,5M", "2M"); }).find("such as 2M"), std::string::npos);
  EXPECT_EQ(refusal([] { parse_amount("--tokens", "30d", "1T"); }),
      "--tokens: '30d' is no amount above zero; expected a number, perhaps with k, M, B or T, such as 1T");
}

TEST(Amounts, SequencesAreNamedInPowersOfTwo) {
  EXPECT_EQ(sequence_length("8k"), "8192");
  EXPECT_EQ(sequence_length("128K"), "131072");
  EXPECT_EQ(sequence_length("1M"), "1048576");
  for (const char* text : {"8192", "k", "", "8kk", "-8k", "8.5k", "8m", "99999999999k"}) {
    EXPECT_EQ(sequence_length(text), text);
  }
}

}
}
