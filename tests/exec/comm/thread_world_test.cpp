#include <gtest/gtest.h>

#include "exec/comm/communicator.h"
#include "exec/comm/rank_threads.h"

namespace foreshard {
namespace {

using std::chrono::milliseconds;

TEST(ThreadWorld, GatherGivesEveryTextInRankOrder) {
  for_each_rank(3, [](World& world) {
    for (int round = 0; round < 3; ++round) {
      const std::string own = std::to_string(10 * round + world.rank());
      const std::vector<std::string> texts = world.gather("topic", own);
      ASSERT_EQ(texts.size(), 3U);
      for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(texts[at(rank)], std::to_string(10 * round + rank));
    }
  });
}

TEST(ThreadWorld, GatherFailsWhenARankIsGone) {
  for_each_rank(2, [](World& world) {
    if (world.rank() == 1) return;
    EXPECT_THROW(world.gather("topic", ""), PeerFailure);
  });
}

TEST(ThreadWorld, ARankThatNeverConnectsIsNamed) {
  for_each_rank(2, [](World& world) {
    if (world.rank() == 1) return;
    GroupCommunicator all(world.connect("all", {0, 1}));
    std::vector<float> values = {1.0F};
    try {
      all.all_reduce(values);
      ADD_FAILURE() << "no failure";
    } catch (const PeerFailure& failure) {
      EXPECT_EQ(failure.rank(), 1);
    }
  });
}

TEST(ThreadWorld, TheFirstAnnouncementStays) {
  const auto worlds = thread_worlds(2);
  EXPECT_FALSE(worlds[0]->announced_failure(milliseconds(1)));
  worlds[1]->announce_failure("rank 1: no more data");
  worlds[0]->announce_failure("rank 0: rank 1 closed its connection");
  EXPECT_EQ(worlds[0]->announced_failure(milliseconds(1)), "rank 1: no more data");
  EXPECT_EQ(explain(*worlds[0], PeerFailure(1, "rank 1 closed its connection")), "rank 1: no more data");
}

TEST(ThreadWorld, WhoeverLearnsNothingSaysWhatItSaw) {
  const auto worlds = thread_worlds(2);
  EXPECT_EQ(
      explain(*worlds[0], PeerFailure(1, "rank 1 closed its connection")), "rank 0: rank 1 closed its connection");
  EXPECT_EQ(worlds[1]->announced_failure(milliseconds(1)), "rank 0: rank 1 closed its connection");
}

}
}
