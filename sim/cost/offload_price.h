// What ZeRO's offload costs beside the device: copies over PCIe, the optimizer on the host's cores,
// files on NVMe. No calibration profile measures them, so every price is assumed.
#pragma once

#include <optional>

#include "sim/base/units.h"
#include "sim/graph/event_graph.h"
#include "sim/spec/cluster.h"

namespace foreshard {

// Seconds that the row takes, all ranks of a node at work at once; none for other kinds of rows.
std::optional<double> offload_seconds(EventKind kind, Bytes bytes, const Cluster& cluster);

}  // namespace foreshard
