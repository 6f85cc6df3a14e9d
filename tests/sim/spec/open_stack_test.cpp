// Who may run a plan that does not say its stack.
#include "sim/spec/open_stack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "models/zoo.h"
#include "sim/spec/plan_keys.h"
#include "sim/spec/preset.h"
#include "tests/sim/spec/plan_fixtures.h"
#include "tests/support/fixtures.h"

namespace foreshard {
namespace {

PlanDocument named(const std::string& yaml) {
  PlanDocument document = document_of(yaml);
  document.plan.model = "llama-3.1-8b";
  document.plan.cluster = "64xh100";
  return document;
}

OpenStacks all_open(const std::string& yaml) {
  return open_stacks(named(yaml), load_zoo_model("llama-3.1-8b"), round_cluster(64));
}

std::vector<StackAlternative> open(const std::string& yaml) { return all_open(yaml).codes; }

std::vector<std::string> names(const std::vector<StackAlternative>& list) {
  std::vector<std::string> all;
  for (const StackAlternative& each : list) all.push_back(each.name);
  return all;
}

TEST(OpenStacks, OfEveryRuntimeThatPeopleTrainWithWhatMostRunComesFirst) {
  for (const char* runtime : {"fsdp2", "fsdp1", "ddp", "zero1", "zero2", "zero3", "fsdp2@2.5"}) {
    SCOPED_TRACE(runtime);
    const auto list = open(std::string("runtime: ") + runtime);
    ASSERT_GE(list.size(), 2U);
    double sum = 0;
    for (const StackAlternative& each : list) {
      SCOPED_TRACE(each.name);
      sum += each.weight;
      EXPECT_GE(list.front().weight, each.weight);
      // The plan that saying so gives, but for the name that was said.
      const auto said = named(std::string("runtime: ") + runtime + "\nstack: " + each.name);
      Plan plan = resolve(said, load_zoo_model("llama-3.1-8b"), round_cluster(64)).plan;
      EXPECT_EQ(std::exchange(plan.stack, ""), each.name == "none" ? "" : each.name);
      EXPECT_EQ(each.plan, plan);
    }
    EXPECT_NEAR(sum, 1, 1e-12);
  }
  EXPECT_EQ(open("runtime: fsdp2").front().name, "hf_trainer");
  EXPECT_EQ(open("runtime: fsdp2@2.5").front().name, "torchtitan_2024");
}

TEST(OpenStacks, NothingIsOpenThatIsSaidOrThatNobodyElseRuns) {
  EXPECT_TRUE(open("stack: lightning").empty());
  EXPECT_TRUE(open("stack: none").empty());
  EXPECT_TRUE(open("runtime: native").empty());
  EXPECT_EQ(names(open("trainer: accelerate")), std::vector<std::string>{"hf_trainer"});
  // A plan with all its keys, as search writes it.
  EXPECT_TRUE(open(to_yaml(open("runtime: fsdp1")[1].plan)).empty());
}

// Every stack that is named there is one, of that runtime.
TEST(OpenStacks, AlternativesTrainWithTheRuntime) {
  for (const char* runtime : {"fsdp2", "fsdp1", "ddp", "zero1", "zero2", "zero3"}) {
    for (const StackAlternative& each : open(std::string("runtime: ") + runtime)) {
      if (each.name == "none") continue;
      const Preset* stack = find_stack(each.name);
      ASSERT_NE(stack, nullptr) << each.name;
      const auto& kinds = stack->runtimes;
      EXPECT_NE(std::find(kinds.begin(), kinds.end(), each.plan.runtime.kind), kinds.end())
          << each.name << " with " << runtime;
    }
  }
}

TEST(OpenStacks, WhatWasWrittenOrChosenStaysInEveryAlternative) {
  const OpenStacks all = all_open("loss: chunked-4\nkernels: {rope: fused}");
  const auto& list = all.codes;
  for (const StackAlternative& each : list) {
    EXPECT_EQ(each.plan.loss.chunks, 4) << each.name;
    EXPECT_EQ(each.plan.kernels.rope, ModuleKernels::Rope::kFused) << each.name;
  }
  Plan chosen = list.front().plan;
  chosen.batch.micro_batch = 2;
  chosen.recompute = {Recompute::kFull, {}};
  chosen.optimizer.implementation = Optimizer::Implementation::kLoop;  // no code's
  const auto others = open_stacks(all, chosen, load_zoo_model("llama-3.1-8b"), round_cluster(64));
  ASSERT_EQ(names(others), names(list));
  EXPECT_EQ(others.front().plan, chosen);
  for (std::size_t i = 0; i < list.size(); ++i) {
    SCOPED_TRACE(list[i].name);
    EXPECT_DOUBLE_EQ(others[i].weight, list[i].weight);
    Plan expected = list[i].plan;
    expected.batch = chosen.batch;
    expected.recompute = chosen.recompute;
    expected.optimizer.implementation = chosen.optimizer.implementation;
    EXPECT_EQ(others[i].plan, expected);
  }
}

// What a search writes leaves open what was, and nothing that it chose.
TEST(OpenStacks, AFileOfAChosenPlanIsReadBackAsOpenAsItWas) {
  for (const char* runtime : {"fsdp2", "fsdp1", "zero3"}) {
    SCOPED_TRACE(runtime);
    const ModelSpec model = load_zoo_model("llama-3.1-8b");
    const OpenStacks all = all_open(std::string("runtime: ") + runtime);
    Plan chosen = all.codes.front().plan;
    chosen.batch.micro_batch = 2;
    chosen.loss = {Loss::Kind::kChunked, 8};
    const auto others = open_stacks(all, chosen, model, round_cluster(64));
    const auto back = open(open_yaml(all, chosen, model, round_cluster(64)));
    ASSERT_EQ(names(back), names(others));
    for (std::size_t i = 0; i < back.size(); ++i) {
      EXPECT_EQ(to_yaml(back[i].plan), to_yaml(others[i].plan)) << back[i].name;
    }
  }
}

TEST(OpenStacks, DrawsFollowTheWeights) {
  const std::vector<double> weights = {0.45, 0.3, 0.15, 0.1};
  std::map<std::size_t, int> count;
  constexpr int kDraws = 64;
  for (int k = 0; k < kDraws; ++k) ++count[alternative_of_draw(weights, k)];
  for (std::size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(count[i], kDraws * weights[i], 1.5) << i;
  EXPECT_EQ(alternative_of_draw({1}, 7), 0U);
}

}
}
