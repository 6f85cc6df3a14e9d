#include "reports/validate/history.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "reports/accuracy/accuracy.h"
#include "sim/base/error.h"
#include "tests/support/temporary_folder.h"

namespace foreshard {
namespace {

HistoryRow row_of(double predicted, double measured, const char* host = "here") {
  HistoryRow row = {.created = "2026-01-02T03:04:05Z",
      .host = host,
      .fingerprint = "0123456789abcdef",
      .plan_yaml = "model: tiny\n# it's \"quoted\"; DROP TABLE validations;\n",
      .model = "tiny",
      .runtime = "native@1",
      .ranks = 2,
      .predicted_s = predicted,
      .low_s = 0.9 * predicted,
      .high_s = 1.1 * predicted,
      .measured_s = measured,
      .exposed_communication_error = -0.01,
      .memory_error = 0.02,
      .passed = true,
      .profile = "local",
      .version = "0.1.0"};
  return row;
}

TEST(History, GivesBackWhatWasAppended) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "a" / "b" / "history.sqlite";
  EXPECT_TRUE(read_history(file).empty());
  append_history(file, row_of(1.5, 1.25));
  HistoryRow second = row_of(2, 3, "there");
  second.created = "";
  second.passed = false;
  append_history(file, second);
  const std::vector<HistoryRow> rows = read_history(file);
  ASSERT_EQ(rows.size(), 2U);
  const HistoryRow expected = row_of(1.5, 1.25);
  EXPECT_EQ(rows[0].id, 1);
  EXPECT_EQ(rows[0].created, expected.created);
  EXPECT_EQ(rows[0].host, "here");
  EXPECT_EQ(rows[0].fingerprint, expected.fingerprint);
  EXPECT_EQ(rows[0].plan_yaml, expected.plan_yaml);
  EXPECT_EQ(rows[0].model, "tiny");
  EXPECT_EQ(rows[0].runtime, "native@1");
  EXPECT_EQ(rows[0].ranks, 2);
  EXPECT_EQ(rows[0].predicted_s, 1.5);
  EXPECT_EQ(rows[0].low_s, expected.low_s);
  EXPECT_EQ(rows[0].high_s, expected.high_s);
  EXPECT_EQ(rows[0].measured_s, 1.25);
  EXPECT_EQ(rows[0].exposed_communication_error, -0.01);
  EXPECT_EQ(rows[0].memory_error, 0.02);
  EXPECT_TRUE(rows[0].passed);
  EXPECT_EQ(rows[0].profile, "local");
  EXPECT_EQ(rows[0].version, "0.1.0");
  EXPECT_EQ(rows[1].created.size(), expected.created.size());  // now
  EXPECT_FALSE(rows[1].passed);
}

TEST(History, TakesRowsOfSeveralProgramsAtOnce) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "history.sqlite";
  std::vector<std::thread> writers;
  for (int w = 0; w < 4; ++w) {
    writers.emplace_back([&] {
      for (int i = 0; i < 5; ++i) append_history(file, row_of(1, 1));
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(read_history(file).size(), 20U);
}

TEST(History, SaysWhatIsWrongWithTheFile) {
  const TemporaryFolder folder;
  const auto expect = [](auto&& call, const std::string& part) {
    try {
      call();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  const auto text = folder.path() / "text.sqlite";
  std::ofstream(text) << std::string(4096, 'x');
  expect([&] { read_history(text); }, "text.sqlite: file is not a database");
  expect([&] { append_history(text, row_of(1, 1)); }, "text.sqlite: file is not a database");
  expect([&] { append_history(text / "below" / "h.sqlite", row_of(1, 1)); }, "cannot be made");
  std::ofstream(folder.path() / "empty.sqlite") << "";
  expect([&] { read_history(folder.path() / "empty.sqlite"); }, "no such table");
}

TEST(Accuracy, SummarisesWhatIsScored) {
  // Errors +10 %, -20 %, +50 %, 0 %: sizes 0, 10, 20, 50. Within 0.9 .. 1.1 of the forecast lie the
  // measurements of the first (1 / 1.1 = 0.909) and the last.
  std::vector<HistoryRow> history = {row_of(1.1, 1), row_of(0.8, 1), row_of(1.5, 1, "there"), row_of(1, 1),
      row_of(1, 0), row_of(std::numeric_limits<double>::infinity(), 1)};
  const std::vector<AccuracyRow> rows = accuracy_rows(history);
  const Json json = accuracy_json(rows);
  const Json& summary = json["summary"];
  EXPECT_EQ(summary["rows"], 6);
  EXPECT_EQ(summary["scored"], 4);
  EXPECT_NEAR(summary["median_abs_error"].get<double>(), 0.15, 1e-12);
  EXPECT_NEAR(summary["p90_abs_error"].get<double>(), 0.2 + 0.7 * 0.3, 1e-12);
  EXPECT_NEAR(summary["bias"].get<double>(), 0.05, 1e-12);
  EXPECT_NEAR(summary["coverage"].get<double>(), 0.5, 1e-12);
  EXPECT_NEAR(summary["half_width"].get<double>(), 0.1, 1e-12);
  ASSERT_EQ(json["rows"].size(), 6U);
  EXPECT_EQ(json["rows"][4]["scored"], false);
  EXPECT_NE(json["rows"][4]["reason"], "");
  EXPECT_EQ(json["rows"][0]["quantity"], "step_time_s");
  ASSERT_EQ(json["groups"].size(), 4U);  // two hosts, one model, one profile
  EXPECT_EQ(json["groups"][1]["group"], "there");
  EXPECT_EQ(json["groups"][1]["scored"], 1);
  EXPECT_NO_THROW(to_text(json));
  const std::string text = accuracy_text(rows, "history", ShownRows::kNewest, Color::kNever);
  for (const char* part : {"median |e|", "15.0 %", "host there", "+10.0 %", "coverage"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_NE(accuracy_text({}, "history", ShownRows::kNewest, Color::kNever).find("no rows yet"), std::string::npos);
  EXPECT_EQ(accuracy_json({})["summary"]["rows"], 0);
}

}
}
