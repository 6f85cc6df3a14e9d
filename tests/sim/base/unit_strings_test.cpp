#include "sim/base/unit_strings.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <string>

namespace foreshard::unit_strings_test {
namespace {

// The reason with which `parse` refuses `text`, "" if it does not.
std::string refusal(auto parse, std::string_view text) {
  try {
    parse(text);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(UnitStrings, TellsDecimalFromBinaryBytes) {
  EXPECT_EQ(parse_bytes("80GiB"), Bytes(80LL << 30));
  EXPECT_EQ(parse_bytes("80GB"), Bytes(80'000'000'000));
  EXPECT_EQ(parse_bytes("1.5 KiB"), Bytes(1536));
  EXPECT_EQ(parse_bytes("1e3B"), Bytes(1000));
  EXPECT_EQ(parse_bytes("0B"), Bytes(0));
  EXPECT_EQ(parse_bytes("9223372036854775807B"), Bytes(std::numeric_limits<std::int64_t>::max()));
}

TEST(UnitStrings, TellsBitsFromBytesInBandwidths) {
  EXPECT_DOUBLE_EQ(parse_bandwidth("400Gbit/s").value(), 50e9);
  EXPECT_DOUBLE_EQ(parse_bandwidth("400Gb/s").value(), 50e9);
  EXPECT_DOUBLE_EQ(parse_bandwidth("400GB/s").value(), 400e9);
  EXPECT_DOUBLE_EQ(parse_bandwidth("3.35TB/s").value(), 3.35e12);
  EXPECT_DOUBLE_EQ(parse_bandwidth("900GiB/s").value(), 900 * 1073741824.0);
}

TEST(UnitStrings, ReadsFlopRatesAndTimes) {
  EXPECT_DOUBLE_EQ(parse_flop_rate("989TFLOP/s").value(), 989e12);
  EXPECT_DOUBLE_EQ(parse_flop_rate("2.25 PFLOP/s").value(), 2.25e15);
  EXPECT_EQ(parse_time("500ns"), Time::ns(500));
  EXPECT_EQ(parse_time("12us"), Time::ns(12'000));
  EXPECT_EQ(parse_time("3.5ms"), Time::ns(3'500'000));
  EXPECT_EQ(parse_time("2s"), Time::ns(2'000'000'000));
  EXPECT_EQ(parse_time("10min"), Time::ns(600'000'000'000));
  EXPECT_EQ(parse_time("4h"), Time::ns(14'400'000'000'000));
  EXPECT_EQ(parse_time("30d"), Time::ns(2'592'000'000'000'000));
}

TEST(UnitStrings, RejectsABareNumberWhereAUnitIsDue) {
  EXPECT_EQ(refusal(parse_bytes, "80"), "'80' needs a unit, for example 80GiB");
  EXPECT_EQ(refusal(parse_time, "12"), "'12' needs a unit, for example 12us");
  EXPECT_NE(refusal(parse_bandwidth, "400"), "");
  EXPECT_NE(refusal(parse_flop_rate, "989e12"), "");
}

TEST(UnitStrings, NamesTheRightUnitForTheUsualWrongOnes) {
  const auto expect_hint = [](const std::string& reason, const std::string& hint) {
    EXPECT_NE(reason.find("did you mean " + hint), std::string::npos) << reason;
  };
  expect_hint(refusal(parse_bytes, "80G"), "GB or GiB");
  expect_hint(refusal(parse_bytes, "80Gi"), "GiB");
  expect_hint(refusal(parse_bytes, "80Gb"), "GB; b is bit");
  expect_hint(refusal(parse_bytes, "80gib"), "GiB");
  expect_hint(refusal(parse_bytes, "64KB"), "kB (1000) or KiB (1024)");
  expect_hint(refusal(parse_bandwidth, "900GB"), "GB/s");
  expect_hint(refusal(parse_bandwidth, "400Gbps"), "Gbit/s");
  expect_hint(refusal(parse_flop_rate, "989TFLOPS"), "TFLOP/s");
  expect_hint(refusal(parse_flop_rate, "989TFLOP"), "TFLOP/s");
  expect_hint(refusal(parse_time, "5m"), "min or ms");
  expect_hint(refusal(parse_time, "5\xC2\xB5s"), "us");
}

TEST(UnitStrings, RejectsUnitsOfAnotherDimension) {
  EXPECT_NE(refusal(parse_bytes, "80GB/s"), "");
  EXPECT_NE(refusal(parse_bytes, "80ms"), "");
  EXPECT_NE(refusal(parse_time, "80GiB"), "");
}

TEST(UnitStrings, RejectsNegativeNonFiniteAndOverflowingNumbers) {
  EXPECT_NE(refusal(parse_bytes, "-1GiB").find("must not be negative"), std::string::npos);
  EXPECT_NE(refusal(parse_bytes, "nanGiB"), "");
  EXPECT_NE(refusal(parse_bytes, "infGiB"), "");
  EXPECT_NE(refusal(parse_bytes, "9223372036854775808B").find("overflows"), std::string::npos);
  EXPECT_NE(refusal(parse_bytes, "8192PiB").find("overflows"), std::string::npos);
  EXPECT_NE(refusal(parse_bytes, "1e300GiB").find("overflows"), std::string::npos);
  EXPECT_NE(refusal(parse_bytes, "1e999GiB").find("out of range"), std::string::npos);
  EXPECT_NE(refusal(parse_bandwidth, "1e308GB/s").find("out of range"), std::string::npos);
  EXPECT_NE(refusal(parse_time, "200000d").find("overflows"), std::string::npos);
  EXPECT_NE(refusal(parse_time, "0.1ns").find("less than one ns"), std::string::npos);
}

TEST(UnitStrings, RejectsWhatIsNotANumberWithAUnit) {
  for (const char* text :
      {"", " ", "GiB", "+8GiB", "0x10B", "8  GiB", "8GiB ", "8,5GiB", ".5GiB", "8 GiB GiB", "--1B", "8\nGiB"}) {
    EXPECT_NE(refusal(parse_bytes, text), "") << text;
  }
}

TEST(UnitStrings, PrintsThreeSignificantDigits) {
  EXPECT_EQ(format_bytes(Bytes(0)), "0 B");
  EXPECT_EQ(format_bytes(Bytes(512)), "512 B");
  EXPECT_EQ(format_bytes(Bytes(2'340'000'000)), "2.18 GiB");
  EXPECT_EQ(format_bytes(Bytes((1LL << 30) - 1)), "1.00 GiB");
  EXPECT_EQ(format_bytes(Bytes(-(1LL << 30))), "-1.00 GiB");
  EXPECT_EQ(format_time(Time::ns(84'900'000)), "84.9 ms");
  EXPECT_EQ(format_time(Time::ns(999'999'999)), "1.00 s");
  EXPECT_EQ(format_time(Time::ns(850)), "850 ns");
  EXPECT_EQ(format_time(Time::seconds(90)), "90.0 s");
  EXPECT_EQ(format_time(Time::seconds(600)), "10.0 min");
  EXPECT_EQ(format_time(Time::seconds(86400.0 * 30)), "30.0 d");
  EXPECT_EQ(format_bandwidth(BytesPerSecond(450e9)), "450 GB/s");
  EXPECT_EQ(format_flop_rate(FlopsPerSecond(989e12)), "989 TFLOP/s");
}

TEST(UnitStrings, PrintsCountsInGroupsOfThree) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(-1000), "-1,000");
  EXPECT_EQ(format_count(8'030'261'248), "8,030,261,248");
  EXPECT_EQ(format_count(std::numeric_limits<std::int64_t>::min()), "-9,223,372,036,854,775,808");
}

}
}
