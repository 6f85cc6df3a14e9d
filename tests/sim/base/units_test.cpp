#include "sim/base/units.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

namespace foreshard {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

static_assert(Time{} == Time::ns(0));
static_assert((Time::ns(3) + Time::ns(4) - Time::ns(2)) * 5 == 5 * Time::ns(5));
static_assert(Time::ns(3) < Time::ns(4));
static_assert(Bytes(10) / 3 == Bytes(3) && Bytes(2) * 8 == Bytes(16));
static_assert(Flops(2) * 0.5 + Flops(3) == Flops(4));

TEST(Units, TimeRoundsToTheNearestNanosecondHalvesAwayFromZero) {
  EXPECT_EQ(Time::seconds(1.5e-9), Time::ns(2));
  EXPECT_EQ(Time::seconds(-1.5e-9), Time::ns(-2));
  EXPECT_EQ(Time::seconds(1.4e-9), Time::ns(1));
  EXPECT_EQ(Time::seconds(0.0849), Time::ns(84'900'000));
  EXPECT_EQ(Time::seconds(1.0).nanoseconds(), 1'000'000'000);
  EXPECT_DOUBLE_EQ(Time::ns(250'000'000).seconds(), 0.25);
}

TEST(Units, TimeRefusesWhatDoesNotFitNanoseconds) {
  for (const double value : {1e10, -1e10, HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    try {
      Time::seconds(value);
      ADD_FAILURE() << value;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
      EXPECT_NE(std::string(error.what()).find("overflows 64-bit"), std::string::npos);
    }
  }
}

TEST(Units, SumsInPlaceEqualSums) {
  Time time = Time::ns(5);
  time += Time::ns(7);
  time -= Time::ns(2);
  EXPECT_EQ(time, Time::ns(10));
  Bytes bytes(5);
  bytes += Bytes(7);
  bytes -= Bytes(2);
  EXPECT_EQ(bytes.count(), 10);
  Flops flops(5);
  flops += Flops(7);
  EXPECT_EQ(flops.count(), 12);
}

TEST(Units, CheckedArithmeticThrowsInsteadOfOverflowing) {
  EXPECT_EQ(checked_add(kMax - 1, 1), kMax);
  EXPECT_EQ(checked_multiply(kMin, 1), kMin);
  EXPECT_EQ(checked_multiply(3'000'000'000, 3), 9'000'000'000);
  EXPECT_THROW(checked_add(kMax, 1), Error);
  EXPECT_THROW(checked_add(kMin, -1), Error);
  EXPECT_THROW(checked_multiply(kMin, -1), Error);
  try {
    checked_multiply(kMax, 2);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
    EXPECT_STREQ(error.what(), "the product 9223372036854775807 x 2 overflows 64-bit integers");
  }
}

}
}
