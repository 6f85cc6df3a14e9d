// The forecast of a captured step: priced, simulated and summarized like any other, with the host's
// time as the capture has it and memory as the allocator said it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reports/capture/lint.h"
#include "reports/report.h"
#include "sim/base/json.h"
#include "sim/cost/cost_model.h"
#include "sim/graph/capture/capture.h"
#include "sim/graph/capture/capture_graph.h"
#include "sim/simulate/forecast.h"

namespace foreshard {

// What the step launches under one name.
struct KernelTime {
  std::string name;
  std::int64_t launches = 0;
  Bytes bytes;
  double seconds = 0;    // as forecast, each kernel by itself
  double share = 0;      // of all kernels' time
  bool is_known = true;  // false: no row of the kernel table; priced by the bytes that it is given
};

struct CapturedForecast {
  std::size_t shown = 0;              // which of the captures it is of
  std::vector<std::int64_t> ranks;    // of all captures
  std::vector<std::int64_t> missing;  // ranks that they wait for and nobody captured
  CapturedGraph captured;             // its graph has moved into `forecast`
  Forecast forecast;
  Report report;
  double host_seconds = 0;          // of the steady step, on the machine that captured it
  std::vector<KernelTime> kernels;  // by share
  std::vector<LintFinding> lint;
  std::vector<std::string> faults;        // of the whole run, as foreshard-null said them
  std::vector<std::string> blind_reads;   // where the steady step's host read what nobody knows
  std::vector<std::string> level_counts;  // where counts of unknown numbers are taken as equal
};

// Of several captures, ranks of a pipeline, the step is of all together and memory of the fullest.
// `plan` says runtime and version for what they decide beside the graph: NCCL's version, the kernel
// of attention. Throws Error(kInvalidInput) where a capture is of another number of ranks than the
// cluster or holds no whole step, where two are of one rank, or their transfers do not meet.
CapturedForecast forecast_captures(const std::vector<Capture>& captures, const Plan& plan, const CostModel& costs);

// What of a report's plan a capture knows.
Plan captured_plan(const Capture& capture, const Cluster& cluster);

Json capture_json(const Capture& capture, const CapturedForecast& made);
// Some lines behind the report's.
std::string capture_text(const Capture& capture, const CapturedForecast& made);

}
