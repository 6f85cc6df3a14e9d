// When: one span per row of an EventGraph. The simulator predicts it, the engine measures it; reports read either.
//
// All times are relative to the end of the previous step's optimizer (0 in the first step). A collective spans [arrive,
// end]: `start` is when its stream reaches it, `arrive` when every rank of its group and the communicator are free; the
// time in between is waiting for peers. For other rows arrive == start. Issue times can be negative: the host runs
// ahead; of a rank of a pipeline all can, where it begins a step while others are still at the one before.
#pragma once

#include <vector>

#include "sim/base/units.h"

namespace foreshard {

struct Span {
  Time issue;
  Time start;
  Time arrive;
  Time end;
  bool operator==(const Span&) const = default;
};

struct Timeline {
  std::vector<Span> spans;  // of the steady step, indexed by event id
  Time period;              // end of the last compute row: what a step takes
  Time first_step;          // the same for step 1, from an idle machine
  int steady_step = 0;      // the first step whose period repeats (at least 2)
  // Of all ranks of the graph's pipeline, but for its own place, which is empty; none without one.
  // `period` and `first_step` above are then the latest end of any rank, here each one's own.
  std::vector<Timeline> pipeline;
};

}
