// --spawn with real processes: its output, its exit codes, and that nobody outlives a failure.
#include "exec/launch/spawn.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "sim/base/lookup.h"
#include "tests/exec/launch/child.h"

namespace foreshard {
namespace {

using Clock = std::chrono::steady_clock;

ChildProcess spawn(
    int ranks, const std::vector<std::string>& words, const std::map<std::string, std::string>& environment = {}) {
  std::vector<std::string> program = {spawn_program(), std::to_string(ranks), rank_program()};
  append(program, words);
  return ChildProcess(program, environment);
}

// Within two minutes: of a machine that does other things as well.
bool ends_soon(int process) {
  for (int i = 0; i < 12000 && ::kill(process, 0) == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return ::kill(process, 0) != 0;
}

TEST(Spawn, LinesOfOtherRanksCarryTheirNumber) {
  const ChildOutcome outcome = spawn(3, {"meet"}).finish();
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_TRUE(contains("\n" + outcome.output, "\nrank 0 of 3: I am 0, I am 1, I am 2; 3 3\n")) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "[rank 1] rank 1 of 3: ")) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "[rank 2] rank 2 of 3: ")) << outcome.output;
  EXPECT_EQ(std::ranges::count(outcome.output, '\n'), 3) << outcome.output;
}

TEST(Spawn, OneRankNeedsNobody) {
  const ChildOutcome outcome = spawn(1, {"meet"}).finish();
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.output, "rank 0 of 1: I am 0; 1 0\n");
}

TEST(Spawn, AProgramThatIsNotThere) {
  const ChildOutcome outcome = ChildProcess({spawn_program(), "2", "/no/such/program"}).finish();
  EXPECT_EQ(outcome.code, 7);
  EXPECT_TRUE(contains(outcome.output, "error: /no/such/program cannot be started: No such file or directory\n"))
      << outcome.output;
}

// The others end with 7 because they lost rank 1; its own code is the answer.
TEST(Spawn, TheExitCodeIsThatOfTheRankThatFailedByItself) {
  for (const char* transport : {"shm", "gloo"}) {
    const ChildOutcome outcome = spawn(3, {"quit", "3"}, {{"FORESHARD_TRANSPORT", transport}}).finish();
    EXPECT_EQ(outcome.code, 3) << outcome.output;
    EXPECT_TRUE(contains(outcome.output, "\nerror: rank 1: the data ran out\n") ||
                outcome.output.starts_with("error: rank 1: the data ran out\n"))
        << outcome.output;  // what rank 0 says
    EXPECT_TRUE(contains(outcome.output, "[rank 2] error: rank 1: the data ran out\n")) << outcome.output;
  }
}

// In "chain" rank 0 talks to rank 1 only: it must still hear of rank 2.
TEST(Spawn, AKilledRankIsNamedByAll) {
  for (const char* transport : {"shm", "gloo"}) {
    ChildProcess job = spawn(3, {"chain"}, {{"FORESHARD_TRANSPORT", transport}});
    const std::string ready = job.wait_for("ready", 3);
    ASSERT_NE(ready, "");
    const auto start = Clock::now();
    ::kill(process_in(ready, "[rank 2] "), SIGKILL);
    const ChildOutcome outcome = job.finish();
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
    EXPECT_EQ(outcome.code, 7) << outcome.output;
    const std::string named = "error: rank 2 was killed by signal 9 (Killed)\n";
    EXPECT_TRUE(contains(outcome.output, "\n[rank 1] " + named)) << outcome.output;
    std::size_t unprefixed = 0;  // of the launcher and of rank 0
    for (std::size_t at = 0; (at = outcome.output.find("\n" + named, at)) != std::string::npos; ++at) ++unprefixed;
    EXPECT_EQ(unprefixed, 2U) << outcome.output;
  }
}

TEST(Spawn, AStoppedRankIsNamedAfterTheTimeout) {
  for (const char* transport : {"shm", "gloo"}) {
    ChildProcess job = spawn(2, {"forever"}, {{"FORESHARD_TRANSPORT", transport}, {"FORESHARD_TIMEOUT_S", "1"}});
    const std::string ready = job.wait_for("ready", 2);
    ASSERT_NE(ready, "");
    const auto start = Clock::now();
    const int stopped = process_in(ready, "[rank 1] ");
    ::kill(stopped, SIGSTOP);
    const ChildOutcome outcome = job.finish();
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
    EXPECT_EQ(outcome.code, 7) << outcome.output;
    EXPECT_TRUE(contains(outcome.output, "error: rank 0: rank 1 did not answer within 1 s")) << outcome.output;
    EXPECT_TRUE(ends_soon(stopped));
  }
}

TEST(Spawn, AnInterruptReachesTheRanksWhichEndProperly) {
  ChildProcess job = spawn(2, {"once"});
  ASSERT_NE(job.wait_for("ready", 2), "");
  job.signal(SIGINT);
  const ChildOutcome outcome = job.finish();
  EXPECT_EQ(outcome.code, 130) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "\nstopped properly\n")) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "[rank 1] stopped properly\n")) << outcome.output;
}

TEST(Spawn, ASecondInterruptDoesNotWait) {
  ChildProcess job = spawn(2, {"deaf"});
  ASSERT_NE(job.wait_for("ready", 2), "");
  const auto start = Clock::now();
  job.signal(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  job.signal(SIGINT);
  EXPECT_EQ(job.finish().code, 130);
  EXPECT_LT(Clock::now() - start, std::chrono::milliseconds(2500));  // the grace alone is 3 s
}

TEST(Spawn, NoRankOutlivesTheLauncher) {
  ChildProcess job = spawn(2, {"forever"});
  const std::string ready = job.wait_for("ready", 2);
  ASSERT_NE(ready, "");
  job.signal(SIGKILL);
  EXPECT_EQ(job.finish().code, 128 + SIGKILL);
  EXPECT_TRUE(ends_soon(process_in(ready, "")));
  EXPECT_TRUE(ends_soon(process_in(ready, "[rank 1] ")));
}

TEST(OpenMpi, StartsRanks) {
  if (std::system("command -v mpirun > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "no mpirun here";
  }
  const ChildOutcome outcome =
      ChildProcess({"mpirun", "-np", "2", "--allow-run-as-root", "--oversubscribe", rank_program(), "meet"}).finish();
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "rank 0 of 2: I am 0, I am 1; 2 1")) << outcome.output;
  EXPECT_TRUE(contains(outcome.output, "rank 1 of 2: I am 0, I am 1; 2 1")) << outcome.output;
}

}
}
