// A forecast against a run of the same step: joined on event id, judged by stated tolerances.
//
// error = predicted / measured - 1. Exposed communication may be zero, so its error is the difference over the measured
// step. Events are compared by three parts of the time from when everything before an event had ended to its own end:
// until its stream reached it (host), until its group and communicator were free (waiting), and its own duration; each
// measured part is the median over the recorded steps of all ranks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reports/report.h"
#include "reports/validate/run_record.h"
#include "reports/view/views.h"
#include "sim/graph/event_graph.h"
#include "sim/simulate/timeline.h"
#include "sim/spec/plan.h"

namespace foreshard {

struct Tolerances {
  double step = 0.10;     // of the measured step
  double exposed = 0.05;  // of the measured step
  double memory = 0.05;   // of the measured bytes
};

struct Comparison {
  double predicted = 0;
  double measured = 0;
  double error() const;  // 0 where both are 0, else 1 where nothing was measured
};

struct MemoryComparison {
  std::string what;
  Comparison bytes;
  bool judged = true;
  std::string note;  // why it is not
};

struct KindComparison {
  EventKind kind = EventKind::kForward;
  int count = 0;
  Comparison seconds;  // sums of durations; of collectives from arrive to end
  Comparison waiting;  // sums from start to arrive
};

struct EventComparison {
  EventId event = kNoEvent;
  std::string name;
  Comparison seconds;  // host + waiting + duration
  Comparison host, waiting, duration;
  std::string cause;  // "waited for its peers 3.1 ms, forecast 0 ns"
};

struct Validation {
  Report predicted;
  Report measured;
  Tolerances tolerances;
  Comparison step, exposed, waiting;  // s
  double step_error = 0;
  double exposed_communication_error = 0;  // difference / measured step
  double memory_error = 0;                 // of the peak
  bool memory_known = true;                // whether the run recorded its peak
  double spread = 0;                       // quartile range of the step's repeats / median
  int steps = 0;                           // repeats behind the step
  std::vector<MemoryComparison> memory;
  std::vector<KindComparison> by_kind;  // in the order of EventKind
  std::vector<EventComparison> worst;   // ten, by difference, largest first
  std::vector<std::string> notes;
  bool passed = false;
};

// Throws Error(kInvalidInput) where the record is of another step (other fingerprint, or a timeline
// with other events). `predicted` is the report of `forecast`.
Validation validate(
    const Forecast& forecast, const Report& predicted, const RunRecord& record, const Tolerances& tolerances);

std::string validation_text(const Validation& validation, const RunRecord& record, Color color);
Json to_json(const Validation& validation);

// Why two steps differ, for the refusal: the plan's keys that can change a step, or the versions,
// or the model. `ran` is the run's plan, `version` that of this program.
std::string mismatch_sentence(
    const Forecast& forecast, const Plan& ran, const RunRecord& record, std::string_view version);

// What an event's time is made of, in one timeline; forecast and measurement are taken apart by the
// same rules. For reports/validate/validate.cpp only.

// In seconds, from the moment when all that the graph puts before the event has ended to its end.
struct EventParts {
  double host = 0;      // until it started: the host issued it late, or was slow to
  double queue = 0;     // from then until its communicator was free
  double peers = 0;     // from then until the other ranks of its group were there
  double duration = 0;  // from then until its end
  double beside = 0;    // of the duration: compute ran beside this collective, or the other way round
  double total() const { return host + queue + peers + duration; }
};

// By event id. `host` says whether issuing waits for compute (CPU ranks).
std::vector<EventParts> event_parts(const EventGraph& graph, const Timeline& timeline, HostKind host);

// The median of each part over several timelines, at least one.
std::vector<EventParts> median_parts(const std::vector<std::vector<EventParts>>& samples);

// Which part makes most of the difference, in words.
std::string cause_of_difference(const EventParts& predicted, const EventParts& measured, EventKind kind);

}
