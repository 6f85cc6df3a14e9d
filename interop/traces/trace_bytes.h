// The collectives that a job wrote down of one step, in the order it issued them, against those of
// the plan: kind by kind and byte by byte.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reports/view/event_names.h"
#include "sim/base/units.h"
#include "sim/graph/event_graph.h"

namespace foreshard {

// As a training script notes it beside its trace (`collectives` of foreshard.timed/1).
struct TracedCollectiveCall {
  std::string kind;         // "all_gather", "reduce_scatter", "all_reduce", "all_to_all"
  std::int64_t bytes = 0;   // of the larger tensor: the whole unsharded buffer
  std::int64_t ranks = 0;   // of the group
  std::int64_t stride = 0;  // from one of its ranks to the next; 0: not told
  bool operator==(const TracedCollectiveCall&) const = default;
};

// kOfUnits: those of fully_shard; collectives of the whole step (the gradient norm's) are not compared, as PyTorch
// issues them elsewhere. kAll: these and those inside layers, with their groups.
enum class ComparedCollectives : std::uint8_t { kOfUnits, kAll };

// In sentences, the first difference and how many there are; none where all are equal.
std::vector<std::string> collective_differences(const EventGraph& graph, const EventNames& names,
    const std::vector<TracedCollectiveCall>& calls, ComparedCollectives compared = ComparedCollectives::kOfUnits);

// What a training script writes beside its trace, NAME.timed.json (schema "foreshard.timed/1"; the
// exported script, interop/record/timed.py).

struct TimedFile {
  std::string host, created;
  std::int64_t rank = -1, world = -1;
  std::vector<std::pair<std::string, std::string>> versions;
  bool lists_collectives = false;
  std::vector<TracedCollectiveCall> collectives;  // of one step
  Bytes peak_allocated, peak_reserved;            // of the GPU; 0: not recorded
  Bytes grown;                                    // what is held, since the peaks count
  std::optional<double> retries;                  // of its allocator, a step
  std::vector<Time> steps;                        // without the profiler; none: not recorded
};

// Throws Error(kInvalidInput), naming file and key.
TimedFile read_timed_file(const std::filesystem::path& path);

}
