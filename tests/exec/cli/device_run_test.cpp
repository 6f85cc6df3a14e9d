// foreshard-exec run with plans of GPUs: on the stand-in, paced, and what it refuses.
#include <gtest/gtest.h>

#include <string>

#include "tests/exec/cli/run_fixture.h"

namespace foreshard {
namespace {

Words gpu_plan(int gpus, int steps = 5) {
  return {"--cluster", std::to_string(gpus) + "xh100", "--runtime", "native",
          "--steps",   std::to_string(steps)};
}

TEST_F(ExecRunTest, APacedRankTrainsAndIsRecorded) {
  const RunRecord run = record("paced", gpu_plan(64) + Words{"--device", "standin", "--paced"});
  EXPECT_TRUE(run.paced);
  EXPECT_EQ(run.device, "cpu");
  EXPECT_EQ(run.world, 64);
  ASSERT_EQ(run.ranks.size(), 1U);
  EXPECT_EQ(run.losses.size(), 5U);
  EXPECT_TRUE(run.parameter_hash.empty());
  EXPECT_GT(run.ranks[0].device_reserved.count(), 0);
  const Outcome verdict = shell(std::string(FORESHARD_PROGRAM) +
                                " validate --plan paced/plan.yaml --run paced --no-history");
  EXPECT_TRUE(verdict.code == 0 || verdict.code == 5) << verdict.output;
  EXPECT_NE(verdict.output.find("all_gather"), std::string::npos) << verdict.output;
}

TEST_F(ExecRunTest, OneRankOnADeviceGoesOnFromACheckpoint) {
  const Words device = {"--device", "standin", "--set", "dtype.param=fp32"};
  const RunRecord whole = record("whole", gpu_plan(1) + device);
  const RunRecord half =
      record("half", gpu_plan(1, 3) + device + Words{"--checkpoint", path("saved")});
  const RunRecord rest = record("rest", gpu_plan(1) + device + Words{"--resume", path("saved")});
  EXPECT_EQ(half.losses.size(), 3U);
  EXPECT_EQ(rest.parameter_hash, whole.parameter_hash);
  EXPECT_EQ(rest.losses.back(), whole.losses.back());
}

TEST_F(ExecRunTest, PlansOfGpusNeedADevice) {
  const auto refused = [&](const Words& words, int code, const char* said) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, code) << outcome.output;
    EXPECT_NE(outcome.output.find(said), std::string::npos) << outcome.output;
  };
  refused(gpu_plan(8) + Words{"--device", "standin"}, 7, "--paced runs rank 0 alone");
  refused(gpu_plan(1) + Words{"--device", "cpu"}, 6, "cluster: local");
  refused(gpu_plan(1) + Words{"--device", "standin", "--paced"}, 6, "no peers");
  refused(gpu_plan(8) + Words{"--device", "standin", "--paced", "--set", "dtype.master=bf16"}, 6,
          "dtype.master: fp32");
  refused({"--device", "cuda", "--steps", "1"}, 6, "cluster of GPUs");
}

}  // namespace
}  // namespace foreshard
