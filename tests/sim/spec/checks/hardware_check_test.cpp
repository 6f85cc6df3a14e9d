#include <gtest/gtest.h>

#include "sim/spec/checks/plan_check.h"
#include "sim/spec/gpu_generation.h"

namespace foreshard {
namespace {

Cluster cluster_of(std::string_view architecture, double peak_fp8) {
  Cluster cluster;
  cluster.gpu.name = "some GPU";
  cluster.gpu.architecture = architecture;
  cluster.gpu.peak_fp8 = FlopsPerSecond(peak_fp8);
  return cluster;
}

TEST(HardwareCheck, Float8NeedsUnitsAndAComputationInSixteenBits) {
  Plan plan;
  EXPECT_FALSE(problem_of_hardware(plan, cluster_of("ampere", 0)));
  plan.float8 = Float8::kTensorwise;
  EXPECT_FALSE(problem_of_hardware(plan, cluster_of("hopper", 2e15)));
  const auto without = problem_of_hardware(plan, cluster_of("ampere", 0));
  ASSERT_TRUE(without);
  EXPECT_EQ(without->key, "float8");
  EXPECT_EQ(without->did_you_mean, "none");
  plan.param_dtype = DType::kFp32;
  EXPECT_TRUE(problem_of_hardware(plan, cluster_of("hopper", 2e15)));
  plan.autocast = DType::kBf16;
  EXPECT_FALSE(problem_of_hardware(plan, cluster_of("hopper", 2e15)));
}

// What SDPA picks runs everywhere; what is refused names a kernel that is not.
TEST(HardwareCheck, AttentionKernelsRunWhereTheyWereBuiltFor) {
  using enum AttentionKernel;
  const auto runs = [](AttentionKernel kernel, std::string_view architecture) {
    Plan plan = {.attention = kernel};
    return !problem_of_hardware(plan, cluster_of(architecture, 2e15));
  };
  for (const std::string_view architecture : gpu_architectures()) {
    for (const AttentionKernel kernel : {kFlash, kEfficient, kMath}) {
      EXPECT_TRUE(runs(kernel, architecture)) << architecture;
    }
    EXPECT_EQ(runs(kFa3, architecture), architecture == "hopper") << architecture;
    const bool is_old = architecture == "volta" || architecture == "turing";
    EXPECT_EQ(runs(kFa2, architecture), !is_old) << architecture;
    EXPECT_EQ(runs(kCudnn, architecture), !is_old) << architecture;
    EXPECT_EQ(runs(kFa1, architecture), architecture != "volta") << architecture;
    for (const AttentionKernel kernel : {kCudnn, kFa1, kFa2, kFa3}) {
      Plan plan = {.attention = kernel};
      const auto problem = problem_of_hardware(plan, cluster_of(architecture, 2e15));
      if (!problem) continue;
      EXPECT_EQ(problem->key, "attention");
      const bool is_legal = problem->did_you_mean == to_string(kFlash) ||
                            (problem->did_you_mean == to_string(kFa2) && runs(kFa2, architecture)) ||
                            (problem->did_you_mean == to_string(kFa1) && runs(kFa1, architecture));
      EXPECT_TRUE(is_legal) << problem->did_you_mean;
    }
  }
  EXPECT_TRUE(runs(kFa3, ""));  // nobody said what it is
}

}
}
