// Strong types for time, bytes, floating-point operations and their rates.
//
// Time is integer nanoseconds and Bytes an integer count, so that sums do not depend on order. Plain + - * are as fast
// as on the integers inside and, like those, must not overflow; where the operands come from a file, use checked_add
// and checked_multiply, which throw Error(kInvalidInput).
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "sim/base/error.h"
#include "sim/base/integers.h"

namespace foreshard {

// Sums of a quantity, and its products with numbers.
template <typename Self, typename Number>
class Amount {
 public:
  constexpr Amount() = default;
  constexpr Self& operator+=(Self other) {
    amount_ += other.amount_;
    return static_cast<Self&>(*this);
  }
  constexpr Self& operator-=(Self other) {
    amount_ -= other.amount_;
    return static_cast<Self&>(*this);
  }
  friend constexpr Self operator+(Self a, Self b) { return a += b; }
  friend constexpr Self operator-(Self a, Self b) { return a -= b; }
  friend constexpr Self operator*(Self a, Number n) {
    a.amount_ *= n;
    return a;
  }
  friend constexpr Self operator*(Number n, Self a) { return a * n; }
  friend constexpr auto operator<=>(const Amount&, const Amount&) = default;

 protected:
  explicit constexpr Amount(Number amount) : amount_(amount) {}
  Number amount_ = 0;
};

struct Time : Amount<Time, std::int64_t> {
 public:
  constexpr Time() = default;
  static constexpr Time ns(std::int64_t value) { return Time(value); }

  // Rounds to the nearest nanosecond, halves away from zero.
  // Throws Error(kInvalidInput) for NaN and for values beyond 64-bit nanoseconds (292 years).
  static constexpr Time seconds(double value) {
    const double scaled = value * 1e9;
    if (!(scaled > -kLimit && scaled < kLimit))
      throw Error(ExitCode::kInvalidInput, "a time of " + std::to_string(value) + " s overflows 64-bit nanoseconds");
    const auto truncated = static_cast<std::int64_t>(scaled);
    // Exact: below 2^52 the difference of neighbours is representable, above there is no fraction.
    const double rest = scaled - as_double(truncated);
    return Time(truncated + (rest >= 0.5 ? 1 : 0) - (rest <= -0.5 ? 1 : 0));
  }

  constexpr std::int64_t nanoseconds() const { return amount_; }
  constexpr double seconds() const { return as_double(amount_) * 1e-9; }

 private:
  static constexpr double kLimit = 9223372036854775808.0;  // 2^63
  using Amount::Amount;
};

struct Bytes : Amount<Bytes, std::int64_t> {
  constexpr Bytes() = default;
  explicit constexpr Bytes(std::int64_t count) : Amount(count) {}
  constexpr std::int64_t count() const { return amount_; }
  friend constexpr Bytes operator/(Bytes a, std::int64_t n) { return Bytes(a.amount_ / n); }
};

// A double, since one step of a large model exceeds 2^63; exact below 2^53.
struct Flops : Amount<Flops, double> {
  constexpr Flops() = default;
  explicit constexpr Flops(double count) : Amount(count) {}
  constexpr double count() const { return amount_; }
};

template <typename Of>
struct PerSecond {
  constexpr PerSecond() = default;
  explicit constexpr PerSecond(double value) : value_(value) {}
  constexpr double value() const { return value_; }
  friend constexpr auto operator<=>(PerSecond, PerSecond) = default;

 private:
  double value_ = 0;
};
using BytesPerSecond = PerSecond<Bytes>;
using FlopsPerSecond = PerSecond<Flops>;

// The sum and product, or Error(kInvalidInput) naming the operands where it exceeds 64 bits.
constexpr std::int64_t checked_add(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) {
    throw Error(ExitCode::kInvalidInput,
        "the sum " + std::to_string(a) + " + " + std::to_string(b) + " overflows 64-bit integers");
  }
  return result;
}
constexpr std::int64_t checked_multiply(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) {
    throw Error(ExitCode::kInvalidInput,
        "the product " + std::to_string(a) + " x " + std::to_string(b) + " overflows 64-bit integers");
  }
  return result;
}

}
