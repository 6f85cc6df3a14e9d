// The words of PYTORCH_ALLOC_CONF that decide where PyTorch's CUDA caching allocator puts blocks.
// Names and defaults as torch 2.11's c10/core/AllocatorConfig.h and c10/cuda/CUDAAllocatorConfig.h.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace foreshard {

// Bytes throughout; constants as in c10/core/AllocatorConfig.h.
inline constexpr std::int64_t kMiB = std::int64_t{1} << 20;
inline constexpr std::int64_t kMinBlockSize = 512;         // sizes are multiples of it
inline constexpr std::int64_t kSmallSize = kMiB;           // the largest request of the small pool
inline constexpr std::int64_t kSmallBuffer = 2 * kMiB;     // a segment of the small pool
inline constexpr std::int64_t kMinLargeAlloc = 10 * kMiB;  // from here a request has its own segment
inline constexpr std::int64_t kRoundLarge = 2 * kMiB;      // whose size is a multiple of this
inline constexpr std::int64_t kLargeBuffer = 20 * kMiB;    // else it is cut from one of this size

struct AllocatorSettings {
  static constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();
  static constexpr std::size_t kRoundupClasses = 16;  // powers of two from 1 MiB to 64 GiB

  // Blocks of this size and above are never split, and serve only requests within max_non_split_rounding of their size.
  std::int64_t max_split_size = kUnlimited;
  std::int64_t max_non_split_rounding = kLargeBuffer;
  std::int64_t large_segment_size = kLargeBuffer;
  // Requests of class i (2^(20+i) bytes to twice that; the ends take what is beyond) are rounded up
  // to one of that many equal steps between two powers of two; 0 and 1: to kMinBlockSize.
  std::array<std::int64_t, kRoundupClasses> roundup_power2_divisions{};
  // With a memory fraction: above this part of it, old cached segments are freed before a new one
  // is allocated. 0: never.
  double garbage_collection_threshold = 0;
  bool expandable_segments = false;
  // Of the device's memory; also torch.cuda.set_per_process_memory_fraction.
  std::optional<double> per_process_memory_fraction;

  bool operator==(const AllocatorSettings&) const = default;

  // What a request of so many bytes takes from its block.
  std::int64_t round_size(std::int64_t bytes) const;
  // The segment that is allocated where no cached block serves a (rounded) request.
  std::int64_t segment_size(std::int64_t rounded) const;
};

// Reads "expandable_segments:True,max_split_size_mb:512". Keys without influence on where blocks
// land (pinned_*, release_lock_on_cudamalloc, graph_capture_record_stream_reuse, backend:native)
// are read over. Throws Error(kInvalidInput), with PyTorch's sentence where it has one.
AllocatorSettings parse_alloc_conf(std::string_view text);
// Back to that form; "" for the defaults.
std::string alloc_conf(const AllocatorSettings& settings);

}
