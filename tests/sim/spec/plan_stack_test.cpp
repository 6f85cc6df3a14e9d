// Stacks fill what nobody wrote, and say so.
#include "sim/spec/plan_stack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sim/spec/plan_config.h"
#include "tests/sim/spec/plan_fixtures.h"

namespace foreshard {
namespace {

TEST(PlanStack, EveryFileSetsKeysThatPlansHaveAndNamesItsSources) {
  EXPECT_GE(training_stacks().size(), 12U);
  for (const TrainingStack* each : training_stacks()) {
    const TrainingStack& stack = *each;
    // Found by its file's name and by the file's line of runtimes.
    ASSERT_EQ(find_stack(stack.name), each) << stack.name;
    for (const RuntimeKind runtime : stack.runtimes) {
      const std::vector<const TrainingStack*> trains = stacks_of(runtime);
      EXPECT_TRUE(std::find(trains.begin(), trains.end(), find_stack(stack.name)) != trains.end())
          << stack.name << " with " << to_string(runtime);
    }
    EXPECT_FALSE(stack.description.empty()) << stack.name;
    EXPECT_FALSE(stack.keys.empty()) << stack.name;
    for (const StackKey& key : stack.keys) EXPECT_GT(key.source.size(), 10U) << key.path;
    // Every value is one that its key reads, under each runtime that the stack may be used with.
    for (const char* runtime : {"fsdp1", "fsdp2", "zero1"}) {
      const PlanDocument filled =
          with_stack(document_of("runtime: " + std::string(runtime) + "\nstack: " + stack.name));
      EXPECT_TRUE(filled.has("optimizer.implementation")) << stack.name;
    }
  }
}

TEST(PlanStack, WhatWasWrittenStandsOverTheStack) {
  const PlanDocument filled = with_stack(
      document_of("runtime: fsdp1\nstack: composer_2022\nkernels: {norm: compute}\nloss: fused"));
  EXPECT_EQ(filled.plan.kernels.norm, ModuleKernels::Norm::kCompute);
  EXPECT_EQ(filled.plan.loss.kind, Loss::Kind::kFused);
  EXPECT_EQ(filled.plan.attention, AttentionKernel::kFa1);  // the stack's
  EXPECT_EQ(filled.plan.compute_dtype(), DType::kBf16);
  EXPECT_EQ(filled.plan.param_dtype, DType::kFp32);
  EXPECT_EQ(filled.given.at("attention").layer, PlanLayer::kStack);
  EXPECT_EQ(filled.given.at("loss").layer, PlanLayer::kFile);
}

// Its Triton kernel takes padded batches, FlashAttention does not.
TEST(PlanStack, SomeKeysDependOnOthers) {
  const auto unpads = [](const std::string& more) {
    return with_stack(document_of("runtime: fsdp1\nstack: composer_2023_10\n" + more))
        .plan.kernels.unpads;
  };
  EXPECT_FALSE(unpads(""));
  EXPECT_TRUE(unpads("attention: fa1"));
  EXPECT_TRUE(unpads("attention: fa2"));
  EXPECT_FALSE(unpads("attention: fa2\nkernels: {unpads: false}"));
}

TEST(PlanStack, KeysOfOtherRuntimesAreLeftOut) {
  EXPECT_FALSE(with_stack(document_of("runtime: fsdp2\nstack: composer_2022"))
                   .has("fsdp1.backward_prefetch"));
  EXPECT_TRUE(with_stack(document_of("runtime: fsdp1\nstack: composer_2022"))
                  .has("fsdp1.backward_prefetch"));
}

TEST(PlanStack, AMisspeltStackIsAnErrorWithTheNearestName) {
  try {
    document_of("stack: torchtitan_2023");
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("plan.yaml:1:8"), std::string::npos) << text;
    EXPECT_NE(text.find("did you mean torchtitan_202"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace foreshard
