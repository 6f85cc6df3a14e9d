// Saves that do not come to their end: killed, out of disk, over a size limit, one rank failing.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <random>
#include <thread>

#include "exec/state/checkpoint.h"
#include "exec/state/checkpoint_folder.h"
#include "sim/base/lookup.h"
#include "tests/exec/state/checkpoint_fixture.h"

namespace foreshard {
namespace {

using namespace state_test;

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

constexpr int kSkipped = 77;

class InterruptionTest : public CheckpointTest {};

// Runs `work` in a child process and returns its wait status; the child exits with work's result.
pid_t start_child(const auto& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  return child;
}

int wait_for(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

// 0 where a save of step 2 fails on both ranks as it should and leaves step 1 as it was.
int failing_save(const fs::path& folder, const TestLayout& layout, const std::string& reason) {
  const Strings errors = save(folder, layout, 2, 1);
  std::int64_t others = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename() != ".lock" && entry.path().filename() != "step-00000001") ++others;
  }
  const bool is_right =
      errors[0] == errors[1] && contains(errors[0], "cannot write ") && contains(errors[0], reason) && others == 0;
  if (!is_right) std::cerr << errors[0] << "\n" << errors[1] << "\n" << others << " left\n";
  return is_right ? 0 : 1;
}

// Where mounting needs no rights beyond the user's own.
bool enter_mount_namespace() {
  if (::unshare(CLONE_NEWNS) == 0) return true;
  const std::string user = std::to_string(::getuid());
  const std::string group = std::to_string(::getgid());
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  write_whole("/proc/self/setgroups", "deny");
  write_whole("/proc/self/uid_map", user + " " + user + " 1");
  write_whole("/proc/self/gid_map", group + " " + group + " 1");
  return true;
}

TestLayout large_layout() {
  TestLayout layout = layout_of({4, 4}, 2);
  layout.units.push_back({{"large", {40000}}});
  return layout;
}

// The limit is a signal that kills by default: nothing but the save itself holds it back here.
TEST_F(InterruptionTest, ASizeLimitFailsTheSaveAndNothingElse) {
  const TestLayout layout = layout_of({4, 4}, 2);
  ASSERT_EQ(save(folder_, layout, 1), Strings(2));
  // The second limit lets the shards pass and cuts the index.
  const auto shard_size = fs::file_size(folder_ / "step-00000001" / "rank-00000-of-00002.safetensors");
  for (const rlim_t limit : {rlim_t{500}, static_cast<rlim_t>(shard_size)}) {
    const int status = wait_for(start_child([&] {
      const rlimit limits = {limit, limit};
      ::setrlimit(RLIMIT_FSIZE, &limits);
      return failing_save(folder_, layout, "File too large");
    }));
    EXPECT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 0);
    EXPECT_EQ(load(folder_, layout).differences, 0);
  }
}

TEST_F(InterruptionTest, AFullDiskFailsTheSaveAndNothingElse) {
  const int status = wait_for(start_child([&] {
    fs::create_directories(folder_);
    if (!enter_mount_namespace()) return kSkipped;
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return kSkipped;
    if (::mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=640k") != 0) return kSkipped;
    const TestLayout layout = large_layout();
    if (save(folder_, layout, 1) != Strings(2)) return 2;
    if (failing_save(folder_, layout, "No space left on device") != 0) return 3;
    const LoadResult result = load(folder_, layout);
    return result.errors == Strings(2) && result.differences == 0 ? 0 : 4;
  }));
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kSkipped) GTEST_SKIP() << "a tmpfs cannot be mounted here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// After the ranks have begun, puts something in the way of rank 1's file.
class ObstructingWorld : public World {
 public:
  ObstructingWorld(World& inner, fs::path folder) : inner_(inner), folder_(std::move(folder)) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::unique_ptr<Transport> connect(const std::string& name, const std::vector<int>& ranks) override {
    return inner_.connect(name, ranks);
  }
  std::vector<std::string> gather(const std::string& topic, const std::string& text) override {
    if (topic == "checkpoint.begin" && rank() == 0) {
      const std::string working = text.substr(text.find('\n') + 1);
      write_whole(folder_ / working / "rank-00001-of-00002.safetensors", "x");
    }
    return inner_.gather(topic, text);
  }
  void announce_failure(const std::string& text) override { inner_.announce_failure(text); }
  std::optional<std::string> announced_failure(std::chrono::milliseconds patience) override {
    return inner_.announced_failure(patience);
  }

 private:
  World& inner_;
  fs::path folder_;
};

TEST_F(InterruptionTest, WhatOneRankCannotWriteFailsForAll) {
  TestLayout layout = layout_of({4, 4}, 2);
  layout.replicas = 2;
  ASSERT_EQ(save(folder_, layout, 1), Strings(4));
  const Strings errors = on_ranks(4, [&](int rank, World& world) {
    ObstructingWorld obstructing(world, folder_);
    const TestRank state = make_rank(layout, rank);
    save_checkpoint({folder_, 1}, state.state, progress_at(2), obstructing);
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, errors[0]);
    EXPECT_PRED2(says, error, "rank-00001-of-00002.safetensors: File exists");
  }
  EXPECT_EQ(names(), Strings{"step-00000001"});
}

TEST_F(InterruptionTest, AFolderThatIsNoneFails) {
  fs::create_directories(root_ / "run");
  write_whole(folder_, "a file");
  EXPECT_PRED2(says, save(folder_, layout_of({8}, 2), 1)[1], "cannot write checkpoints to ");
}

TEST_F(InterruptionTest, RanksThatDoNotFitTogetherAreABug) {
  const Strings errors = on_ranks(2, [&](int rank, World& world) {
    const TestRank state = make_rank(layout_of({8}, 2), rank);
    save_checkpoint({folder_, 1}, state.state, progress_at(rank), world);
  });
  EXPECT_PRED2(says, errors[1], "not the input: internal error: the ranks do not save the same");
  EXPECT_TRUE(names().empty());
}

// FORESHARD_KILLS=50 for the long form.
TEST_F(InterruptionTest, AKilledRunLeavesItsLastWholeCheckpoint) {
  const char* const asked = std::getenv("FORESHARD_KILLS");
  const int kills = asked != nullptr ? std::atoi(asked) : 5;
  const TestLayout layout = large_layout();
  // Moments are drawn in saves of this machine as it is now.
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(save(folder_, layout, 0), Strings(2));
  const auto one_save = std::chrono::steady_clock::now() - begin;
  const auto newest = [&] {
    const std::vector<CheckpointEntry> entries = list_checkpoints(folder_);
    return entries.empty() ? 0 : entries.back().step;
  };
  std::mt19937 random(20240607);
  std::int64_t last = 0;
  for (int i = 0; i < kills; ++i) {
    const pid_t child = start_child([&] {
      for (std::int64_t step = last + 1;; ++step) {
        // Twice, so that replacing is cut off as well.
        if (save(folder_, layout, step, 2) != Strings(2)) return 1;
        if (save(folder_, layout, step, 2) != Strings(2)) return 1;
      }
    });
    // Every fourth child gets further than the one before it.
    while (i % 4 == 3 && newest() <= last && ::waitpid(child, nullptr, WNOHANG) == 0) {
      std::this_thread::sleep_for(one_save / 8);
    }
    std::this_thread::sleep_for(one_save * static_cast<int>(random() % 300) / 100);
    ::kill(child, SIGKILL);
    const int status = wait_for(child);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the child could not save";
    const LoadResult result = load(folder_, layout);
    ASSERT_EQ(result.errors, Strings(2));
    EXPECT_EQ(result.differences, 0);
    EXPECT_TRUE(result.loaded[0].passed_over.empty());
    EXPECT_GE(result.loaded[0].progress.step, last);
    EXPECT_EQ(result.loaded[0].progress, progress_at(result.loaded[0].progress.step));
    last = result.loaded[0].progress.step;
  }
  EXPECT_GT(last, 0);
  EXPECT_EQ(save(folder_, layout, last + 1, 2), Strings(2));
  EXPECT_EQ(names().size(), 2U);
}

}
}
