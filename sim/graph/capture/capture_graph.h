// The steady step of a capture as an EventGraph, so that the same simulator, replay and reports serve it. Rows are runs
// of launches on one stream between events, waits and collectives; memory is the allocator's own log.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/graph/capture/capture.h"
#include "sim/graph/event_graph.h"

namespace foreshard {

struct CapturedGraph {
  EventGraph graph;
  // Of each row, seconds of the host that ran the capture: ahead of the issue, while enqueuing.
  std::vector<double> before, during;
  struct Launch {
    std::int32_t name = -1;  // into Capture::names; -1: a copy
    bool is_known = true;    // to a row of the kernel table
  };
  std::vector<Launch> kernels;          // by kernels of the graph
  Bytes peak_allocated, peak_reserved;  // of the steady step, as the allocator said
  Bytes run_peak_allocated;             // of the whole run
  Bytes run_peak_reserved;
  Bytes retained;  // allocated in the step and still there at its end, beyond what was freed
  std::int64_t launches = 0;
  std::vector<std::int64_t> awaited;  // ranks that send or are sent to one way and are not captured
};

// `captured`: the ranks of all captures of the job, this one's among them; what it sends to them and
// receives is an Exchange with their places in the list. Throws Error(kInvalidInput) where the
// capture holds no whole step (steady_step).
CapturedGraph capture_graph(const Capture& capture, const std::vector<std::int64_t>& captured = {});

}
