// Why a measured step took longer than its forecast: the difference in named parts that add up to
// it exactly, in nanoseconds.
//
// Both steps are cut by the same rules: a nanosecond belongs to the compute row that runs, else to
// the collective it waits for (moving bytes, or waiting for its peers), else to the host, else to a
// dependency between streams. A part is one cause of one kind on one unit; what it has more in the
// measurement than in the forecast is its share of the difference.
#pragma once

#include <string>
#include <vector>

#include "reports/report.h"
#include "reports/view/views.h"
#include "sim/base/letters.h"

namespace foreshard {

enum class SlowCause : std::uint8_t { kCompute, kExposed, kPeers, kHost, kStream };
constexpr const char* to_string(SlowCause cause) {
  return word_at(cause, {"compute", "exposed_communication", "waiting_for_peers", "late_host", "stream_dependency"});
}

struct SlowPart {
  SlowCause cause = SlowCause::kCompute;
  EventKind kind = EventKind::kForward;  // of the row that ran, else the collective, else what
                                         // was held up
  std::string where;                     // unit; "" of the whole step
  Time predicted, measured;
  Time difference() const { return measured - predicted; }
};

struct SlowStep {
  Time predicted, measured;
  std::vector<SlowPart> parts;  // those that differ, by difference, what costs most first
};

// Both of one graph.
SlowStep why_slower(const EventGraph& graph, const Timeline& predicted, const Timeline& measured);

std::string slower_text(const SlowStep& step, std::string_view what, Color color);
Json to_json(const SlowStep& step);

}
