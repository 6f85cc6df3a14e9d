// What the program does when it is given nonsense, loses a rank, is interrupted, or cannot write.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "exec/run/checkpoint_claim.h"
#include "exec/state/checkpoint_folder.h"
#include "exec/state/safetensors.h"
#include "tests/exec/cli/run_fixture.h"

namespace foreshard {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

class ExecFaults : public ExecRunTest {
 protected:
  void expect_refused(const Words& words, int code, const Words& says, const Variables& variables = {}) const {
    const ChildOutcome outcome = run(words, variables);
    EXPECT_EQ(outcome.code, code) << outcome.output;
    for (const std::string& part : says) {
      EXPECT_TRUE(contains(outcome.output, part)) << part << "\nin\n" << outcome.output;
    }
    EXPECT_FALSE(contains(outcome.output, "internal error")) << outcome.output;
    EXPECT_FALSE(contains(outcome.output, "terminate called")) << outcome.output;
    EXPECT_FALSE(fs::exists(path("run"))) << "a run that never began left a folder";
  }
};

const Words kOneStep = {"--steps", "1"};

TEST_F(ExecFaults, BadData) {
  expect_refused(kOneStep + Words{"--data", write("empty.txt", "")}, 3, {"empty.txt", "no tokens"});
  // 4 sequences of 16 tokens and a last label need 65 tokens.
  expect_refused(kOneStep + Words{"--data", write("short.txt", std::string(40, 'a')), "--set", "batch.global=4"}, 3,
      {"short.txt"});
  expect_refused(kOneStep + Words{"--data", path("nothing.txt")}, 3, {"nothing.txt"});
  // 600 ids of 16 bits, one of them 256, which the vocabulary of 256 does not have.
  std::string ids(1200, '\0');
  ids[501] = 1;
  expect_refused(kOneStep + Words{"--data", write("ids.bin", ids)}, 3, {"ids.bin", "256"});
  expect_refused(kOneStep + Words{"--data", write("odd.bin", std::string(1201, '\0'))}, 3, {"odd.bin"});
  expect_refused(kOneStep + Words{"--data", write("empty2.txt", "")} + mesh(2), 3, {"no tokens"});
}

TEST_F(ExecFaults, PlansThatTheEngineDoesNotRun) {
  const Words four = {"--set", "mesh.shard=4", "--set", "mesh.replicate=1"};
  expect_refused(kOneStep + four + Words{"--spawn", "2"}, 7, {"shard 4 x replicate 1 = 4 ranks", "started 2"});
  expect_refused(kOneStep + four, 7, {"= 4 ranks", "--spawn 4"});
  expect_refused(kOneStep + Words{"--runtime", "fsdp2"}, 6, {"nearest plan", "native"});
  expect_refused(kOneStep + Words{"--cluster", "8xh100", "--runtime", "native"}, 6, {"CPU ranks", "nearest plan"});
  expect_refused(kOneStep + Words{"--set", "dtype.param=fp16"}, 6, {"nearest plan", "bf16"});
  expect_refused(kOneStep + Words{"--resume", path("nothing")}, 3, {"nothing"});
}

// --- a rank that is lost ---

class LostRank : public ExecFaults {
 protected:
  // A run that would go on for minutes, some steps in.
  ChildProcess endless(const std::string& transport, int ranks, const Words& more = {}) const {
    ChildProcess job = start(Words{"--steps", "1000000"} + mesh(ranks) + more,
        {{"FORESHARD_TRANSPORT", transport}, {"FORESHARD_TIMEOUT_S", "2"}});
    EXPECT_NE(job.wait_for("step 1/"), "");
    return job;
  }
};

TEST_F(LostRank, AKilledOneIsNamedWithTheEvent) {
  for (const char* transport : {"shm", "gloo"}) {
    SCOPED_TRACE(transport);
    ChildProcess job = endless(transport, 3);
    const auto ranks = ranks_of(job.process());
    ASSERT_EQ(ranks.size(), 3U);
    const auto begin = Clock::now();
    ::kill(ranks.at(1), SIGKILL);
    const ChildOutcome outcome = job.finish();
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
    EXPECT_EQ(outcome.code, 7) << outcome.output;
    EXPECT_TRUE(contains(outcome.output, "rank 1 was killed by signal 9")) << outcome.output;
    EXPECT_TRUE(contains(outcome.output, " waited in ")) << outcome.output;
    EXPECT_TRUE(contains(outcome.output, " of step ")) << outcome.output;
    const RunRecord record = read_run_folder(folder_ / "run");
    EXPECT_FALSE(record.complete);
    EXPECT_FALSE(record.losses.empty());
    fs::remove_all(path("run"));
  }
}

TEST_F(LostRank, AMissingOneIsNamedWithinTheLimitThatWasAskedFor) {
  Variables first = by_hand(0, 2, free_port());
  first["FORESHARD_TIMEOUT_S"] = "5";
  const auto begin = Clock::now();
  const ChildOutcome outcome = run(kOneStep + Words{"--set", "mesh.shard=2"}, first);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));  // the limit without one is 60
  EXPECT_EQ(outcome.code, 7) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "rank 1 of 2 did not come to ")) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "within 5 s")) << outcome.output;
}

// One transport is enough here, the wait is long: tests/exec/launch/spawn_test.cpp has both.
TEST_F(LostRank, AStoppedOneIsNamedWithTheEventAfterTheTimeout) {
  ChildProcess job = endless("gloo", 2);
  const auto ranks = ranks_of(job.process());
  ASSERT_EQ(ranks.size(), 2U);
  const auto begin = Clock::now();
  ::kill(ranks.at(1), SIGSTOP);
  EXPECT_NE(job.wait_for("waited in "), "");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
  const ChildOutcome outcome = job.finish();  // the launcher gives the stopped rank its grace
  EXPECT_EQ(outcome.code, 7) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "rank 1 did not answer within 2 s")) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "rank 0 waited in ")) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, " of step ")) << outcome.output;
}

TEST_F(ExecFaults, ASignalEndsAllRanksAndKeepsWhatThereIs) {
  const std::vector<std::pair<int, int>> cases = {{1, SIGINT}, {1, SIGTERM}, {2, SIGINT}, {2, SIGTERM}, {2, SIGHUP}};
  for (const auto& [ranks, signal] : cases) {
    SCOPED_TRACE(fmt::format("{} ranks, signal {}", ranks, signal));
    ChildProcess job = start(Words{"--steps", "1000000", "--checkpoint", path("saved")} + mesh(ranks));
    ASSERT_NE(job.wait_for("step 1/"), "");
    const auto processes = ranks_of(job.process());
    job.signal(signal);
    const ChildOutcome outcome = job.finish();
    EXPECT_EQ(outcome.code, 130) << outcome.output;
    EXPECT_TRUE(contains(outcome.output, "interrupted after step ")) << outcome.output;
    for (const auto& [rank, process] : processes) EXPECT_NE(::kill(process, 0), 0) << rank;
    const RunRecord record = read_run_folder(folder_ / "run");
    EXPECT_FALSE(record.complete);
    EXPECT_FALSE(record.losses.empty());
    EXPECT_FALSE(record.parameter_hash.empty());
    // It can go on from there.
    const std::string steps = std::to_string(record.losses.size() + 1);
    const ChildOutcome next =
        run(Words{"--steps", steps, "--resume", path("saved"), "--out", path("next")} + mesh(ranks));
    EXPECT_EQ(next.code, 0) << next.output;
    EXPECT_EQ(read_run_folder(folder_ / "next").losses.size(), 1U);
    fs::remove_all(path("run"));
    fs::remove_all(path("saved"));
  }
}

// As Slurm does that ends one node's ranks: all stop after the same step.
TEST_F(ExecFaults, ASignalToOneRankEndsAll) {
  ChildProcess job = start(Words{"--steps", "1000000", "--checkpoint", path("saved")} + mesh(2));
  ASSERT_NE(job.wait_for("step 1/"), "");
  ::kill(ranks_of(job.process()).at(1), SIGTERM);
  const ChildOutcome outcome = job.finish();
  EXPECT_EQ(outcome.code, 130) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "interrupted after step ")) << outcome.output;
  EXPECT_EQ(read_run_folder(folder_ / "run").ranks.size(), 2U);
  EXPECT_EQ(list_checkpoints(path("saved")).size(), 1U);
}

TEST_F(ExecFaults, WhoCannotEndWithinTheGraceSaysSo) {
  ChildProcess job = start(Words{"--steps", "1000000", "--grace", "1s"} + mesh(2));
  ASSERT_NE(job.wait_for("step 1/"), "");
  ::kill(ranks_of(job.process()).at(1), SIGSTOP);  // rank 0 waits for it
  job.signal(SIGTERM);
  const ChildOutcome outcome = job.finish();
  EXPECT_EQ(outcome.code, 130) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "not over within --grace")) << outcome.output;
  EXPECT_EQ(run(kOneStep + Words{"--grace", "soon"}).code, 2);
}

// --- whose folder it is ---

TEST_F(ExecFaults, TwoRunsDoNotShareAFolderOfCheckpoints) {
  const Words saves = {"--steps", "1000000", "--checkpoint", path("saved")};
  ChildProcess job = start(saves);
  ASSERT_NE(job.wait_for("step 1/"), "");
  const ChildOutcome second = run(saves + Words{"--out", path("second")});
  EXPECT_EQ(second.code, 3) << second.output;
  EXPECT_TRUE(contains(second.output, "another run (process " + std::to_string(job.process()))) << second.output;
  // The lock of a run that was killed is none.
  job.signal(SIGKILL);
  job.finish();
  const ChildOutcome third = run({"--steps", "2", "--checkpoint", path("saved")});
  EXPECT_EQ(third.code, 0) << third.output;
}

TEST_F(ExecFaults, DestinationsAreTriedBeforeTheFirstStep) {
  write("file", "");
  const std::vector<std::pair<std::string, Words>> cases = {{"file/run", {"--out", path("file/run")}},
      {"file/saved", {"--checkpoint", path("file/saved")}},
      {"nowhere/trace.json", {"--trace", path("nowhere/trace.json")}},
      {"nowhere/kineto.json", {"--kineto", path("nowhere/kineto.json")}}};
  for (const auto& [name, words] : cases) {
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(name);
      const ChildOutcome outcome = run(Words{"--steps", "1000000"} + words + mesh(ranks));
      EXPECT_EQ(outcome.code, 3) << outcome.output;
      EXPECT_TRUE(contains(outcome.output, name)) << outcome.output;
      EXPECT_FALSE(contains(outcome.output, "step 1/")) << outcome.output;
      EXPECT_FALSE(fs::exists(path("run")));
    }
  }
  try {
    CheckpointClaim({.folder = path("saved"), .job = {}, .accepted = {}, .checkpoint_bytes = std::int64_t{1} << 60});
    ADD_FAILURE() << "an EiB on this disk";
  } catch (const Error& error) {
    EXPECT_TRUE(contains(error.what(), "two checkpoints")) << error.what();
  }
}

// --- numbers that are none ---

// Weight decay beyond 1 / learning rate multiplies every matrix by the same large factor per step.
const Words kDiverges = {"--set", "optimizer.kind=sgd", "--set", "optimizer.clip_norm=none", "--set",
    "optimizer.learning_rate=100", "--set", "optimizer.weight_decay=1000"};

// Of all tensors of a checkpoint, which are fp32.
std::int64_t not_finite_values(const fs::path& checkpoint) {
  std::int64_t count = 0;
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsHeader header = read_safetensors_header(entry.path());
    std::ifstream file(entry.path(), std::ios::binary);
    file.seekg(header.data_begin);
    for (float value = 0; file.read(reinterpret_cast<char*>(&value), sizeof value);) {
      if (!std::isfinite(value)) ++count;
    }
  }
  return count;
}

TEST_F(ExecFaults, ANotFiniteRunStopsAndItsCheckpointsStayFinite) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    const ChildOutcome outcome =
        run(kDiverges + mesh(ranks) +
            Words{"--steps", "100", "--checkpoint", path("saved"), "--checkpoint-every", "1", "--json"});
    EXPECT_EQ(outcome.code, 8) << outcome.output;
    EXPECT_TRUE(contains(outcome.output, "is not finite")) << outcome.output;
    EXPECT_TRUE(contains(outcome.output, "rank 0")) << outcome.output;
    EXPECT_FALSE(contains(outcome.output, "internal error")) << outcome.output;
    const RunRecord record = read_run_folder(folder_ / "run");
    EXPECT_FALSE(record.complete);
    EXPECT_TRUE(record.not_finite.starts_with("step ")) << record.not_finite;
    std::vector<fs::path> saved;
    for (const auto& entry : fs::directory_iterator(path("saved"))) {
      if (entry.is_directory()) saved.push_back(entry.path());
    }
    EXPECT_EQ(saved.size(), 3U);  // as many as are kept, of the steps before
    for (const fs::path& checkpoint : saved) EXPECT_EQ(not_finite_values(checkpoint), 0);
    fs::remove_all(path("run"));
    fs::remove_all(path("saved"));
  }
}

TEST_F(ExecFaults, SettingsThatCannotWorkAreRefusedWithTheirKey) {
  for (const char* setting : {"optimizer.beta1=1", "optimizer.beta2=1", "optimizer.epsilon=0",
           "optimizer.epsilon=1e-60", "optimizer.learning_rate=-1", "optimizer.clip_norm=0"}) {
    const std::string key = std::string(setting).substr(0, std::string(setting).find('='));
    expect_refused(kOneStep + Words{"--set", setting}, 3, {key, "out of range", "expected"});
  }
}

// --- full disk ---

// ulimit -f counts blocks of 512 bytes (POSIX sh); a write beyond it fails, as on a full disk.
TEST_F(ExecFaults, AFullDiskUnderTheRunFolder) {
  const ChildOutcome outcome = shell("trap '' XFSZ; ulimit -f 8; $E --data text.txt --steps 20 --out run");
  EXPECT_EQ(outcome.code, 3) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "run/")) << outcome.output;
  EXPECT_FALSE(contains(outcome.output, "internal error")) << outcome.output;
  EXPECT_FALSE(fs::exists(path("run/run.json"))) << "half a run folder looks whole";
}

TEST_F(ExecFaults, AFullDiskUnderACheckpoint) {
  const std::string steps = " --steps 4 --checkpoint saved --checkpoint-every 2 --spawn 2";
  ASSERT_EQ(shell("$E --data text.txt --out first --steps 2 --checkpoint saved --spawn 2").code, 0);
  const ChildOutcome outcome =
      shell("trap '' XFSZ; ulimit -f 128; $E --data text.txt --resume saved --out run" + steps);
  EXPECT_EQ(outcome.code, 3) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "saved")) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "File too large")) << outcome.output;
  EXPECT_FALSE(contains(outcome.output, "internal error")) << outcome.output;
  // The one before is as it was.
  const ChildOutcome next = shell("$E --data text.txt --resume saved --out next" + steps);
  EXPECT_EQ(next.code, 0) << next.output;
  EXPECT_TRUE(contains(next.output, "after step 2")) << next.output;
}

// --- ends at any moment ---

// How a round of the test below ends.
enum class End : std::uint8_t { kAllRanks, kOneRank, kLauncher, kTerminated };

std::int64_t newest_step(const fs::path& folder) {
  const std::vector<CheckpointEntry> entries = list_checkpoints(folder);
  return entries.empty() ? 0 : entries.back().step;
}

// A checkpoint after every step, so that most moments are in the middle of one; every third round
// ends while the ranks find each other. FORESHARD_KILLS=200 for the long form. Nothing that was
// saved is lost, and going on to a fixed step gives the bits of the run that never stopped.
TEST_F(ExecFaults, ARunEndedAtAnyMomentGoesOnFromItsLastCheckpoint) {
  const char* const asked = std::getenv("FORESHARD_KILLS");
  const int rounds = asked != nullptr ? std::atoi(asked) : 6;
  std::mt19937 random(20240607);
  const Words saves = {"--checkpoint", path("saved"), "--checkpoint-every", "1"};
  ASSERT_EQ(run(Words{"--steps", "1"} + saves + mesh(2)).code, 0);
  std::int64_t last = 1;
  for (int i = 0; i < rounds; ++i) {
    const auto end = static_cast<End>(i % 4);
    SCOPED_TRACE(fmt::format("round {}, end {}", i, i % 4));
    ChildProcess job = start(Words{"--steps", "1000000", "--resume", path("saved")} + saves + mesh(2));
    const bool meeting = i % 3 == 2;
    if (!meeting) {
      if (job.wait_for("resumed ").empty()) FAIL() << job.finish().output;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % (meeting ? 400 : 220)));
    const auto ranks = ranks_of(job.process());
    if (end == End::kLauncher) job.signal(SIGKILL);
    if (end == End::kTerminated) job.signal(SIGTERM);
    if (end == End::kAllRanks) {
      for (const auto& [rank, process] : ranks) ::kill(process, SIGKILL);
    }
    if (end == End::kOneRank && !ranks.empty()) ::kill(ranks.begin()->second, SIGKILL);
    if (ranks.empty()) job.signal(SIGKILL);  // it had not started any
    const ChildOutcome outcome = job.finish();
    if (!ranks.empty() && end != End::kLauncher) {
      EXPECT_EQ(outcome.code, end == End::kTerminated ? 130 : 7) << outcome.output;
    }
    const std::int64_t reached = newest_step(path("saved"));
    EXPECT_GE(reached, last);
    const std::string said = "interrupted after step ";
    if (const std::size_t at = outcome.output.find(said); at != std::string::npos) {
      EXPECT_EQ(std::stoll(outcome.output.substr(at + said.size())), reached) << outcome.output;
    } else if (end == End::kTerminated && !meeting) {
      ADD_FAILURE() << outcome.output;
    }
    last = reached;
  }
  EXPECT_GT(last, 1);
  const std::string steps = std::to_string(last + 2);
  const RunRecord rest = record("rest", Words{"--steps", steps, "--resume", path("saved")} + mesh(2));
  EXPECT_EQ(rest.first_step, last + 1);
  const RunRecord whole = record("whole", Words{"--steps", steps} + mesh(2));
  EXPECT_EQ(rest.parameter_hash, whole.parameter_hash);
  ASSERT_EQ(rest.losses.size(), 2U);
  EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.end() - 2, whole.losses.end()));
}

}
}
