// What explain tells, gathered once for its text and its JSON.
#pragma once

#include <string>
#include <vector>

#include "reports/view/attribution.h"
#include "reports/view/event_names.h"
#include "reports/view/views.h"
#include "sim/base/letters.h"
#include "sim/cost/host_calls.h"

namespace foreshard {

// A collective that some gap of the compute stream is put down to.
struct ExposedEvent {
  EventId event = kNoEvent;
  Time exposed;
  EventId held_up = kNoEvent;    // the compute row behind its longest gap
  std::vector<ChainLink> chain;  // why it started when it did
};

// All collectives of one kind and phase.
struct ExposedGroup {
  std::string what;  // "all_gather (backward)"
  int rows = 0;
  int exposed_rows = 0;
  Time busy;  // sum of [arrive, end]
  Time exposed;
};

// Buffers of one category and name that are alive at the memory peak.
struct LiveGroup {
  MemoryCategory category = MemoryCategory::kActivation;
  std::string name;
  std::string where;  // the unit's name, or "32 units"; "" for none
  int buffers = 0;
  Bytes bytes;
  EventId since = kNoEvent;  // of the oldest
};

// What the host of a step does.
struct HostFindings {
  std::array<Time, kPhases> busy;  // by the phase it issues
  Time held_up;                    // of the step, in which the GPU waits for the host
  std::array<HostCounts, kPhases> calls{};
  std::array<std::int64_t, kPhases> launches{};
  std::vector<std::string> remedies;  // what would shorten a step that the host binds
  Time all() const;
  bool binds(Time step) const;  // it holds up a twentieth of the step or more
};

HostFindings host_findings(const Forecast& forecast);

struct Findings {
  std::vector<WaterfallBar> bars;
  std::vector<ExposedGroup> groups;   // in the order of their first rows
  std::vector<ExposedEvent> exposed;  // most exposed first
  std::vector<LiveGroup> alive;       // largest first
  // What compute rows take beyond their own durations: because collectives ran beside them, or because the host
  // enqueued their kernels too slowly. Part of the bars of those rows. Zero where the forecast has no costs.
  Time overlap_slowdown;
  Time launch_bound;
  HostFindings host;
};
Findings find_causes(const Forecast& forecast);

Json waterfall_json(const Findings& findings);
Json communication_json(const Findings& findings);
Json host_json(const HostFindings& host, Time step);
Json to_json(const LiveGroup& group, const EventNames& names);

// "waited for all_gather_copy_in layers.3 (forward)", "the host issued it only then" ...; `next` is
// the link behind `link`.
std::string cause_words(const EventGraph& graph, const EventNames& names, const ChainLink& link, const ChainLink* next);
constexpr const char* to_string(Cause cause) {
  return word_at(cause, {"step_begin", "host", "stream", "wait", "communicator"});
}

}
