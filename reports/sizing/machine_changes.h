// One property of a machine another: what a buyer may ask for.
#pragma once

#include <string>
#include <vector>

#include "reports/report.h"
#include "sim/base/json.h"
#include "sim/cost/cost_model.h"
#include "sim/simulate/forecast.h"

namespace foreshard {

struct MachineChange {
  const char* property;             // "node.nic_rate": a key of a cluster file
  const char* change;               // "x2"
  bool (*matters)(const Cluster&);  // whether the cluster has such a property
  void (*apply)(Cluster&);
};

// Faster and slower networks, links, memory and arithmetic, in the order of a cluster file's keys.
const std::vector<MachineChange>& machine_changes();

// The cost model of the machine that is changed so. Its calibration stays: what was fitted relative
// to a peak or a rate moves with it.
CostModel changed_costs(const MachineChange& change, const CostModel& costs, const Plan& plan);

// The same plan on every machine that is changed in one property: {property, change, seconds, fits,
// margin_bytes} of each that matters.
Json changes_json(const Forecast& forecast, const CostModel& costs);

// The same plan on a cluster whose network is another in one thing: a wire twice as wide, repaired ports, a second
// rail, ranks placed otherwise, a node moved to another leaf, the nodes that hold the others back left out.

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

}
