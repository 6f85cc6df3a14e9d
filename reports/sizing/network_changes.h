// The same plan on a cluster whose network is another in one thing: a wire twice as wide, repaired
// ports, a second rail, ranks placed otherwise, a node moved to another leaf, the nodes that hold
// the others back left out.
#pragma once

#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/cost/cost_model.h"
#include "sim/simulate/forecast.h"

namespace foreshard {

struct NetworkChange {
  std::string what;    // "leaf1 - spine twice as wide"
  double seconds = 0;  // of a step
  std::int64_t gpus = 0;
  double tokens_per_s = 0;  // of all GPUs: what nodes left out are judged by
};

// By falling tokens_per_s, the first being the plan as it is (what: ""). Of a cluster with routes
// of its own; empty for others.
std::vector<NetworkChange> network_changes(const Forecast& forecast, const CostModel& costs);

Json to_json(const std::vector<NetworkChange>& changes);
std::vector<std::string> network_change_lines(const std::vector<NetworkChange>& changes);

}  // namespace foreshard
