// One communicator of the world becomes one per group of the plan's mesh. The library that splits
// is played by a rank's thread, which looks at what all members of the world ask for.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "exec/comm/rank_threads.h"
#include "exec/device/device_communicators.h"
#include "exec/device/host_accelerator.h"
#include "exec/device/watched_communicator.h"
#include "exec/engine/backend.h"

namespace foreshard {
namespace {

class Silent : public DeviceCommunicator {
 public:
  void all_gather(void*, std::size_t, DType) override {}
  void reduce_scatter(const void*, void*, std::size_t, DType) override {}
  void all_reduce(float*, std::size_t) override {}
  void all_reduce(double*, std::size_t) override {}
};

class Part final : public Silent {
 public:
  explicit Part(const CommunicatorPart& part) : part_(part) {}
  int index() const override { return part_.index; }
  int size() const override { return part_.size; }

 private:
  CommunicatorPart part_;
};

class Whole final : public Silent {
 public:
  explicit Whole(World& world) : world_(world) {}
  int index() const override { return world_.rank(); }
  int size() const override { return world_.size(); }

  // As ncclCommSplit: members of one colour, in the order of their keys.
  std::unique_ptr<DeviceCommunicator> split(const CommunicatorPart& part) override {
    const std::string kind = part.name.substr(0, part.name.find('/'));
    const auto asked = world_.gather("split", fmt::format("{} {} {} {}", kind, part.colour, part.index, part.size));
    std::map<int, std::set<int>> members;  // by colour: keys
    for (const std::string& text : asked) {
      char name[32];
      int colour = 0, index = 0, size = 0;
      EXPECT_EQ(std::sscanf(text.c_str(), "%31s %d %d %d", name, &colour, &index, &size), 4);
      EXPECT_EQ(name, kind) << "ranks split for different communicators";
      EXPECT_TRUE(members[colour].insert(index).second) << "one key twice";
    }
    const std::set<int>& own = members[part.colour];
    EXPECT_EQ(static_cast<int>(own.size()), part.size);
    EXPECT_EQ(*own.begin(), 0);
    EXPECT_EQ(*own.rbegin(), part.size - 1);
    EXPECT_EQ(part.max_ctas, 8);
    return std::make_unique<Part>(part);
  }

 private:
  World& world_;
};

Communicator of(const char* name, std::int64_t size, std::int64_t stride) {
  Communicator c = {.name = name};
  c.group.size = size;
  c.group.stride = stride;
  return c;
}

// 8 ranks as 2 replicas of 4 shards, resharded to pairs after forward.
TEST(SplitWorld, EveryGroupOfTheMeshIsAPart) {
  for_each_rank(8, [](World& world) {
    const auto device = host_accelerator();
    std::vector<DeviceGroup> groups;
    for (const Communicator& c : {of("shard", 4, 1), of("replicate", 2, 4), of("post_forward", 2, 1)}) {
      const RankGroup group = rank_group(c, world.rank());
      groups.push_back({*device, world, group.name, group.ranks, false, 8});
    }
    Whole whole(world);
    const auto parts = split_world(whole, groups);
    ASSERT_EQ(parts.size(), 3U);
    EXPECT_EQ(parts[0]->index(), world.rank() % 4);
    EXPECT_EQ(parts[1]->index(), world.rank() / 4);
    EXPECT_EQ(parts[2]->index(), world.rank() % 2);
  });
}

TEST(SplitWorld, WhatCannotBeSplitSaysSo) {
  const CommunicatorPart part{"shard/2/0", 0, 0, 2, 0};
  Part whole(part);
  EXPECT_THROW(whole.split(part), std::runtime_error);
}

// Blocks in its first all_gather until it is aborted, as a part of NCCL does that waits for a rank
// that is stuck; what it throws then says nothing of that.
class Stuck final : public DeviceCommunicator {
 public:
  int index() const override { return 0; }
  int size() const override { return 2; }
  void all_gather(void*, std::size_t, DType) override {
    std::unique_lock lock(mutex_);
    woken_.wait(lock, [&] { return aborts_ > 0; });
    throw std::runtime_error("unhandled system error");
  }
  void reduce_scatter(const void*, void*, std::size_t, DType) override { ++calls_; }
  void all_reduce(float*, std::size_t) override { throw std::invalid_argument("own"); }
  void all_reduce(double*, std::size_t) override { ++calls_; }
  bool has_peers() const override { return true; }
  void abort() noexcept override {
    const std::lock_guard lock(mutex_);
    ++aborts_;
    woken_.notify_all();
  }
  int calls() const { return calls_; }
  int aborts() const { return aborts_; }

 private:
  std::mutex mutex_;
  std::condition_variable woken_;
  std::atomic<int> aborts_ = 0, calls_ = 0;
};

std::string thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing";
}

TEST(WatchedCommunicator, ACallThatWaitsForAStuckRankIsEndedAndNamed) {
  auto stuck = std::make_unique<Stuck>();
  Stuck& inside = *stuck;
  const auto part = watched(std::move(stuck), "shard/2/0", 0.2);
  const auto begin = std::chrono::steady_clock::now();
  const std::string said = thrown_by([&] { part->all_gather(nullptr, 0, DType::kFp32); });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(said, "shard/2/0: all_gather: no answer from the other ranks within 0.2 s");
  EXPECT_GE(took.count(), 0.2);
  EXPECT_LT(took.count(), 10);
  // Nothing is asked of it any more.
  EXPECT_NE(thrown_by([&] { part->reduce_scatter(nullptr, nullptr, 0, DType::kFp32); }), "nothing");
  EXPECT_EQ(inside.calls(), 0);
  EXPECT_EQ(inside.aborts(), 1);
}

TEST(WatchedCommunicator, TimeBetweenCallsIsNotCounted) {
  auto stuck = std::make_unique<Stuck>();
  Stuck& inside = *stuck;
  const auto part = watched(std::move(stuck), "shard/2/0", 0.1);
  for (int k = 0; k < 6; ++k) {
    part->reduce_scatter(nullptr, nullptr, 0, DType::kFp32);
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
  }
  double value = 0;
  part->all_reduce(&value, 1);
  EXPECT_EQ(inside.calls(), 7);
  EXPECT_EQ(inside.aborts(), 0);
}

TEST(WatchedCommunicator, WhatACallThrowsInTimePasses) {
  const auto part = watched(std::make_unique<Stuck>(), "shard/2/0", 60);
  float value = 0;
  EXPECT_EQ(thrown_by([&] { part->all_reduce(&value, 1); }), "own");
  EXPECT_TRUE(part->has_peers());
  EXPECT_EQ(part->size(), 2);
}

// Through the path that a job takes: a rank whose peer never makes the call is told which.
class StuckWhole final : public Silent {
 public:
  int index() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<DeviceCommunicator> split(const CommunicatorPart&) override { return std::make_unique<Stuck>(); }
};

TEST(SplitWorld, EveryPartHasADeadline) {
  for_each_rank(1, [](World& world) {
    const auto device = host_accelerator();
    StuckWhole whole;
    const auto parts = split_world(whole, {{*device, world, "shard/1/0", {0}}}, 0.1);
    ASSERT_EQ(parts.size(), 1U);
    EXPECT_NE(
        thrown_by([&] { parts[0]->all_gather(nullptr, 0, DType::kFp32); }).find("shard/1/0: all_gather: no answer"),
        std::string::npos);
  });
}

}
}
