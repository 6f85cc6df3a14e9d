// What a real FSDP2 did in one configuration, as its recorder wrote it down: the measured side of
// reports/conform/conform.h.
//
// Words and columns are the recorder's (tests/recordings/README.md). Steps count from 1: optimizer states are made in
// step 1, step 2 is the steady state. Bytes are storage bytes of one rank, each storage rounded up to 512.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace foreshard {

// Allocation pools: those of the caching allocator by stream, and the host's memory (CPU offload,
// step counters), which no total counts.
inline constexpr std::array<std::string_view, 5> kPools = {"D", "CI", "RS", "AR", "host"};
inline constexpr std::size_t kHostPool = 4;
using PoolBytes = std::array<std::int64_t, kPools.size()>;

struct RecordedEvent {
  static constexpr std::int64_t kBlank = -1;
  std::int64_t step = 0;
  std::int64_t seq = 0;          // from 1 in each step
  std::int64_t microbatch = -1;  // -1: outside the micro-batches
  std::string kind, unit, stream, dtype, group, cause, state, on;
  std::int64_t bytes_in = kBlank;
  std::int64_t bytes_out = kBlank;
  // Of collectives, where the recording has axes: a name for each FIFO of its own, and how it was
  // asked for ("functional", "c10d").
  std::string communicator, issue;
  PoolBytes pools{};  // live after it
};

// Live bytes at a boundary.
struct RecordedMemoryRow {
  std::int64_t step = 0;
  std::int64_t seq = 0;
  std::int64_t microbatch = -1;
  std::string kind, unit;
  std::int64_t total = 0;
  std::int64_t peak_since_previous_row = 0;
  std::vector<std::int64_t> categories;  // as Recording::categories
};

struct RecordedPeak {
  std::int64_t step = 0;
  std::string category;
  std::int64_t at_total_peak = 0;
  std::int64_t own_peak = 0;
};

struct RecordedUnit {
  static constexpr std::int64_t kUnknown = -1;
  std::string unit;
  std::int64_t params = 0;
  std::int64_t numel = 0;
  std::int64_t shard_numel = kUnknown;  // of this rank, without padding
  std::int64_t shard_numel_padded = 0;
};

struct RecordedAllocation {
  std::int64_t step = 0;
  std::int64_t after_seq = 0;  // the last event before it
  bool freed = false;
  std::int64_t bytes = 0;  // rounded up to 512
  std::string pool, category;
  std::string unit;  // for which the host was at work; "" the module's own code
};

// What the index says of a step; absent where the recording does not.
struct RecordedStepPeaks {
  std::optional<std::int64_t> total, end;
  std::array<std::optional<std::int64_t>, kPools.size()> pools;
};

struct Recording {
  std::string id;
  std::string version;  // of the library: "2.11.0"
  // Where the rows stand, for messages; "" where they are not stored.
  std::string index_file, events_file, memory_file, peaks_file, units_file, allocations_file;

  std::vector<RecordedEvent> events;  // of step 2; of step 1 too where its order differs
  bool events_have_pools = true;
  bool events_have_communicators = false;
  bool first_step_order_equal = true;  // step 1's events are those of step 2 but for memory
  std::vector<std::string> categories;
  // Kinds of events that memory rows stand at; empty: the usual ones (conform.cpp).
  std::vector<std::string> boundaries;
  std::vector<RecordedMemoryRow> memory;  // steps 1 and 2
  bool memory_has_own_seq = true;         // else the rows are another version's, whose events differ
  std::vector<RecordedPeak> peaks;
  std::vector<RecordedUnit> units;
  std::vector<RecordedAllocation> allocations;
  std::array<RecordedStepPeaks, 2> steps;  // 1 and 2
};

}
