// Collectives of tensor parallel beside their products, on a phase written by hand:
//   norm | gather | q, k, attention, o, pack | reduce-scatter | add
#include "sim/graph/layers/pipelined_products.h"

#include <gtest/gtest.h>

namespace foreshard {
namespace {

Operation operation(OperationKind kind, CollectiveKind collective = CollectiveKind::kNone) {
  Operation op = {.kind = kind};
  op.collective.kind = collective;
  return op;
}

LayerSpec block() {
  LayerSpec layer;
  layer.operations = {operation(OperationKind::kNorm),
      operation(OperationKind::kElementwise, CollectiveKind::kAllGather), operation(OperationKind::kGemm),
      operation(OperationKind::kGemm), operation(OperationKind::kAttention), operation(OperationKind::kGemm),
      operation(OperationKind::kElementwise, CollectiveKind::kReduceScatter), operation(OperationKind::kElementwise)};
  return layer;
}

// A kernel and an action for each operation but the collectives, which the gather has none of and
// the reduce-scatter one (the packing copy).
LayerPhaseProgram phase() {
  LayerPhaseProgram p;
  const std::uint32_t ends[] = {1, 1, 2, 3, 4, 5, 6, 7};
  for (std::size_t o = 0; o < std::size(ends); ++o) {
    LayerStep step = {.operation = static_cast<std::int16_t>(o)};
    step.kernels_end = step.actions_end = ends[o];
    p.steps.push_back(step);
  }
  p.kernels.resize(7);
  p.actions.assign(7, 1);
  for (const std::uint32_t end : {1U, 6U, 7U}) {
    LayerSegment segment = {.actions_end = end, .kernels_end = end};
    p.segments.push_back(segment);
  }
  const auto call = [&](LayerCall::Kind kind, CollectiveKind collective, std::uint16_t segment, std::int16_t launch) {
    LayerCall made = {.kind = kind};
    made.collective.kind = collective;
    made.segment = segment;
    made.launch = launch;
    p.calls.push_back(made);
  };
  call(LayerCall::Kind::kLaunch, CollectiveKind::kAllGather, 1, 0);
  call(LayerCall::Kind::kWait, CollectiveKind::kAllGather, 1, 0);
  call(LayerCall::Kind::kLaunch, CollectiveKind::kReduceScatter, 2, 0);
  call(LayerCall::Kind::kWait, CollectiveKind::kReduceScatter, 2, 2);
  return p;
}

std::vector<std::uint32_t> kernel_ends(const LayerPhaseProgram& p) {
  std::vector<std::uint32_t> ends;
  for (const LayerSegment& segment : p.segments) ends.push_back(segment.kernels_end);
  return ends;
}

TEST(PipelinedProducts, ThePairRunsTogetherAndWhatFollowsWaitsForBoth) {
  LayerPhaseProgram p = phase();
  pipeline_products(block(), p);
  // norm | q, k | attention | o, pack | add
  EXPECT_EQ(kernel_ends(p), (std::vector<std::uint32_t>{1, 3, 4, 6, 7}));
  EXPECT_EQ(p.calls[0].segment, 1);  // the gather starts beside q and k
  EXPECT_EQ(p.calls[1].segment, 2);  // attention waits for it
  EXPECT_EQ(p.calls[2].segment, 3);  // the reduce-scatter starts beside o
  EXPECT_EQ(p.calls[3].segment, 4);  // the sum waits for it
}

// Megatron-Core's reduce-scatter packs nothing, and the sum behind it may be another's kernel.
TEST(PipelinedProducts, WhatHasNoKernelsIsNotWhatMadeTheResult) {
  LayerPhaseProgram p = phase();
  p.steps[6].kernels_end = p.steps[7].kernels_end = 5;
  p.segments[1].kernels_end = p.segments[2].kernels_end = 5;
  p.segments.insert(p.segments.begin() + 2, {.actions_end = 6, .kernels_end = 5});  // its room
  p.calls[2].segment = p.calls[3].segment = 3;
  pipeline_products(block(), p);
  EXPECT_EQ(kernel_ends(p), (std::vector<std::uint32_t>{1, 3, 4, 5, 5, 5}));
  EXPECT_EQ(p.calls[2].segment, 3);
  EXPECT_EQ(p.calls[3].segment, 5);
}

TEST(PipelinedProducts, OtherAxesAndSumsOfProductsStayAsTheyAre) {
  LayerPhaseProgram p = phase();
  for (LayerCall& call : p.calls) call.collective.dim = MeshDim::kCp;
  const LayerPhaseProgram before = p;
  pipeline_products(block(), p);
  EXPECT_EQ(kernel_ends(p), kernel_ends(before));

  p = phase();
  p.steps[5].kind = LayerStep::Kind::kSum;
  pipeline_products(block(), p);
  EXPECT_EQ(kernel_ends(p), (std::vector<std::uint32_t>{1, 3, 6, 7}));
  EXPECT_EQ(p.calls[2].segment, 3);
}

}
}
