// Rules of the lint, each on a step made by hand that breaks it, and on one that does not.
#include "reports/capture/lint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace foreshard {
namespace {

using Kind = CapturedCall::Kind;

class Step {
 public:
  Step() {
    capture_.path = "by hand";
    mark();
  }
  CapturedCall& add(Kind kind, const std::string& name, const std::string& place) {
    CapturedCall call = {.kind = kind, .name = id(name), .place = place.empty() ? -1 : id(place)};
    capture_.calls.push_back(call);
    return capture_.calls.back();
  }
  void product(std::int64_t type, const std::string& place) {
    add(Kind::kProduct, "cublasGemmEx", place).values = {1024, 1024, 1024, 1, type, type};
  }
  void block(std::int64_t address, std::int64_t bytes, const std::string& place) {
    allocated_ += bytes;
    add(Kind::kMemory, "", place).values = {address, bytes, allocated_, allocated_};
  }
  void parameter(const std::string& name, std::int64_t rows, std::int64_t row_elements) {
    capture_.parameter_list.push_back({name, rows, row_elements, 8});
  }
  void compiles(std::int64_t graphs) { capture_.compiled = graphs; }
  std::vector<std::string> findings() {
    mark();
    std::vector<std::string> found;
    for (const LintFinding& f : lint_capture(capture_)) {
      found.push_back(f.rule + " " + f.place + " " + std::to_string(f.count));
    }
    return found;
  }

 private:
  void mark() { add(Kind::kMark, "step 0 AdamW", ""); }
  std::int32_t id(const std::string& name) {
    const auto known = std::find(capture_.names.begin(), capture_.names.end(), name);
    const auto at = known - capture_.names.begin();
    if (known == capture_.names.end()) capture_.names.push_back(name);
    return static_cast<std::int32_t>(at);
  }
  Capture capture_;
  std::int64_t allocated_ = 0;
};

using Found = std::vector<std::string>;
const std::string kOwn = "/home/me/train.py:7 step";
const std::string kInLibrary = "/env/site-packages/transformers/models/llama.py:40 forward < " + kOwn;

TEST(Lint, AHostThatWaitsIsNamedWithBothPlaces) {
  Step step;
  step.add(Kind::kHostWait, "", kInLibrary);
  step.add(Kind::kHostWait, "", kInLibrary);
  EXPECT_EQ(step.findings(), Found{"host_wait " + kOwn + ", in llama.py:40 forward 2"});
}

TEST(Lint, ProductsInFp32AreFoundAmongHalfOnes) {
  constexpr std::int64_t kF32 = 0, kBf16 = 14;
  Step mixed, single;
  for (int i = 0; i < 3; ++i) mixed.product(kBf16, kOwn);
  mixed.product(kF32, kOwn);
  EXPECT_EQ(mixed.findings(), Found{"fp32_product " + kOwn + " 1"});
  single.product(kF32, kOwn);
  EXPECT_EQ(single.findings(), Found{});
}

TEST(Lint, ASoftmaxOfItsOwnIsUnfusedAttention) {
  Step eager, fused;
  eager.add(Kind::kLaunch, "softmax_warp_forward<float, c10::BFloat16>", kOwn);
  EXPECT_EQ(eager.findings(), Found{"unfused_attention " + kOwn + " 1"});
  fused.add(Kind::kLaunch, "softmax_warp_forward<float, c10::BFloat16>", kOwn);  // a router's
  fused.add(Kind::kLaunch, "pytorch_flash::flash_fwd_kernel", kOwn);
  EXPECT_EQ(fused.findings(), Found{});
}

TEST(Lint, ALargeMaskIsFound) {
  const std::string place = "/env/site-packages/transformers/masking_utils.py:400 eager_mask < " + kOwn;
  Step step;
  step.add(Kind::kLaunch, "elementwise_kernel", place).values[9] = 32 << 20;
  step.add(Kind::kLaunch, "elementwise_kernel", place).values[9] = 512;
  EXPECT_EQ(step.findings(), Found{"large_mask " + kOwn + ", in masking_utils.py:400 eager_mask 1"});
}

TEST(Lint, WhatGrowsWithEachStepIsKept) {
  Step growing, steady;
  growing.block(1 << 20, 4096, kOwn);
  growing.block(2 << 20, 4096, "gone.py:1 f");
  growing.block(2 << 20, -4096, "");
  EXPECT_EQ(growing.findings(), Found{"kept_tensor " + kOwn + " 1"});
  steady.block(1 << 20, 4096, kOwn);
  steady.block(1 << 20, -4096, "");
  EXPECT_EQ(steady.findings(), Found{});
}

TEST(Lint, AParameterGatheredOutsideOfItsUnitIsFound) {
  const std::string place = "/pt/torch/distributed/tensor/_redistribute.py:90 redistribute < " + kOwn;
  Step step;
  step.add(Kind::kCollective, "all_gather", place).values = {1, 1 << 24, 9};
  step.add(Kind::kCollective, "all_reduce", place).values = {1, 4, 7};  // a norm
  step.add(Kind::kCollective, "all_gather", "/pt/_fsdp_collectives.py:9 foreach_all_gather").values = {1, 1 << 24, 9};
  EXPECT_EQ(step.findings(), Found{"collective_outside_units " + kOwn + ", in _redistribute.py:90 redistribute 1"});
}

TEST(Lint, GraphsMadeWithinTheStepAreFound) {
  Step step;
  step.compiles(2);
  EXPECT_EQ(step.findings(), Found{"compiles  2"});
}

// 9 rows on 8 ranks are two for each; 8,193 are 1,025, of which 7 rows of all are padding.
TEST(Lint, PaddedShardsAreFoundWhereTheyMatter) {
  Step step;
  step.parameter("experts.weight", 9, 1 << 20);
  step.parameter("lm_head.weight", 8193, 1024);
  step.parameter("norm.weight", 8192, 1 << 20);
  EXPECT_EQ(step.findings(), Found{"unequal_shards experts.weight [9, ...] of 8 ranks 1"});
}

}
}
