// How the engine's collectives over CPU ranks exchange, as far as memory depends on it
// (exec/comm/communicator.h): pieces of other ranks arrive in a scratch of the communicator's own.
#pragma once

#include <algorithm>
#include <cstdint>

namespace foreshard {

// A reduce-scatter goes over the shard in chunks that stay in the cache between their arrival and their addition.
// Smaller ones are no faster through shared memory, and several times slower through Gloo.
inline constexpr std::int64_t kReduceChunkBytes = std::int64_t{4} << 20;
// An all-reduce of no more than this is one exchange of everything; else a reduce-scatter over
// ranges that differ by one element at most, then an all-gather of them.
inline constexpr std::int64_t kOneRoundBytes = std::int64_t{32} << 10;

// Bytes of scratch, of a group of `ranks`: of a reduce-scatter, an all-reduce of floats, and one
// that every rank adds up by itself.
constexpr std::int64_t reduce_scatter_scratch(std::int64_t ranks, std::int64_t shard_bytes) {
  return (ranks - 1) * std::min(shard_bytes, kReduceChunkBytes);
}
constexpr std::int64_t all_reduce_scratch(std::int64_t ranks, std::int64_t bytes) {
  if (ranks == 1) return 0;
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  const std::int64_t longest = (bytes / kFloat + ranks - 1) / ranks * kFloat;
  return ranks * (bytes <= kOneRoundBytes ? bytes : longest);
}
constexpr std::int64_t exchange_scratch(std::int64_t ranks, std::int64_t bytes) {
  return ranks == 1 ? 0 : ranks * bytes;
}

}
