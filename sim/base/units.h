// Strong types for time, bytes, floating-point operations and their rates.
//
// Time is integer nanoseconds and Bytes an integer count, so that sums do not depend on order.
// Plain + - * are as fast as on the integers inside and, like those, must not overflow; where the
// operands come from a file, use checked_add and checked_multiply, which throw
// Error(kInvalidInput).
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "sim/base/error.h"
#include "sim/base/integers.h"

namespace foreshard {

struct Time {
 public:
  constexpr Time() = default;
  static constexpr Time ns(std::int64_t value) { return Time(value); }

  // Rounds to the nearest nanosecond, halves away from zero.
  // Throws Error(kInvalidInput) for NaN and for values beyond 64-bit nanoseconds (292 years).
  static constexpr Time seconds(double value) {
    const double scaled = value * 1e9;
    if (!(scaled > -kLimit && scaled < kLimit)) {
      throw Error(ExitCode::kInvalidInput, "a time of " + std::to_string(value) + " s overflows 64-bit nanoseconds");
    }
    const auto truncated = static_cast<std::int64_t>(scaled);
    // Exact: below 2^52 the difference of neighbours is representable, above there is no fraction.
    const double rest = scaled - as_double(truncated);
    return Time(truncated + (rest >= 0.5 ? 1 : 0) - (rest <= -0.5 ? 1 : 0));
  }

  constexpr std::int64_t nanoseconds() const { return nanoseconds_; }
  constexpr double seconds() const { return as_double(nanoseconds_) * 1e-9; }

  constexpr Time& operator+=(Time other) {
    nanoseconds_ += other.nanoseconds_;
    return *this;
  }
  constexpr Time& operator-=(Time other) {
    nanoseconds_ -= other.nanoseconds_;
    return *this;
  }
  friend constexpr Time operator+(Time a, Time b) { return Time(a.nanoseconds_ + b.nanoseconds_); }
  friend constexpr Time operator-(Time a, Time b) { return Time(a.nanoseconds_ - b.nanoseconds_); }
  friend constexpr Time operator*(Time a, std::int64_t n) { return Time(a.nanoseconds_ * n); }
  friend constexpr Time operator*(std::int64_t n, Time a) { return a * n; }
  friend constexpr auto operator<=>(Time, Time) = default;

 private:
  static constexpr double kLimit = 9223372036854775808.0;  // 2^63
  explicit constexpr Time(std::int64_t nanoseconds) : nanoseconds_(nanoseconds) {}
  std::int64_t nanoseconds_ = 0;
};

struct Bytes {
 public:
  constexpr Bytes() = default;
  explicit constexpr Bytes(std::int64_t count) : count_(count) {}
  constexpr std::int64_t count() const { return count_; }

  constexpr Bytes& operator+=(Bytes other) {
    count_ += other.count_;
    return *this;
  }
  constexpr Bytes& operator-=(Bytes other) {
    count_ -= other.count_;
    return *this;
  }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return Bytes(a.count_ + b.count_); }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return Bytes(a.count_ - b.count_); }
  friend constexpr Bytes operator*(Bytes a, std::int64_t n) { return Bytes(a.count_ * n); }
  friend constexpr Bytes operator*(std::int64_t n, Bytes a) { return a * n; }
  friend constexpr Bytes operator/(Bytes a, std::int64_t n) { return Bytes(a.count_ / n); }
  friend constexpr auto operator<=>(Bytes, Bytes) = default;

 private:
  std::int64_t count_ = 0;
};

// A double, since one step of a large model exceeds 2^63; exact below 2^53.
struct Flops {
 public:
  constexpr Flops() = default;
  explicit constexpr Flops(double count) : count_(count) {}
  constexpr double count() const { return count_; }

  constexpr Flops& operator+=(Flops other) {
    count_ += other.count_;
    return *this;
  }
  friend constexpr Flops operator+(Flops a, Flops b) { return Flops(a.count_ + b.count_); }
  friend constexpr Flops operator*(Flops a, double factor) { return Flops(a.count_ * factor); }
  friend constexpr Flops operator*(double factor, Flops a) { return a * factor; }
  friend constexpr auto operator<=>(Flops, Flops) = default;

 private:
  double count_ = 0;
};

struct BytesPerSecond {
 public:
  constexpr BytesPerSecond() = default;
  explicit constexpr BytesPerSecond(double value) : value_(value) {}
  constexpr double value() const { return value_; }
  friend constexpr auto operator<=>(BytesPerSecond, BytesPerSecond) = default;

 private:
  double value_ = 0;
};

struct FlopsPerSecond {
 public:
  constexpr FlopsPerSecond() = default;
  explicit constexpr FlopsPerSecond(double value) : value_(value) {}
  constexpr double value() const { return value_; }
  friend constexpr auto operator<=>(FlopsPerSecond, FlopsPerSecond) = default;

 private:
  double value_ = 0;
};

// Seconds, as a double, that moving `bytes` or computing `flops` takes at a rate above zero.
constexpr double seconds_of(Bytes bytes, BytesPerSecond rate) { return as_double(bytes.count()) / rate.value(); }
constexpr double seconds_of(Flops flops, FlopsPerSecond rate) { return flops.count() / rate.value(); }

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
