// The additions against plain loops, for any alignment and count.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstring>

#include "exec/comm/communicator.h"

namespace foreshard {
namespace {

TEST(Sum, WidensEveryBf16Exactly) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(halves.size());
  const void* piece = halves.data();
  add_in_order({&piece, 1}, DType::kBf16, halves.size(), wide.data(), FirstPiece::kCopied);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    std::uint32_t word = 0;
    std::memcpy(&word, &wide[i], sizeof word);
    ASSERT_EQ(word, i << 16);
  }
}

// (1e8 + 1) - 1e8 = 0 in fp32, because 1e8 + 1 rounds to 1e8; from the right it would be 1.
TEST(Sum, GoesFromLeftToRight) {
  const float values[] = {1e8F, 1.0F, -1e8F};
  const std::vector<const void*> pieces = {&values[0], &values[1], &values[2]};
  float sum = 5.0F;
  add_in_order(pieces, DType::kFp32, 1, &sum, FirstPiece::kCopied);
  EXPECT_EQ(sum, 0.0F);
}

RC_GTEST_PROP(SumProperty, EqualsThePlainLoop, ()) {
  const auto values = *rc::gen::container<std::vector<float>>(rc::gen::arbitrary<float>());
  const auto skip = *rc::gen::inRange<std::size_t>(0, 4);  // bytes: no alignment is asked for
  std::vector<std::byte> shifted(skip + values.size() * sizeof(float));
  if (!values.empty()) std::memcpy(shifted.data() + skip, values.data(), values.size() * sizeof(float));
  std::vector<float> sum(values.size(), 0.25F);
  std::vector<float> expected;
  for (const float value : values) expected.push_back((0.25F + value) + value);
  const std::vector<const void*> pieces = {shifted.data() + skip, values.data()};
  add_in_order(pieces, DType::kFp32, values.size(), sum.data(), FirstPiece::kAdded);
  RC_ASSERT(std::memcmp(sum.data(), expected.data(), values.size() * sizeof(float)) == 0);
}

}
}
