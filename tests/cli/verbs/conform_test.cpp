// foreshard conform as a user runs it: exit codes, keys, and what is said of folders that cannot be
// read. What the comparison finds is tests/reports/conform/conform_test.cpp's.
#include <gtest/gtest.h>

#include "tests/cli/program.h"

namespace foreshard {
namespace {

const std::string kRecordings = FORESHARD_SOURCE_DIR "/tests/recordings";

TEST(ConformVerb, OneConfigurationConforms) {
  const Outcome outcome = run("conform --json --only base " + kRecordings + "/fsdp2");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = json_of(outcome);
  EXPECT_EQ(json.at("schema"), "foreshard.conformance/1");
  const auto& summary = json.at("summary");
  for (const char* key : {"configurations", "schedule_identical", "bytes_identical", "memory_within_tolerance"}) {
    EXPECT_EQ(summary.at(key), 1) << key;
  }
  const auto& row = json.at("rows").at(0);
  EXPECT_EQ(row.at("id"), "base");
  EXPECT_EQ(row.at("schedule_identical"), true);
  EXPECT_TRUE(row.at("first_difference").is_null()) << row.at("first_difference");
  EXPECT_EQ(row.at("peak_measured_bytes"), row.at("peak_predicted_bytes"));
}

// A copy of a recording in which one row is another.
TEST(ConformVerb, ADifferenceIsExitCode5) {
  ASSERT_EQ(
      shell("cp -r " + kRecordings + "/fsdp2 copy && sed -i '/^base,2,9,/s/all_gather/broadcast/' copy/events.csv")
          .exit_code,
      0);
  const Outcome outcome = run("conform --only base copy");
  EXPECT_EQ(outcome.exit_code, 5) << outcome.err;
  expect_says(outcome.out, "copy/events.csv, base, step 2, seq 9");
  expect_says(outcome.out, "broadcast");
  const Outcome quiet = run("conform --verbose 0 --only base copy");
  EXPECT_EQ(quiet.out.find("broadcast"), std::string::npos);
  expect_says(quiet.out, "1 more differs");
  const auto json = json_of(run("conform --json --only base copy"));
  EXPECT_EQ(json.at("rows").at(0).at("schedule_identical"), false);
  EXPECT_EQ(json.at("summary").at("schedule_identical"), 0);
  EXPECT_EQ(json.at("summary").at("configurations"), 1);
}

TEST(ConformVerb, WhatIsNoRecordingIsExitCode3) {
  Outcome outcome = run("conform nowhere");
  EXPECT_EQ(outcome.exit_code, 3);
  expect_says(outcome.err, "nowhere: no such folder");
  ASSERT_EQ(shell("mkdir -p empty bad && printf 'id\\nx\\n\"' > bad/index.csv").exit_code, 0);
  outcome = run("conform empty");
  EXPECT_EQ(outcome.exit_code, 3);
  expect_says(outcome.err, "holds no recording");
  outcome = run("conform bad");
  EXPECT_EQ(outcome.exit_code, 3);
  expect_says(outcome.err, "bad/index.csv:3:1: a quoted cell does not end");
  expect_no_crash(outcome);
}

TEST(ConformVerb, Usage) {
  EXPECT_EQ(run("conform").exit_code, 2);
  const Outcome outcome = run("conform --only bse " + kRecordings + "/fsdp2");
  EXPECT_EQ(outcome.exit_code, 2);
  expect_says(outcome.err, "did you mean base?");
}

// What cannot be forecast counts as different; what the library refused does not count.
TEST(ConformVerb, ListsWhatCannotBeCompared) {
  ASSERT_EQ(shell("mkdir r && printf 'id,frozen\\nx,last_half\\n' > r/index.csv && cat " + kRecordings +
                  "/fsdp2/events.csv | sed -n '1p; s/^base,2,1,/x,2,1,/p' > r/events.csv && "
                  "printf 'config,reason\\ny,no such knob\\n' > r/skipped.csv")
                .exit_code,
      0);
  const Outcome outcome = run("conform r");
  EXPECT_EQ(outcome.exit_code, 5);
  expect_says(outcome.out, "no plan expresses frozen = 'last_half'");
  expect_says(outcome.out, "r: no such knob: y");
  const auto json = json_of(run("conform --json r"));
  EXPECT_EQ(json.at("summary").at("configurations"), 1);
  EXPECT_EQ(json.at("rows").at(1).at("reason"), "no such knob");
  EXPECT_EQ(run("conform --only y r").exit_code, 0);
}

}
}
