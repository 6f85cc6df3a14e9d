// The caching allocator's dealings with the driver: cudaMalloc, cudaFree and, for expandable
// segments, pages mapped into a range of addresses.
//
// A new segment is tried three times: as it is; with max_split_size, after freeing just enough
// oversize blocks of the stream; after waiting for all events and freeing every segment that is
// wholly free (the retry that is counted). An expandable segment is one range per pool and stream,
// 9/8 of the device's memory long, of mapped and unmapped blocks: it grows at the lowest unmapped
// address where enough is free, and gives back the pages that a free block covers wholly.
#include <algorithm>

#include "sim/base/error.h"
#include "sim/memory/caching_allocator.h"

namespace foreshard {

using Action = AllocatorTraceEntry::Action;

CachingAllocator::BlockId CachingAllocator::allocate_segment(Bin bin, std::int64_t size) {
  if (allowed_ && settings_.garbage_collection_threshold > 0) collect_garbage();
  const auto attempt = [&]() -> BlockId {
    const std::int64_t segment = settings_.segment_size(size);
    if (allowed_ && stats_.all.reserved_bytes.current + segment > *allowed_) return kNoBlock;
    if (settings_.expandable_segments) return grow_expandable(bin, size);
    return new_segment(bin, segment, false);
  };
  BlockId id = attempt();
  if (id == kNoBlock && release_oversize(bin, size)) id = attempt();
  if (id == kNoBlock) {
    release_cached_blocks();
    ++stats_.num_alloc_retries;
    id = attempt();
  }
  return id;
}

// A segment of one block that is in no list; expandable ones start unmapped.
CachingAllocator::BlockId CachingAllocator::new_segment(Bin bin, std::int64_t size, bool expandable) {
  if (!expandable && stats_.all.reserved_bytes.current + size > memory_.available.count()) return kNoBlock;
  if (unused_segments_.empty()) {
    unused_segments_.push_back(static_cast<std::int32_t>(segments_.size()));
    segments_.emplace_back();
  }
  const std::int32_t index = unused_segments_.back();
  unused_segments_.pop_back();
  Block block;
  block.address = take_address_range(size);
  block.size = size;
  block.segment = index;
  block.bin = bin;
  block.expandable = expandable;
  block.mapped = !expandable;
  const BlockId id = new_block(block);
  segments_[static_cast<std::size_t>(index)] = {block.address, size, id, true};
  if (expandable) return id;
  count(&PoolStats::segment, bin, 1);
  count(&PoolStats::reserved_bytes, bin, size);
  if (size >= settings_.max_split_size) stats_.oversize_segments.add(1);
  count_device_alloc(size);
  record(Action::kSegmentAlloc, bin, block.address, size);
  return id;
}

void CachingAllocator::drop_segment(BlockId id) {
  const std::int32_t index = at(id).segment;
  Segment& segment = segments_[static_cast<std::size_t>(index)];
  give_address_range({segment.address, segment.size});
  segment = {};
  unused_segments_.push_back(index);
  drop_block(id);
}

// cudaFree of a cached block that is a whole segment.
void CachingAllocator::release_segment(BlockId id) {
  const Bin bin = at(id).bin;
  const std::int64_t size = at(id).size;
  count_device_free(size);
  record(Action::kSegmentFree, bin, at(id).address, size);
  count(&PoolStats::segment, bin, -1);
  count(&PoolStats::reserved_bytes, bin, -size);
  if (size >= settings_.max_split_size) stats_.oversize_segments.add(-1);
  erase_free(id);
  drop_segment(id);
}

// Cached blocks of the stream beyond max_split_size, as many as cover the request. Returns whether they do.
bool CachingAllocator::release_oversize(Bin bin, std::int64_t size) {
  if (settings_.max_split_size == AllocatorSettings::kUnlimited) return false;
  FreeBlocks& cached = free_blocks(bin);
  const std::int64_t wanted = std::max(size, settings_.max_split_size);
  const FreeBlocks::Cursor cursor = cached.lower_bound(wanted);
  if (!cached.at_end(cursor)) {
    const BlockId id = cached.id(cursor);
    if (is_split(at(id)) || at(id).expandable) return false;
    release_segment(id);
    return true;
  }
  std::int64_t released = 0;
  const std::vector<BlockId> ids = cached.ids();
  for (auto id = ids.rbegin(); id != ids.rend() && released < wanted; ++id) {
    if (at(*id).size < settings_.max_split_size || is_split(at(*id))) break;
    released += at(*id).size;
    release_segment(*id);
  }
  return released >= wanted;
}

void CachingAllocator::release_cached_blocks() {
  ++stats_.num_sync_all_streams;
  for (int stream = 0; stream < kMostStreams; ++stream)
    while (!events_[static_cast<std::size_t>(stream)].queue.empty()) finish_next_event(stream);
  release_pool(true);
  release_pool(false);
}

void CachingAllocator::release_pool(bool large) {
  std::vector<BlockId> to_unmap;
  for (int stream = 0; stream < kMostStreams; ++stream) {
    for (const BlockId id : free_blocks(bin_of(stream, large)).ids())
      if (at(id).expandable) to_unmap.push_back(id);
      else if (!is_split(at(id))) release_segment(id);
  }
  for (const BlockId id : to_unmap) {
    const BlockId left = unmap_pages(id);
    if (left == kNoBlock || is_split(at(left))) continue;
    erase_unmapped(left);
    drop_segment(left);
  }
}

// Frees whole large segments that lay unused for longer than the average of them, repeatedly, until
// reserved memory is below the threshold.
void CachingAllocator::collect_garbage() {
  const auto threshold = static_cast<std::int64_t>(settings_.garbage_collection_threshold * as_double(*allowed_));
  const std::int64_t excess = stats_.all.reserved_bytes.current - threshold;
  if (excess <= 0) return;
  const auto age = [&](BlockId id) { return lookups_[1] - at(id).gc_count_base; };
  std::vector<BlockId> freeable;
  std::int64_t total_age = 0;
  for (int stream = 0; stream < kMostStreams; ++stream) {
    for (const BlockId id : free_blocks(bin_of(stream, true)).ids()) {
      if (is_split(at(id))) continue;
      freeable.push_back(id);
      total_age += age(id);
    }
  }
  std::int64_t reclaimed = 0;
  bool freed = true;
  while (reclaimed < excess && freed && !freeable.empty()) {
    const double least = as_double(total_age) / as_double(freeable.size());
    freed = false;
    std::vector<BlockId> left;
    for (const BlockId id : freeable) {
      if (as_double(age(id)) < least) {
        left.push_back(id);
        continue;
      }
      freed = true;
      reclaimed += at(id).size;
      total_age -= age(id);
      release_segment(id);
    }
    freeable = std::move(left);
  }
}

// The lowest place of the pool's ranges where `size` bytes are free or unmapped, one after the
// other; a new range where there is none.
CachingAllocator::BlockId CachingAllocator::find_expandable(Bin bin, std::int64_t size) {
  const auto has_room = [&](BlockId id) {
    std::int64_t room = 0;
    for (; id != kNoBlock && room < size && is_usable(at(id)); id = at(id).next) room += at(id).size;
    return room >= size;
  };
  for (BlockId id : unmapped_[bin]) {
    const BlockId before = at(id).prev;
    if (before != kNoBlock && is_usable(at(before))) id = before;
    if (has_room(id)) return id;
  }
  const std::int64_t page = page_size(bin);
  const std::int64_t range = memory_.total.count() + memory_.total.count() / 8;
  const BlockId id = new_segment(bin, (range + page - 1) / page * page, true);
  insert_unmapped(id);
  return id;
}

CachingAllocator::BlockId CachingAllocator::grow_expandable(Bin bin, std::int64_t size) {
  BlockId id = find_expandable(bin, size);
  if (!at(id).mapped) {
    id = map_pages(id, std::min(at(id).size, size));
    if (id == kNoBlock) return kNoBlock;
  }
  while (at(id).size < size) {
    const BlockId next = at(id).next;
    id = map_pages(next, std::min(size - at(id).size, at(next).size));
    if (id == kNoBlock) return kNoBlock;
  }
  erase_free(id);
  return id;
}

// Maps the first pages of an unmapped block and caches them, joined with free neighbours; returns
// that block, or kNoBlock where the device has not enough memory.
CachingAllocator::BlockId CachingAllocator::map_pages(BlockId id, std::int64_t size) {
  const Bin bin = at(id).bin;
  const std::int64_t page = page_size(bin);
  const std::int64_t mapped = (size + page - 1) / page * page;
  if (stats_.all.reserved_bytes.current + mapped > memory_.available.count()) return kNoBlock;
  erase_unmapped(id);
  const std::int64_t address = at(id).address;
  if (mapped < at(id).size) insert_unmapped(cut(id, mapped));
  at(id).mapped = true;
  merge(id, at(id).prev);
  merge(id, at(id).next);
  insert_free(id);
  count(&PoolStats::reserved_bytes, bin, mapped);
  count_device_alloc(mapped);
  record(Action::kSegmentMap, bin, address, mapped);
  return id;
}

// Unmaps the pages that a cached block covers wholly; what is left of it at its ends stays cached.
// Returns the unmapped block, joined with unmapped neighbours, or kNoBlock where there is none.
CachingAllocator::BlockId CachingAllocator::unmap_pages(BlockId id) {
  const Bin bin = at(id).bin;
  const std::int64_t page = page_size(bin);
  const std::int64_t base = segments_[static_cast<std::size_t>(at(id).segment)].address;
  const std::int64_t from = (at(id).address - base + page - 1) / page * page + base;
  const std::int64_t to = (at(id).address + at(id).size - base) / page * page + base;
  if (from >= to) return kNoBlock;
  erase_free(id);
  if (from > at(id).address) {
    const BlockId before = id;
    id = cut(id, from - at(id).address);
    insert_free(before);
  }
  if (to < at(id).address + at(id).size) insert_free(cut(id, to - from));
  at(id).mapped = false;
  merge(id, at(id).prev);
  merge(id, at(id).next);
  insert_unmapped(id);
  count(&PoolStats::reserved_bytes, bin, from - to);
  count_device_free(to - from);
  record(Action::kSegmentUnmap, bin, from, to - from);
  return id;
}

void CachingAllocator::insert_unmapped(BlockId id) {
  std::vector<BlockId>& list = unmapped_[at(id).bin];
  list.insert(
      std::ranges::lower_bound(list, id, [&](BlockId a, BlockId b) { return at(a).address < at(b).address; }), id);
}

void CachingAllocator::erase_unmapped(BlockId id) {
  std::vector<BlockId>& list = unmapped_[at(id).bin];
  list.erase(std::ranges::find(list, id));
}

std::int64_t CachingAllocator::take_address_range(std::int64_t size) {
  const auto hole = std::ranges::find_if(address_holes_, [&](const Range& range) { return range.size >= size; });
  FORESHARD_CHECK(hole != address_holes_.end(), "the address space is full");
  const std::int64_t address = hole->address;
  hole->address += size;
  hole->size -= size;
  if (hole->size == 0) address_holes_.erase(hole);
  return address;
}

void CachingAllocator::give_address_range(Range range) {
  auto after = std::ranges::lower_bound(
      address_holes_, range, [](const Range& a, const Range& b) { return a.address < b.address; });
  if (after != address_holes_.end() && range.address + range.size == after->address) {
    range.size += after->size;
    after = address_holes_.erase(after);
  }
  if (after != address_holes_.begin()) {
    Range& before = *std::prev(after);
    if (before.address + before.size == range.address) {
      before.size += range.size;
      return;
    }
  }
  address_holes_.insert(after, range);
}

}
