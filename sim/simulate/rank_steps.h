// One step, by the rules of simulate.h: of one rank, or of all ranks of a pipeline together.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sim/cost/cost_table.h"
#include "sim/graph/event_graph.h"
#include "sim/simulate/repeats.h"
#include "sim/simulate/timeline.h"

namespace foreshard {

inline constexpr std::size_t kFifos = 256;  // by communicator; kNoCommunicator's is never read

// What one step leaves behind for the next, in the time of the step.
struct Carry {
  std::int64_t host = 0;
  std::int64_t device = 0;  // end of the compute stream; every other stream of the next step starts behind it
  bool operator==(const Carry&) const = default;
};

struct FlatCost {
  std::int64_t before, during, duration, last_kernel;
  // Excesses over kOne of a collective on compute rows, and how a compute row weighs them.
  std::int32_t on_compute, on_memory, memory_share;
  LinkUse uses{};
};

// What a rank's steps are played from, and memory that they share.
struct RankScratch {
  const EventGraph* graph = nullptr;
  const CostTable* table = nullptr;
  std::span<const Exchange> exchanges;  // none without a pipeline
  Timeline timeline;
  std::vector<FlatCost> costs;
  std::int64_t host_work = 0;    // of a step
  std::int64_t last_kernel = 0;  // longest
  bool host_waits = false;
  std::array<EventId, kStreams> first_on_stream;
  std::array<EventId, kFifos> first_on_communicator;
  std::vector<EventId> next_on_stream, next_on_communicator;  // per row
  std::vector<std::int64_t> end;                              // of a row; unknown: the largest
  std::vector<std::int64_t> floor;                            // end of the last kernel by the host's clock
  // Where a step stands for more micro-batches than its graph has (Fold::kRuns).
  RepeatedRows repeats;
  std::int64_t more = 0;                      // runs that are not laid out
  std::int64_t host_of_run = 0;               // its work
  bool shows_runs = true;                     // every step so far showed that they repeat
  std::vector<std::int64_t> standing, stood;  // where streams stand in a run, relative to it

  void load(const EventGraph& of, const CostTable& priced);
  void count_host_work();
  void fold(const RepeatedRows& runs);

 private:
  void index_streams();
};
using Ranks = std::span<const std::unique_ptr<RankScratch>>;

// kSpans: the host's clock and every span. kDevice: the end of the step alone, with a host that is always ahead.
enum class Detail { kSpans, kDevice };
// Of a rank alone. kRuns: runs that are not laid out are added. kSkips: those that are and pass as
// the one before them are not played again.
enum class Fold { kNone, kRuns, kSkips };
// From the carries of the step before to those of this one. Throws Error(kInvalidInput) where ranks wait for each other
// for ever.
template <Detail detail, Fold fold = Fold::kNone>
void simulate_step(Ranks ranks, std::span<Carry> carries);

}
