// The arrays are walked in blocks that stay in the first-level cache: within a block, one piece after the other is
// added, so that main memory sees each array once. GCC's vector type spells out the loops that -O2 would leave scalar;
// a lane is one element, so the bits are those of the plain loop.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "exec/comm/communicator.h"
#include "sim/base/error.h"

namespace foreshard {
namespace {

constexpr std::size_t kSumLanes = 8;
constexpr std::size_t kBlock = 2048;  // elements: 8 KiB of sum, and as much of one piece

typedef float Floats __attribute__((vector_size(kSumLanes * sizeof(float))));
typedef std::uint32_t Words __attribute__((vector_size(kSumLanes * sizeof(std::uint32_t))));
typedef std::uint16_t Halves __attribute__((vector_size(kSumLanes * sizeof(std::uint16_t))));

struct Fp32Wire {
  static constexpr std::size_t kBytes = 4;
  static void load(const std::byte* from, Floats& to) { std::memcpy(&to, from, sizeof to); }
  static float load_one(const std::byte* from) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
};

struct Bf16Wire {  // the upper half of an fp32
  static constexpr std::size_t kBytes = 2;
  static void load(const std::byte* from, Floats& to) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    const Words words = __builtin_convertvector(halves, Words) << 16;
    std::memcpy(&to, &words, sizeof to);
  }
  static float load_one(const std::byte* from) {
    std::uint16_t half;
    std::memcpy(&half, from, sizeof half);
    const std::uint32_t word = static_cast<std::uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
  }
};

template <typename Wire, FirstPiece kFirst>
void take(const std::byte* piece, std::size_t elements, float* sum) {
  std::size_t i = 0;
  for (; i + kSumLanes <= elements; i += kSumLanes) {
    Floats value;
    Wire::load(piece + i * Wire::kBytes, value);
    if constexpr (kFirst == FirstPiece::kAdded) {
      Floats old;
      std::memcpy(&old, sum + i, sizeof old);
      value = old + value;
    }
    std::memcpy(sum + i, &value, sizeof value);
  }
  for (; i < elements; ++i) {
    const float value = Wire::load_one(piece + i * Wire::kBytes);
    sum[i] = kFirst == FirstPiece::kAdded ? sum[i] + value : value;
  }
}

template <typename Wire>
void add_blocks(std::span<const void* const> pieces, std::size_t elements, float* sum, FirstPiece first) {
  for (std::size_t begin = 0; begin < elements; begin += kBlock) {
    const std::size_t count = std::min(kBlock, elements - begin);
    FirstPiece now = first;
    for (const void* piece : pieces) {
      const auto* at = static_cast<const std::byte*>(piece) + begin * Wire::kBytes;
      if (now == FirstPiece::kAdded) take<Wire, FirstPiece::kAdded>(at, count, sum + begin);
      else take<Wire, FirstPiece::kCopied>(at, count, sum + begin);
      now = FirstPiece::kAdded;
    }
  }
}

// Rounded to nearest even, as a narrower tensor would hold it.
void round_to_bf16(float* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t word;
    std::memcpy(&word, values + i, sizeof word);
    const bool is_number = (word & 0x7fffffffU) <= 0x7f800000U;
    word = is_number ? (word + 0x7fffU + ((word >> 16) & 1U)) & 0xffff0000U : word | 0x00400000U;
    std::memcpy(values + i, &word, sizeof word);
  }
}

template <typename Wire>
void halve(std::span<const void* const> pieces, std::size_t begin, std::size_t count, float* sum) {
  if (pieces.size() == 1) {
    const auto* at = static_cast<const std::byte*>(pieces.front()) + begin * Wire::kBytes;
    return take<Wire, FirstPiece::kCopied>(at, count, sum);
  }
  const std::size_t half = pieces.size() / 2;
  std::array<float, kBlock> right;
  halve<Wire>(pieces.first(half), begin, count, sum);
  halve<Wire>(pieces.subspan(half), begin, count, right.data());
  take<Fp32Wire, FirstPiece::kAdded>(reinterpret_cast<const std::byte*>(right.data()), count, sum);
  if constexpr (Wire::kBytes == 2) round_to_bf16(sum, count);
}

}

void add_in_pairs(std::span<const void* const> pieces, DType wire, std::size_t elements, void* sum) {
  FORESHARD_CHECK(wire == DType::kFp32 || wire == DType::kBf16, "sums are of fp32 or bf16");
  FORESHARD_CHECK((pieces.size() & (pieces.size() - 1)) == 0, "sums in pairs are of a power of two");
  std::array<float, kBlock> block;
  for (std::size_t begin = 0; begin < elements; begin += kBlock) {
    const std::size_t count = std::min(kBlock, elements - begin);
    if (wire == DType::kFp32) {
      halve<Fp32Wire>(pieces, begin, count, static_cast<float*>(sum) + begin);
      continue;
    }
    halve<Bf16Wire>(pieces, begin, count, block.data());
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t word;
      std::memcpy(&word, &block[i], sizeof word);
      const auto half = static_cast<std::uint16_t>(word >> 16);
      std::memcpy(static_cast<std::byte*>(sum) + (begin + i) * sizeof half, &half, sizeof half);
    }
  }
}

void add_in_order(std::span<const void* const> pieces, DType wire, std::size_t elements, float* sum, FirstPiece first) {
  FORESHARD_CHECK(wire == DType::kFp32 || wire == DType::kBf16, "sums are of fp32 or bf16");
  if (wire == DType::kFp32) add_blocks<Fp32Wire>(pieces, elements, sum, first);
  else add_blocks<Bf16Wire>(pieces, elements, sum, first);
}

}
