// What the host calls to issue a row of a step that Python runs, in counts; CostModel gives each
// call its seconds (HostCurve::calls).
#pragma once

#include <array>
#include <cstdint>

#include "sim/graph/event_graph.h"
#include "sim/spec/calibration.h"

namespace foreshard {

using HostCounts = std::array<std::int64_t, kHostCalls>;

// All zero where the engine issues the rows (HostCode::python).
HostCounts host_calls(const EventGraph& graph, const Work& work);

struct HostSeconds {
  double before = 0;  // ahead of the issue
  double during = 0;  // while enqueuing
};
// On the machine of the curve. Where it has no calls, a row takes what the engine's takes.
HostSeconds host_seconds(const EventGraph& graph, const Work& work, const HostCurve& curve);

}
