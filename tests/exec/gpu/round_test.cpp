// The round on a GPU as far as a machine without one goes: its stages on the stand-in, a stage that fails, the carried
// build in a folder of its own, what is kept, and that the plugin needs nothing but what a GPU machine brings.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "sim/base/json.h"
#include "sim/base/lookup.h"
#include "tests/exec/cli/run_fixture.h"
#include "tests/support/temporary_folder.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;

const fs::path kBin = fs::path(FORESHARD_EXEC_PROGRAM).parent_path();
const fs::path kScripts = fs::path(FORESHARD_SOURCE_DIR) / "exec/gpu";
const bool kHasPlugin = fs::exists(kBin / "libforeshard_cuda.so");

class GpuRoundTest : public testing::Test {
 protected:
  std::string path(const char* name) const { return (folder_ / name).string(); }

  ChildOutcome round(const Words& words, const fs::path& bin = kBin) const {
    return ChildProcess(
        Words{"python3", (kScripts / "round.py").string(), "--bin", bin.string(), "--out", path("out")} + words,
        {{"PYTHONDONTWRITEBYTECODE", "1"}})
        .finish();
  }
  Json record() const { return Json::parse(content_of(folder_ / "out/round.json")); }

  TemporaryFolder folder_;
};

std::string status_of(const Json& record, const std::string& stage) {
  for (const Json& s : record["stages"]) {
    if (s["name"] == stage) return s["status"];
  }
  return "not there";
}

TEST_F(GpuRoundTest, StagesRunOnTheStandinAndWriteWhatTheySee) {
  const ChildOutcome outcome = round({"--device", "standin", "--minutes", "20", "--ranks", "2", "--stages",
      "environment,self_check,measure,collectives,plans,ranks", "--bundle", path("results.tar.gz")});
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const Json round = record();
  EXPECT_EQ(round["schema"], "foreshard.gpu_round/1");
  EXPECT_EQ(round["device"], "standin");
  for (const char* stage : {"environment", "self_check", "measure", "collectives", "plans"}) {
    EXPECT_EQ(status_of(round, stage), "ok") << stage << outcome.output;
  }
  EXPECT_EQ(status_of(round, "ranks"), "skipped");

  std::istringstream rows(content_of(folder_ / "out/plans.jsonl"));
  int plans = 0;
  for (std::string line; std::getline(rows, line); ++plans) {
    const Json row = Json::parse(line);
    EXPECT_EQ(row["status"], "ok") << line;
    EXPECT_GT(row["step_s"].get<double>(), 0);
    EXPECT_TRUE(row["step_error"].is_number());
    EXPECT_TRUE(row["memory_error"].is_number());
    EXPECT_GT(row["issue_us"].get<double>(), 0);
    for (const char* profile : {"blind", "calibrated"}) {
      const Json& forecast = row["forecast"][profile];
      EXPECT_EQ(forecast["fingerprint"].get<std::string>().size(), 16U);
      for (const char* key : {"step_s", "peak_allocated_bytes", "peak_reserved_bytes"}) {
        const Json& q = forecast[key];
        const double seen = row[key];
        EXPECT_EQ(q["hit"], q["low"].get<double>() <= seen && seen <= q["high"].get<double>());
        EXPECT_NEAR(q["error"], q["value"].get<double>() / seen - 1, 1e-9);
      }
    }
  }
  EXPECT_EQ(plans, 5);
  const Json raw = Json::parse(content_of(folder_ / "out/raw.json"));
  EXPECT_EQ(raw["schema"], "foreshard.measurements/1");
  EXPECT_GT(raw["rows"].size(), 10U);
  const Json profile = Json::parse(content_of(folder_ / "out/profile.json"));
  EXPECT_GT(profile["measured"]["gemm"].size(), 0U);
  EXPECT_EQ(profile["sweeps"].size(), 3U);  // of two ranks: all_gather, reduce_scatter, all_reduce
  EXPECT_GT(fs::file_size(path("results.tar.gz")), 1000U);
  EXPECT_NE(content_of(folder_ / "out/summary.md").find("tiny-shard-8"), std::string::npos);

  // A stand-in measured no GPU.
  const ChildOutcome kept =
      ChildProcess({"python3", (kScripts / "keep.py").string(), path("out"), path("repo")}).finish();
  EXPECT_NE(kept.code, 0);
  EXPECT_NE(kept.output.find("no GPU was measured"), std::string::npos) << kept.output;
}

TEST_F(GpuRoundTest, OneGpuHasNoCurvesOfCollectives) {
  const ChildOutcome outcome =
      round({"--device", "standin", "--minutes", "0.5", "--stages", "environment,collectives"});
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_EQ(status_of(record(), "collectives"), "skipped");
  EXPECT_NE(outcome.output.find("curves of NCCL need two or more"), std::string::npos) << outcome.output;
}

TEST_F(GpuRoundTest, AFailedStageIsRecordedAndTheNextOneRuns) {
  fs::create_directories(folder_ / "bin");
  fs::copy_file(kBin / "foreshard", folder_ / "bin/foreshard");
  std::ofstream(folder_ / "bin/foreshard-exec") << "#!/bin/sh\necho broken >&2\nexit 9\n";
  fs::permissions(folder_ / "bin/foreshard-exec", fs::perms::owner_all);
  const ChildOutcome outcome = round(
      {"--device", "standin", "--minutes", "0.5", "--stages", "environment,self_check,measure,plans"}, folder_ / "bin");
  EXPECT_EQ(outcome.code, 1) << outcome.output;
  const Json round = record();
  EXPECT_EQ(status_of(round, "environment"), "ok");
  for (const char* stage : {"self_check", "measure", "plans"}) EXPECT_EQ(status_of(round, stage), "failed");
  EXPECT_NE(content_of(folder_ / "out/plans.jsonl").find("exit 9: "), std::string::npos);
  EXPECT_NE(content_of(folder_ / "out/plans.jsonl").find("broken"), std::string::npos);
}

// The program says which check it was in; the round goes on without it and keeps what was seen.
TEST_F(GpuRoundTest, AChecksEndIsNotTheEndOfTheOthers) {
  fs::create_directories(folder_ / "bin");
  std::ofstream(folder_ / "bin/foreshard-exec") << R"(#!/bin/bash
case " $* " in
  *" --skip lost --skip gone "*) running= code=0 ;;
  *" --skip lost "*) running=gone code=9 ;;
  *) running=lost code=5 ;;
esac
while (($#)); do
  [[ $1 != --out ]] || out=$2
  shift
done
[[ $running == lost ]] && status=failed detail='illegal address' || status=skipped detail='left out'
printf '{"running": "%s", "checks": [{"check": "lost", "status": "%s", "detail": "%s"},
  {"check": "fine", "status": "ok", "detail": "seen"}]}' "$running" "$status" "$detail" >"$out"
exit $code
)";
  fs::permissions(folder_ / "bin/foreshard-exec", fs::perms::owner_all);
  const ChildOutcome outcome =
      round({"--device", "standin", "--minutes", "0.5", "--stages", "self_check"}, folder_ / "bin");
  EXPECT_EQ(outcome.code, 1) << outcome.output;
  EXPECT_NE(outcome.output.find("3 checks, failed: lost, gone"), std::string::npos) << outcome.output;
  const Json checks = Json::parse(content_of(folder_ / "out/self_check.json"))["checks"];
  ASSERT_EQ(checks.size(), 3U);
  EXPECT_EQ(checks[0]["detail"], "illegal address");
  EXPECT_EQ(checks[1]["status"], "ok");
  EXPECT_EQ(checks[2]["detail"], "the process ended with 9");
}

// A stage alone knows what machine it is on, and an earlier round's results in the folder are not taken for its own.
TEST_F(GpuRoundTest, AStageAloneStandsForItself) {
  fs::create_directories(folder_ / "out");
  for (const char* file : {"out/self_check.json", "out/raw.json", "out/plans.jsonl"}) {
    std::ofstream(folder_ / file) << R"({"checks": [], "rows": [], "name": "of the round before", "status": "failed"})"
                                  << "\n";
  }
  fs::create_directories(folder_ / "bin");
  std::ofstream(folder_ / "bin/foreshard-exec") << "#!/bin/sh\necho \"$@\" >&2\nexit 9\n";
  fs::permissions(folder_ / "bin/foreshard-exec", fs::perms::owner_all);
  const ChildOutcome outcome =
      round({"--device", "standin", "--minutes", "0.5", "--stages", "self_check,measure,plans"}, folder_ / "bin");
  EXPECT_EQ(outcome.code, 1) << outcome.output;
  for (const char* stage : {"self_check", "measure", "plans"}) EXPECT_EQ(status_of(record(), stage), "failed") << stage;
  const std::string rows = content_of(folder_ / "out/plans.jsonl");
  EXPECT_EQ(rows.find("of the round before"), std::string::npos) << rows;
  EXPECT_NE(rows.find("8xh100-sxm"), std::string::npos) << rows;
}

// Every plan of a GPU's round is one that the forecast takes: a key that it refuses would show
// there for the first time.
TEST_F(GpuRoundTest, ItsPlansAreValid) {
  const std::string script = R"(
import subprocess, sys
sys.path.insert(0, sys.argv[2])
from round_plans import BESIDE, FSDP2, PLANS, fsdp2_plan, words_of
asked = [(p["name"], words_of(p, "native", "h100-sxm")) for p in PLANS]
asked += [(f[0], words_of(fsdp2_plan(*f[1:]), "fsdp2@2.11", "h100-sxm")) for f in FSDP2]
for name, words in asked:
    command = [sys.argv[1], "predict", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print("refused:", name, done.stderr)
names = {name for name, _ in asked}
for _, ours, theirs in BESIDE:
    for name in sorted(set(ours + theirs) - names):
        print("unknown:", name)
)";
  const ChildOutcome outcome = ChildProcess({"python3", "-c", script, (kBin / "foreshard").string(), kScripts.string()},
      {{"PYTHONDONTWRITEBYTECODE",
          "1"}}).finish();
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_EQ(outcome.output, "");
}

TEST_F(GpuRoundTest, WithoutAGpuItSaysSo) {
  if (std::system("nvidia-smi > /dev/null 2>&1") == 0) {
    GTEST_SKIP() << "there is a GPU";
  }
  const ChildOutcome outcome = round({});
  EXPECT_EQ(outcome.code, 6);
  EXPECT_NE(outcome.output.find("no NVIDIA GPU"), std::string::npos) << outcome.output;
}

TEST_F(GpuRoundTest, WhatAGpuMeasuredIsKept) {
  fs::create_directories(folder_ / "out");
  std::ofstream(folder_ / "out/round.json")
      << R"({"device": "NVIDIA H200", "gpu": "h200", "created": "2030-01-02T03:04:05Z"})";
  std::ofstream(folder_ / "out/raw.json") << "{}";
  std::ofstream(folder_ / "out/plans.jsonl") << "{}\n";
  const ChildOutcome kept =
      ChildProcess({"python3", (kScripts / "keep.py").string(), path("out"), path("repo")}).finish();
  ASSERT_EQ(kept.code, 0) << kept.output;
  EXPECT_TRUE(fs::exists(folder_ / "repo/calibration/measured/h200/20300102T030405Z.json"));
  EXPECT_TRUE(fs::exists(folder_ / "repo/reports/validation/h200-20300102T030405Z/plans.jsonl"));
}

TEST_F(GpuRoundTest, TheCarriedBuildRunsInAFolderOfItsOwn) {
  if (!kHasPlugin) {
    GTEST_SKIP() << "no CUDA toolkit: the plugin is not built";
  }
  const std::string archive = path("carried.tar.gz");
  const ChildOutcome packed = ChildProcess({"bash", (kScripts / "pack.sh").string(), kBin.string(), archive}).finish();
  ASSERT_EQ(packed.code, 0) << packed.output;
  EXPECT_LT(fs::file_size(archive), std::uintmax_t{64} << 20);
  // LibTorch is that machine's: here the one the tests run with.
  const ChildOutcome run =
      ChildProcess({"bash", "-c",
                       "set -e; cd \"$0\"; tar xzf carried.tar.gz; torch=$(ldd \"$1\" | sed -n 's/.*=> "
                       "\\(.*\\)\\/libtorch_cpu.so .*/\\1/p'); export LD_LIBRARY_PATH=$torch; foreshard-gpu/run.sh "
                       "--device standin --minutes 0.5 --stages self_check --out out; readelf -d "
                       "foreshard-gpu/bin/foreshard-exec | grep -i path",
                       folder_.path().string(), FORESHARD_EXEC_PROGRAM})
          .finish();
  ASSERT_EQ(run.code, 0) << run.output;
  EXPECT_EQ(status_of(record(), "self_check"), "ok") << run.output;
  EXPECT_NE(run.output.find("[$ORIGIN/../lib]"), std::string::npos) << run.output;
}

// Of the project's own code it must hold everything: the program's symbols are not visible to it.
TEST(CudaPlugin, NeedsNothingOfTheProgram) {
  if (!kHasPlugin) {
    GTEST_SKIP() << "no CUDA toolkit: the plugin is not built";
  }
  const std::string plugin = (kBin / "libforeshard_cuda.so").string();
  const ChildOutcome symbols = ChildProcess({"nm", "-DC", plugin}).finish();
  ASSERT_EQ(symbols.code, 0) << symbols.output;
  EXPECT_NE(symbols.output.find(" T foreshard_accelerator"), std::string::npos);
  std::istringstream lines(symbols.output);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_FALSE(contains(line, " U ") && contains(line, "foreshard::")) << line;
  }
}

TEST(CudaPlugin, WithoutAGpuTheReasonIsSaid) {
  if (std::system("nvidia-smi > /dev/null 2>&1") == 0) {
    GTEST_SKIP() << "there is a GPU";
  }
  const ChildOutcome outcome = ChildProcess({FORESHARD_EXEC_PROGRAM, "self-check"}).finish();
  EXPECT_EQ(outcome.code, 6);
  EXPECT_NE(outcome.output.find("no GPU for the engine"), std::string::npos) << outcome.output;
}

}
}
