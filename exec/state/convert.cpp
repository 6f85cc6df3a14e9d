// Every conversion goes through fp32, into which both 16-bit formats fit exactly, so that only the
// step out of fp32 rounds. fp16 is done by hand: Clang 14 has no _Float16 on x86.

#include <bit>
#include <cmath>
#include <cstring>

#include "exec/state/checkpoint_reader.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

constexpr std::uint32_t kMagnitude = 0x7fffffff;
constexpr std::uint32_t kInfinity = 0x7f800000;

// Drops the low `bits` of `value`, rounding to nearest even. A carry out of the mantissa moves to
// the next exponent, as it should.
std::uint32_t round_off(std::uint32_t value, int bits) {
  const std::uint32_t half = (std::uint32_t{1} << (bits - 1)) - 1;
  return (value + half + ((value >> bits) & 1)) >> bits;
}

std::uint16_t bf16_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & kMagnitude) > kInfinity) return static_cast<std::uint16_t>((bits >> 16) | 0x0040);
  return static_cast<std::uint16_t>(round_off(bits, 16));
}

std::uint16_t fp16_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  const std::uint32_t magnitude = bits & kMagnitude;
  std::uint32_t result = 0;
  if (magnitude > kInfinity) {
    result = 0x7e00;
  } else if (magnitude >= 0x47800000) {  // 65536 and more
    result = 0x7c00;
  } else if (magnitude >= 0x38800000) {  // 2^-14, the smallest normal number, and more
    result = round_off(magnitude - 0x38000000, 13);
  } else {
    // A subnormal counts 2^-24; scaling by a power of two is exact and nearbyint ties to even.
    result = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(std::bit_cast<float>(magnitude), 24)));
  }
  return static_cast<std::uint16_t>(sign | result);
}

float float_of_fp16(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fU;
  const std::uint32_t mantissa = half & 0x3ffU;
  std::uint32_t bits = 0;
  if (exponent == 0x1f) bits = kInfinity | (mantissa << 13);
  else if (exponent != 0) bits = ((exponent + 112) << 23) | (mantissa << 13);
  else bits = std::bit_cast<std::uint32_t>(std::ldexp(static_cast<float>(mantissa), -24));
  return std::bit_cast<float>(sign | bits);
}

float load(DType dtype, const std::byte* at) {
  if (dtype == DType::kFp32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t half = 0;
  std::memcpy(&half, at, sizeof half);
  if (dtype == DType::kFp16) return float_of_fp16(half);
  return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
}

void store(DType dtype, float value, std::byte* at) {
  if (dtype == DType::kFp32) {
    std::memcpy(at, &value, sizeof value);
    return;
  }
  const std::uint16_t half = dtype == DType::kFp16 ? fp16_of(value) : bf16_of(value);
  std::memcpy(at, &half, sizeof half);
}

}

void convert(DType from_dtype, std::span<const std::byte> from, DType to_dtype, std::span<std::byte> to) {
  if (from.empty() && to.empty()) return;
  const auto from_size = at(size_of(from_dtype));
  const auto to_size = at(size_of(to_dtype));
  FORESHARD_CHECK(from.size() / from_size == to.size() / to_size, "as many elements on both sides");
  if (from_dtype == to_dtype) {
    std::memcpy(to.data(), from.data(), from.size());
    return;
  }
  for (std::size_t i = 0; i < from.size() / from_size; ++i)
    store(to_dtype, load(from_dtype, &from[i * from_size]), &to[i * to_size]);
}

}
