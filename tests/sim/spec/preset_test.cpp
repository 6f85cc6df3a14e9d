// Presets fill what nobody wrote, and say so.
#include "sim/spec/preset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "sim/spec/checks/capabilities.h"
#include "sim/spec/plan_config.h"
#include "tests/sim/spec/plan_fixtures.h"

namespace foreshard {
namespace {

PlanDocument with_stack(const std::string& yaml) {
  const PlanDocument document = document_of(yaml);
  return with_preset(*find_stack(document.stack), document, small_model());
}

void check_rules(const std::vector<PresetRule>& rules, const std::string& name) {
  for (const PresetRule& rule : rules) {
    EXPECT_GT(rule.source.size(), 10U) << name;
    EXPECT_NE(rule.set.empty(), rule.rules.empty()) << name << ": " << rule.source;
    if (!rule.needs.empty()) {
      EXPECT_NO_THROW(has_capability({}, rule.needs)) << name;
    }
    check_rules(rule.rules, name);
  }
}

TEST(Presets, EveryFileSetsKeysThatPlansHaveAndNamesItsSources) {
  EXPECT_GE(presets(PresetKind::kStack).size(), 12U);
  EXPECT_GE(presets(PresetKind::kTrainer).size(), 4U);
  for (const PresetKind kind : {PresetKind::kStack, PresetKind::kTrainer}) {
    for (const Preset* each : presets(kind)) {
      const Preset& preset = *each;
      // Found by its file's name and by the file's line of runtimes.
      ASSERT_EQ(find_preset(kind, preset.name), each) << preset.name;
      EXPECT_FALSE(preset.description.empty()) << preset.name;
      EXPECT_FALSE(preset.rules.empty()) << preset.name;
      check_rules(preset.rules, preset.name);
      for (const RuntimeKind runtime : preset.runtimes) {
        const std::vector<const Preset*> trains = presets_of(kind, runtime);
        EXPECT_NE(std::find(trains.begin(), trains.end(), each), trains.end())
            << preset.name << " with " << to_string(runtime);
        // Every value is one that its key reads.
        const PlanDocument filled =
            with_preset(preset, document_of(std::string("runtime: ") + to_string(runtime)), small_model());
        EXPECT_FALSE(filled.given.empty()) << preset.name;
      }
    }
  }
}

TEST(Presets, WhatWasWrittenStandsOverTheStack) {
  const PlanDocument filled = with_stack("runtime: fsdp1\nstack: composer_2022\nkernels: {norm: compute}\nloss: fused");
  EXPECT_EQ(filled.plan.kernels.norm, ModuleKernels::Norm::kCompute);
  EXPECT_EQ(filled.plan.loss.kind, Loss::Kind::kFused);
  EXPECT_EQ(filled.plan.attention, AttentionKernel::kFa1);  // the stack's
  EXPECT_EQ(filled.plan.compute_dtype(), DType::kBf16);
  EXPECT_EQ(filled.plan.param_dtype, DType::kFp32);
  EXPECT_EQ(filled.given.at("attention").layer, PlanLayer::kPreset);
  EXPECT_EQ(filled.given.at("loss").layer, PlanLayer::kFile);
}

// Its Triton kernel takes padded batches, FlashAttention does not.
TEST(Presets, SomeKeysDependOnOthers) {
  const auto unpads = [](const std::string& more) {
    return with_stack("runtime: fsdp1\nstack: composer_2023_10\n" + more).plan.kernels.unpads;
  };
  EXPECT_FALSE(unpads(""));
  EXPECT_TRUE(unpads("attention: fa1"));
  EXPECT_TRUE(unpads("attention: fa2"));
  EXPECT_FALSE(unpads("attention: fa2\nkernels: {unpads: false}"));
}

TEST(Presets, KeysOfOtherRuntimesAreLeftOut) {
  EXPECT_FALSE(with_stack("runtime: fsdp2\nstack: composer_2022").has("fsdp1.backward_prefetch"));
  EXPECT_TRUE(with_stack("runtime: fsdp1\nstack: composer_2022").has("fsdp1.backward_prefetch"));
}

TEST(Presets, AMisspeltStackIsAnErrorWithTheNearestName) {
  try {
    document_of("stack: torchtitan_2023");
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("plan.yaml:1:8"), std::string::npos) << text;
    EXPECT_NE(text.find("did you mean torchtitan_202"), std::string::npos) << text;
  }
}

}
}
