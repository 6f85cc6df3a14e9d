// One communicator of the world becomes one per group of the plan's mesh. The library that splits
// is played by a rank's thread, which looks at what all members of the world ask for.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "exec/comm/rank_threads.h"
#include "exec/device/device_communicators.h"
#include "exec/device/host_accelerator.h"
#include "exec/engine/backend.h"

namespace foreshard {
namespace {

class Part final : public DeviceCommunicator {
 public:
  explicit Part(const CommunicatorPart& part) : part_(part) {}
  int index() const override { return part_.index; }
  int size() const override { return part_.size; }
  void all_gather(void*, std::size_t, DType) override {}
  void reduce_scatter(const void*, void*, std::size_t, DType) override {}
  void all_reduce(float*, std::size_t) override {}
  void all_reduce(double*, std::size_t) override {}

 private:
  CommunicatorPart part_;
};

class Whole final : public DeviceCommunicator {
 public:
  explicit Whole(World& world) : world_(world) {}
  int index() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  void all_gather(void*, std::size_t, DType) override {}
  void reduce_scatter(const void*, void*, std::size_t, DType) override {}
  void all_reduce(float*, std::size_t) override {}
  void all_reduce(double*, std::size_t) override {}

  // As ncclCommSplit: members of one colour, in the order of their keys.
  std::unique_ptr<DeviceCommunicator> split(const CommunicatorPart& part) override {
    const std::string kind = part.name.substr(0, part.name.find('/'));
    const auto asked = world_.gather(
        "split", fmt::format("{} {} {} {}", kind, part.colour, part.index, part.size));
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
  Communicator c;
  c.name = name;
  c.group.size = size;
  c.group.stride = stride;
  return c;
}

// 8 ranks as 2 replicas of 4 shards, resharded to pairs after forward.
TEST(SplitWorld, EveryGroupOfTheMeshIsAPart) {
  for_each_rank(8, [](World& world) {
    const auto device = host_accelerator();
    std::vector<DeviceGroup> groups;
    for (const Communicator& c :
         {of("shard", 4, 1), of("replicate", 2, 4), of("post_forward", 2, 1)}) {
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

}  // namespace
}  // namespace foreshard
