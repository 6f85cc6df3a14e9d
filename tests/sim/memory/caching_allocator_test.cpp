// The rules of PyTorch's caching allocator, each with a sequence small enough to be followed by
// hand and its derivation beside it. Sizes in bytes; M = 2^20.
#include "sim/memory/caching_allocator.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.h"

namespace foreshard::caching_allocator_test {
namespace {

constexpr std::int64_t M = kMiB;

struct Device {
  explicit Device(const char* conf = "", std::int64_t megabytes = 1 << 20)
      : allocator(parse_alloc_conf(conf), {Bytes(megabytes * M), Bytes(megabytes * M)}) {}
  CachingAllocator::BlockId malloc(std::int64_t bytes, int stream = 0) { return allocator.malloc(bytes, stream); }
  void free(CachingAllocator::BlockId block) { allocator.free(block); }
  std::int64_t allocated() const { return allocator.stats().all.allocated_bytes.current; }
  std::int64_t active() const { return allocator.stats().all.active_bytes.current; }
  std::int64_t reserved() const { return allocator.stats().all.reserved_bytes.current; }
  std::int64_t split() const { return allocator.stats().all.inactive_split_bytes.current; }
  const AllocatorStats& stats() const { return allocator.stats(); }
  CachingAllocator allocator;
};

// The sequence of sizes around every threshold.
TEST(CachingAllocator, SizesAroundEveryThreshold) {
  struct Row {
    std::int64_t request, block, allocated, reserved;
  };
  Device device;
  for (const Row& row : {
           Row{1, 512, 512, 2097152},                    // a small segment
           Row{1048576, 1048576, 1049088, 2097152},      // still small: 1 MiB
           Row{1048577, 1049088, 2098176, 23068672},     // large: a segment of 20 MiB
           Row{19000000, 19922432, 22020608, 23068672},  // all of its rest: 922,112 over < 1 MiB
           Row{30000000, 30000128, 52020736, 54525952},  // its own, 30 MiB, the rest is split off
           Row{10485759, 10485760, 62506496, 65011712},  // 10 MiB exactly: its own
           Row{10485761, 10486272, 72992768, 77594624},  // 12 MiB
       }) {
    const auto block = device.malloc(row.request);
    EXPECT_EQ(device.allocator.size_of(block), row.block) << row.request;
    EXPECT_EQ(device.allocated(), row.allocated) << row.request;
    EXPECT_EQ(device.reserved(), row.reserved) << row.request;
  }
  // What was asked for, not what was handed out.
  EXPECT_EQ(
      device.stats().all.requested_bytes.current, 1 + 1048576 + 1048577 + 19000000 + 30000000 + 10485759 + 10485761);
}

TEST(CachingAllocator, StreamsDoNotShareBlocks) {
  Device device;
  const auto first = device.malloc(64 * M, 0);
  device.free(first);
  device.malloc(64 * M, 1);
  EXPECT_EQ(device.reserved(), 134217728);
  device.malloc(64 * M, 0);  // this one is served from the cache
  EXPECT_EQ(device.reserved(), 134217728);
}

// A gather buffer of an 8B model's layer, then a slightly smaller one in the same pool.
TEST(CachingAllocator, ASlightlySmallerRequestCostsTheLargerOneAWholeSegment) {
  Device device;
  const auto gather = device.malloc(436224000);
  EXPECT_EQ(device.reserved(), 438304768);  // 209 x 2 MiB
  EXPECT_EQ(device.split(), 2080768);       // beyond 1 MiB, so it is split off
  device.free(gather);
  EXPECT_EQ(device.split(), 0);
  const auto smaller = device.malloc(400000000);
  EXPECT_EQ(device.reserved(), 438304768);
  EXPECT_EQ(device.split(), 438304768 - 400000000);  // 400,000,000 is a multiple of 512
  device.malloc(436224000);
  EXPECT_EQ(device.reserved(), 876609536);
  device.free(smaller);
}

// Three blocks of 2 MiB from one segment of 20 MiB; the rest is 14 MiB.
TEST(CachingAllocator, FreeNeighboursJoin) {
  Device device;
  const auto a = device.malloc(2 * M), b = device.malloc(2 * M), c = device.malloc(2 * M);
  EXPECT_EQ(device.split(), 14 * M);
  device.free(a);  // alone: a hole of 2 MiB
  device.free(c);  // joins the rest
  EXPECT_EQ(device.stats().all.inactive_split.current, 2);
  EXPECT_EQ(device.split(), 2 * M + 16 * M);
  device.free(b);  // joins both: the segment is whole again, and no split block is left
  EXPECT_EQ(device.stats().all.inactive_split.current, 0);
  EXPECT_EQ(device.split(), 0);
  EXPECT_EQ(device.reserved(), 20 * M);
  const auto snapshot = device.allocator.snapshot();
  ASSERT_EQ(snapshot.size(), 1U);
  EXPECT_EQ(snapshot[0].blocks.size(), 1U);
}

// Holes of 6, 4 and 4 MiB (in that order) between blocks that stay: 3 MiB takes the first of 4.
TEST(CachingAllocator, BestFitIsTheSmallestThenTheLowest) {
  Device device;
  const auto six = device.malloc(6 * M);
  device.malloc(2 * M);
  const auto four = device.malloc(4 * M);
  device.malloc(2 * M);
  const auto four_more = device.malloc(4 * M);
  device.malloc(2 * M);  // 20 MiB in all: one segment, full
  EXPECT_EQ(device.reserved(), 20 * M);
  const std::int64_t lowest = device.allocator.address_of(four);
  device.free(four_more);
  device.free(four);
  device.free(six);
  EXPECT_EQ(device.allocator.address_of(device.malloc(3 * M)), lowest);
}

TEST(CachingAllocator, SmallAndLargeRequestsHaveSegmentsOfTheirOwn) {
  Device device;
  device.malloc(512);
  device.malloc(2 * M);
  EXPECT_EQ(device.stats().small_pool.reserved_bytes.current, 2 * M);
  EXPECT_EQ(device.stats().large_pool.reserved_bytes.current, 20 * M);
  EXPECT_EQ(device.stats().all.segment.current, 2);
}

// A device of 64 MiB, full of two cached segments of 32: the next request frees both (one retry),
// and the one after finds no more to free.
TEST(CachingAllocator, ARetryGivesBackEveryWholeSegment) {
  Device device("", 64);
  const auto a = device.malloc(32 * M, 0), b = device.malloc(32 * M, 1);
  device.free(a);
  device.free(b);
  EXPECT_NE(device.malloc(40 * M, 2), CachingAllocator::kNoBlock);
  EXPECT_EQ(device.stats().num_alloc_retries, 1);
  EXPECT_EQ(device.stats().num_device_free, 2);
  EXPECT_EQ(device.reserved(), 40 * M);
  EXPECT_EQ(device.malloc(32 * M, 2), CachingAllocator::kNoBlock);
  EXPECT_EQ(device.stats().num_ooms, 1);
  EXPECT_EQ(device.stats().num_alloc_retries, 2);
  EXPECT_NE(device.malloc(24 * M, 2), CachingAllocator::kNoBlock);  // it goes on
}

// 20 MiB cached but split: it cannot be given back, so 60 of 64 MiB are not to be had.
TEST(CachingAllocator, SplitSegmentsStayAtARetry) {
  Device device("", 64);
  device.malloc(2 * M);
  EXPECT_EQ(device.malloc(60 * M), CachingAllocator::kNoBlock);
  EXPECT_EQ(device.stats().num_device_free, 0);
}

// Freed while stream 1 still works with it: not allocated any more, but active until the event.
TEST(CachingAllocator, RecordedStreamsKeepABlockActive) {
  Device device;
  const auto block = device.malloc(30 * M);
  device.allocator.record_stream(block, 0);  // its own stream counts for nothing
  device.allocator.record_stream(block, 1);
  device.allocator.free(block, 7);
  EXPECT_EQ(device.allocated(), 0);
  EXPECT_EQ(device.active(), 30 * M);
  const auto other = device.malloc(30 * M);  // so it cannot be used again yet
  EXPECT_EQ(device.reserved(), 60 * M);
  device.allocator.process_events([](int, std::int64_t position) { return position <= 6; });
  EXPECT_EQ(device.active(), 60 * M);
  device.allocator.process_events([](int stream, std::int64_t position) {
    EXPECT_EQ(stream, 1);
    EXPECT_EQ(position, 7);
    return true;
  });
  EXPECT_EQ(device.active(), 30 * M);
  device.free(other);
}

// Events of a stream end in order: the second does not free its block before the first has ended.
TEST(CachingAllocator, EventsOfAStreamAreAskedInOrder) {
  Device device;
  for (const std::int64_t position : {9, 1}) {
    const auto block = device.malloc(30 * M);
    device.allocator.record_stream(block, 1);
    device.allocator.free(block, position);
  }
  device.allocator.process_events([](int, std::int64_t position) { return position <= 5; });
  EXPECT_EQ(device.active(), 60 * M);
}

// max_split_size 40 MiB: a cached block of 60 serves no small request, none that leaves 20 or more, and is never cut.
TEST(CachingAllocator, OversizeBlocksServeRequestsOfAboutTheirSize) {
  Device device("max_split_size_mb:40");
  const auto block = device.malloc(60 * M);
  EXPECT_EQ(device.stats().oversize_allocations.current, 1);
  EXPECT_EQ(device.stats().oversize_segments.current, 1);
  device.free(block);
  device.free(device.malloc(30 * M));
  EXPECT_EQ(device.reserved(), 90 * M);
  device.free(device.malloc(40 * M));  // 60 >= 40 + 20
  EXPECT_EQ(device.reserved(), 130 * M);
  const auto near = device.malloc(50 * M);
  EXPECT_EQ(device.allocator.size_of(near), 60 * M);
  EXPECT_EQ(device.reserved(), 130 * M);
}

// Of a device of 100 MiB, full of oversize blocks of 60 and 40 MiB, only as much is freed as the
// request needs; this is no retry.
TEST(CachingAllocator, OversizeBlocksAreGivenBackOneByOne) {
  Device device("max_split_size_mb:32", 100);
  const auto large = device.malloc(60 * M), small = device.malloc(40 * M);
  device.free(large);
  device.free(small);
  device.malloc(36 * M);  // 40 serves it
  EXPECT_EQ(device.reserved(), 100 * M);
  device.malloc(38 * M);  // 60 >= 38 + 20 does not: it is freed
  EXPECT_EQ(device.reserved(), 78 * M);
  EXPECT_EQ(device.stats().num_alloc_retries, 0);
  EXPECT_EQ(device.stats().num_device_free, 1);
}

// Half of 100 MiB may be used: 40 are there, 20 more are refused though the device has them.
TEST(CachingAllocator, TheMemoryFractionIsALimit) {
  Device device("per_process_memory_fraction:0.5", 100);
  device.malloc(40 * M);
  EXPECT_EQ(device.malloc(20 * M), CachingAllocator::kNoBlock);
  EXPECT_NE(device.malloc(10 * M), CachingAllocator::kNoBlock);
}

// Threshold 50 of 100 MiB, 60 cached in segments of 20 (freed at lookups 1, 2 and 3): when a
// fourth segment is wanted at lookup 4, ages are 3, 2 and 1, their mean 2; the two oldest go.
TEST(CachingAllocator, GarbageCollectionFreesWhatLayUnusedLongest) {
  Device device("garbage_collection_threshold:0.5,per_process_memory_fraction:1", 100);
  for (int stream = 0; stream < 3; ++stream) device.free(device.malloc(20 * M, stream));
  EXPECT_EQ(device.reserved(), 60 * M);
  device.malloc(22 * M, 3);
  EXPECT_EQ(device.stats().num_device_free, 2);
  EXPECT_EQ(device.reserved(), 20 * M + 22 * M);
}

// One range grows by pages of 20 MiB at its tail: 30 take two of them, 15 more one.
TEST(CachingAllocator, ExpandableSegmentsGrowByPages) {
  Device device("expandable_segments:True");
  device.malloc(30 * M);
  EXPECT_EQ(device.reserved(), 40 * M);
  device.malloc(15 * M);  // 10 are free at the tail
  EXPECT_EQ(device.reserved(), 60 * M);
  device.malloc(15 * M);
  EXPECT_EQ(device.reserved(), 60 * M);
  EXPECT_EQ(device.stats().all.segment.current, 0);  // PyTorch counts cudaMallocs only
  EXPECT_EQ(device.stats().num_device_alloc, 2);
  EXPECT_EQ(device.allocator.snapshot().size(), 1U);
  device.malloc(512);  // the small pool has a range of its own and pages of 2 MiB
  EXPECT_EQ(device.reserved(), 62 * M);
}

// Blocks of 10 at 0, 50 at 10 and 20 at 60 MiB. When the middle one is free, its whole pages (20 to
// 60) can be unmapped; 10 to 20 stays with its page. Other requests fill the hole.
TEST(CachingAllocator, ExpandableSegmentsUnmapWholePages) {
  Device device("expandable_segments:True");
  const auto first = device.malloc(10 * M);
  const auto middle = device.malloc(50 * M);
  device.malloc(20 * M);
  EXPECT_EQ(device.reserved(), 80 * M);
  device.free(middle);
  device.allocator.empty_cache();
  EXPECT_EQ(device.reserved(), 40 * M);
  EXPECT_EQ(device.allocator.snapshot().size(), 2U);  // a mapped range on each side
  const auto again = device.malloc(25 * M);
  EXPECT_EQ(device.allocator.address_of(again), device.allocator.address_of(first) + 10 * M);
  EXPECT_EQ(device.reserved(), 60 * M);
}

TEST(AllocatorSettings, RoundsUpToStepsBetweenPowersOfTwo) {
  // PyTorch's example: 1200 between 1024 and 2048 in four steps of 256 is 1280; below 512 x 4 bytes nothing changes.
  const AllocatorSettings four = parse_alloc_conf("roundup_power2_divisions:4");
  EXPECT_EQ(four.round_size(1200), 1536);
  EXPECT_EQ(four.round_size(1200 * 1024), 1280 * 1024);
  EXPECT_EQ(four.round_size(M), M);
  const AllocatorSettings list = parse_alloc_conf("roundup_power2_divisions:[4:1,8:2,>:4]");
  EXPECT_EQ(list.round_size(5 * M + 1), 5 * M + 512);  // class 4 MiB: 1 is none
  EXPECT_EQ(list.round_size(9 * M), 12 * M);
  EXPECT_EQ(list.round_size(17 * M), 20 * M);
}

TEST(AllocatorSettings, ReadsPytorchsWordsAndWritesThemBack) {
  const AllocatorSettings s = parse_alloc_conf(
      "expandable_segments:True, "
      "max_split_size_mb:512,garbage_collection_threshold:0.8,per_process_memory_fraction:0.9,pinned_use_background_"
      "threads:True,roundup_power2_divisions:[64:8,256:4,>:1]");
  EXPECT_TRUE(s.expandable_segments);
  EXPECT_EQ(s.max_split_size, 512 * M);
  EXPECT_EQ(s.garbage_collection_threshold, 0.8);
  EXPECT_EQ(s.per_process_memory_fraction, 0.9);
  EXPECT_EQ(s.roundup_power2_divisions, (std::array<std::int64_t, 16>{8, 8, 8, 8, 8, 8, 8, 0, 4, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(parse_alloc_conf(alloc_conf(s)), s);
  EXPECT_EQ(alloc_conf({}), "");
  EXPECT_EQ(parse_alloc_conf(""), AllocatorSettings{});
}

TEST(AllocatorSettings, RefusesWhatPytorchRefuses) {
  const auto message = [](const char* conf) -> std::string {
    try {
      parse_alloc_conf(conf);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::kInvalidInput);
      return error.what();
    }
    return "";
  };
  for (const auto& [conf, part] : std::vector<std::pair<const char*, const char*>>{
           {"expandable_segment:True", "Unrecognized key 'expandable_segment'"},
           {"expandable_segments:true", "Expected 'True' or 'False' but got 'true'"},
           {"max_split_size_mb:19", "too small, must be >= 20"},
           {"max_split_size_mb", "expected ':' at the end"},
           {"max_split_size_mb:", "expecting max_split_size_mb value"},
           {"max_split_size_mb:1x", "whole number"},
           {"garbage_collection_threshold:1.0", "set it in (0.0, 1.0)"},
           {"roundup_power2_divisions:3", "power of 2"},
           {"roundup_power2_divisions:[64:8,256:3]", "power of 2 or 0"},
           {"roundup_power2_divisions:[64:8", "expected ']' at the end"},
           {"backend:cudaMallocAsync", "not modelled"},
           {"expandable_segments:True max_split_size_mb:40", "got 'Truemax_split_size_mb'"},
       }) {
    EXPECT_NE(message(conf).find(part), std::string::npos) << conf << ": " << message(conf);
  }
}

}
}
