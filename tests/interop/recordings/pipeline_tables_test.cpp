// Rules of pipelines against tables of torch.distributed.pipelining 2.11: 31 of its schedules (four
// of each class, and orders loaded from files) and what it refuses (tests/recordings/README.md).
#include "interop/recordings/pipeline_tables.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "calibration/csv_file.h"
#include "sim/graph/pipeline/pipeline.h"
#include "tests/support/temporary_folder.h"

namespace foreshard {
namespace {

const std::filesystem::path kTables = FORESHARD_SOURCE_DIR "/tests/recordings/pipelines";

// The row `id` of the tables with one text of a file replaced.
ConformanceFolder conform_changed(
    const std::string& id, const char* file, const std::string& from, const std::string& to) {
  const TemporaryFolder folder;
  std::filesystem::copy(kTables, folder.path());
  std::stringstream text;
  text << std::ifstream(folder / file).rdbuf();
  std::string changed = text.str();
  const std::size_t place = changed.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  if (place != std::string::npos) changed.replace(place, from.size(), to);
  folder.write(file, changed);
  return conform_pipeline_tables(folder.path(), {id});
}

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
    const auto number = [&](const char* column) { return static_cast<int>(refused.integer(row, refused.at(column))); };
    const auto schedule = pipeline_schedule_of(refused.text(row, refused.at("schedule")));
    ASSERT_TRUE(schedule);
    EXPECT_THROW(pipeline_orders({*schedule, number("pp"), number("microbatches"), number("stages_per_rank")}), Error)
        << refused.text(row, refused.at("id"));
  }
}

TEST(PipelineTables, OneWordThatDiffersIsFound) {
  const std::string id = "1F1B-p2-m2-v1";
  const ConformanceFolder found =
      conform_changed(id, "actions.csv", id + ",host,1,\"[0:r1F0<0]", id + ",host,1,\"[0:r1F0<1]");
  ASSERT_EQ(found.rows.size(), 1U);
  EXPECT_FALSE(found.rows[0].schedule_identical);
  ASSERT_EQ(found.rows[0].differences.size(), 1U);
  EXPECT_NE(found.rows[0].differences[0].text.find("rank 1"), std::string::npos);
}

TEST(PipelineTables, StagesThatAreNotThereAreRefused) {
  const std::string id = "custom01-p2-m2-v1loop";
  EXPECT_THROW(conform_changed(id, "schedules.csv", "csv compute_only,0 1\n", "csv,0 7\n"), ConfigError);
  const ConformanceFolder found = conform_changed(id, "actions.csv", id + ",compute,0,0F0", id + ",compute,0,9F0");
  ASSERT_EQ(found.rows.size(), 1U);
  EXPECT_EQ(found.rows[0].state, Conformance::State::kNotForecast);
  EXPECT_NE(found.rows[0].reason.find("stage 9"), std::string::npos) << found.rows[0].reason;
}

}
}
