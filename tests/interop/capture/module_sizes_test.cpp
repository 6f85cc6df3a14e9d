// What tensors of captured programs grow with, by their extents.
#include "interop/capture/module_sizes.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "sim/spec/model_spec.h"

namespace foreshard {
namespace {

using ShapesOfEach = std::vector<std::vector<std::int64_t>>;

// Two captures: 2 samples of 256 positions, 4 of 512.
Json said_of(const ShapesOfEach& shapes) {
  const std::vector<CapturedModules> captures = {{.path = "", .document = {}, .batch = 2, .sequence = 256},
      {.path = "", .document = {}, .batch = 4, .sequence = 512}};
  std::vector<std::int64_t> counts;
  for (const auto& shape : shapes) {
    counts.push_back(1);
    for (const std::int64_t extent : shape) counts.back() *= extent;
  }
  return ModuleSizes(captures).shaped(shapes, counts, "torch.bfloat16");
}

std::int64_t elements_said(const Json& said, std::int64_t batch, std::int64_t sequence) {
  TensorSpec spec;
  spec.per_token = said.value("per_token", 0);
  spec.per_sequence = said.value("per_sequence", 0);
  spec.per_position = said.value("per_position", 0);
  spec.fixed = said.value("fixed", 0);
  spec.split = said.value("split", 1);
  spec.by_pairs = said.value("by_pairs", false);
  spec.by_samples = said.value("by_samples", false);
  return elements(spec, batch, sequence);
}

TEST(ModuleSizes, WhatAStrideLeavesIsALine) {
  // Patches of eight, all but the last; rows of all words but the last; a kernel of ten, every fifth.
  EXPECT_EQ(elements_said(said_of({{2, 31, 64}, {4, 63, 64}}), 3, 1024), 3 * (1024 / 8 - 1) * 64);
  EXPECT_EQ(elements_said(said_of({{2 * 255, 9}, {4 * 511, 9}}), 3, 1024), 3 * 1023 * 9);
  EXPECT_EQ(elements_said(said_of({{2, 256 + 49, 9}, {4, 512 + 49, 9}}), 3, 1024), 3 * (1024 + 49) * 9);
  // Heads between: words of both kinds by those of one.
  EXPECT_EQ(elements_said(said_of({{2, 7, 32, 32}, {4, 7, 64, 64}}), 3, 1024), 3 * 7 * 128 * 128);
  // Of two captures a line fits anything: what grows faster than positions is none.
  EXPECT_TRUE(said_of({{2, 16 * 16}, {4, 32 * 32}}).is_null());
}

TEST(ModuleSizes, ScoresOfSamplesGrowWithTheirSquare) {
  EXPECT_EQ(elements_said(said_of({{2, 2}, {4, 4}}), 3, 1024), 3 * 3);
  EXPECT_EQ(elements_said(said_of({{2, 2, 256}, {4, 4, 512}}), 3, 1024), 3 * 3 * 1024);
  // Half of the samples.
  EXPECT_EQ(elements_said(said_of({{1, 256, 5}, {2, 512, 5}}), 4, 1024), 2 * 1024 * 5);
  // Half of a sample's positions are no multiple of the samples.
  EXPECT_EQ(elements_said(said_of({{2, 128}, {4, 256}}), 3, 1024), 3 * 512);
}

}
}
