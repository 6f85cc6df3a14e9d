// Collectives of thread ranks against sums written out as plain loops; equal means equal bits.
#include "exec/comm/communicator.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <functional>

#include "exec/comm/rank_threads.h"
#include "sim/graph/cpu_collectives.h"

namespace foreshard {
namespace {

std::vector<std::uint32_t> bits(const std::vector<float>& values) {
  std::vector<std::uint32_t> result;
  for (const float value : values) result.push_back(std::bit_cast<std::uint32_t>(value));
  return result;
}

// What rank `rank` puts in: values whose sums depend on the order in fp32.
std::vector<float> contribution(int rank, std::size_t elements) {
  std::vector<float> values(elements);
  auto state = static_cast<std::uint32_t>(12345 + 999 * rank);
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-20F;
  }
  return values;
}

std::vector<std::uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<std::uint16_t> result;
  for (const float value : values) {
    result.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
  }
  return result;
}

float from_bf16(std::uint16_t half) { return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16); }

// The shard of `rank`, from `start` or, empty, from the first contribution.
std::vector<float> expected_shard(int ranks, int rank, DType wire, std::vector<float> start, std::size_t elements) {
  std::vector<float> sum = std::move(start);
  for (int from = 0; from < ranks; ++from) {
    const auto whole = contribution(from, at(ranks) * elements);
    const bool first = sum.empty();
    sum.resize(elements);
    for (std::size_t i = 0; i < elements; ++i) {
      float value = whole[at(rank) * elements + i];
      if (wire == DType::kBf16) value = from_bf16(to_bf16({value})[0]);
      sum[i] = first ? value : sum[i] + value;
    }
  }
  return sum;
}

std::vector<float> reduced(World& world, DType wire, std::size_t elements, SumInto into) {
  GroupCommunicator all(world.connect("all", first_ranks(world.size())));
  const auto whole = contribution(world.rank(), at(world.size()) * elements);
  const auto halves = to_bf16(whole);
  const void* data = wire == DType::kBf16 ? static_cast<const void*>(halves.data()) : whole.data();
  std::vector<float> shard(elements, 0.75F);
  all.reduce_scatter(data, wire, elements, shard.data(), into);
  return shard;
}

TEST(Communicator, AllGatherPutsEveryShardInItsPlace) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const std::size_t bytes : {0UL, 1UL, 13UL, 4096UL, 3'000'001UL}) {
      for_each_rank(ranks, [&](World& world) {
        GroupCommunicator all(world.connect("all", first_ranks(ranks)));
        std::vector<std::uint8_t> whole(at(ranks) * bytes, 255);
        const auto own = whole.begin() + (at(world.rank()) * bytes);
        std::fill_n(own, bytes, static_cast<std::uint8_t>(world.rank()));
        all.all_gather(whole.data(), bytes);
        for (std::size_t i = 0; i < whole.size(); ++i) ASSERT_EQ(whole[i], i / bytes) << i;
      });
    }
  }
}

// 1100001 floats are more than one chunk (4 MiB) and no multiple of any vector.
TEST(Communicator, ReduceScatterAddsInRankOrder) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const DType wire : {DType::kFp32, DType::kBf16}) {
      for (const std::size_t elements : {0UL, 1UL, 7UL, 8UL, 1000UL, 1100001UL}) {
        for_each_rank(ranks, [&](World& world) {
          const std::vector<float> first = expected_shard(ranks, world.rank(), wire, {}, elements);
          EXPECT_EQ(bits(reduced(world, wire, elements, SumInto::kOverwrite)), bits(first));
          const std::vector<float> more =
              expected_shard(ranks, world.rank(), wire, std::vector<float>(elements, 0.75F), elements);
          EXPECT_EQ(bits(reduced(world, wire, elements, SumInto::kContinue)), bits(more));
        });
      }
    }
  }
}

// Adding to zero instead of copying would turn -0 into +0.
TEST(Communicator, TheFirstContributionIsCopied) {
  for_each_rank(1, [](World& world) {
    GroupCommunicator all(world.connect("all", {0}));
    const float whole = -0.0F;
    float shard = 1.0F;
    all.reduce_scatter(&whole, DType::kFp32, 1, &shard, SumInto::kOverwrite);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(shard), 0x80000000U);
  });
}

// Two micro-batches on two ranks are the four contributions of one rank, in the order
// (batch 0: rank 0, rank 1), (batch 1: rank 0, rank 1).
TEST(Communicator, ContinuingEqualsOneRankThatAddsEverything) {
  constexpr std::size_t kElements = 5001;
  std::vector<std::vector<float>> contributions;
  for (int i = 0; i < 4; ++i) contributions.push_back(contribution(i, 2 * kElements));
  std::vector<float> alone = contributions[0];
  for (std::size_t i = 1; i < 4; ++i) {
    for (std::size_t k = 0; k < alone.size(); ++k) alone[k] += contributions[i][k];
  }
  for_each_rank(2, [&](World& world) {
    GroupCommunicator all(world.connect("all", {0, 1}));
    const auto rank = at(world.rank());
    std::vector<float> shard(kElements);
    all.reduce_scatter(contributions[rank].data(), DType::kFp32, kElements, shard.data(), SumInto::kOverwrite);
    all.reduce_scatter(contributions[2 + rank].data(), DType::kFp32, kElements, shard.data(), SumInto::kContinue);
    const auto begin = alone.begin() + (rank * kElements);
    EXPECT_EQ(bits(shard), bits({begin, begin + static_cast<std::ptrdiff_t>(kElements)}));
  });
}

// 8192 floats go in one round, 8193 in two; both add in rank order.
TEST(Communicator, AllReduceAddsInRankOrderOnEveryRank) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const std::size_t elements : {0UL, 1UL, 3UL, 8192UL, 8193UL, 100003UL}) {
      std::vector<float> expected = contribution(0, elements);
      for (int rank = 1; rank < ranks; ++rank) {
        const auto more = contribution(rank, elements);
        for (std::size_t i = 0; i < elements; ++i) expected[i] += more[i];
      }
      for_each_rank(ranks, [&](World& world) {
        GroupCommunicator all(world.connect("all", first_ranks(ranks)));
        std::vector<float> values = contribution(world.rank(), elements);
        all.all_reduce(values);
        EXPECT_EQ(bits(values), bits(expected));
      });
    }
  }
}

TEST(Communicator, AllReduceOfIntegersIsExact) {
  for_each_rank(3, [](World& world) {
    GroupCommunicator all(world.connect("all", {0, 1, 2}));
    std::vector<std::int64_t> values = {world.rank(), (std::int64_t{1} << 60) + world.rank()};
    all.all_reduce(values);
    EXPECT_EQ(values, (std::vector<std::int64_t>{3, 3 * (std::int64_t{1} << 60) + 3}));
  });
}

TEST(Communicator, AGroupIsNotTheWorld) {
  for_each_rank(4, [](World& world) {
    const std::vector<int> pair = world.rank() % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
    GroupCommunicator replicas(world.connect("replicate", pair));
    EXPECT_EQ(replicas.index(), world.rank() / 2);
    std::vector<float> values = {static_cast<float>(world.rank())};
    replicas.all_reduce(values);
    EXPECT_EQ(values[0], world.rank() % 2 == 0 ? 2.0F : 4.0F);
  });
}

// One chunk is 4 MiB of each of the two pieces received; smaller shards take what they are.
TEST(Communicator, ScratchIsBounded) {
  EXPECT_EQ(reduce_scatter_scratch(3, 400), 2 * 400);
  EXPECT_EQ(reduce_scatter_scratch(3, std::int64_t{1} << 32), 8 << 20);
  EXPECT_EQ(reduce_scatter_scratch(1, std::int64_t{1} << 32), 0);
  EXPECT_EQ(all_reduce_scratch(3, 40), 3 * 40);  // one round
  EXPECT_EQ(all_reduce_scratch(3, 40'000 * 4), 3 * 13'334 * 4);
  EXPECT_EQ(exchange_scratch(3, 40), 120);
}

// Every collective takes what sim/graph/cpu_collectives.h says, which the forecast counts: it is
// done with so much, and refused with less.
TEST(Communicator, TakesTheScratchThatIsForecast) {
  constexpr int kRanks = 4;              // sums in pairs are of a power of two
  constexpr std::size_t kMany = 40'000;  // more than one round of an all-reduce
  struct Taken {
    std::int64_t bytes;
    std::function<void(GroupCommunicator&, std::vector<float>&)> run;
  };
  const std::vector<Taken> all = {
      {reduce_scatter_scratch(kRanks, kMany * 4),
          [](GroupCommunicator& c, std::vector<float>& values) {
            std::vector<float> shard(kMany);
            c.reduce_scatter(values.data(), DType::kFp32, kMany, shard.data(), SumInto::kOverwrite);
          }},
      {reduce_scatter_scratch(kRanks, kMany * 2),
          [](GroupCommunicator& c, std::vector<float>& values) {
            std::vector<float> shard(kMany);
            c.reduce_scatter_in_pairs(values.data(), DType::kBf16, kMany, shard.data());
          }},
      {all_reduce_scratch(kRanks, kMany * 4),
          [](GroupCommunicator& c, std::vector<float>& values) { c.all_reduce(std::span(values).first(kMany)); }},
      {all_reduce_scratch(kRanks, 10 * 4),
          [](GroupCommunicator& c, std::vector<float>& values) { c.all_reduce(std::span(values).first(10)); }},
      {exchange_scratch(kRanks, 10 * 4),
          [](GroupCommunicator& c, std::vector<float>& values) {
            c.all_reduce_in_pairs(values.data(), DType::kFp32, 10);
          }},
  };
  for_each_rank(kRanks, [&](World& world) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (const std::size_t less : {0, 1}) {
        GroupCommunicator c(world.connect(fmt::format("{} {}", i, less), first_ranks(kRanks)));
        std::vector<std::byte> scratch(at(all[i].bytes) - less);
        std::vector<float> values(std::size_t{kRanks} * kMany);
        c.lend_scratch(scratch);
        if (less == 0) {
          EXPECT_NO_THROW(all[i].run(c, values)) << i;
        } else {
          EXPECT_THROW(all[i].run(c, values), std::exception) << i;
        }
      }
    }
  });
}

RC_GTEST_PROP(CommunicatorProperty, ReduceScatterThenAllGatherEqualsAllReduce, ()) {
  const int ranks = *rc::gen::inRange(1, 5);
  const auto elements = *rc::gen::inRange<std::size_t>(0, 3000);
  for_each_rank(ranks, [&](World& world) {
    GroupCommunicator all(world.connect("all", first_ranks(ranks)));
    const auto whole = at(ranks) * elements;
    std::vector<float> reduced = contribution(world.rank(), whole);
    std::vector<float> pieces(whole);
    float* own = pieces.data() + at(world.rank()) * elements;
    all.reduce_scatter(reduced.data(), DType::kFp32, elements, own, SumInto::kOverwrite);
    all.all_gather(pieces.data(), elements * sizeof(float));
    all.all_reduce(reduced);
    RC_ASSERT(bits(pieces) == bits(reduced));
  });
}

}
}
