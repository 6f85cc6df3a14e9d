// Rules of pipelines against tables of torch.distributed.pipelining 2.11: 31 of its schedules (four
// of each class, and orders loaded from files) and what it refuses (tests/recordings/README.md).
#include "interop/recordings/pipeline_tables.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "interop/csv_file.h"
#include "sim/graph/pipeline/pipeline.h"

namespace foreshard {
namespace {

const std::filesystem::path kTables = FORESHARD_SOURCE_DIR "/tests/recordings/pipelines";

TEST(PipelineTables, HostsDoWhatTheLibrarysDid) {
  const ConformanceFolder folder = conform_pipeline_tables(kTables, {});
  std::size_t compared = 0;
  for (const Conformance& row : folder.rows) {
    if (row.state == Conformance::State::kNotRecorded) continue;
    ++compared;
    EXPECT_TRUE(row.identical()) << row.id << " " << row.reason;
    EXPECT_GT(row.rows, 0);
  }
  EXPECT_EQ(compared, 31U);
}

TEST(PipelineTables, WhatTheLibraryRefusesIsRefused) {
  const CsvFile refused = read_csv_file(csv_path(kTables, "refused"));
  ASSERT_GT(refused.rows(), 3U);
  for (std::size_t row = 0; row < refused.rows(); ++row) {
    const auto number = [&](const char* column) {
      return static_cast<int>(refused.integer(row, refused.at(column)));
    };
    const auto schedule = pipeline_schedule_of(refused.text(row, refused.at("schedule")));
    ASSERT_TRUE(schedule);
    EXPECT_THROW(pipeline_orders(
                     {*schedule, number("pp"), number("microbatches"), number("stages_per_rank")}),
                 Error)
        << refused.text(row, refused.at("id"));
  }
}

TEST(PipelineTables, OneWordThatDiffersIsFound) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "pipeline_words";
  std::filesystem::remove_all(folder);
  std::filesystem::copy(kTables, folder);
  std::stringstream text;
  text << std::ifstream(folder / "actions.csv").rdbuf();
  std::string changed = text.str();
  const std::string word = "1F1B-p2-m2-v1,host,1,\"[0:r1F0<0]";
  const std::size_t place = changed.find(word);
  ASSERT_NE(place, std::string::npos);
  changed.replace(place + word.size() - 2, 1, "1");
  std::ofstream(folder / "actions.csv") << changed;
  const ConformanceFolder found = conform_pipeline_tables(folder, {"1F1B-p2-m2-v1"});
  ASSERT_EQ(found.rows.size(), 1U);
  EXPECT_FALSE(found.rows[0].schedule_identical);
  ASSERT_EQ(found.rows[0].differences.size(), 1U);
  EXPECT_NE(found.rows[0].differences[0].text.find("rank 1"), std::string::npos);
}

}  // namespace
}  // namespace foreshard
