// Whole steps of stages: 68 ranks of 25 configurations, recorded from PyTorch 2.11 (tests/recordings/README.md).
#include <gtest/gtest.h>

#include "interop/recordings/pipeline_tables.h"

namespace foreshard {
namespace {

TEST(PipelineRanks, StagesDoWhatTheLibrarysDo) {
  const std::vector<Conformance> ranks =
      conform_pipeline_ranks(FORESHARD_SOURCE_DIR "/tests/recordings/pipeline_ranks");
  EXPECT_EQ(ranks.size(), 68U);
  for (const Conformance& rank : ranks) {
    EXPECT_EQ(rank.state, Conformance::State::kCompared) << rank.id << " " << rank.reason;
    EXPECT_GT(rank.rows, 30) << rank.id;
    EXPECT_TRUE(rank.schedule_identical && rank.bytes_identical && rank.memory_identical)
        << rank.id << (rank.first_difference() ? rank.first_difference()->text : "");
  }
}

}
}
