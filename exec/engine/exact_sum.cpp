// A double is an integer of 53 bits times a power of two: shifted to its place it touches three
// digits. Not-a-number is marked by a last digit that no sum of numbers reaches.
#include <bit>
#include <cmath>
#include <limits>

#include "exec/engine/update.h"

namespace foreshard {
namespace {

constexpr std::uint64_t kDigitMask = 0xffffffffU;
constexpr std::int64_t kNotANumber = std::int64_t{1} << 55;

}

void ExactSum::add(double value) {
  if (value == 0) return;
  if (!std::isfinite(value) || value < 0) {
    digits_.back() += kNotANumber;
    return;
  }
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto exponent = static_cast<int>(bits >> 52 & 0x7ffU);
  std::uint64_t mantissa = bits & ((std::uint64_t{1} << 52) - 1);
  if (exponent != 0) mantissa |= std::uint64_t{1} << 52;
  // value = mantissa * 2^(max(exponent, 1) - 1075), so the shift from 2^-1074 is:
  const int shift = (exponent == 0 ? 1 : exponent) - 1;
  const auto digit = at(shift / 32);
  const unsigned within = static_cast<unsigned>(shift % 32);
  const auto wide = static_cast<unsigned __int128>(mantissa) << within;
  digits_[digit] += static_cast<std::int64_t>(static_cast<std::uint64_t>(wide) & kDigitMask);
  digits_[digit + 1] += static_cast<std::int64_t>(static_cast<std::uint64_t>(wide >> 32) & kDigitMask);
  digits_[digit + 2] += static_cast<std::int64_t>(static_cast<std::uint64_t>(wide >> 64));
}

double ExactSum::value() const {
  if (digits_.back() >= kNotANumber) return std::numeric_limits<double>::quiet_NaN();
  // Carries first, so that equal sums have equal digits; then from the top.
  std::array<std::int64_t, kDigits> d = digits_;
  for (std::size_t i = 0; i + 1 < kDigits; ++i) {
    d[i + 1] += d[i] >> 32;
    d[i] &= static_cast<std::int64_t>(kDigitMask);
  }
  long double sum = 0;
  for (std::size_t i = kDigits; i-- > 0;)
    sum += std::ldexp(static_cast<long double>(d[i]), static_cast<int>(32 * i) - kBias);
  return static_cast<double>(sum);
}

}
