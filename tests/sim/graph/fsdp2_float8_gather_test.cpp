// Parameters gathered in fp8: a byte for each element of the blocks' linear weights, two for each
// other one.
#include <gtest/gtest.h>

#include "models/layers/variants.h"
#include "models/zoo.h"
#include "sim/graph/training_step.h"

namespace foreshard {
namespace {

// llama-3-8b: d = 4096, keys of 1024, f = 14336.
constexpr std::int64_t kWidth = 4096;
constexpr std::int64_t kLinear = (2 * 4096 + 2 * 1024 + 3 * 14336) * kWidth;
constexpr std::int64_t kNorms = 2 * kWidth;
constexpr std::int64_t kShards = 8;

Plan plan_with(bool gathers_fp8) {
  Plan plan;
  plan.batch.sequence = 1024;
  plan.mesh = {kShards, 1};
  plan.float8 = Float8::kTensorwise;
  plan.float8_all_gather = gathers_fp8;
  return plan;
}

EventGraph step(bool gathers_fp8) {
  const Plan plan = plan_with(gathers_fp8);
  return build_training_step(with_variants(load_zoo_model("llama-3-8b", Stack::kEager), plan),
                             plan);
}

const Work& work_of(const EventGraph& graph, std::size_t row) {
  return graph.works[graph.rows[row].work];
}

// Bytes of the first row of `kind` of the first block's unit.
std::int64_t bytes_of_block(const EventGraph& graph, EventKind kind) {
  for (std::size_t r = 0; r < graph.rows.size(); ++r) {
    const std::int32_t unit = graph.details[r].unit;
    if (graph.rows[r].kind == kind && unit >= 0 &&
        graph.units[static_cast<std::size_t>(unit)].name == "layers.0") {
      return work_of(graph, r).bytes.count();
    }
  }
  return 0;
}

TEST(Fsdp2Float8Gather, AByteForEachElementOfLinearWeights) {
  EXPECT_EQ(bytes_of_block(step(true), EventKind::kAllGather), kLinear + 2 * kNorms);
  EXPECT_EQ(bytes_of_block(step(false), EventKind::kAllGather), 2 * (kLinear + kNorms));
  // Gradients are those of bf16.
  EXPECT_EQ(bytes_of_block(step(true), EventKind::kReduceScatter),
            bytes_of_block(step(false), EventKind::kReduceScatter));
}

// The shards' greatest values are read behind the optimizer, whose row the all-reduce follows.
TEST(Fsdp2Float8Gather, ScalesFollowTheOptimizer) {
  const auto optimizer_bytes = [](const EventGraph& graph) {
    std::int64_t sum = 0;
    for (std::size_t r = 0; r < graph.rows.size(); ++r) {
      if (graph.rows[r].kind != EventKind::kOptimizer) continue;
      const Work& work = work_of(graph, r);
      for (std::uint32_t k = work.kernels_begin; k < work.kernels_end; ++k) {
        sum += graph.kernels[k].bytes.count();
      }
    }
    return sum;
  };
  const EventGraph with = step(true), without = step(false);
  constexpr std::int64_t kBlocks = 32;
  EXPECT_EQ(optimizer_bytes(with) - optimizer_bytes(without), 4 * kBlocks * kLinear / kShards);
  EXPECT_EQ(with.rows.size(), without.rows.size() + 1);
  EXPECT_EQ(with.rows.back().kind, EventKind::kAllReduce);
}

}  // namespace
}  // namespace foreshard
