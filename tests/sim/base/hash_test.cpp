#include "sim/base/hash.h"

#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <string>

namespace foreshard {
namespace {

TEST(Fingerprint, IsPinnedSinceFilesCarryIt) {
  EXPECT_EQ(Fingerprint().add(1).add(-2).add("all_gather").hex(), "ed359ee62fc8b0d5");
  EXPECT_EQ(Fingerprint().hex(), "9ca066f1a4ab2eea");
}

TEST(Fingerprint, DependsOnEveryValueAndTheirOrder) {
  std::set<std::uint64_t> seen;
  for (std::int64_t i = -1000; i < 1000; ++i) {
    seen.insert(Fingerprint().add(i).value());
    seen.insert(Fingerprint().add(0).add(i).value());
    seen.insert(Fingerprint().add(i).add(1).value());  // once the same as the line above
  }
  EXPECT_EQ(seen.size(), 3U * 2000 - 1);
}

TEST(Fingerprint, SeparatesNeighbouringStrings) {
  const auto of = [](std::string_view a, std::string_view b) { return Fingerprint().add(a).add(b).value(); };
  EXPECT_NE(of("ab", "c"), of("a", "bc"));
  EXPECT_NE(of("", "a"), of("a", ""));
  EXPECT_NE(of(std::string("a\0", 2), ""), of("a", ""));
  EXPECT_EQ(of("reduce_scatter", "x"), of(std::string("reduce_scatter"), "x"));
}

TEST(Fingerprint, FlippingAnyBitFlipsAboutHalfOfTheResult) {
  const std::uint64_t before = Fingerprint().add(0).add(7).value();
  for (int bit = 0; bit < 64; ++bit) {
    const auto value = static_cast<std::int64_t>(std::uint64_t{1} << bit);
    const int changed = std::popcount(before ^ Fingerprint().add(value).add(7).value());
    EXPECT_GT(changed, 12) << bit;
    EXPECT_LT(changed, 52) << bit;
  }
}

}
}
