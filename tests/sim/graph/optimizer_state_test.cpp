#include "sim/graph/optimizer_state.h"

#include <gtest/gtest.h>

#include "sim/graph/training_step.h"
#include "tests/sim/spec/plan_fixtures.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

using Kind = Optimizer::Kind;

// {bytes in all, bytes in managed memory} of a matrix of 1,000 x 512.
std::pair<std::int64_t, std::int64_t> kept(Kind kind, LayerRole role = LayerRole::kBlock) {
  Optimizer optimizer = {.kind = kind, .state = DType::kBf16};
  std::pair<std::int64_t, std::int64_t> sum;
  for (const StateTensor& state : optimizer_state(optimizer, {"weight", {1000, 512}}, role)) {
    sum.first += state.bytes;
    if (state.is_paged) sum.second += state.bytes;
  }
  return sum;
}

TEST(OptimizerState, IsThatOfItsKind) {
  constexpr std::int64_t kNumel = 1000 * 512;
  const auto of = [](std::int64_t bytes, std::int64_t paged = 0) { return std::pair(bytes, paged); };
  EXPECT_EQ(kept(Kind::kAdamW), of(2 * kNumel * 2));
  EXPECT_EQ(kept(Kind::kSgd), of(0));
  EXPECT_EQ(kept(Kind::kMomentum), of(kNumel * 2));
  EXPECT_EQ(kept(Kind::kMuon), of(kNumel * 2));
  EXPECT_EQ(kept(Kind::kMuon, LayerRole::kHead), of(2 * kNumel * 2));
  EXPECT_EQ(kept(Kind::kAdafactor), of((1000 + 512) * 4));
  EXPECT_EQ(kept(Kind::kAdamW8bit), of(2 * (kNumel + kNumel / 256 * 4)));
  EXPECT_EQ(kept(Kind::kAdamW8bit, LayerRole::kEmbedding), of(2 * kNumel * 4));
  EXPECT_EQ(kept(Kind::kTorchao8bit), of(2 * (kNumel + kNumel / 256 * 4)));
  EXPECT_EQ(kept(Kind::kTorchao8bit, LayerRole::kEmbedding), kept(Kind::kTorchao8bit));
  EXPECT_EQ(kept(Kind::kPagedAdamW), of(2 * kNumel * 4, 2 * kNumel * 4));
  EXPECT_EQ(kept(Kind::kPagedAdamW8bit), of(2 * (kNumel + kNumel / 256 * 4), 2 * kNumel));
}

// The table, 32 blocks, the norm, and the head where it is its own: matrices of 64,000 elements.
TEST(OptimizerState, ACheckpointHasIt) {
  constexpr std::int64_t kNumel = 64'000;
  Plan plan = {.master_dtype = DType::kFp32};
  plan.optimizer.kind = Kind::kAdamW;
  plan.optimizer.state = DType::kFp32;
  EXPECT_EQ(checkpoint_bytes(foreshard::small_model(), plan), Bytes(35 * kNumel * 12));
  EXPECT_EQ(checkpoint_bytes(foreshard::small_model({.is_tied = true}), plan), Bytes(34 * kNumel * 12));
  plan.optimizer.kind = Kind::kMomentum;
  EXPECT_EQ(checkpoint_bytes(foreshard::small_model(), plan), Bytes(35 * kNumel * 8));

  // Frozen blocks are loaded as they compute, and nobody steps them.
  ModelSpec frozen = foreshard::small_model();
  frozen.kinds[1].parameters[0].trainable = false;
  frozen.kinds[1].parameters[0].stored_as_computed = true;
  plan.param_dtype = DType::kBf16;
  EXPECT_EQ(checkpoint_bytes(frozen, plan), Bytes(32 * kNumel * 2 + 3 * kNumel * 8));
}

// torch.optim.Muon's in a block of 512 x 512, 256 x 512 and 512 x 1536, as the null GPU saw them (PyTorch 2.11).
TEST(OptimizerState, MuonExchangesWhatItsDTensorsDo) {
  using enum EventKind;
  const auto exchanges = [](std::int64_t shards) {
    Plan plan = tiny_plan();
    plan.runtime = {RuntimeKind::kFsdp2, "2.11"};
    plan.mesh = {shards, 1};
    plan.optimizer.kind = Kind::kMuon;
    const EventGraph graph = build_training_step(tiny_model(1), plan);
    std::map<EventKind, int> counts;
    for (const auto& row : graph.rows) {
      const Work& work = graph.works[row.work];
      if (work.caller == Caller::kFunctional && is_collective(work.kind)) ++counts[work.kind];
    }
    return counts;
  };
  EXPECT_EQ(exchanges(8), (std::map<EventKind, int>{{kAllGather, 75}, {kAllReduce, 27}}));
  EXPECT_EQ(exchanges(16),
      (std::map<EventKind, int>{{kAllGather, 65}, {kReduceScatter, 5}, {kAllReduce, 32}, {kAllToAll, 10}}));
  EXPECT_TRUE(exchanges(1).empty());
}

}
}
