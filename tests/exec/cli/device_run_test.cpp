// foreshard-exec run with plans of GPUs: on the stand-in, paced, and what it refuses.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "sim/base/json.h"
#include "tests/exec/cli/run_fixture.h"

namespace foreshard {
namespace {

Words gpu_plan(int gpus, int steps = 5) {
  return {"--cluster", std::to_string(gpus) + "xh100", "--runtime", "native", "--steps", std::to_string(steps)};
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
  const ChildOutcome verdict =
      shell(std::string(FORESHARD_PROGRAM) + " validate --plan paced/plan.yaml --run paced --no-history");
  EXPECT_TRUE(verdict.code == 0 || verdict.code == 5) << verdict.output;
  EXPECT_NE(verdict.output.find("all_gather"), std::string::npos) << verdict.output;
}

TEST_F(ExecRunTest, OneRankOnADeviceGoesOnFromACheckpoint) {
  const Words device = {"--device", "standin", "--set", "dtype.param=fp32"};
  const RunRecord whole = record("whole", gpu_plan(1) + device);
  const RunRecord half = record("half", gpu_plan(1, 3) + device + Words{"--checkpoint", path("saved")});
  const RunRecord rest = record("rest", gpu_plan(1) + device + Words{"--resume", path("saved")});
  EXPECT_EQ(half.losses.size(), 3U);
  EXPECT_EQ(rest.parameter_hash, whole.parameter_hash);
  EXPECT_EQ(rest.losses.back(), whole.losses.back());
}

TEST_F(ExecRunTest, ARecordedStepTrainsAsOneThatIsIssued) {
  const Words device = {"--device", "standin", "--set", "dtype.param=fp32"};
  const RunRecord issued = record("issued", gpu_plan(1, 8) + device);
  const RunRecord replayed = record("replayed", gpu_plan(1, 8) + device + Words{"--graph"});
  EXPECT_EQ(replayed.parameter_hash, issued.parameter_hash);
  EXPECT_EQ(replayed.losses, issued.losses);
  const ChildOutcome said = run(gpu_plan(1, 8) + device + Words{"--graph"});
  EXPECT_NE(said.output.find("replayed as one graph"), std::string::npos) << said.output;
}

TEST_F(ExecRunTest, AnOffloadedPlanTrainsAsOneOnTheDevice) {
  const Words device = {"--device", "standin"};
  const Words save = {"--checkpoint", path("saved")}, load = {"--resume", path("saved")};
  const Words offload = {"--set", "offload=cpu"};
  const RunRecord kept = record("kept", gpu_plan(1) + device);
  record("half", gpu_plan(1, 3) + device + offload + save);
  const RunRecord rest = record("rest", gpu_plan(1) + device + offload + load);
  EXPECT_EQ(rest.parameter_hash, kept.parameter_hash);
  EXPECT_EQ(rest.losses.back(), kept.losses.back());
  EXPECT_LT(rest.ranks[0].arena, kept.ranks[0].arena);
  const ChildOutcome verdict =
      shell(std::string(FORESHARD_PROGRAM) + " validate --plan rest/plan.yaml --run rest --no-history");
  EXPECT_TRUE(verdict.code == 0 || verdict.code == 5) << verdict.output;
  EXPECT_NE(verdict.output.find("host_to_device"), std::string::npos) << verdict.output;
}

// Events of a step for Perfetto, and what LibTorch's profiler saw, in ranges of the same names.
TEST_F(ExecRunTest, TracesAreWrittenOnDemand) {
  record("traced",
      gpu_plan(1) + Words{"--device", "standin", "--trace", path("events.json"), "--kineto", path("kineto.json")});
  const auto names = [&](const char* file) {
    std::set<std::string> found;
    std::ifstream in(path(file));
    const Json trace = Json::parse(in);
    for (const Json& event : trace["traceEvents"]) {
      if (event.contains("name")) found.insert(event["name"].get<std::string>());
    }
    return found;
  };
  const std::set<std::string> events = names("events.json"), kineto = names("kineto.json");
  EXPECT_TRUE(kineto.contains("aten::mm")) << "no operators";
  int both = 0;
  for (const std::string& name : events) both += kineto.contains(name) ? 1 : 0;
  EXPECT_GT(both, 5);
}

TEST_F(ExecRunTest, PlansOfGpusNeedADevice) {
  const auto refused = [&](const Words& words, int code, const char* said) {
    const ChildOutcome outcome = run(words);
    EXPECT_EQ(outcome.code, code) << outcome.output;
    EXPECT_NE(outcome.output.find(said), std::string::npos) << outcome.output;
  };
  refused(gpu_plan(8) + Words{"--device", "standin"}, 7, "--paced runs rank 0 alone");
  refused(gpu_plan(1) + Words{"--device", "cpu"}, 6, "cluster: local");
  refused(gpu_plan(1) + Words{"--device", "standin", "--paced"}, 6, "no peers");
  refused(gpu_plan(8) + Words{"--device", "standin", "--paced", "--set", "dtype.master=bf16"}, 6, "dtype.master: fp32");
  refused({"--device", "cuda", "--steps", "1"}, 6, "cluster of GPUs");
  refused(gpu_plan(1) + Words{"--device", "standin", "--graph", "--set", "offload=cpu"}, 6, "leave --graph out");
  refused(gpu_plan(1) + Words{"--device", "standin", "--graph", "--debug"}, 2, "--debug");
  refused({"--graph", "--steps", "1"}, 6, "CPU ranks compute themselves");
}

}
}
