// One job under several runtimes, side by side: time, memory, what travels, which events differ and
// what that costs, and what became of the plan.
#pragma once

#include <string>
#include <vector>

#include "reports/view/views.h"
#include "sim/spec/plan_translate.h"

namespace foreshard {

struct RuntimeForecast {
  std::string name;  // "zero3@0.19"
  Forecast forecast;
  Report report;
  std::vector<LedgerEntry> ledger;  // against the first of the list
  std::string refused;              // why there is no forecast; "": there is one
};

// Bytes that each rank sends in a step, by collective: of a buffer of B bytes over n ranks
// B (n-1)/n, all-reduces twice that (ring algorithms; NCCL tests' bus bandwidth counts the same).
struct WireBytes {
  std::string collective;  // "all_gather"
  std::int64_t calls = 0;
  double bytes = 0;
};
std::vector<WireBytes> wire_bytes(const EventGraph& graph);

// At least one. The first is what the others are held against.
std::string runtimes_text(const std::vector<RuntimeForecast>& forecasts, Color color);
Json runtimes_json(const std::vector<RuntimeForecast>& forecasts);

}  // namespace foreshard
