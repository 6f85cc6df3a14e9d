// What a code that nobody has read may keep besides, per rank of a mesh: numbers by hand.
#include "sim/memory/memory_alternatives.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

std::map<std::string, std::int64_t> bytes_by_name(const Plan& plan) {
  std::map<std::string, std::int64_t> bytes;
  for (const MemoryAlternative& each : memory_alternatives(tiny_model(2), plan)) bytes[each.name] = each.bytes.count();
  return bytes;
}

TEST(MemoryAlternatives, WithoutAxesWholeOrBySharding) {
  const double parameters = static_cast<double>(tiny_model(2).parameters());
  const auto bytes = bytes_by_name(tiny_plan());
  // Two sequences of 128 by 4,096 logits in fp32, twice.
  EXPECT_EQ(bytes.at("fp32 logits and their gradient"), 2 * 4 * 2 * 128 * 4096);
  EXPECT_EQ(bytes.at("a whole copy of the parameters"), static_cast<std::int64_t>(2 * parameters));
  // Reduced in fp32, on eight ranks.
  EXPECT_EQ(bytes.at("the gradients twice"), static_cast<std::int64_t>(4 * parameters / 8));
}

TEST(MemoryAlternatives, ARankOfAxesHasItsPart) {
  // Eight ranks: two of tp, two of cp, two of shard; sharded over shard x cp.
  Plan plan = tiny_plan();
  plan.mesh.shard = plan.mesh.cp = plan.mesh.tp = 2;
  const double parameters = static_cast<double>(tiny_model(2).parameters());
  auto bytes = bytes_by_name(plan);
  EXPECT_EQ(bytes.at("fp32 logits and their gradient"), 2 * 4 * 2 * (128 / 2) * (4096 / 2));
  EXPECT_EQ(bytes.at("a whole copy of the parameters"), static_cast<std::int64_t>(2 * parameters / 2));
  EXPECT_EQ(bytes.at("the gradients twice"), static_cast<std::int64_t>(4 * parameters / 2 / 4));
  // Without loss parallel every rank of tp has all logits.
  plan.tensor_parallel.loss = false;
  EXPECT_EQ(bytes_by_name(plan).at("fp32 logits and their gradient"), 2 * 4 * 2 * 64 * 4096);
}

TEST(MemoryAlternatives, WhatNoGpuHoldsIsNotWhatTrains) {
  const std::vector<MemoryAlternative> all = memory_alternatives(tiny_model(2), tiny_plan());
  Bytes largest, smallest;
  for (const MemoryAlternative& each : all) largest = std::max(largest, each.bytes);
  smallest = largest;
  for (const MemoryAlternative& each : all) smallest = std::min(smallest, each.bytes);
  ASSERT_LT(smallest, largest);
  Fit fit = {.capacity = largest - Bytes(1)};
  for (const KeptBesides& each : with_alternatives(fit, tiny_model(2), tiny_plan()).besides) {
    EXPECT_LT(each.bytes, largest);
  }
  fit.capacity = largest;
  bool has_largest = false;
  for (const KeptBesides& each : with_alternatives(fit, tiny_model(2), tiny_plan()).besides) {
    has_largest |= each.bytes == largest && each.weight > 0;
  }
  EXPECT_TRUE(has_largest);
}

}
}
