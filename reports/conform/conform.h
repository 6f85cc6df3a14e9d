// A forecast's step against a recording of the real library: order, bytes and memory, row by row.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reports/conform/recording.h"
#include "reports/view/views.h"
#include "sim/base/json.h"
#include "sim/graph/host_log.h"

namespace foreshard {

// What is forecast for one recording.
struct ForecastSteps {
  RecordedStep first;
  RecordedStep steady;
  // The recorder's names of the graph's units, in their order.
  std::vector<std::string> unit_names;
  // Bytes that the model holds all the time and that are no parameters (a rotary table), for
  // recordings that do not tell; theirs are taken as given.
  std::int64_t constant_bytes = 0;
};

struct Difference {
  enum class What : std::uint8_t { kSchedule, kBytes, kMemory, kUnits, kAllocations };
  What what = What::kSchedule;
  std::string text;  // file and row, then both sides with the rows around them
};

struct Conformance {
  // Share of the total peak by which no peak may be off (DESIGN section 11).
  static constexpr double kMemoryTolerance = 0.002;

  enum class State : std::uint8_t {
    kCompared,
    kPartlyStored,  // its events are not stored; what is stored was compared
    kNotRecorded,   // by the library: `reason` is the library's; nothing was compared
    kNotForecast,   // `reason` says what stands in the way; it counts as different
  };
  State state = State::kCompared;
  std::string id;
  std::string version;
  std::string reason;
  bool counted = true;  // among the configurations: its events are stored

  bool schedule_identical = false;  // every row: kind, unit, stream, dtype, group, cause, state, on
  bool bytes_identical = false;     // bytes_in and bytes_out of every row, and the units' sizes
  bool memory_identical = false;    // every level and peak that is stored, to the byte
  bool memory_within_tolerance = false;
  std::optional<bool> allocations_identical;  // none: not recorded
  bool free_order_identical = true;           // else frees between two events come in another order
  std::int64_t rows = 0;                      // of events that were compared
  std::optional<std::int64_t> peak_measured_bytes, peak_predicted_bytes;  // total, step 2
  double worst_peak_error = 0;          // of the total peak, over all peaks and categories
  std::string worst_peak;               // which: "step 2 pool RS"
  std::vector<Difference> differences;  // the first of each kind, in the order above

  // The first of the schedule, the bytes or the memory; nullptr: all three are identical.
  const Difference* first_difference() const;
  bool identical() const { return schedule_identical && bytes_identical && memory_identical; }
  // What decides the exit code.
  bool passed() const;
};

Conformance conform(const Recording& recording, const ForecastSteps& forecast);

// One folder of recordings.
struct ConformanceFolder {
  std::string path;
  std::vector<Conformance> rows;
};

struct ConformanceSummary {
  std::int64_t configurations = 0;
  std::int64_t schedule_identical = 0;
  std::int64_t bytes_identical = 0;
  std::int64_t memory_identical = 0;
  std::int64_t memory_within_tolerance = 0;
  std::int64_t allocations_recorded = 0;
  std::int64_t allocations_identical = 0;
  std::int64_t partly_stored = 0;
  std::int64_t not_recorded = 0;
  bool passed = true;
};
ConformanceSummary summarize(const std::vector<ConformanceFolder>& folders);

// A line per folder, the first difference of the first `shown` configurations that differ, the sum.
std::string conformance_text(const std::vector<ConformanceFolder>& folders, std::int64_t shown, Color color);
Json conformance_json(const std::vector<ConformanceFolder>& folders);

// Forecast steps of DDP, FSDP1 and DeepSpeed ZeRO against recordings of the real libraries: order
// and bytes, row by row, buckets and the recorder's own counts.
struct LibraryRecordedEvent {
  std::int64_t step = 0;  // 0: construction
  std::int64_t microbatch = 0;
  std::int64_t seq = 0;  // from 0 in each step
  std::string kind, unit, dtype, group, note;
  std::int64_t bytes_in = 0;
  std::int64_t bytes_out = 0;
};

struct LibraryRecording {
  std::string id;
  std::string version;                       // of the library, where the index says it
  std::string events_file, buckets_file;     // for messages
  std::vector<LibraryRecordedEvent> events;  // in file order
  // Steps of which every row is stored; of the others collectives and markers only, with the
  // positions that they have among all.
  std::set<std::int64_t> whole_steps;
  std::vector<LibraryBucket> buckets;
  std::map<std::string, std::int64_t> facts;
  std::map<std::string, std::string> words;
};

Conformance conform(const LibraryRecording& recording, const LibraryRun& run);

}
