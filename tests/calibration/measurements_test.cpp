// The reader of raw measurements: what it takes, and what it says to everything else.
#include "calibration/measurements.h"

#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "tests/calibration/synthetic.h"

namespace foreshard {
namespace {

constexpr const char* kSeconds = R"("seconds": {"median": 0.01, "low": 0.009, "high": 0.011})";

void expect_refused(const std::string& row, const std::string& says) {
  try {
    parse_measurements(SyntheticRaw().row(row).text(), "raw.json");
    ADD_FAILURE() << "taken: " << row;
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
    EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    EXPECT_EQ(error.location().file, "raw.json");
    EXPECT_GT(error.location().line, 1) << error.what();
  }
}

TEST(Measurements, AreReadRowByRow) {
  const Measurements m = parse_measurements(SyntheticRaw().text(), "raw.json");
  EXPECT_EQ(m.created, "2026-01-31T12:00:00Z");
  EXPECT_EQ(m.host.cores, 2);
  EXPECT_EQ(m.host.memory, Bytes(std::int64_t{8} << 30));
  // 3 tokens x 2 widths x 2 inner widths x 3 products, for 1 and for 2 ranks.
  ASSERT_EQ(m.gemm.size(), 72U);
  EXPECT_EQ(m.gemm.front().point.m, 128);
  EXPECT_EQ(m.gemm.front().point.pass, Pass::kForward);
  EXPECT_TRUE(m.gemm.front().point.fp32);
  EXPECT_DOUBLE_EQ(m.gemm.front().point.seconds, SyntheticRaw::gemm(128, 256, 256, 1));
  EXPECT_EQ(m.attention.size(), 12U);
  EXPECT_EQ(m.functions.size(), 40U);
  EXPECT_EQ(m.collectives.size(), 12U);
  EXPECT_EQ(m.host_work.size(), 6U);
  EXPECT_EQ(m.contention.size(), 1U);
  EXPECT_EQ(m.memory_outside.size(), 2U);
}

TEST(Measurements, WrongRowsAreNamedWithTheirPlace) {
  const std::string seconds = kSeconds;
  const std::string gemm = R"({"kind": "gemm", "ranks": 1, "pass": "forward", "dtype": "fp32", )";
  expect_refused(gemm + R"("m": 0, "n": 1, "k": 1, )" + seconds + "}", ".m:");
  expect_refused(gemm + R"("m": 1, "n": 1, )" + seconds + "}", "k");
  expect_refused(gemm + R"("m": 1, "n": 1, "k": 1, "x": 2, )" + seconds + "}", "x");
  expect_refused(gemm + R"("m": 2000000, "n": 1, "k": 1, )" + seconds + "}", ".m:");
  expect_refused(R"({"kind": "gem", "ranks": 1})", "did you mean gemm");
  expect_refused(R"({"kind": "gemm", "ranks": 0})", "ranks");
  expect_refused(R"({"kind": "memory", "ranks": 1, "function": "copi", "pass": "forward",
      "dtype": "fp32", "bytes": 1, )" +
                     seconds + "}",
      "did you mean copy");
  expect_refused(R"({"kind": "memory", "ranks": 1, "function": "attention", "pass": "forward",
      "dtype": "fp32", "bytes": 1, )" +
                     seconds + "}",
      "is not memory-bound");
  // A group of more ranks than ran.
  expect_refused(R"({"kind": "collective", "ranks": 2, "operation": "all_gather",
      "order": "library", "group": 4, "bytes": 1, )" +
                     seconds + "}",
      "group");
  expect_refused(R"({"kind": "host", "ranks": 1, "what": "row",
      "seconds": {"median": 2, "low": 1, "high": 3}})",
      "seconds.median");
  expect_refused(R"({"kind": "host", "ranks": 1, "what": "row",
      "seconds": {"median": 0.1, "low": 0.2, "high": 0.3}})",
      "not in order");
  expect_refused(R"({"kind": "contention", "ranks": 2, "compute_alone_s": 0,
      "compute_beside_s": 1, "collective_alone_s": 1, "collective_beside_s": 1})",
      "compute_alone_s");
}

TEST(Measurements, WrongDocumentsAreRefused) {
  const auto refused = [](const std::string& text, const char* says) {
    try {
      parse_measurements(text, "raw.json");
      ADD_FAILURE() << "taken: " << text;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  };
  refused("", "raw.json");
  refused("[]", "raw.json");
  refused(R"({"schema": "foreshard.profile/1"})", "schema");
  refused(SyntheticRaw().created("yesterday").text(), "is no time");
}

TEST(Measurements, OfOneMachineAreJoined) {
  const Measurements a = parse_measurements(SyntheticRaw().text(), "a.json");
  const Measurements b = parse_measurements(SyntheticRaw().created("2026-02-01T00:00:00Z").text(), "b.json");
  const Measurements both = joined({a, b});
  EXPECT_EQ(both.gemm.size(), 144U);
  EXPECT_EQ(both.created, "2026-02-01T00:00:00Z");
  const Measurements other = parse_measurements(SyntheticRaw().cpu("Another").text(), "c.json");
  try {
    joined({a, other});
    ADD_FAILURE() << "joined";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
    for (const char* part : {"a.json", "c.json", "Another"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

}
}
