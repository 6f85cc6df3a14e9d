// One property of a machine another: what a buyer may ask for.
#pragma once

#include <vector>

#include "reports/report.h"
#include "sim/base/json.h"
#include "sim/cost/cost_model.h"

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

}  // namespace foreshard
