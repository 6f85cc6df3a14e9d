// What an event's time is made of, in one timeline; forecast and measurement are taken apart by the
// same rules. For reports/validate/validate.cpp only.
#pragma once

#include <string>
#include <vector>

#include "sim/graph/event_graph.h"
#include "sim/simulate/timeline.h"
#include "sim/spec/plan.h"

namespace foreshard {

// In seconds, from the moment when all that the graph puts before the event has ended to its end.
struct EventParts {
  double host = 0;      // until it started: the host issued it late, or was slow to
  double queue = 0;     // from then until its communicator was free
  double peers = 0;     // from then until the other ranks of its group were there
  double duration = 0;  // from then until its end
  double beside = 0;  // of the duration: compute ran beside this collective, or the other way round
  double total() const { return host + queue + peers + duration; }
};

// By event id. `host` says whether issuing waits for compute (CPU ranks).
std::vector<EventParts> event_parts(const EventGraph& graph, const Timeline& timeline,
                                    HostKind host);

// The median of each part over several timelines, at least one.
std::vector<EventParts> median_parts(const std::vector<std::vector<EventParts>>& samples);

// Which part makes most of the difference, in words.
std::string cause_of_difference(const EventParts& predicted, const EventParts& measured,
                                EventKind kind);

}  // namespace foreshard
