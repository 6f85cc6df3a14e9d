// Blocks: best fit, splitting, merging, events. Segments and the driver: device_segments.cpp.
//
// A block that is split keeps its id for the front part, and of merged blocks the front one's id stays, so that a
// segment's first block is always the same. Statistics follow PyTorch's order of updates, which decides their peaks.
#include "sim/memory/caching_allocator.h"

#include <algorithm>

#include "sim/base/error.h"

namespace foreshard {

using Action = AllocatorTraceEntry::Action;

const char* to_string(Action action) {
  static constexpr const char* kNames[] = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free",
      "segment_map", "segment_unmap", "oom"};
  return kNames[static_cast<std::size_t>(action)];
}

CachingAllocator::CachingAllocator(const AllocatorSettings& settings, const DeviceMemory& memory)
    : settings_(settings),
      memory_(memory),
      free_(std::size_t{2} * kMostStreams),
      unmapped_(std::size_t{2} * kMostStreams),
      // Where the driver's ranges usually are; up to the 2^49 that FreeBlocks can hold.
      address_holes_{{std::int64_t{0x7f} << 40, (std::int64_t{1} << 49) - (std::int64_t{0x7f} << 40)}} {
  if (settings_.per_process_memory_fraction)
    allowed_ = static_cast<std::int64_t>(*settings_.per_process_memory_fraction * as_double(memory_.total.count()));
}

CachingAllocator::BlockId CachingAllocator::malloc(std::int64_t bytes, int stream) {
  FORESHARD_CHECK(bytes > 0 && stream >= 0 && stream < kMostStreams, "malloc of nothing");
  const std::int64_t size = settings_.round_size(bytes);
  const Bin bin = bin_of(stream, size > kSmallSize);
  BlockId id = take_cached(bin, size);
  if (id == kNoBlock) id = allocate_segment(bin, size);
  if (id == kNoBlock) {
    ++stats_.num_ooms;
    record(Action::kOom, bin, memory_.available.count() - stats_.all.reserved_bytes.current, size);
    return kNoBlock;
  }
  return use_block(id, size, bytes);
}

// The cached block that serves the request, taken out of the cache.
CachingAllocator::BlockId CachingAllocator::take_cached(Bin bin, std::int64_t size) {
  FreeBlocks& cached = free_blocks(bin);
  if (allowed_ && settings_.garbage_collection_threshold > 0) ++lookups_[is_large(bin)];
  FreeBlocks::Cursor cursor = cached.lower_bound(size);
  if (cached.at_end(cursor)) return kNoBlock;
  BlockId id = cached.id(cursor);
  if (settings_.expandable_segments) {
    // A block that can grow counts as large as it could become, so a longer one that cannot is preferred.
    const auto expandable_size = [&](BlockId b) {
      const BlockId next = at(b).next;
      return at(b).size + (next != kNoBlock && !at(next).mapped ? at(next).size : 0);
    };
    for (cursor = cached.next(cursor); !cached.at_end(cursor); cursor = cached.next(cursor)) {
      const BlockId other = cached.id(cursor);
      if (expandable_size(other) >= expandable_size(id)) break;
      id = other;
    }
  }
  const std::int64_t found = at(id).size;
  if (size < settings_.max_split_size) {
    if (found >= settings_.max_split_size) return kNoBlock;
  } else if (found >= size + settings_.max_non_split_rounding) {
    return kNoBlock;
  }
  erase_free(id);
  return id;
}

bool CachingAllocator::should_split(const Block& block, std::int64_t size) const {
  const std::int64_t rest = block.size - size;
  if (!is_large(block.bin) || settings_.expandable_segments) return rest >= kMinBlockSize;
  return size < settings_.max_split_size && rest > kSmallSize;
}

CachingAllocator::BlockId CachingAllocator::use_block(BlockId id, std::int64_t size, std::int64_t requested) {
  const Bin bin = at(id).bin;
  const bool already_split = is_split(at(id));
  const bool expandable = at(id).expandable;
  if (should_split(at(id), size)) {
    const BlockId rest = cut(id, size);
    insert_free(rest);
    if (!expandable) {
      if (already_split) {
        count(&PoolStats::inactive_split_bytes, bin, -size);
      } else {
        count(&PoolStats::inactive_split_bytes, bin, at(rest).size);
        count(&PoolStats::inactive_split, bin, 1);
      }
    }
  } else if (already_split && !expandable) {
    count(&PoolStats::inactive_split_bytes, bin, -at(id).size);
    count(&PoolStats::inactive_split, bin, -1);
  }
  Block& block = at(id);
  block.allocated = true;
  block.requested = requested;
  record(Action::kAlloc, bin, block.address, requested);
  count(&PoolStats::allocation, bin, 1);
  count(&PoolStats::allocated_bytes, bin, block.size);
  count(&PoolStats::active, bin, 1);
  count(&PoolStats::active_bytes, bin, block.size);
  count(&PoolStats::requested_bytes, bin, requested);
  if (block.size >= settings_.max_split_size) stats_.oversize_allocations.add(1);
  return id;
}

void CachingAllocator::free(BlockId id, std::int64_t position) {
  Block& block = at(id);
  FORESHARD_CHECK(block.allocated, "a block is freed that is not allocated");
  block.allocated = false;
  count(&PoolStats::allocation, block.bin, -1);
  count(&PoolStats::allocated_bytes, block.bin, -block.size);
  record(Action::kFreeRequested, block.bin, block.address, block.requested);
  if (block.size >= settings_.max_split_size) stats_.oversize_allocations.add(-1);
  if (block.stream_uses == 0) return free_block(id);
  for (int stream = 0; stream < kMostStreams; ++stream) {
    if ((block.stream_uses >> stream & 1U) == 0) continue;
    events_[static_cast<std::size_t>(stream)].queue.emplace_back(id, position);
    ++block.event_count;
  }
  block.stream_uses = 0;
}

void CachingAllocator::record_stream(BlockId id, int stream) {
  FORESHARD_CHECK(stream >= 0 && stream < kMostStreams, "no such stream");
  Block& block = at(id);
  FORESHARD_CHECK(block.allocated, "record_stream on a block that is not allocated");
  if (stream != stream_of(block.bin)) block.stream_uses |= 1U << stream;
}

void CachingAllocator::finish_next_event(int stream) {
  Events& events = events_[static_cast<std::size_t>(stream)];
  const BlockId id = events.queue[events.next++].first;
  if (events.next == events.queue.size()) {
    events.queue.clear();
    events.next = 0;
  }
  if (--at(id).event_count == 0) free_block(id);
}

// Back to the cache, joined with free neighbours.
void CachingAllocator::free_block(BlockId id) {
  const Bin bin = at(id).bin;
  const std::int64_t size = at(id).size;
  const std::int64_t requested = at(id).requested;
  record(Action::kFreeCompleted, bin, at(id).address, requested);
  std::int64_t split_blocks = 0;
  std::int64_t split_bytes = 0;
  for (const BlockId neighbour : {at(id).prev, at(id).next}) {
    const std::int64_t joined = merge(id, neighbour);
    if (joined == 0) continue;
    --split_blocks;
    split_bytes -= joined;
  }
  insert_free(id);
  Block& block = at(id);
  if (!block.expandable) {
    if (is_split(block)) {
      ++split_blocks;
      split_bytes += block.size;
    }
    count(&PoolStats::inactive_split, bin, split_blocks);
    count(&PoolStats::inactive_split_bytes, bin, split_bytes);
  }
  count(&PoolStats::active, bin, -1);
  count(&PoolStats::active_bytes, bin, -size);
  count(&PoolStats::requested_bytes, bin, -requested);
}

// Joins `into`, which is in no list, with a neighbour where that is free and as much mapped as it;
// `into` is then the joined block. Returns the neighbour's size, 0 where nothing was joined.
std::int64_t CachingAllocator::merge(BlockId& into, BlockId other) {
  if (other == kNoBlock || !is_usable(at(other)) || at(other).mapped != at(into).mapped) return 0;
  const std::int64_t joined = at(other).size;
  at(other).mapped ? erase_free(other) : erase_unmapped(other);
  const bool is_before = at(into).prev == other;
  const BlockId front = is_before ? other : into;
  const BlockId back = is_before ? into : other;
  at(front).size += at(back).size;
  at(front).next = at(back).next;
  if (at(back).next != kNoBlock) at(at(back).next).prev = front;
  drop_block(back);
  into = front;
  return joined;
}

CachingAllocator::BlockId CachingAllocator::new_block(const Block& like) {
  if (unused_.empty()) {
    const auto id = static_cast<BlockId>(blocks_.size());
    FORESHARD_CHECK(id < 1 << FreeBlocks::kIdBits, "too many blocks");
    const Block copy = like;  // `like` may be in the vector that grows
    blocks_.push_back(copy);
    return id;
  }
  const BlockId id = unused_.back();
  unused_.pop_back();
  at(id) = like;
  return id;
}

// The block keeps its first `size` bytes; returns a block of the others, which is in no list.
CachingAllocator::BlockId CachingAllocator::cut(BlockId id, std::int64_t size) {
  const BlockId rest = new_block(at(id));
  Block& front = at(id);
  Block& back = at(rest);
  back.address += size;
  back.size -= size;
  back.prev = id;
  if (back.next != kNoBlock) at(back.next).prev = rest;
  front.next = rest;
  front.size = size;
  return rest;
}

void CachingAllocator::insert_free(BlockId id) {
  Block& block = at(id);
  block.gc_count_base = lookups_[is_large(block.bin)];
  block.size_class = free_blocks(block.bin).insert(block.size, block.address, id, block.size_class);
}

void CachingAllocator::erase_free(BlockId id) {
  const Block& block = at(id);
  free_blocks(block.bin).erase(block.size_class, block.address, id);
}

void CachingAllocator::reset_peak_stats() {
  const auto reset = [](AllocatorStat& stat) { stat.peak = stat.current; };
  for (PoolStats* pool : {&stats_.all, &stats_.small_pool, &stats_.large_pool})
    for (AllocatorStat* stat :
        {&pool->allocation, &pool->segment, &pool->active, &pool->inactive_split, &pool->allocated_bytes,
            &pool->reserved_bytes, &pool->active_bytes, &pool->inactive_split_bytes, &pool->requested_bytes})
      reset(*stat);
  reset(stats_.oversize_allocations);
  reset(stats_.oversize_segments);
}

std::vector<SegmentState> CachingAllocator::snapshot() const {
  std::vector<SegmentState> result;
  for (const Segment& segment : segments_) {
    if (!segment.alive) continue;
    bool is_open = false;
    for (BlockId id = segment.first; id != kNoBlock; id = at(id).next) {
      const Block& block = at(id);
      if (!block.mapped) {
        is_open = false;
        continue;
      }
      if (!is_open)
        result.push_back({block.address, 0, stream_of(block.bin), !is_large(block.bin), block.expandable, {}});
      is_open = true;
      result.back().size += block.size;
      result.back().blocks.push_back(
          {block.address, block.size, block.requested, block.allocated, !is_usable(block), id});
    }
  }
  std::ranges::sort(result, {}, &SegmentState::address);
  return result;
}

}
