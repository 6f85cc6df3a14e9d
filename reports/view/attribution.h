// Whose fault a nanosecond is: which predecessor bound an event, and what the compute stream waited
// for in its gaps. The waterfall, the cause chains and the evidence of a report are made of these.
#pragma once

#include <cstdint>
#include <vector>

#include "reports/view/views.h"
#include "sim/base/letters.h"

namespace foreshard {

// The part of the step in which the host issued a row.
enum class Phase : std::uint8_t { kForward, kBackward, kOptimizer };
inline constexpr std::size_t kPhases = 3;
constexpr const char* to_string(Phase phase) { return word_at(phase, {"forward", "backward", "optimizer"}); }
std::vector<Phase> phases_of(const EventGraph& graph);  // per row

// A row that computes: on the compute stream and not a collective.
bool computes(const Row& row);

// The latest of everything an event had to wait for. Among equals a wait wins over the stream, the stream over the
// host: a row is host-bound only if the host issued it when everything else was ready.
class Causes {
 public:
  Causes(const EventGraph& graph, const Timeline& timeline);
  struct Binding {
    Cause cause = Cause::kStepBegin;
    EventId predecessor = kNoEvent;  // whose end it was; none for kStepBegin and kHost
  };
  Binding of(EventId event) const;

 private:
  const EventGraph& graph_;
  const Timeline& timeline_;
  std::vector<EventId> stream_predecessor_;
  std::vector<EventId> communicator_predecessor_;
};

// A stretch of [0, period] in which no compute row runs, with one reason. The gaps and the compute rows fill the step.
struct Gap {
  Time begin;
  Time end;
  EventId collective = kNoEvent;     // between arrive and end all the time: the gap is exposed communication
  Cause otherwise = Cause::kStream;  // where no collective runs: kHost, or kStream for a row of another stream
  EventId held_up = kNoEvent;        // the compute row behind the gap
  bool of_peers = false;             // ... waits for what another rank of the pipeline has not begun
};
// Where several collectives run at once, the one in the cause chain of the row behind the gap
// counts, else the first issued.
std::vector<Gap> compute_gaps(const EventGraph& graph, const Timeline& timeline);

// What a row takes beyond its own duration: because others ran beside it, or because the host enqueued its kernels too
// slowly (it then ends just when the host's clock says that its last kernel has run).
struct Excess {
  Time overlap;
  Time launches;
};
Excess excess_of(const Span& span, const Cost& cost);

}
