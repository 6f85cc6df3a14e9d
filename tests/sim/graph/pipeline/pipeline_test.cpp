// What every schedule has to be; that it is the library's is held against its own
// tables in tests/interop/recordings/pipeline_tables_test.cpp.
#include "sim/graph/pipeline/pipeline.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "sim/base/error.h"
#include "sim/base/integers.h"

namespace foreshard {
namespace {

std::vector<StagePipeline> some_pipelines() {
  std::vector<StagePipeline> list;
  for (int schedule = 0; schedule <= static_cast<int>(PipelineSchedule::kDualPipeV); ++schedule) {
    for (const int ranks : {2, 3, 4}) {
      for (const int rounds : {1, 2, 5}) {
        StagePipeline p{static_cast<PipelineSchedule>(schedule), ranks, 2 * ranks * rounds, 2};
        if (p.schedule == PipelineSchedule::kGPipe || p.schedule == PipelineSchedule::k1F1B) p.stages_per_rank = 1;
        list.push_back(p);
        if (p.schedule != PipelineSchedule::k1F1B) continue;
        p.host = StagePipeline::Host::kDeepSpeed;
        list.push_back(p);
      }
    }
  }
  return list;
}

// Both ends of a transfer name it alike, and each is in one batch that its rank waits for once.
TEST(Pipeline, WhatIsSentIsReceivedAndWaitedFor) {
  for (const StagePipeline& p : some_pipelines()) {
    std::set<std::tuple<int, bool, int, int, int>> sent, received;  // from stage, kind, k, from, to
    const std::vector<PipelineRows> rows = pipeline_rows(p);
    for (int rank = 0; rank < p.ranks; ++rank) {
      std::set<int> posted, waited;
      for (const PipelineRow& row : rows[at(rank)]) {
        if (row.kind == PipelineRow::Kind::kWait) {
          EXPECT_TRUE(posted.contains(row.batch));
          EXPECT_TRUE(waited.insert(row.batch).second);
        }
        if (row.kind != PipelineRow::Kind::kBatch) continue;
        EXPECT_TRUE(posted.insert(row.batch).second);
        for (const PipelineTransfer& t : row.transfers) {
          const int from = t.sends ? t.stage : t.forward ? t.stage - 1 : t.stage + 1;
          const auto key = t.sends ? std::tuple(from, t.forward, t.microbatch, rank, t.peer)
                                   : std::tuple(from, t.forward, t.microbatch, t.peer, rank);
          EXPECT_TRUE((t.sends ? sent : received).insert(key).second);
        }
      }
      EXPECT_EQ(posted, waited);
    }
    EXPECT_EQ(sent, received);
    // Down the ring and back: each boundary between ranks once each way, for every micro-batch.
    const std::vector<int> ranks = stage_ranks(p);
    std::size_t boundaries = 0;
    for (std::size_t s = 1; s < ranks.size(); ++s) boundaries += ranks[s] != ranks[s - 1] ? 1 : 0;
    EXPECT_EQ(sent.size(), 2 * boundaries * at(p.microbatches));
  }
}

// As TrainSchedule(4, 3, 1) of DeepSpeed 0.19.8 lists them.
TEST(Pipeline, DeepSpeedsTransfersComeOneByOne) {
  StagePipeline p{.ranks = 3, .microbatches = 4, .host = StagePipeline::Host::kDeepSpeed};
  EXPECT_EQ(text_of(pipeline_rows(p, 1)),
      "[0:r1F0<0] w0 1F0 [1:s1F0>2] w1 [2:r1F1<0] w2 1F1 [3:r1B0<2] w3 [4:s1F1>2] w4 1B0 [5:s1B0>0] w5"
      " [6:r1F2<0] w6 1F2 [7:r1B1<2] w7 [8:s1F2>2] w8 1B1 [9:s1B1>0] w9 [10:r1F3<0] w10 1F3 [11:r1B2<2]"
      " w11 [12:s1F3>2] w12 1B2 [13:s1B2>0] w13 [14:r1B3<2] w14 1B3 [15:s1B3>0] w15 1REDUCE_GRAD");
}

TEST(Pipeline, WhatNobodyComputesIsRefused) {
  const auto lower = [](const char* first, const char* second) {
    return lowered({read_pipeline_order(first), read_pipeline_order(second)}, {0, 1}, 1);
  };
  EXPECT_NO_THROW(lower("0F0 0B0", "1F0 1B0"));
  EXPECT_THROW(lower("0F0 0B0", "1F0"), Error);
  EXPECT_THROW(lower("0B0 0F0", "1F0 1B0"), Error);
}

TEST(Pipeline, WrittenOrdersFinishWhatTheyBegin) {
  const auto orders = [](const char* first, const char* second) {
    StagePipeline p = {.schedule = PipelineSchedule::kCustom, .ranks = 2, .orders = {first, second}};
    return pipeline_orders(p);
  };
  EXPECT_EQ(text_of(orders("0F0 . 0B0", "1F0 1I0 1W0")[1]), "1F0 1I0 1W0");
  EXPECT_THROW(orders("0F0 0B0", "1F0"), Error);          // no backward
  EXPECT_THROW(orders("0F0 0B0", "1F0 1I0"), Error);      // half of one
  EXPECT_THROW(orders("0F0 0B0", "1F0 1B0 1B0"), Error);  // twice
  EXPECT_THROW(orders("0F0 0B0", "0F0 0B0"), Error);      // of another rank
  EXPECT_THROW(orders("0F0 0B0", "1F0 1F1 1B0"), Error);  // of a micro-batch that is none
}

TEST(Pipeline, WordsAreReadAsTheyAreWritten) {
  const std::string text = "0UNSHARD 0F0 0SEND_F0 (1F2;3B1)OVERLAP_F_B 3I2 3W2 3REDUCE_GRAD";
  EXPECT_EQ(text_of(read_pipeline_order(text)), text);
  EXPECT_EQ(text_of(read_pipeline_order(". 0F0 .")), "0F0");
  for (const char* wrong : {"F0", "0X0", "0F0x", "(0F0;1B0)", "-1F0"}) {
    EXPECT_THROW(read_pipeline_order(wrong), Error) << wrong;
  }
}

}
}
