// Against an ordered set, with more sizes than the table keeps.
#include "sim/memory/free_blocks.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace foreshard {
namespace {

TEST(FreeBlocks, IsASetOrderedBySizeThenAddress) {
  std::mt19937 random(1);
  FreeBlocks blocks;
  std::set<std::tuple<std::int64_t, std::int64_t, std::int32_t>> expected;
  std::vector<std::uint32_t> class_of(4000, 0);
  std::int32_t next = 0;
  for (int i = 0; i < 6000; ++i) {
    // Few blocks at a time from many sizes, and now and then a crowd of one size.
    if (next < 4000 && (expected.size() < 20 || random() % 2 == 0)) {
      const std::int64_t size = 512 * (random() % 3 == 0 ? 7 : 1 + random() % 1500);
      const std::int64_t address = 512 * static_cast<std::int64_t>(random() % 100000);
      const std::uint32_t hint = class_of[random() % 4000];
      class_of[at(next)] = blocks.insert(size, address, next, hint);
      expected.emplace(size, address, next);
      ++next;
    } else {
      auto it = expected.begin();
      std::advance(it, random() % expected.size());
      const auto [size, address, id] = *it;
      blocks.erase(class_of[at(id)], address, id);
      expected.erase(it);
    }
    const std::int64_t wanted = 512 * (1 + random() % 1600);
    const auto best = expected.lower_bound({wanted, 0, 0});
    const FreeBlocks::Cursor found = blocks.lower_bound(wanted);
    ASSERT_EQ(blocks.at_end(found), best == expected.end());
    if (best != expected.end()) {
      ASSERT_EQ(blocks.id(found), std::get<2>(*best));
    }
    ASSERT_EQ(blocks.size(), expected.size());
  }
  std::vector<std::int32_t> ids;
  for (const auto& [size, address, id] : expected) ids.push_back(id);
  EXPECT_EQ(blocks.ids(), ids);
}

}
}
