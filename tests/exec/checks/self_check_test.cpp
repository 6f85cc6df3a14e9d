// What a check's end means for the ones after it: nothing to compare with, or no device any more.
#include "exec/checks/self_check.h"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

#include "exec/device/host_accelerator.h"
#include "exec/engine/engine_check.h"

namespace foreshard {
namespace {

TEST(RunCheck, TellsHowItEnded) {
  std::vector<CheckStatus> told;
  const auto listen = [&](const CheckResult& result) { told.push_back(result.status); };
  EXPECT_EQ(run_check(
                "a", {}, [] { return std::string("seen"); }, listen),
      CheckStatus::kOk);
  EXPECT_EQ(run_check(
                "a", {"a"}, [] { return std::string("seen"); }, listen),
      CheckStatus::kSkipped);
  const auto fails = []() -> std::string { throw std::runtime_error("no"); };
  EXPECT_EQ(run_check("a", {}, fails, listen), CheckStatus::kFailed);
  EXPECT_EQ(told, (std::vector<CheckStatus>{CheckStatus::kRunning, CheckStatus::kOk, CheckStatus::kSkipped,
                      CheckStatus::kRunning, CheckStatus::kFailed}));
}

TEST(EngineCheck, WhatHasNothingToBeComparedWithIsNotOk) {
  std::map<std::string, CheckResult> results;
  engine_check(host_accelerator,
      {"engine_fp32", "engine_bf16", "engine_two_ranks_one_device", "engine_graph", "engine_recompute_prefetch"},
      [&](const CheckResult& result) { results[result.name] = result; });
  EXPECT_EQ(results["engine_fp32"].status, CheckStatus::kSkipped);
  EXPECT_EQ(results["engine_offload"].status, CheckStatus::kSkipped) << results["engine_offload"].detail;
}

TEST(EngineCheck, ALostDeviceEndsTheChecks) {
  std::vector<std::string> failed;
  const auto none = []() -> std::unique_ptr<Accelerator> {
    throw std::runtime_error("an illegal memory access was encountered");
  };
  try {
    engine_check(none, {"engine_fp32"}, [&](const CheckResult& result) {
      if (result.status == CheckStatus::kFailed) failed.push_back(result.name);
    });
    FAIL() << "it went on";
  } catch (const DeviceLost& lost) {
    EXPECT_STREQ(lost.what(), "engine_bf16");
  }
  EXPECT_EQ(failed, std::vector<std::string>{"engine_bf16"});
}

}
}
