// A Feistel network on 2k bits, the smallest even number of bits that holds `count`, permutes up to
// 4 x count numbers; a result outside [0, count) is permuted again until it falls inside (cycle
// walking), which keeps the whole a bijection. The round function is the Fingerprint of key, round
// and half. Black, Rogaway: "Ciphers with Arbitrary Finite Domains", CT-RSA 2002.

#include "exec/data/shuffle.h"

#include <bit>

#include "sim/base/error.h"
#include "sim/base/hash.h"

namespace foreshard {
namespace {

constexpr std::int64_t kRounds = 6;

}  // namespace

std::int64_t shuffled(std::int64_t index, std::int64_t count, std::uint64_t key) {
  FORESHARD_CHECK(index >= 0 && index < count, "a position outside the order");
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(count - 1)));
  const int half = (bits + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  auto value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = value >> half;
    std::uint64_t right = value & mask;
    for (std::int64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t mixed = Fingerprint()
                                      .add(static_cast<std::int64_t>(key))
                                      .add(round)
                                      .add(static_cast<std::int64_t>(right))
                                      .value();
      const std::uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    value = (left << half) | right;
  } while (value >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(value);
}

}  // namespace foreshard
