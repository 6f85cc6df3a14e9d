// Parameters gathered in fp8: a byte for each element of the blocks' linear weights, two for each other one.
#include <gtest/gtest.h>

#include <utility>

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
  return build_training_step(with_variants(load_zoo_model("llama-3-8b", Stack::kEager), plan), plan);
}

const Work& work_of(const EventGraph& graph, std::size_t row) { return graph.works[graph.rows[row].work]; }

// Bytes of the first row of `kind` of the first block's unit.
std::int64_t bytes_of_block(const EventGraph& graph, EventKind kind) {
  for (std::size_t r = 0; r < graph.rows.size(); ++r) {
    const std::int32_t unit = graph.details[r].unit;
    if (graph.rows[r].kind == kind && unit >= 0 && graph.units[at(unit)].name == "layers.0") {
      return work_of(graph, r).bytes.count();
    }
  }
  return 0;
}

TEST(Fsdp2Float8Gather, AByteForEachElementOfLinearWeights) {
  EXPECT_EQ(bytes_of_block(step(true), EventKind::kAllGather), kLinear + 2 * kNorms);
  EXPECT_EQ(bytes_of_block(step(false), EventKind::kAllGather), 2 * (kLinear + kNorms));
  // Gradients are those of bf16.
  EXPECT_EQ(
      bytes_of_block(step(true), EventKind::kReduceScatter), bytes_of_block(step(false), EventKind::kReduceScatter));
}

// The shards' greatest values are read behind the optimizer, whose row the all-reduce follows.
TEST(Fsdp2Float8Gather, ScalesFollowTheOptimizer) {
  const auto optimizer_bytes = [](const EventGraph& graph) {
    std::int64_t sum = 0;
    for (std::size_t r = 0; r < graph.rows.size(); ++r) {
      if (graph.rows[r].kind != EventKind::kOptimizer) continue;
      const Work& work = work_of(graph, r);
      for (std::uint32_t k = work.kernels_begin; k < work.kernels_end; ++k) sum += graph.kernels[k].bytes.count();
    }
    return sum;
  };
  const EventGraph with = step(true), without = step(false);
  constexpr std::int64_t kBlocks = 32;
  EXPECT_EQ(optimizer_bytes(with) - optimizer_bytes(without), 4 * kBlocks * kLinear / kShards);
  EXPECT_EQ(with.rows.size(), without.rows.size() + 1);
  EXPECT_EQ(with.rows.back().kind, EventKind::kAllReduce);
}

// Backward's scales of rows run along the other width of what was read and of the weight, which are transposed first:
// two bytes are read and two written of each. Of the output's gradient the cast that is made anyway writes the
// transpose, two, where scales of a tensor read it for its greatest value, two.
TEST(Float8Rows, BackwardTransposesFirst) {
  const auto moved = [](Float8 recipe) {
    Plan plan = plan_with(false);
    plan.float8 = recipe;
    const EventGraph graph =
        build_training_step(with_variants(load_zoo_model("llama-3-8b", Stack::kEager), plan), plan);
    std::int64_t sum = 0;
    for (const Row& row : graph.rows) {
      const Work& work = graph.works[row.work];
      if (row.kind != EventKind::kBackward) continue;
      for (std::uint32_t k = work.kernels_begin; k < work.kernels_end; ++k) {
        const Kernel& kernel = graph.kernels[k];
        if (kernel.kind == KernelKind::kMemory) sum += kernel.bytes.count();
      }
    }
    return sum;
  };
  constexpr std::int64_t kBlocks = 32, kPositions = 1024;
  constexpr std::int64_t kRead = 6 * kWidth + 14336;  // by q, k, v, o, gate, up and down
  EXPECT_EQ(moved(Float8::kRowwise) - moved(Float8::kTensorwise), 4 * kBlocks * (kPositions * kRead + kLinear));
}

// Bytes of the tensor-parallel collectives of one kind.
std::int64_t bytes_over_tp(Plan plan, EventKind kind) {
  plan.mesh = {2, 1};
  plan.mesh.tp = 2;
  const EventGraph graph = build_training_step(with_variants(load_zoo_model("llama-3-8b", Stack::kEager), plan), plan);
  std::int64_t sum = 0;
  for (const Row& row : graph.rows) {
    const Work& work = graph.works[row.work];
    if (row.kind == kind && graph.communicators[work.communicator].name == "tp") sum += work.bytes.count();
  }
  return sum;
}

// With one scale for a tensor each rank casts its positions before they are gathered: of each block
// the inputs of two modules and the gradients of two outputs; TransformerEngine gathers the inputs
// once more. Scales of rows wait for whole rows. Sums travel as they were.
TEST(Float8OverTensorParallel, WhatProductsReadIsCastBeforeItTravels) {
  constexpr std::int64_t kBlocks = 32, kPositions = 1024;
  const auto saved = [](Runtime runtime, Float8 recipe, EventKind kind) {
    Plan plan = plan_with(false);
    plan.runtime = std::move(runtime);
    plan.float8 = recipe;
    Plan wide = plan;
    wide.float8 = Float8::kNone;
    return bytes_over_tp(wide, kind) - bytes_over_tp(plan, kind);
  };
  const Runtime fsdp2 = plan_with(false).runtime;
  const Runtime megatron = {RuntimeKind::kMegatron, "0.20"};
  const std::int64_t each = kBlocks * kPositions * kWidth;
  EXPECT_EQ(saved(fsdp2, Float8::kTensorwise, EventKind::kAllGather), 4 * each);
  EXPECT_EQ(saved(fsdp2, Float8::kRowwise, EventKind::kAllGather), 0);
  EXPECT_EQ(saved(megatron, Float8::kDelayed, EventKind::kAllGather), 6 * each);
  EXPECT_EQ(saved(megatron, Float8::kDelayed, EventKind::kReduceScatter), 0);
}

}
}
