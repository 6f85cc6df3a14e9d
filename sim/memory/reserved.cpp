// Each step is a plain loop over the log (allocation_log.h). A step is steady when the next one has the same
// statistics; then nothing was taken from or given back to the driver that is not taken and given back in every step.
#include "sim/memory/reserved.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string>

#include "sim/base/error.h"
#include "sim/base/hash.h"
#include "sim/base/lookup.h"
#include "sim/memory/memory_actions.h"

namespace foreshard {
namespace {

// When what a stream was given has ended, step after step of one period. A position is a row of a
// step: step * 2^32 + row, which is asked about for every tensor, and so taken apart by shifts.
class StreamClock {
 public:
  StreamClock(const EventGraph& graph, const RowTimes& times) : period_(times.period), issues_(times.issues) {
    FORESHARD_CHECK(times.ends.size() == graph.rows.size(), "times of another graph");
    std::array<Time, kStreams> ends;
    ends.fill(kLongAgo);
    for (std::size_t row = 0; row < graph.rows.size(); ++row) {
      ends[at(graph.rows[row].stream)] = times.ends[row];
      ends_.push_back(ends);
    }
    if (ends_.empty()) return;
    // What a stream has not been given yet in a step, the step before gave it.
    for (std::array<Time, kStreams>& now : ends_) {
      for (std::size_t s = 0; s < kStreams; ++s)
        if (now[s] == kLongAgo && ends[s] != kLongAgo) now[s] = ends[s] - period_;
    }
  }

  std::int64_t position(std::int64_t step, EventId row) const { return step << kRowBits | std::max(row, 0); }
  // Whether the host finds, when it issues the row of `now`, that `stream` has done all that it was
  // given up to the row of `then`.
  bool has_ended(int stream, std::int64_t then, std::int64_t now) const {
    const Time end = ends_[row_of(then)][at(stream)];
    return end == kLongAgo || end <= issues_[row_of(now)] + ((now >> kRowBits) - (then >> kRowBits)) * period_;
  }

 private:
  static constexpr int kRowBits = 32;
  static std::size_t row_of(std::int64_t position) { return static_cast<std::uint32_t>(position); }
  static constexpr Time kLongAgo = Time::ns(std::numeric_limits<std::int64_t>::min());
  Time period_;
  std::vector<Time> issues_;                      // by row
  std::vector<std::array<Time, kStreams>> ends_;  // by row
};

// What a program took and gave back while its parameters came to where steps find them, in order: the segments stay.
struct Opening {
  enum class Kind : std::uint8_t { kTake, kGiveBack, kTensor };
  Kind kind = Kind::kTake;
  std::int32_t id = 0;     // of the log's tensor, or a number that kGiveBack repeats
  std::int64_t bytes = 0;  // kTake
};
using Openings = std::vector<Opening>;

class OpeningsOf {
 public:
  OpeningsOf(const EventGraph& graph, const AllocationLog& log) : graph_(graph), log_(log) {
    const bool is_whole_first = graph.host.from_host || graph.host.from_device;
    if (graph.host.reducer && !graph.host.engine) {
      broadcast();
    } else if (graph.host.dtensors) {
      if (is_whole_first) shard_units();
    } else if (!flatten() && !widen() && is_whole_first) {
      flatten_all();
    }
  }
  Openings found;

 private:
  bool is_shard(std::int32_t tensor) const { return buffer_of(tensor).category == MemoryCategory::kShardedParam; }
  Buffer buffer_of(std::int32_t tensor) const { return graph_.buffer(log_.buffer[at(tensor)]); }
  std::int32_t take(std::int64_t bytes) {
    found.push_back({Opening::Kind::kTake, taken_, bytes});
    return taken_++;
  }
  void give_back(std::int32_t id) { found.push_back({Opening::Kind::kGiveBack, id}); }

  // DistributedDataParallel sends its parameters in flat pieces, of which two are there at once and the last is full
  // from 250 MiB on (torch/nn/parallel/distributed.py, broadcast_bucket_size; torch/csrc/distributed/c10d/reducer.cpp,
  // compute_bucket_assignment_by_size, and its broadcast_coalesced). A piece of one is that parameter.
  void broadcast() {
    constexpr std::int64_t kPiece = std::int64_t{250} << 20;
    constexpr std::size_t kInFlight = 2;
    std::vector<std::int64_t> piece;
    std::vector<std::int32_t> in_flight;
    std::int64_t bytes = 0;
    const auto send = [&] {
      if (in_flight.size() == kInFlight) {
        give_back(in_flight.front());
        in_flight.erase(in_flight.begin());
      }
      if (piece.size() > 1) in_flight.push_back(take(bytes));
      piece.clear();
      bytes = 0;
    };
    for (const std::int32_t t : log_.before)
      if (is_shard(t)) found.push_back({Opening::Kind::kTensor, t});
    for (const std::int32_t t : log_.before) {
      if (!is_shard(t)) continue;
      piece.push_back(log_.bytes[at(t)]);
      bytes += piece.back();
      if (bytes >= kPiece) send();
    }
    if (!piece.empty()) send();
    for (const std::int32_t id : in_flight) give_back(id);
  }

  // fully_shard moves a unit's parameters to the device, unless they are there, copies its shard of each and lets go of
  // them (torch/distributed/fsdp/_fully_shard/_fsdp_init.py, _move_states_to_device; _fsdp_param.py,
  // _init_sharded_param). Blocks come first, as loops have it, the root is the last; who gives embedding and head units
  // holds their weights till then (accelerate, fsdp2_prepare_model).
  void shard_units() {
    std::map<std::pair<int, std::int32_t>, std::vector<std::int32_t>> units;
    for (const std::int32_t t : log_.before) {
      const Buffer buffer = buffer_of(t);
      if (!is_shard(t) || buffer.unit < 0 || buffer.on_host) continue;
      const std::string& name = graph_.units[at(buffer.unit)].name;
      const int place = buffer.unit == 0 ? 2 : !contains(name, "layers.") ? 1 : 0;
      units[{place, buffer.unit}].push_back(t);
    }
    std::map<std::int32_t, std::int32_t> whole_of;  // of shards
    const auto take_whole = [&](std::int32_t t) {
      const Unit& unit = graph_.units[at(buffer_of(t).unit)];
      whole_of[t] = take(log_.bytes[at(t)] * unit.shards);
    };
    if (graph_.host.from_device) {
      for (const std::int32_t t : log_.before)
        if (is_shard(t) && buffer_of(t).unit >= 0 && !buffer_of(t).on_host) take_whole(t);
    }
    std::vector<std::int32_t> held;
    for (const auto& [place, shards] : units) {
      if (!graph_.host.from_device) std::ranges::for_each(shards, take_whole);
      for (const std::int32_t t : shards) found.push_back({Opening::Kind::kTensor, t});
      for (const std::int32_t t : shards)
        if (place.first == 1) held.push_back(whole_of[t]);
        else give_back(whole_of[t]);
    }
    for (const std::int32_t id : held) give_back(id);
  }

  // DeepSpeed moves a model in the compute dtype to the device and copies it into flat groups,
  // whose views the parameters become; of its partition it makes a copy in fp32, and zeros for its
  // gradient (deepspeed/runtime/zero/stage_1_and_2.py, __init__, initialize_optimizer_states).
  void flatten_all() {
    std::vector<std::int32_t> whole, flat, own;
    for (const std::int32_t t : log_.before) {
      if (buffer_of(t).on_host) continue;
      if (buffer_of(t).category == MemoryCategory::kUnshardedParam) flat.push_back(t);
      if (is_shard(t)) own.push_back(t);
    }
    if (flat.empty() || own.empty()) return;
    for (const std::int64_t bytes : gradient_bytes(std::nullopt)) whole.push_back(take(bytes));
    for (const std::int32_t t : flat) found.push_back({Opening::Kind::kTensor, t});
    for (const std::int32_t id : whole) give_back(id);
    std::vector<std::int32_t> zeros;
    for (const std::int32_t t : own) found.push_back({Opening::Kind::kTensor, t});
    for (const std::int32_t t : own) zeros.push_back(take(log_.bytes[at(t)]));
    for (const std::int32_t id : zeros) give_back(id);
  }

  // Of the partitions of DeepSpeed's stage 3, which are there first, each is cast and then copied; a gradient of zeros
  // comes and goes (stage3.py, _create_fp32_partitions and initialize_optimizer_states). Whether there is one.
  bool widen() {
    const auto is_master = [&](std::int32_t t) {
      return buffer_of(t).role == BufferRole::kMaster && !buffer_of(t).on_host;
    };
    const auto end = std::find_if(log_.before.rbegin(), log_.before.rend(), is_master).base();
    std::int64_t largest = 0;
    for (auto t = log_.before.begin(); t != end; ++t) {
      const std::int64_t bytes = is_master(*t) ? log_.bytes[static_cast<std::size_t>(*t)] : 0;
      if (bytes > 0) take(bytes);
      found.push_back({Opening::Kind::kTensor, *t});
      if (bytes > 0) give_back(taken_ - 1);
      largest = std::max(largest, bytes);
    }
    if (largest > 0) give_back(take(largest));
    return largest > 0;
  }

  // FullyShardedDataParallel moves the parameters of a unit to the device, makes a flat one of them and keeps a copy of
  // its shard; the root is the last (torch/distributed/fsdp/_init_utils.py, _init_param_handle_from_module;
  // _flat_param.py, shard). Its shards are the only ones of units that are a tensor each. Whether there is one.
  bool flatten() {
    std::vector<std::int32_t> shards;
    for (const std::int32_t t : log_.before) {
      const Buffer buffer = buffer_of(t);
      if (is_shard(t) && buffer.unit >= 0 && buffer.parts < 0 && !buffer.on_host) shards.push_back(t);
    }
    if (shards.empty()) return false;
    const auto is_root = [&](std::int32_t t) { return buffer_of(t).unit == 0; };
    std::ranges::stable_partition(shards, [&](auto t) { return !is_root(t); });
    for (const std::int32_t t : shards) {
      const Unit& unit = graph_.units[at(buffer_of(t).unit)];
      if (unit.shard_numel == 0) continue;
      const std::int64_t element = log_.bytes[at(t)] / unit.shard_numel;
      auto whole = list_of<std::int32_t>(
          numels(buffer_of(t).unit, unit.numel), [&](const std::int64_t numel) { return take(numel * element); });
      const std::int32_t flat = take(unit.padded_numel() * element);
      found.push_back({Opening::Kind::kTensor, t});
      give_back(flat);
      for (const std::int32_t id : whole) give_back(id);
    }
    return true;
  }

  // Of the parameters that are trained, of one unit or of all.
  std::vector<std::int64_t> gradient_bytes(std::optional<std::int32_t> unit) const {
    std::vector<std::int64_t> list;
    for (const LayerExecution& e : graph_.executions) {
      if (e.microbatch != 0 || (unit && e.unit != *unit)) continue;
      const LayerProgram& program = graph_.program(e);
      for (const std::int32_t slot : program.weight_gradients)
        if (slot >= 0) list.push_back(program.slots[at(slot)].bytes.count());
    }
    return list;
  }

  // Of the parameters of a unit, as their gradients' sizes share its elements.
  std::vector<std::int64_t> numels(std::int32_t unit, std::int64_t all) const {
    std::vector<std::int64_t> list = gradient_bytes(unit);
    const std::int64_t bytes = std::accumulate(list.begin(), list.end(), std::int64_t{0});
    for (std::int64_t& each : list) each = std::llround(as_double(each) / as_double(bytes) * as_double(all));
    return list;
  }

  const EventGraph& graph_;
  const AllocationLog& log_;
  std::int32_t taken_ = 0;
};

// One cudaMalloc or cudaFree of a large block holds the host up for about this long. Assumed: the
// order of magnitude of driver calls that change the address space; nothing here was measured.
constexpr double kDeviceAllocSeconds = 1e-3;
constexpr double kDeviceFreeSeconds = 1e-3;

}

struct ReservedReplay::State {
  State(const EventGraph& graph, const AllocatorSettings& settings, const DeviceMemory& memory,
      const ReplayInputs& inputs)
      : log(allocation_log(graph, inputs.library, inputs.buckets)),
        openings(OpeningsOf(graph, log).found),
        allocator(settings, memory),
        block_of(log.bytes.size(), CachingAllocator::kNoBlock) {
    if (inputs.times != nullptr && records_streams(graph)) clock.emplace(graph, *inputs.times);
    if (!log.rebuilt.empty()) find_second_reduction(graph);
    // Ages of blocks, of which a garbage collection takes the oldest, do not repeat.
    if (inputs.folds && !clock && settings.garbage_collection_threshold == 0) {
      runs = log.repeated(graph);
      is_marked = inputs.stops_when_settled;
      if (is_marked) places.resize(block_of.size(), 0);
    }
  }

  void run_rows() {
    if (step == 1) {
      row = kNoEvent;
      open();
      for (const std::int32_t tensor : log.before)
        if (block_of[at(tensor)] == CachingAllocator::kNoBlock) allocate(tensor);
      allocate_first_bucket();
      note_stall();
    }
    if (step == 2 && first_bucket != CachingAllocator::kNoBlock) {
      row = kNoEvent;
      free_first_bucket();
      for (const std::int32_t tensor : log.rebuilt) allocate(tensor);
      note_stall();
    }
    Standing before;
    std::uint32_t run = 0;
    auto empties = log.empties.begin();
    const std::size_t rows = log.row_begin.size() - 1;
    for (std::size_t r = 0; r < rows && !failed; ++r) {
      if (is_marked && r % kRowsOfPart == 0 && goes_on_as_before(r / kRowsOfPart)) return;
      if (run < kMostCompared && run < runs.count && log.row_begin[r] == runs.at(run)) {
        Standing now = standing(run);
        if (run > 0 && now == before && leave_out(run, now, r)) run = runs.count;
        before = std::move(now);
        ++run;
      }
      row = static_cast<EventId>(r);
      if (step == 1 && row == rebuilds_at)
        for (const std::int32_t tensor : log.rebuilt) allocate(tensor);
      if (row == log.optimizer && step == 1)
        for (const std::int32_t tensor : log.states) allocate(tensor);
      for (std::uint32_t i = log.row_begin[r]; i < log.row_begin[r + 1] && !failed; ++i) {
        if (step == 1) {
          for (const LibraryBlock& block : log.library)
            if (block.action == i && !failed) take(block.bytes, block.stream, -1);
          if (failed) break;
        }
        const std::int32_t action = log.actions[i];
        while (empties != log.empties.end() && *empties < i) ++empties;
        if (empties != log.empties.end() && *empties == i) allocator.empty_cache();
        action >= 0 ? allocate(action) : free(~action, log.recorded[i]);
      }
      if (step == 1 && row == drops_at && !failed) free_first_bucket();
      note_stall();
    }
    if (!failed) hand_on();
  }

  // Where every micro-batch reduces, the second forward of step 1 assigns the buckets; the first
  // one lives until the backward behind it has reduced, as its last work does.
  void find_second_reduction(const EventGraph& graph) {
    bool reduces = false;
    for (std::size_t r = 0; r < graph.rows.size(); ++r) {
      const std::int32_t microbatch = graph.details[r].microbatch;
      if (microbatch > 1) return;
      const bool is_reduction = graph.rows[r].kind == EventKind::kAllReduce;
      if (microbatch == 0) reduces |= is_reduction;
      if (microbatch == 0 || !reduces) continue;
      if (rebuilds_at == kNoEvent) rebuilds_at = static_cast<EventId>(r);
      if (is_reduction) drops_at = static_cast<EventId>(r);
    }
  }

  void free_first_bucket() {
    allocator.free(first_bucket);
    first_bucket = CachingAllocator::kNoBlock;
    if (traced != nullptr) take_history(-1);
  }

  void open() {
    std::vector<CachingAllocator::BlockId> taken;
    for (const Opening& opening : openings) {
      if (failed) return;
      switch (opening.kind) {
        case Opening::Kind::kTake:
          taken.push_back(opening.bytes > 0 ? take(opening.bytes, 0, -1) : CachingAllocator::kNoBlock);
          break;
        case Opening::Kind::kGiveBack: {
          const CachingAllocator::BlockId block = taken[at(opening.id)];
          if (block != CachingAllocator::kNoBlock) allocator.free(block);
          if (traced != nullptr) take_history(-1);
          break;
        }
        case Opening::Kind::kTensor: allocate(opening.id); break;
      }
    }
  }

  // What the step frees of the one before (gradients that the next step drops first, its labels)
  // and leaves behind anew stands in the place of what it freed, so that the next step can.
  void hand_on() {
    std::vector<std::size_t> freed;
    for (const std::int32_t tensor : log.before) {
      const auto b = at(tensor);
      if (log.bytes[b] != 0 && block_of[b] == CachingAllocator::kNoBlock) freed.push_back(b);
    }
    if (freed.empty()) return;
    std::vector<bool> is_before(block_of.size(), false);
    for (const std::int32_t tensor : log.before) is_before[at(tensor)] = true;
    for (std::size_t i = 0; i < log.actions.size() && !freed.empty(); ++i) {
      if (log.actions[i] < 0) continue;
      const auto left = at(log.actions[i]);
      if (is_before[left] || block_of[left] == CachingAllocator::kNoBlock) continue;
      const auto same = std::ranges::find_if(
          freed, [&](std::size_t b) { return log.bytes[b] == log.bytes[left] && log.stream[b] == log.stream[left]; });
      if (same == freed.end()) continue;
      stand(*same, block_of[left]);
      stand(left, CachingAllocator::kNoBlock);
      freed.erase(same);
    }
  }

  void allocate_first_bucket() {
    std::int64_t bytes = 0;
    for (const std::int32_t tensor : log.rebuilt) bytes += log.bytes[at(tensor)];
    if (bytes == 0 || failed) return;
    first_bucket = take(bytes, log.stream[at(log.rebuilt.front())], -1);
  }

  // What decides how a run goes on: which blocks are allocated and where, as long as the segments
  // are the same ones, since what is free beside them is always joined.
  struct Standing {
    struct Live {
      std::int64_t action = 0;  // that allocated it, from the run's first
      std::int64_t address = 0, size = 0;
      bool operator==(const Live&) const = default;
    };
    std::vector<Live> live;  // of what was allocated since the first run began
    std::int64_t calls = 0;  // to the driver
    bool operator==(const Standing&) const = default;
  };
  static constexpr std::uint32_t kMostCompared = 6;

  Standing standing(std::uint32_t run) const {
    Standing now{{}, calls()};
    for (std::uint32_t i = runs.begin; i < runs.at(run); ++i) {
      if (log.actions[i] < 0) continue;
      const auto tensor = at(log.actions[i]);
      const CachingAllocator::BlockId block = block_of[tensor];
      if (block == CachingAllocator::kNoBlock) continue;
      now.live.push_back(
          {static_cast<std::int64_t>(i) - runs.at(run), allocator.address_of(block), allocator.size_of(block)});
    }
    return now;
  }

  // The runs from this one on: what is allocated in its place stands where it stands now. `r`
  // becomes the row behind them.
  bool leave_out(std::uint32_t run, const Standing& now, std::size_t& r) {
    if (traced != nullptr) return false;
    const auto end = std::ranges::lower_bound(log.row_begin, runs.end());
    const auto behind = at(end - log.row_begin.begin());
    const bool takes = std::ranges::any_of(log.library,
        [&](const auto& block) { return block.action >= log.row_begin[r] && block.action < log.row_begin[behind]; });
    if (behind + 1 >= log.row_begin.size() || (step == 1 && (takes || drops_at >= static_cast<EventId>(r))))
      return false;
    std::vector<CachingAllocator::BlockId> blocks;
    const auto tensor_of = [&](const Standing::Live& live, std::uint32_t from) {
      return at(log.actions[at(from + live.action)]);
    };
    for (const Standing::Live& live : now.live) {
      const std::size_t tensor = tensor_of(live, runs.at(run));
      blocks.push_back(block_of[tensor]);
      stand(tensor, CachingAllocator::kNoBlock);
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) stand(tensor_of(now.live[i], runs.end()), blocks[i]);
    r = behind;
    return true;
  }

  // Where all blocks stand that tensors have, as a sum that each is added to and taken from.
  void stand(std::size_t tensor, CachingAllocator::BlockId block) {
    block_of[tensor] = block;
    if (!is_marked) return;
    standing_now -= places[tensor];
    places[tensor] = 0;
    if (block == CachingAllocator::kNoBlock) return;
    places[tensor] = Fingerprint()
                         .add(static_cast<std::int64_t>(tensor))
                         .add(allocator.address_of(block))
                         .add(allocator.size_of(block))
                         .value();
    standing_now += places[tensor];
  }

  void allocate(std::int32_t tensor) {
    const auto b = at(tensor);
    if (log.bytes[b] == 0 || failed) return;  // PyTorch allocates nothing for no bytes
    FORESHARD_CHECK(block_of[b] == CachingAllocator::kNoBlock, "a buffer is allocated twice");
    stand(b, take(log.bytes[b], log.stream[b], log.buffer[b]));
  }

  // Of a part of a step's rows.
  struct Part {
    std::uint64_t standing = 0;  // where it began
    std::int64_t calls = -1;     // to the driver before it; -1: it was left out
    StepReserved peaks;
    std::int64_t most_reserved = 0, allocated_then = 0;

    void join(const Part& other) {
      peaks.peak_allocated = std::max(peaks.peak_allocated, other.peaks.peak_allocated);
      peaks.peak_active = std::max(peaks.peak_active, other.peaks.peak_active);
      peaks.peak_reserved = std::max(peaks.peak_reserved, other.peaks.peak_reserved);
      peaks.peak_inactive_split = std::max(peaks.peak_inactive_split, other.peaks.peak_inactive_split);
      if (other.most_reserved > most_reserved) {
        most_reserved = other.most_reserved;
        allocated_then = 0;
      }
      if (other.most_reserved == most_reserved) allocated_then = std::max(allocated_then, other.allocated_then);
    }
  };

  std::int64_t calls() const {
    const AllocatorStats& stats = allocator.stats();
    return stats.num_device_alloc + stats.num_device_free + stats.num_alloc_retries;
  }

  void begin_part() {
    allocator.reset_peak_stats();
    most_reserved = allocated_then = 0;
  }
  // The rows since the part began.
  void end_part() {
    const PoolStats& all = allocator.stats().all;
    Part& part = parts.back();
    part.peaks.peak_allocated = Bytes(all.allocated_bytes.peak);
    part.peaks.peak_active = Bytes(all.active_bytes.peak);
    part.peaks.peak_reserved = Bytes(all.reserved_bytes.peak);
    part.peaks.peak_inactive_split = Bytes(all.inactive_split_bytes.peak);
    part.most_reserved = most_reserved;
    part.allocated_then = allocated_then;
    whole.join(part);
  }

  // Where blocks stand as they stood at this row of the step before, and the driver was not called
  // in between, all that follows repeats.
  bool goes_on_as_before(std::size_t number) {
    end_part();
    begin_part();
    parts.resize(number + 2);  // (The first is of what comes before the rows.)
    Part& part = parts.back();
    part.standing = standing_now;
    part.calls = calls();
    if (step < 3 || number + 1 >= parts_before.size()) return false;
    const Part& same = parts_before[number + 1];
    if (same.standing != part.standing || same.calls != part.calls) return false;
    for (std::size_t p = number + 1; p < parts_before.size(); ++p) whole.join(parts_before[p]);
    parts.clear();
    is_settled = true;
    return true;
  }

  // `buffer` is what the trace names: -1 for a library's.
  CachingAllocator::BlockId take(std::int64_t bytes, std::uint8_t stream, std::int32_t buffer) {
    // (Blocks that wait for other streams are active without being allocated.)
    const PoolStats& before = allocator.stats().all;
    if (clock && before.active.current != before.allocation.current) {
      const std::int64_t now = clock->position(step, row);
      allocator.process_events([&](int recorded, std::int64_t then) { return clock->has_ended(recorded, then, now); });
      if (traced != nullptr) take_history(-1);
    }
    const CachingAllocator::BlockId block = allocator.malloc(bytes, stream);
    failed = block == CachingAllocator::kNoBlock;
    const PoolStats& now = allocator.stats().all;
    const std::int64_t reserved = now.reserved_bytes.current;
    if (reserved > most_reserved) {
      most_reserved = reserved;
      allocated_then = 0;
    }
    if (reserved == most_reserved) allocated_then = std::max(allocated_then, now.allocated_bytes.current);
    if (traced != nullptr) take_history(buffer);
    return block;
  }

  void free(std::int32_t tensor, StreamSet recorded) {
    const auto b = at(tensor);
    if (log.bytes[b] == 0) return;
    FORESHARD_CHECK(block_of[b] != CachingAllocator::kNoBlock, "a buffer is freed twice");
    if (clock && recorded != 0) {
      for (int stream = 0; stream < static_cast<int>(kStreams); ++stream)
        if ((recorded >> stream & 1) != 0) allocator.record_stream(block_of[b], stream);
      allocator.free(block_of[b], clock->position(step, row));
    } else {
      allocator.free(block_of[b]);
    }
    stand(b, CachingAllocator::kNoBlock);
    if (traced != nullptr) take_history(log.buffer[b]);
  }

  void take_history(std::int32_t buffer) {
    for (const AllocatorTraceEntry& entry : history) traced->push_back({entry, row, buffer});
    history.clear();
  }

  // What the driver was asked for since the last call.
  void note_stall() {
    const AllocatorStats& now = allocator.stats();
    if (now.num_device_alloc == seen.num_device_alloc && now.num_device_free == seen.num_device_free &&
        now.num_alloc_retries == seen.num_alloc_retries)
      return;
    const auto since = [](std::int64_t after, std::int64_t before) {
      return static_cast<std::int32_t>(after - before);
    };
    stalls.push_back({row, since(now.num_device_alloc, seen.num_device_alloc),
        since(now.num_device_free, seen.num_device_free), since(now.num_alloc_retries, seen.num_alloc_retries),
        Bytes(now.device_alloc_bytes - seen.device_alloc_bytes),
        Bytes(now.device_free_bytes - seen.device_free_bytes)});
    seen = now;
  }

  AllocationLog log;
  Openings openings;
  AllocationLog::Runs runs;
  CachingAllocator allocator;
  std::optional<StreamClock> clock;
  std::vector<CachingAllocator::BlockId> block_of;                      // by tensor
  CachingAllocator::BlockId first_bucket = CachingAllocator::kNoBlock;  // of all in log.rebuilt
  EventId rebuilds_at = kNoEvent, drops_at = kNoEvent;                  // rows of step 1
  std::vector<HostStall> stalls;
  std::vector<AllocatorTraceEntry> history;
  std::vector<TracedAction>* traced = nullptr;  // every entry is also appended there
  AllocatorStats seen;
  std::int64_t most_reserved = 0, allocated_then = 0;
  static constexpr std::size_t kRowsOfPart = 16;
  bool is_marked = false;
  std::vector<std::uint64_t> places;  // by tensor: its share of standing_now
  std::uint64_t standing_now = 0;
  std::vector<Part> parts, parts_before;  // of this step and of the one before
  Part whole;                             // this step
  EventId row = kNoEvent;
  int step = 0;
  bool failed = false;
  bool is_settled = false;
};

ReservedReplay::ReservedReplay(
    const EventGraph& graph, const AllocatorSettings& settings, const DeviceMemory& memory, const ReplayInputs& inputs)
    : state_(std::make_unique<State>(graph, settings, memory, inputs)) {}
ReservedReplay::~ReservedReplay() = default;
ReservedReplay::ReservedReplay(ReservedReplay&&) noexcept = default;
ReservedReplay& ReservedReplay::operator=(ReservedReplay&&) noexcept = default;

bool ReservedReplay::is_settled() const { return state_->is_settled; }
bool ReservedReplay::out_of_memory() const { return state_->failed; }
int ReservedReplay::step() const { return state_->step; }
EventId ReservedReplay::row() const { return state_->row; }
const std::vector<HostStall>& ReservedReplay::stalls() const { return state_->stalls; }
std::size_t ReservedReplay::actions_per_step() const { return state_->log.actions.size(); }
ReservedReplay::Identity ReservedReplay::identity() const {
  const AllocationLog& log = state_->log;
  Fingerprint hash;
  const auto add = [](Fingerprint& to, const auto& values) {
    const auto size = values.size() * sizeof(*values.data());
    to.add(std::string_view(reinterpret_cast<const char*>(values.data()), size));
  };
  add(hash, log.actions);
  add(hash, log.bytes);
  add(hash, log.stream);
  add(hash, log.before);
  add(hash, log.states);
  add(hash, log.rebuilt);
  add(hash, log.empties);
  for (const Opening& opening : state_->openings)
    hash.add(static_cast<std::uint64_t>(opening.kind)).add(opening.id).add(opening.bytes);
  // What is allocated beside the log, and before which of its actions.
  for (const LibraryBlock& block : log.library) hash.add(block.bytes).add(block.stream).add(block.action);
  if (log.optimizer != kNoEvent) hash.add(log.row_begin[at(log.optimizer)]);
  hash.add(alloc_conf(state_->allocator.settings()));
  Fingerprint rows;
  add(rows, log.row_begin);
  return {hash.value(), rows.value()};
}
const CachingAllocator& ReservedReplay::allocator() const { return state_->allocator; }

StepReserved ReservedReplay::run_step() {
  State& s = *state_;
  FORESHARD_CHECK(!s.is_settled, "a replay goes on that was not replayed to the end");
  if (s.failed) return {};
  ++s.step;
  s.begin_part();
  s.stalls.clear();
  s.whole = {};
  s.parts_before = std::exchange(s.parts, std::vector<State::Part>(1));
  const AllocatorStats before = s.allocator.stats();
  s.run_rows();
  if (!s.is_settled) s.end_part();
  const AllocatorStats& after = s.allocator.stats();
  StepReserved result = s.whole.peaks;
  result.reserved_after = Bytes(after.all.reserved_bytes.current);
  result.retries = after.num_alloc_retries - before.num_alloc_retries;
  result.device_allocs = after.num_device_alloc - before.num_device_alloc;
  result.device_frees = after.num_device_free - before.num_device_free;
  if (s.whole.most_reserved > 0)
    result.fragmentation = 1 - as_double(s.whole.allocated_then) / as_double(s.whole.most_reserved);
  return result;
}

Time stall_time(const HostStall& stall) {
  return Time::seconds(kDeviceAllocSeconds * stall.device_allocs + kDeviceFreeSeconds * stall.device_frees);
}

ReservedProfile replay_reserved(const EventGraph& graph, const AllocatorSettings& settings, const DeviceMemory& memory,
    const ReplayInputs& inputs) {
  ReservedReplay replay(graph, settings, memory, inputs);
  ReservedProfile profile;
  profile.first = profile.steady = replay.run_step();
  profile.first_stalls = profile.stalls = replay.stalls();
  profile.peak_reserved = profile.first.peak_reserved;
  profile.steady_step = 1;
  while (!replay.out_of_memory() && !profile.repeats && replay.step() < kMostReplayedSteps) {
    const StepReserved next = replay.run_step();
    profile.repeats =
        replay.step() > 2 && !replay.out_of_memory() && next == profile.steady && replay.stalls() == profile.stalls;
    if (profile.repeats) break;
    profile.steady = next;
    profile.stalls = replay.stalls();
    profile.steady_step = replay.step();
    profile.peak_reserved = std::max(profile.peak_reserved, next.peak_reserved);
  }
  profile.out_of_memory = replay.out_of_memory();
  profile.stats = replay.allocator().stats();
  profile.segments = replay.allocator().snapshot();
  return profile;
}

TracedStep trace_step(const EventGraph& graph, const AllocatorSettings& settings, const DeviceMemory& memory,
    int steps_before, const ReplayInputs& inputs) {
  ReservedReplay replay(graph, settings, memory, inputs);
  for (int i = 0; i < steps_before; ++i) replay.run_step();
  ReservedReplay::State& s = *replay.state_;
  TracedStep traced;
  s.traced = &traced.actions;
  s.allocator.record_history(&s.history);
  replay.run_step();
  traced.segments = s.allocator.snapshot();
  for (std::size_t tensor = 0; tensor < s.block_of.size(); ++tensor) {
    if (s.block_of[tensor] == CachingAllocator::kNoBlock) continue;
    const auto block = at(s.block_of[tensor]);
    if (traced.buffer_of_block.size() <= block) traced.buffer_of_block.resize(block + 1, -1);
    traced.buffer_of_block[block] = s.log.buffer[tensor];
  }
  return traced;
}

}
