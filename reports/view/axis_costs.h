// What each communicator of a step costs: an axis of the mesh, or several that share one.
#pragma once

#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/simulate/forecast.h"

namespace foreshard {

struct AxisCost {
  std::string name;  // of the communicator: "shard", "tp", "ep"
  GroupShape group;
  std::int64_t nodes = 0;  // that a group spans (domains of NVLink where those join nodes); 0: the
                           // group is none of the cluster's
  int rows = 0;
  Bytes bytes;   // whole unsharded buffers, as of a row
  Time busy;     // sum of [arrive, end]
  Time exposed;  // of it, in gaps of the compute stream that are put down to it
  Time hidden() const { return busy - exposed; }
};

// In the order of their first rows. Empty where a step has no collectives.
std::vector<AxisCost> axis_costs(const Forecast& forecast, const Cluster& cluster);

// "inside a node", "4 nodes"
std::string wire_words(const AxisCost& cost);
Json to_json(const std::vector<AxisCost>& costs);

}  // namespace foreshard
