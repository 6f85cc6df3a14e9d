// PyTorch's CUDA caching allocator without a GPU: where every block would land, what it reserves,
// splits, gives back and how often it has to ask the driver. Rules:
// c10/cuda/CUDACachingAllocator.cpp (the native backend; no private pools, no CUDA graphs).
//
// Blocks belong to the stream they were allocated on and are reused only there. Requests up to 1 MiB come from the
// small pool, others from the large one. The smallest cached block that is large enough serves a request, of equal ones
// that with the lowest address; else a new segment is allocated, or with expandable_segments the pool's range grows by
// pages. Where the device has no memory left, cached segments are freed and the request is tried again (a retry).
//
// The driver's choice of addresses is not published; here cudaMalloc returns the lowest range that
// is free. Only ties between free blocks of equal size depend on it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "sim/base/units.h"
#include "sim/memory/free_blocks.h"
#include "sim/spec/allocator_settings.h"

namespace foreshard {

// Device memory: all of it, and what the allocator can get (total less the CUDA context, NCCL ...).
struct DeviceMemory {
  Bytes total;
  Bytes available;
  // Enough for anything: what a step would reserve if memory never ran out.
  static DeviceMemory unlimited() { return {Bytes(std::int64_t{1} << 44), Bytes(std::int64_t{1} << 44)}; }
};

// As torch.cuda.memory_stats names them; `all` is the sum of both pools.
struct AllocatorStat {
  std::int64_t current = 0;
  std::int64_t peak = 0;
  bool operator==(const AllocatorStat&) const = default;
  void add(std::int64_t amount) {
    current += amount;
    if (current > peak) peak = current;
  }
};
struct PoolStats {
  AllocatorStat allocation, segment, active, inactive_split;  // counts
  AllocatorStat allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes;
  bool operator==(const PoolStats&) const = default;
};
struct AllocatorStats {
  PoolStats all, small_pool, large_pool;
  AllocatorStat oversize_allocations, oversize_segments;
  std::int64_t num_alloc_retries = 0;
  std::int64_t num_ooms = 0;
  std::int64_t num_sync_all_streams = 0;
  std::int64_t num_device_alloc = 0;    // cudaMalloc, or pages mapped at once
  std::int64_t num_device_free = 0;     // cudaFree, or pages unmapped at once
  std::int64_t device_alloc_bytes = 0;  // of these calls together
  std::int64_t device_free_bytes = 0;
  bool operator==(const AllocatorStats&) const = default;
};

struct BlockState {
  std::int64_t address = 0;
  std::int64_t size = 0;
  std::int64_t requested = 0;  // of live blocks
  bool allocated = false;
  bool active = false;  // allocated, or freed while another stream may still use it
  std::int32_t id = 0;
};

struct SegmentState {
  std::int64_t address = 0;
  std::int64_t size = 0;
  int stream = 0;
  bool is_small = false;
  bool is_expandable = false;      // then a contiguous mapped range
  std::vector<BlockState> blocks;  // by address; they tile the segment
};

// What happened, in torch.cuda.memory._snapshot's words.
struct AllocatorTraceEntry {
  enum class Action : std::uint8_t {
    kAlloc,
    kFreeRequested,
    kFreeCompleted,
    kSegmentAlloc,
    kSegmentFree,
    kSegmentMap,
    kSegmentUnmap,
    kOom,
  };
  Action action = Action::kAlloc;
  int stream = 0;
  std::int64_t address = 0;  // kOom: device memory that is free
  std::int64_t size = 0;     // of the request where there is one, else of the segment
};
const char* to_string(AllocatorTraceEntry::Action action);

class CachingAllocator {
 public:
  using BlockId = FreeBlocks::BlockId;
  static constexpr BlockId kNoBlock = FreeBlocks::kNone;
  static constexpr int kMostStreams = 32;

  CachingAllocator(const AllocatorSettings& settings, const DeviceMemory& memory);

  // A block of at least `bytes` (> 0) for `stream` (0 .. kMostStreams - 1), or kNoBlock: out of
  // memory, counted in num_ooms. Ids of freed blocks are used again.
  BlockId malloc(std::int64_t bytes, int stream);
  // A block with recorded streams stays active until their work up to now has ended: one event per such stream, in its
  // order, that carries `position` (whatever tells process_events how far the stream was; the replay uses the row).
  void free(BlockId block, std::int64_t position = 0);
  void record_stream(BlockId block, int stream);
  // Frees what waits for events. is_finished(stream, position) is asked stream by stream, in order,
  // up to the first that is not. PyTorch does this at the start of every malloc.
  void process_events(auto&& is_finished) {
    for (int stream = 0; stream < kMostStreams; ++stream) {
      const Events& events = events_[static_cast<std::size_t>(stream)];
      while (events.next < events.queue.size() && is_finished(stream, events.queue[events.next].second))
        finish_next_event(stream);
    }
  }
  // torch.cuda.empty_cache: waits for all events, then gives every unused segment back.
  void empty_cache() { release_cached_blocks(); }

  const AllocatorStats& stats() const { return stats_; }
  void reset_peak_stats();
  const AllocatorSettings& settings() const { return settings_; }

  std::int64_t address_of(BlockId block) const { return at(block).address; }
  std::int64_t size_of(BlockId block) const { return at(block).size; }
  // All segments by address.
  std::vector<SegmentState> snapshot() const;
  // Everything that happens from now on is appended there; nullptr ends it.
  void record_history(std::vector<AllocatorTraceEntry>* entries) { history_ = entries; }

 private:
  struct Block {
    std::int64_t address = 0;
    std::int64_t size = 0;
    std::int64_t requested = 0;
    std::int64_t gc_count_base = 0;
    BlockId prev = kNoBlock;  // neighbours within the segment
    BlockId next = kNoBlock;
    std::int32_t segment = 0;
    std::uint32_t size_class = 0;  // in its FreeBlocks
    std::uint32_t stream_uses = 0;
    std::int32_t event_count = 0;
    std::uint16_t bin = 0;
    bool allocated = false;
    bool mapped = true;
    bool expandable = false;
  };
  struct Segment {
    std::int64_t address = 0;
    std::int64_t size = 0;     // expandable: of the address range
    BlockId first = kNoBlock;  // stays the first: merging keeps the lower block
    bool alive = false;
  };
  struct Events {
    std::vector<std::pair<BlockId, std::int64_t>> queue;
    std::size_t next = 0;
  };
  struct Range {
    std::int64_t address = 0;
    std::int64_t size = 0;
  };
  // A stream's small (even) or large (odd) pool.
  using Bin = std::uint16_t;
  static Bin bin_of(int stream, bool is_large) { return static_cast<Bin>(stream * 2 + (is_large ? 1 : 0)); }
  static bool is_large(Bin bin) { return bin % 2 != 0; }
  static int stream_of(Bin bin) { return bin / 2; }

  Block& at(BlockId id) { return blocks_[static_cast<std::size_t>(id)]; }
  const Block& at(BlockId id) const { return blocks_[static_cast<std::size_t>(id)]; }
  FreeBlocks& free_blocks(Bin bin) { return free_[bin]; }
  bool is_split(const Block& b) const { return b.prev != kNoBlock || b.next != kNoBlock; }
  bool is_usable(const Block& b) const { return !b.allocated && b.event_count == 0 && b.stream_uses == 0; }
  PoolStats& pool_stats(Bin bin) { return is_large(bin) ? stats_.large_pool : stats_.small_pool; }
  void count(AllocatorStat PoolStats::*stat, Bin bin, std::int64_t amount) {
    (stats_.all.*stat).add(amount);
    (pool_stats(bin).*stat).add(amount);
  }
  void count_device_alloc(std::int64_t bytes) {
    ++stats_.num_device_alloc;
    stats_.device_alloc_bytes += bytes;
  }
  void count_device_free(std::int64_t bytes) {
    ++stats_.num_device_free;
    stats_.device_free_bytes += bytes;
  }
  void record(AllocatorTraceEntry::Action action, Bin bin, std::int64_t address, std::int64_t size) {
    if (history_ != nullptr) history_->push_back({action, stream_of(bin), address, size});
  }

  // caching_allocator.cpp: blocks
  BlockId new_block(const Block& like);
  void drop_block(BlockId id) { unused_.push_back(id); }
  void insert_free(BlockId id);
  void erase_free(BlockId id);
  BlockId take_cached(Bin bin, std::int64_t size);
  BlockId use_block(BlockId id, std::int64_t size, std::int64_t requested);
  bool should_split(const Block& block, std::int64_t size) const;
  void free_block(BlockId id);
  std::int64_t merge(BlockId& into, BlockId other);
  BlockId cut(BlockId id, std::int64_t size);
  void finish_next_event(int stream);

  // device_segments.cpp: segments, pages, the driver
  BlockId allocate_segment(Bin bin, std::int64_t size);
  BlockId new_segment(Bin bin, std::int64_t size, bool expandable);
  BlockId grow_expandable(Bin bin, std::int64_t size);
  BlockId find_expandable(Bin bin, std::int64_t size);
  BlockId map_pages(BlockId id, std::int64_t size);
  BlockId unmap_pages(BlockId id);
  void drop_segment(BlockId id);
  void release_segment(BlockId id);
  bool release_oversize(Bin bin, std::int64_t size);
  void release_cached_blocks();
  void release_pool(bool large);
  void collect_garbage();
  std::int64_t page_size(Bin bin) const { return is_large(bin) ? settings_.large_segment_size : kSmallBuffer; }
  std::int64_t take_address_range(std::int64_t size);
  void give_address_range(Range range);
  void insert_unmapped(BlockId id);
  void erase_unmapped(BlockId id);

  AllocatorSettings settings_;
  DeviceMemory memory_;
  std::optional<std::int64_t> allowed_;  // by per_process_memory_fraction
  AllocatorStats stats_;
  std::vector<Block> blocks_;
  std::vector<BlockId> unused_;
  std::vector<Segment> segments_;
  std::vector<std::int32_t> unused_segments_;
  std::vector<FreeBlocks> free_;                // by bin
  std::vector<std::vector<BlockId>> unmapped_;  // by bin, by address
  std::array<std::int64_t, 2> lookups_{};       // of the small and the large pool, for ages
  std::array<Events, kMostStreams> events_;
  std::vector<Range> address_holes_;  // by address
  std::vector<AllocatorTraceEntry>* history_ = nullptr;
};

}
