#include "sim/base/spelling.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace foreshard {
namespace {

const std::vector<std::string>& plan_keys() {
  static const std::vector<std::string> keys = {"shard", "replicate", "prefetch", "recompute", "h"};
  return keys;
}

TEST(Spelling, FindsTheWordBehindATypo) {
  EXPECT_EQ(nearest_spelling("shrad", plan_keys()), "shard");  // a swap counts once
  EXPECT_EQ(nearest_spelling("Shard", plan_keys()), "shard");  // case is free
  EXPECT_EQ(nearest_spelling("prefech", plan_keys()), "prefetch");
  EXPECT_EQ(nearest_spelling("replicates", plan_keys()), "replicate");
}

TEST(Spelling, SuggestsNothingWhenNothingIsClose) {
  EXPECT_EQ(nearest_spelling("banana", plan_keys()), "");
  EXPECT_EQ(nearest_spelling("x", plan_keys()), "");
  EXPECT_EQ(nearest_spelling("", plan_keys()), "");
  EXPECT_EQ(nearest_spelling(std::string(1'000'000, 's'), plan_keys()), "");
  EXPECT_EQ(nearest_spelling("shard", {}), "");
}

TEST(Spelling, TakesTheFirstOfEquals) {
  const std::vector<std::string> words = {"bf16", "fp16"};
  EXPECT_EQ(nearest_spelling("ff16", words), "bf16");
}

TEST(Spelling, QuotesOnOneShortLine) {
  EXPECT_EQ(quote("a b"), "'a b'");
  EXPECT_EQ(quote("a\nb\x01"), "'a\\nb\\x01'");
  EXPECT_EQ(quote(std::string(100, 'a')), "'" + std::string(60, 'a') + "...'");
  // The 60th byte is inside a character of two bytes: it is cut before that.
  EXPECT_EQ(quote(std::string(59, 'a') + "\xC3\xA4\xC3\xA4"), "'" + std::string(59, 'a') + "...'");
}

}
}
