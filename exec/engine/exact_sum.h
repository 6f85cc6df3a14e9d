// A sum of doubles that is exact, so that its bits do not depend on the order of its terms or on
// how they are spread over ranks (after U. Kulisch's long accumulator).
//
// The value is kept as digits of 32 bits, each in a signed 64-bit integer: digit d weighs
// 2^(32 d - kBias). Adding ranks is adding digits; 2^31 additions fit before a carry is due.
#pragma once

#include <array>
#include <cstdint>

namespace foreshard {

class ExactSum {
 public:
  static constexpr std::size_t kDigits = 67;  // 2^-1074 .. 2^1070

  void add(double value);  // finite and >= 0; infinities and NaN make the whole sum NaN
  double value() const;    // rounded once

  std::array<std::int64_t, kDigits>& digits() { return digits_; }

 private:
  static constexpr int kBias = 1074;
  std::array<std::int64_t, kDigits> digits_{};
};

}  // namespace foreshard
