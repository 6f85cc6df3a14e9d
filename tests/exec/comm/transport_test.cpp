// What every Transport promises, for ranks that are threads: of thread_worlds(), and over shared
// memory (which does not ask whether its members share an address space as well).
#include "exec/comm/transport.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "exec/comm/rank_threads.h"
#include "exec/comm/shared_transport.h"

namespace foreshard {
namespace {

using std::chrono::milliseconds;
using Transports = std::vector<std::unique_ptr<Transport>>;

Transports of_threads(int size) {
  Transports transports;
  std::vector<std::unique_ptr<World>> worlds = thread_worlds(size);
  for (auto& world : worlds) transports.push_back(world->connect("all", first_ranks(size)));
  return transports;
}

Transports of_shared_memory(int size) {
  const auto made = SharedMemory::create(size);
  Transports transports;
  for (int index = 0; index < size; ++index) {
    const SharedGroup group{
        first_ranks(size), std::vector<int>(static_cast<std::size_t>(size), ::getpid()), index, milliseconds(300)};
    transports.push_back(shared_transport(SharedMemory::open(made->ticket(), size), group));
  }
  return transports;
}

struct Kind {
  const char* name;
  Transports (*make)(int size);
};

class EveryTransport : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam().make == of_shared_memory && shared_memory_domain().empty()) {
      GTEST_SKIP() << "this kernel has no pidfd_open";
    }
  }
};

// What() of the PeerFailure that `call` throws, after its rank: "1: ...".
std::string failure_of(auto call) {
  try {
    call();
  } catch (const PeerFailure& failure) {
    return std::to_string(failure.rank()) + ": " + failure.what();
  }
  return "no failure";
}

TEST_P(EveryTransport, MessagesArriveInTheOrderOfTheCalls) {
  const Transports transports = GetParam().make(2);
  constexpr std::size_t kLong = 3'000'000;  // more than any ring or socket buffer
  std::thread sender([&] {
    const std::vector<char> longer(kLong, 'l');
    const Outgoing first[] = {{1, "ab", 2}, {1, longer.data(), kLong}, {1, nullptr, 0}, {1, "c", 1}};
    transports[0]->exchange(first, {});
    const Outgoing last[] = {{1, "z", 1}};
    transports[0]->exchange(last, {});
  });
  std::vector<char> longer(kLong);
  char two[2] = {};
  char one = 0;
  char last = 0;
  const Incoming receives[] = {{0, two, 2}, {0, longer.data(), kLong}, {0, nullptr, 0}, {0, &one, 1}, {0, &last, 1}};
  transports[1]->exchange({}, receives);
  sender.join();
  EXPECT_EQ(std::string(two, 2) + one + last, "abcz");
  EXPECT_EQ(std::ranges::count(longer, 'l'), static_cast<std::ptrdiff_t>(kLong));
}

TEST_P(EveryTransport, BothDirectionsAtOnce) {
  const Transports transports = GetParam().make(3);
  constexpr std::size_t kBytes = 2'000'003;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const std::vector<char> own(kBytes, static_cast<char>('a' + rank));
      std::vector<std::vector<char>> got(3, std::vector<char>(kBytes));
      std::vector<Outgoing> sends;
      std::vector<Incoming> receives;
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        sends.push_back({peer, own.data(), kBytes});
        receives.push_back({peer, got[static_cast<std::size_t>(peer)].data(), kBytes});
      }
      for (int round = 0; round < 3; ++round) transports[static_cast<std::size_t>(rank)]->exchange(sends, receives);
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == rank) continue;
        const std::vector<char> expected(kBytes, static_cast<char>('a' + peer));
        EXPECT_EQ(got[static_cast<std::size_t>(peer)], expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(EveryTransport, APeerThatLeavesIsNamed) {
  Transports transports = GetParam().make(3);
  char byte = 0;
  const Incoming receives[] = {{2, &byte, 1}};
  std::thread leaver([&] {
    std::this_thread::sleep_for(milliseconds(20));
    transports[2].reset();
  });
  EXPECT_EQ(failure_of([&] { transports[0]->exchange({}, receives); }), "2: rank 2 closed its connection");
  leaver.join();
}

TEST_P(EveryTransport, WhatAPeerSentBeforeItLeftStillArrives) {
  Transports transports = GetParam().make(2);
  char byte = 0;
  const Incoming receives[] = {{0, &byte, 1}};
  std::thread receiver([&] {
    std::this_thread::sleep_for(milliseconds(20));
    transports[1]->exchange({}, receives);
  });
  const Outgoing sends[] = {{1, "x", 1}};
  transports[0]->exchange(sends, {});
  transports[0].reset();
  receiver.join();
  EXPECT_EQ(byte, 'x');
}

TEST_P(EveryTransport, AbortWakesAWaitingExchangeAndRefusesLaterOnes) {
  const Transports transports = GetParam().make(2);
  char byte = 0;
  const Incoming receives[] = {{1, &byte, 1}};
  std::thread aborter([&] {
    std::this_thread::sleep_for(milliseconds(20));
    transports[0]->abort();
  });
  EXPECT_EQ(failure_of([&] { transports[0]->exchange({}, receives); }), "-1: the group was told to stop");
  aborter.join();
  EXPECT_EQ(failure_of([&] { transports[0]->exchange({}, receives); }), "-1: the group was told to stop");
}

TEST_P(EveryTransport, SizesThatDifferAreAnError) {
  const Transports transports = GetParam().make(2);
  std::thread sender([&] {
    const Outgoing sends[] = {{1, "abc", 3}};
    failure_of([&] { transports[0]->exchange(sends, {}); });
  });
  char two[2] = {};
  const Incoming receives[] = {{0, two, 2}};
  EXPECT_THROW(transports[1]->exchange({}, receives), Error);
  transports[1]->abort();  // the sender may wait for us to read it
  transports[0]->abort();
  sender.join();
}

INSTANTIATE_TEST_SUITE_P(Transports, EveryTransport,
    testing::Values(Kind{"Threads", of_threads}, Kind{"SharedMemory", of_shared_memory}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(SharedTransport, APeerThatDoesNotAnswerIsNamed) {
  if (shared_memory_domain().empty()) {
    GTEST_SKIP() << "this kernel has no pidfd_open";
  }
  const Transports transports = of_shared_memory(3);
  char bytes[2] = {};
  const Outgoing sends[] = {{0, "x", 1}};
  transports[1]->exchange(sends, {});
  const Incoming receives[] = {{1, &bytes[0], 1}, {2, &bytes[1], 1}};
  EXPECT_EQ(failure_of([&] { transports[0]->exchange({}, receives); }), "2: rank 2 did not answer within 0.3 s");
}

TEST(SharedTransport, ATicketOpensOnlyItsOwnMemory) {
  const auto made = SharedMemory::create(2);
  EXPECT_THROW(SharedMemory::open(made->ticket() + "1", 2), Error);
  EXPECT_THROW(SharedMemory::open(made->ticket(), 3), Error);
  EXPECT_THROW(SharedMemory::open("/proc/self/fd/999 1", 2), Error);
}

}
}
