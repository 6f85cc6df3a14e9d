// What must hold whatever is asked of the caching allocator.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <vector>

#include "sim/memory/caching_allocator.h"

namespace foreshard {
namespace {

const char* random_conf() {
  return *rc::gen::element("", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4",
      "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9");
}

std::int64_t random_bytes() {
  return *rc::gen::oneOf(rc::gen::inRange<std::int64_t>(1, 5000), rc::gen::inRange<std::int64_t>(1, 2 * kMiB),
      rc::gen::inRange<std::int64_t>(1, 25 * kMiB), rc::gen::inRange<std::int64_t>(1, 70 * kMiB));
}

// Segments do not overlap, blocks tile them, sums are the statistics, and what was handed out is
// there, unmoved and large enough.
void check(const CachingAllocator& allocator, const std::map<std::int32_t, std::int64_t>& live) {
  std::int64_t reserved = 0, allocated = 0, active = 0, requested = 0, end_of_last = 0;
  std::size_t found = 0;
  for (const SegmentState& segment : allocator.snapshot()) {
    RC_ASSERT(segment.address >= end_of_last);
    end_of_last = segment.address + segment.size;
    reserved += segment.size;
    std::int64_t at = segment.address;
    bool was_free = false;
    for (const BlockState& block : segment.blocks) {
      RC_ASSERT(block.address == at);
      RC_ASSERT(block.size > 0);
      at += block.size;
      RC_ASSERT(!(was_free && !block.active));  // free neighbours are joined
      was_free = !block.active;
      if (block.allocated) allocated += block.size;
      if (block.active) active += block.size;
      if (block.active) requested += block.requested;
      const auto it = live.find(block.id);
      if (it == live.end() || !block.allocated) continue;
      ++found;
      RC_ASSERT(block.requested == it->second);
      RC_ASSERT(block.size >= it->second);
    }
    RC_ASSERT(at == end_of_last);
  }
  RC_ASSERT(found == live.size());
  const PoolStats& all = allocator.stats().all;
  RC_ASSERT(reserved == all.reserved_bytes.current);
  RC_ASSERT(allocated == all.allocated_bytes.current);
  RC_ASSERT(active == all.active_bytes.current);
  RC_ASSERT(requested == all.requested_bytes.current);
  RC_ASSERT(allocated <= active);
  RC_ASSERT(active <= reserved);
  const AllocatorStats& s = allocator.stats();
  RC_ASSERT(s.small_pool.reserved_bytes.current + s.large_pool.reserved_bytes.current == reserved);
  RC_ASSERT(s.device_alloc_bytes - s.device_free_bytes == reserved);
}

RC_GTEST_PROP(AllocatorProperty, BlocksTileTheirSegmentsAndEverythingCanBeGivenBack, ()) {
  const std::int64_t device = *rc::gen::inRange<std::int64_t>(64, 1024) * kMiB;
  CachingAllocator allocator(parse_alloc_conf(random_conf()), {Bytes(device), Bytes(device)});
  std::map<std::int32_t, std::int64_t> live;
  std::int64_t position = 0;
  const int operations = *rc::gen::inRange(1, 60);
  for (int i = 0; i < operations; ++i) {
    ++position;
    const int kind = *rc::gen::inRange(0, 10);
    if (kind < 5 || live.empty()) {
      const std::int64_t bytes = random_bytes();
      const auto block = allocator.malloc(bytes, *rc::gen::inRange(0, 3));
      if (block == CachingAllocator::kNoBlock) continue;
      RC_ASSERT(live.emplace(block, bytes).second);
    } else if (kind < 8) {
      const auto it =
          std::next(live.begin(), *rc::gen::inRange<std::ptrdiff_t>(0, static_cast<std::ptrdiff_t>(live.size())));
      allocator.free(it->first, position);
      live.erase(it);
    } else if (kind == 8) {
      allocator.record_stream(live.begin()->first, *rc::gen::inRange(0, 3));
    } else {
      const std::int64_t until = *rc::gen::inRange<std::int64_t>(0, 60);
      allocator.process_events([&](int, std::int64_t at) { return at <= until; });
    }
    RC_ASSERT(allocator.stats().all.reserved_bytes.current <= device);
    check(allocator, live);
  }
  for (const auto& [block, bytes] : live) allocator.free(block, position);
  allocator.empty_cache();
  check(allocator, {});
  RC_ASSERT(allocator.stats().all.reserved_bytes.current == 0);
  RC_ASSERT(allocator.snapshot().empty());
}

// Best fit by looking at every block there is.
RC_GTEST_PROP(AllocatorProperty, ACachedBlockIsUsedExactlyWhereOneIsLargeEnough, ()) {
  CachingAllocator allocator({}, DeviceMemory::unlimited());
  std::vector<CachingAllocator::BlockId> live;
  for (int i = 0, n = *rc::gen::inRange(1, 60); i < n; ++i) {
    if (*rc::gen::inRange(0, 5) < 2 && !live.empty()) {
      const auto at = *rc::gen::inRange<std::size_t>(0, live.size());
      allocator.free(live[at]);
      live.erase(live.begin() + at);
      continue;
    }
    const std::int64_t bytes = random_bytes();
    const int stream = *rc::gen::inRange(0, 2);
    const std::int64_t size = (bytes + 511) / 512 * 512;
    const BlockState* best = nullptr;
    const std::vector<SegmentState> segments = allocator.snapshot();
    for (const SegmentState& segment : segments) {
      if (segment.stream != stream || segment.is_small != (size <= kMiB)) continue;
      for (const BlockState& block : segment.blocks) {
        if (block.active || block.size < size) continue;
        if (best == nullptr || block.size < best->size) best = &block;  // by ascending address
      }
    }
    const std::int64_t before = allocator.stats().num_device_alloc;
    live.push_back(allocator.malloc(bytes, stream));
    RC_ASSERT((allocator.stats().num_device_alloc == before) == (best != nullptr));
    if (best != nullptr) RC_ASSERT(allocator.address_of(live.back()) == best->address);
  }
}

}
}
