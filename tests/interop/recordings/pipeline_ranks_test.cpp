// Whole steps of stages: 40 ranks of 16 configurations, recorded from PyTorch 2.11
// (tests/recordings/README.md).
#include <gtest/gtest.h>

#include <filesystem>

#include "interop/recordings/pipeline_tables.h"

namespace foreshard {
namespace {

TEST(PipelineRanks, StagesDoWhatTheLibrarysDo) {
  const std::vector<Conformance> ranks =
      conform_pipeline_ranks(FORESHARD_SOURCE_DIR "/tests/recordings/pipeline_ranks");
  EXPECT_EQ(ranks.size(), 40U);
  std::size_t to_the_byte = 0;
  for (const Conformance& rank : ranks) {
    EXPECT_EQ(rank.state, Conformance::State::kCompared) << rank.id << " " << rank.reason;
    EXPECT_GT(rank.rows, 100) << rank.id;
    EXPECT_TRUE(rank.schedule_identical && rank.bytes_identical && rank.memory_within_tolerance)
        << rank.id << (rank.first_difference() ? rank.first_difference()->text : "");
    to_the_byte += rank.memory_identical ? 1 : 0;
  }
  EXPECT_EQ(to_the_byte, 37U);  // torchtitan's clipping takes 1 KiB more than ours on the others
}

}  // namespace
}  // namespace foreshard
